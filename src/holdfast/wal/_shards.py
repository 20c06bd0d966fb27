"""How the shards of a table are doing."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core import TableCore
from holdfast.wal._log import Log
from holdfast.wal._manifests import ShardManifests


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


def read_shard_states(core: TableCore) -> list[ShardState]:
    """Return how each shard is doing; reads only, and no log entry: fences nobody.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
        CorruptError: a shard's manifest cannot be read.
    """
    states = (_read_state(core, shard_id) for shard_id in core.shard_ids())
    return [state for state in states if state is not None]


def _read_state(core: TableCore, shard_id: str) -> ShardState | None:
    manifest = ShardManifests(core, shard_id).latest()
    if manifest is None:
        return None
    listed = Log(core, shard_id).list_entries()
    beyond = [info for position, info in listed.items() if position > manifest.replay_after]
    return ShardState(
        shard_id=shard_id,
        epoch=manifest.writer_epoch,
        flushed=manifest.replay_after,
        newest=max(listed, default=manifest.replay_after),
        log_entries=len(beyond),
        log_bytes=sum(info.size for info in beyond),
        generations=len(manifest.sstables),
        generation_rows=sum(sstable.physical_rows or 0 for sstable in manifest.sstables),
        sealed=manifest.sealed,
    )
