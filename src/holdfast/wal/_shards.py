"""Which shards a table has."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.formats import MEM_WAL_FOLDER, shard_of
from holdfast.storage import ObjectStore, SupportsFolders, SupportsLocalFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """How a shard is doing, as its manifest and a listing of its log tell.

    Attributes:
        shard_id: the shard.
        epoch: the newest owner's number; 0 before the first claim.
        flushed: rows at positions up to this one are in SSTables.
        newest: the last position that has an entry.
        log_entries: entries beyond the flushed position, fences included.
        log_bytes: their size.
        generations: SSTables that are not drained yet.
        generation_rows: the rows in them.
        sealed: True when nobody may claim it again.
    """

    shard_id: str
    epoch: int
    flushed: int
    newest: int
    log_entries: int
    log_bytes: int
    generations: int
    generation_rows: int
    sealed: bool


def list_shards(store: ObjectStore) -> list[str]:
    """Return the ids of the shards that a table's store shows, sorted.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    if isinstance(store, SupportsFolders):  # a log may have very many entries
        names = store.folders(MEM_WAL_FOLDER)
        paths = [f"{MEM_WAL_FOLDER}/{name}/x" for name in names if _has_objects(store, name)]
    else:
        paths = [info.path for info in store.list(MEM_WAL_FOLDER)]
    found = {shard_of(path) for path in paths}
    return sorted(shard_id for shard_id in found if shard_id is not None)


def _has_objects(store: ObjectStore, name: str) -> bool:
    """Tell whether a folder is more than a name: a disk keeps those that were emptied."""
    if not isinstance(store, SupportsLocalFiles):
        return True
    folder = f"{MEM_WAL_FOLDER}/{name}"
    return bool(store.list(f"{folder}/manifest") or store.list(folder))
