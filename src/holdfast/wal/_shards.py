"""Which shards a table has. Reads only."""

from __future__ import annotations

from holdfast.formats._wal_names import MEM_WAL_FOLDER, shard_of
from holdfast.storage import ObjectStore


def list_shards(store: ObjectStore) -> list[str]:
    """Return the ids of the shards that a table's store shows, sorted.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    found = {shard_of(info.path) for info in store.list(MEM_WAL_FOLDER)}
    return sorted(shard_id for shard_id in found if shard_id is not None)
