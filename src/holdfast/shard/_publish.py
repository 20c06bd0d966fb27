"""The one decision of a flush: SSTable, cursor and next generation in one shard manifest."""

from __future__ import annotations

from dataclasses import replace

from holdfast.errors import CorruptError, PoisonedError
from holdfast.formats._shard_manifest import ShardManifest, SsTable
from holdfast.wal import ShardManifests


def publish(
    manifests: ShardManifests, epoch: int, table: SsTable, position: int, first: int
) -> ShardManifest:
    """Make an SSTable part of its shard; safe to repeat.

    Args:
        manifests: the shard's.
        epoch: the writer's.
        table: the SSTable, complete and durable.
        position: the last log entry whose rows it holds.
        first: the first one.

    Raises:
        FencedError: another writer owns the shard.
        PoisonedError: `flush_log` flushed a part of these rows, or numbered them otherwise.
        CorruptError: an earlier generation is missing.
        CommitUnknownError: the outcome could not be learnt; publish again.
        Other errors: as for `ShardManifests.update`.
    """

    def change(current: ShardManifest) -> ShardManifest:
        taken = current.current_generation > table.generation
        if taken and current.replay_after >= position:
            return current  # it was us, unanswered; or `flush_log` has flushed all of it
        if taken or current.replay_after >= first:
            raise PoisonedError(
                "somebody flushed a part of this writer's log, so its generations are numbered "
                "anew: open the shard again, nothing is lost",
                shard_id=current.shard_id,
                generation=table.generation,
                replay_after=current.replay_after,
            )
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
