"""`repair_shard`: the way out when a generation of a shard cannot be read.

Reads, flushes of the same keys, and merges fail for ever on one SSTable with a value that nobody
can read, or with a lost file. Planned first, done with `confirm`:

1. Each generation that waits is read. What cannot be read is found, row by row.
2. The files of a damaged SSTable are copied to `_holdfast/quarantine`.
3. The rows that can be read are written as another SSTable, in a folder named for a generation
   that is still to come: `vacuum` takes no such folder, however old.
4. The shard's manifest is decided with the new folder in the old one's place, unless that
   number has come meanwhile or the old one is not named any more.

| stopped after | others see                           | who goes on                               |
|---------------|--------------------------------------|-------------------------------------------|
| 1, 2          | the same errors                      | `repair_shard`, once more                 |
| 3             | the same errors; a folder unnamed    | the same; `vacuum` takes the folder when  |
|               |                                      | its number has come                       |
| 4             | the rows that can be read            | nothing is left to do                     |

Nobody is fenced: a live writer collides, reads the manifest again, and goes on. A merge that read
the old SSTable whole has the same rows and more; one that could not read it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.commits import Versions, open_dataset
from holdfast.errors import ConflictError, CorruptError, FencedError, NotFoundError
from holdfast.formats import (
    TOMBSTONE,
    Field,
    ShardManifest,
    SsTable,
    fit_array,
    quarantine_folder,
    sstable_path,
)
from holdfast.shard import Base, read_log_base, read_merged, sstables_of
from holdfast.upkeep._merge_rows import columns_in
from holdfast.upkeep._sstable_exam import SstableDamage, SstableExam, SstableWound
from holdfast.wal import ShardManifests

_TRIES = 16
_AHEAD = 16  # so many flushes of a live writer do not disturb a repair


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairShardResult:
    """What a repair of a shard's generations found, and did.

    Attributes:
        version: the newest version of the base table.
        rows: how many rows cannot be read; generations that do not tell are not counted.
        txn: None; a repeat changes nothing more.
        applied: whether they were replaced; without `confirm` this is a plan.
        elapsed: seconds.
        shard_id: the shard.
        wounds: the generations that cannot be read whole.
    """

    version: int
    rows: int
    txn: None = None
    applied: bool
    elapsed: float
    shard_id: str
    wounds: tuple[SstableWound, ...]


def repair_shard(versions: Versions, shard_id: str, *, confirm: bool) -> RepairShardResult:
    """Replace what cannot be read of a shard's generations; see `Table.repair_shard`."""
    begun = versions.core.clock.elapsed()
    for _ in range(_TRIES):
        exams = _examine(versions, shard_id)
        wounds = tuple(wound for _, wound in exams)
        done = _replace(versions, shard_id, exams) if confirm and exams else wounds
        if done is not None:
            return RepairShardResult(
                version=int(open_dataset(versions).version),
                rows=sum(one.rows or 0 for one in done),
                applied=confirm and bool(done),
                elapsed=versions.core.clock.elapsed() - begun,
                shard_id=shard_id,
                wounds=done,
            )
    raise ConflictError("the shard's writers were faster each time: try again", shard_id=shard_id)


