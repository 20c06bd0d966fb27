"""The fenced log: one writer per shard, the one before it locked out, nothing acknowledged lost.

    appender = WalAppender.claim(core, shard_id)             # writes: an epoch and a fence
    for entry in appender.replay(): ...                      # (flushed cursor, own fence]
    appender.append(batch)                                   # one decision: position N
    appender.manifests.update(appender.epoch, publish)       # after a flush

Readers use `WalTailer`; `collect_log` removes what was flushed. Everything that writers must
agree on is decided by the table's arbiter, so a shard on an object store that ignores
conditions is as safe as on S3, as long as all its writers are Holdfast's: stock writers do not
ask the commit store, and cannot be fenced there.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names
from holdfast.formats import Entry, EntryDraft, ShardManifest, SsTable, log_schema

if TYPE_CHECKING:
    from holdfast.wal._appender import Appended, WalAppender
    from holdfast.wal._boundary import RETENTION, store_time
    from holdfast.wal._collect import LogCollection, carry_out, collect_log
    from holdfast.wal._covered import find_covered
    from holdfast.wal._log import Chain, Log
    from holdfast.wal._manifests import ShardManifests
    from holdfast.wal._memory import LogMemory, remember
    from holdfast.wal._repair import Repair, repair_log
    from holdfast.wal._shards import ShardState, read_shard_states
    from holdfast.wal._slots import Slot, Slots, Taken, append_at
    from holdfast.wal._tailer import WalTailer

__all__ = [
    "RETENTION",
    "Appended",
    "Chain",
    "Entry",
    "EntryDraft",
    "Log",
    "LogCollection",
    "LogMemory",
    "Repair",
    "ShardManifest",
    "ShardManifests",
    "ShardState",
    "Slot",
    "Slots",
    "SsTable",
    "Taken",
    "WalAppender",
    "WalTailer",
    "append_at",
    "carry_out",
    "collect_log",
    "find_covered",
    "log_schema",
    "read_shard_states",
    "remember",
    "repair_log",
    "store_time",
]

__getattr__ = load_names(
    __name__,
    {
        "_appender": "Appended WalAppender",
        "_boundary": "RETENTION store_time",
        "_collect": "LogCollection carry_out collect_log",
        "_covered": "find_covered",
        "_log": "Chain Log",
        "_manifests": "ShardManifests",
        "_memory": "LogMemory remember",
        "_repair": "Repair repair_log",
        "_shards": "ShardState read_shard_states",
        "_slots": "Slot Slots Taken append_at",
        "_tailer": "WalTailer",
    },
)
