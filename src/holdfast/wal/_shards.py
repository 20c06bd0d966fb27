"""Which shards a table has, and taking over those that stock writers made."""

from __future__ import annotations

from holdfast.arbiter import RecordedDecisions
from holdfast.formats._wal_names import (
    MEM_WAL_FOLDER,
    entry_name,
    position_of,
    shard_manifest_name,
    shard_of,
    shard_version_of,
)
from holdfast.storage import ObjectStore


def list_shards(store: ObjectStore) -> list[str]:
    """Return the ids of the shards that a table's store shows, sorted.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    found = {shard_of(info.path) for info in store.list(MEM_WAL_FOLDER)}
    return sorted(shard_id for shard_id in found if shard_id is not None)


def accept_shards(store: ObjectStore, arbiter: RecordedDecisions) -> None:
    """Take what a table's shards hold as decided; for adopting a table to a commit store.

    Stop stock writers first: they do not ask the commit store, and cannot be fenced.

    Raises:
        UnavailableError, PermissionDeniedError: a store did not do its part; safe to repeat.
    """
    paths = [info.path for info in store.list(MEM_WAL_FOLDER)]
    for shard_id in sorted({shard for path in paths if (shard := shard_of(path)) is not None}):
        mine = [path for path in paths if shard_of(path) == shard_id]
        position = max((n for path in mine if (n := position_of(path)) is not None), default=0)
        version = max((n for path in mine if (n := shard_version_of(path)) is not None), default=0)
        for last in (entry_name(shard_id, position), shard_manifest_name(shard_id, version)):
            if last.number and arbiter.newest(last.series) is None:
                arbiter.accept(last.series, last.number)
