"""The one decision of a flush: SSTable, cursor and next generation in one shard manifest.

Others may flush this writer's log, too: `flush_log` takes the next generation and moves the
cursor, with the epoch that is stored. A writer notices when it publishes:

| the manifest has            | so                             | the writer                     |
|-----------------------------|--------------------------------|--------------------------------|
| our number, cursor before   | nobody was here                | decides                        |
| a cursor at or past our end | it was us, or all is flushed   | lets go of the rows            |
| a cursor inside our rows    | a part is flushed              | tries with the entries beyond  |
| a higher number             | our number is taken            | tries with the next free one   |

An SSTable under a number that is taken is garbage, which `vacuum` takes. Rows that are flushed
must go: published a second time they would hide what happened to their keys since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.errors import CorruptError
from holdfast.formats import ShardManifest, SsTable
from holdfast.memtable import MemTable
from holdfast.shard._tables import Generation, Tables
from holdfast.wal import ShardManifests

Write = Callable[[MemTable], SsTable]
"""Writes a MemTable as an SSTable of its number; durable, and seen by nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSstable:
    """What became of one frozen MemTable.

    Attributes:
        position: the flushed cursor afterwards; it covers the MemTable.
        written: its SSTable, or what of it was left; None when others flushed all of it.
        overtaken: whether somebody else flushed entries of this writer, so that those it
            still holds have other numbers now.
    """

    position: int
    written: SsTable | None
    overtaken: bool


def publish_oldest(
    tables: Tables, oldest: Generation, manifests: ShardManifests, epoch: int, write: Write
) -> PublishedSstable:
    """Make the oldest frozen MemTable part of its shard, and let go of it; safe to repeat.

    Raises:
        FencedError: another writer owns the shard.
        CorruptError: an earlier generation is missing.
        CommitUnknownError: the outcome could not be learnt; publish again.
        Other errors: of `write`, and as for `ShardManifests.update`.
    """
    overtaken = False
    while True:
        # Kept over repeats: a flush whose manifest was not decided has its SSTable already.
        if oldest.written is None:
            oldest.written = write(oldest.table)
        written, table = oldest.written, oldest.table
        manifest = publish(manifests, epoch, written, table.last_position, table.first_position)
        # Rows leave memory only now, with a manifest that names them: a reader finds them in one of
        # the two places at any moment, never in none.
        if not tables.drop_covered(oldest, manifest.replay_after):
            tables.drop_flushed(oldest)
            overtaken |= tables.number(manifest.current_generation)
            named = any(one.path == written.path for one in manifest.sstables)
            return PublishedSstable(
                position=manifest.replay_after,
                written=written if named else None,
                overtaken=overtaken,
            )
        overtaken = True
        # Somebody took the number. Generations are merged in their order, so what is left here gets
        # later ones, and an SSTable that was written under the old number is written again.
        tables.number(manifest.current_generation)
        oldest.written = None


def publish(
    manifests: ShardManifests, epoch: int, table: SsTable, position: int, first: int
) -> ShardManifest:
    """Add an SSTable to its shard unless somebody flushed these entries; safe to repeat.

    Args:
        manifests: the shard's.
        epoch: the writer's.
        table: the SSTable, complete and durable.
        position: the last log entry whose rows it holds.
        first: the first one.

    Returns:
        The shard's manifest. If its cursor is before `position`, nothing was decided: entries
        are flushed, or the number is taken.

    Raises:
        As for `publish_oldest`.
    """

    def change(current: ShardManifest) -> ShardManifest:
        if current.replay_after >= first:
            return current  # it was us, unanswered; or somebody flushed a part of it, or all
        # The number is taken by a flush of others: renumber and write again.
        if current.current_generation > table.generation:
            return current
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