def explain_unreadable(versions: Versions, shard_id: str, sstables: Sequence[SsTable]) -> None:
    """Say what to do if one of these generations cannot be read whole.

    Raises:
        CorruptError: one cannot.
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    for table in sstables:
        wound = SstableExam(
            versions.core.store, sstables_of(versions.core), shard_id, table
        ).wound()
        if wound is not None and wound.damage is not SstableDamage.BESIDE:
            raise CorruptError(
                "a generation holds rows that nobody can read: bring its files back from a "
                f"backup, or give them up with `holdfast shard repair URI {shard_id}`",
                shard_id=shard_id,
                generation=table.generation,
                damage=wound.damage.value,
                rows=wound.rows,
            )


def _examine(versions: Versions, shard_id: str) -> list[tuple[SstableExam, SstableWound]]:
    """Return the generations that wait and cannot be read whole."""
    damaged = _look(versions, shard_id)
    while damaged:  # what is gone meanwhile was merged and collected: it is not damaged
        now = {one.path for one in _latest(versions, shard_id).sstables}
        if all(exam.table.path in now for exam, _ in damaged):
            break
        damaged = _look(versions, shard_id)
    return damaged


def _look(versions: Versions, shard_id: str) -> list[tuple[SstableExam, SstableWound]]:
    manifest = _latest(versions, shard_id)
    merged = read_merged(versions.core, open_dataset(versions)).get(shard_id, 0)
    exams = [
        SstableExam(versions.core.store, sstables_of(versions.core), shard_id, table)
        for table in manifest.sstables
        if table.generation > merged
    ]
    looked = ((exam, exam.wound()) for exam in exams)
    return [(exam, wound) for exam, wound in looked if wound is not None]


def _latest(versions: Versions, shard_id: str) -> ShardManifest:
    manifest = ShardManifests(versions.core, shard_id).latest()
    if manifest is None:
        raise NotFoundError("there is no such shard", shard_id=shard_id)
    return manifest


def _replace(
    versions: Versions, shard_id: str, exams: Sequence[tuple[SstableExam, SstableWound]]
) -> tuple[SstableWound, ...] | None:
    """Put other SSTables in the places of damaged ones; None to begin anew."""
    number = _latest(versions, shard_id).current_generation + _AHEAD
    healed, made = [], {}
    for exam, wound in exams:
        healed.append(replace(wound, quarantine=_keep(versions, exam)))
        made[exam.table.path] = _write(versions, exam, number)
    return tuple(healed) if _decide(versions, shard_id, number, made) else None


def _keep(versions: Versions, exam: SstableExam) -> str | None:
    """Copy the files of an SSTable to where nobody deletes them; return where."""
    folder = sstable_path(exam.shard_id, exam.table.path)
    kept = quarantine_folder(exam.shard_id, exam.table.generation, versions.core.ids.token())
    paths = [info.path for info in versions.core.store.list(folder)]
    for path in paths:
        versions.core.store.copy(path, kept + path.removeprefix(folder))
    return kept if paths else None


def _write(versions: Versions, exam: SstableExam, number: int) -> SsTable:
    dataset = open_dataset(versions)
    base = read_log_base(versions.core, dataset)
    theirs = exam.dataset
    source = {} if theirs is None else columns_in(dataset, theirs)
    rows = [_fit_rows(batch, base, source) for batch in exam.rows]
    table = pa.Table.from_batches(rows, schema=base.storage_schema)
    written = sstables_of(versions.core).write(base, exam.shard_id, number, table)
    return replace(written, generation=exam.table.generation)


def _fit_rows(
    batch: pa.RecordBatch, base: Base, source: Mapping[str, tuple[Field, Field]]
) -> pa.RecordBatch:
    """Return rows of an SSTable in the table's columns of today, as a merge would."""
    columns = [
        fit_array(batch.column(source[field.name][1].name), source[field.name][1], field)
        if field.name in source
        else pa.nulls(batch.num_rows, field.field.type)
        for field in base.fields
    ]
    marked = TOMBSTONE in batch.schema.names
    deleted = batch.column(TOMBSTONE) if marked else pa.array([False] * batch.num_rows, pa.bool_())
    return pa.RecordBatch.from_arrays([*columns, deleted], schema=base.storage_schema)


def _decide(versions: Versions, shard_id: str, number: int, made: dict[str, SsTable]) -> bool:
    """Decide the manifest with the new folders; False when their number has come meanwhile."""
    overtaken = False

    def change(now: ShardManifest) -> ShardManifest:
        nonlocal overtaken
        # An unnamed folder whose number was taken may be collected: see `_vacuum_log`.
        overtaken = now.current_generation > number
        if overtaken:
            return now
        return replace(now, sstables=tuple(made.get(one.path, one) for one in now.sstables))

    manifests = ShardManifests(versions.core, shard_id)
    for _ in range(_TRIES):
        try:
            manifests.update(_latest(versions, shard_id).writer_epoch, change)
        except FencedError:
            continue  # a new owner; the same change fits its manifest, too
        return not overtaken
    return False
