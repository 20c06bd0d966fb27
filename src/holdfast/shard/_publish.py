"""The one decision of a flush: SSTable, cursor and next generation in one shard manifest."""

from __future__ import annotations

from dataclasses import replace

from holdfast.errors import CorruptError
from holdfast.formats._shard_manifest import ShardManifest, SsTable
from holdfast.wal import ShardManifests


def publish(manifests: ShardManifests, epoch: int, table: SsTable, position: int) -> ShardManifest:
    """Make an SSTable part of its shard; safe to repeat.

    Args:
        manifests: the shard's.
        epoch: the writer's.
        table: the SSTable, complete and durable.
        position: the last log entry whose rows it holds.

    Raises:
        FencedError: another writer owns the shard.
        CorruptError: an earlier generation is missing.
        CommitUnknownError: the outcome could not be learnt; publish again.
        Other errors: as for `ShardManifests.update`.
    """

    def change(current: ShardManifest) -> ShardManifest:
        if current.current_generation > table.generation:
            return current  # under one epoch nobody else publishes: it was us, unanswered
        if current.current_generation < table.generation:
            raise CorruptError(
                "a generation cannot be flushed before the one ahead of it",
                shard_id=current.shard_id,
                generation=table.generation,
                expected=current.current_generation,
            )
        return replace(
            current,
            sstables=(*current.sstables, table),
            replay_after=position,
            last_seen=max(current.last_seen, position),
            current_generation=table.generation + 1,
        )

    return manifests.update(epoch, change)
