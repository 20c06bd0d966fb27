"""Rows that wait in logs and generations: who changes the base past them is told in time.

A generation wins over the base row of its key, whenever that row was written. So a change of
the base by key is refused while rows wait. This guards against a mistake; it is no lock: rows
that are put after the look are not seen by it.
"""

from __future__ import annotations

import logging

from holdfast.commits._history import transaction_of
from holdfast.commits._versions import Edit
from holdfast.errors import ConflictError
from holdfast.formats._keys import key_columns
from holdfast.formats._mem_wal_details import MEM_WAL_INDEX, read_details
from holdfast.formats._transaction import VersionFacts
from holdfast.upkeep._ground import LogGround

log = logging.getLogger("holdfast.upkeep")

_SHOWN = 3


def waiting_shards(ground: LogGround) -> list[str]:
    """Return the shards that have rows which are not in the base table.

    Raises:
        WalGapError, CorruptError: a log is damaged.
        UnavailableError, PermissionDeniedError: a store did not tell.
    """
    dataset = ground.dataset()
    if not any(one.name == MEM_WAL_INDEX for one in dataset.describe_indices()):
        return []
    merged = ground.merged(dataset)
    return [one for one in ground.shard_ids() if _waits(ground, one, merged.get(one, 0))]


def _waits(ground: LogGround, shard_id: str, merged: int) -> bool:
    manifest = ground.manifests(shard_id).latest()
    if manifest is None:
        return False
    if any(one.generation > merged for one in manifest.sstables):
        return True
    entries = ground.tailer(shard_id).entries(after=manifest.replay_after)
    return next(iter(entries), None) is not None


def refuse_waiting(ground: LogGround) -> None:
    """Refuse to change keyed rows of the base while rows wait.

    Raises:
        ConflictError: some do; the message says what to do.
        Other errors: as for `waiting_shards`.
    """
    if not key_columns(ground.dataset().schema):
        return
    found = waiting_shards(ground)
    if found:
        raise ConflictError(
            "rows wait in the table's log, and would win over this change once they are merged: "
            "run flush_log and compact_lsm first, or pass over_log=True if no key is in both",
            shards=", ".join(found[:_SHOWN]),
            waiting=len(found),
        )


def guard_of(ground: LogGround) -> Edit:
    """Return what refuses an update of keyed rows by Lance itself while rows wait.

    One that merges generations, and says so by the marker, is what they wait for.
    """

    def check(manifest: bytes) -> bytes:
        details = read_details(manifest)
        if details is None:
            return manifest
        transaction = transaction_of(ground.store, VersionFacts(manifest))
        if transaction is None or transaction.operation != "Update":
            return manifest
        if dict(details.compacted) == ground.merged(ground.dataset()):
            try:
                refuse_waiting(ground)
            except ConflictError as error:
                log.warning("an update was refused: %s", error)  # Lance tells less
                raise
        return manifest

    return check
