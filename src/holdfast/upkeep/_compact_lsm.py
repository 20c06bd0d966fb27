"""`compact_lsm`: generations of a shard's log into the base table, each exactly once.

1. Read the shard's manifest, then the newest base version with the generations it has merged.
2. Take the oldest unmerged generations, in order. Write their rows, and deletion files for the
   rows they replace, under new names.
3. Decide them together with their marker as *the version right after the one that was read*,
   or not at all. When others were faster, look what they did: if it touches neither these keys
   nor these fragments, try again on top; otherwise begin anew.
4. Drain the shard's manifest of what is merged.

| stopped after | readers see                            | who goes on                       |
|---------------|----------------------------------------|-----------------------------------|
| 1             | the generation                         | anyone: begins anew               |
| 2             | the generation; unseen files           | anyone; `vacuum` takes the files  |
| 3             | the base; the generation is passed over| anyone: drains                    |
| 4             | the base                               | `vacuum` takes the SSTable        |

The marker is checked in the very bytes that are decided, so a second merge of a generation
changes nothing, whoever makes it and whenever. A generation is never merged before an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import lance

from holdfast._clock import Clock
from holdfast.commits import (
    Committed,
    Edit,
    LanceOperation,
    LancePlan,
    Versions,
    make_version,
    open_dataset,
)
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    InvalidInputError,
    LogLostError,
    NextStep,
    NotFoundError,
    PermissionDeniedError,
    StaleWorkError,
    UnavailableError,
)
from holdfast.events import EventKind, emit
from holdfast.formats import Head, MergedAlreadyError, SsTable, mark_merged
from holdfast.shard import Base, read_log_base, read_merged, sstables_of
from holdfast.upkeep._drain import drain
from holdfast.upkeep._merge_rows import Marked, RowChanges
from holdfast.upkeep._repair_shard import explain_unreadable
from holdfast.wal import ShardManifests

ROWS_AT_ONCE = 1_000_000
"""Generations are merged together up to so many rows; a larger one is merged alone."""
TRIES = 20
"""How often a merge begins anew when others change the same rows meanwhile."""

_LOOKS = 8

Fragments: TypeAlias = Any
"""`lance.fragment.FragmentMetadata` objects, which ship no types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMerge:
    """What was merged of one shard.

    Attributes:
        shard_id: the shard.
        generations: those that this call merged, in order.
        merged: the newest generation in the base table afterwards; 0 for none.
        drained: how many were taken out of the shard's manifest.
        written: rows that were written to the base.
        replaced: base rows that they replaced or deleted.
        tries: how often changes were computed; above one per commit, others were faster.
    """

    shard_id: str
    generations: tuple[int, ...] = ()
    merged: int = 0
    drained: int = 0
    written: int = 0
    replaced: int = 0
    tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLsmResult:
    """What one merge did.

    Attributes:
        version: the newest version of the base table afterwards.
        rows: how many rows were written to the base.
        txn: None; the marker in the table makes repeats harmless.
        applied: whether this call merged anything.
        elapsed: seconds.
        shards: what was done, shard by shard.
    """

    version: int
    rows: int
    txn: None = None
    applied: bool
    elapsed: float
    shards: tuple[ShardMerge, ...] = field(default=())


class OvertakenError(ConflictError):
    """Another version came between the one that was read and the one to be made."""


class _SameRowsError(ConflictError):
    """What came meanwhile is about the same keys or fragments: the merge begins anew."""

    next_step = NextStep.REBUILD


class Pass(Protocol):
    """One merge of some generations, under way."""

    def commit(self) -> tuple[int, int] | None:
        """Decide it; return rows written and replaced, or None to begin anew."""
        ...


class BaseTable(Protocol):
    """The base table that generations are merged into."""

    def merged_generation(self, shard_id: str) -> int:
        """Return the newest generation of a shard in the newest version; 0 for none."""
        ...

    def begin(self, shard_id: str, sstables: Sequence[SsTable]) -> Pass | None:
        """Write the changes of generations; None if the next one is another by now."""
        ...


def merge_shard(
    table: BaseTable, manifests: ShardManifests, shard_id: str, *, rows: int = ROWS_AT_ONCE
) -> ShardMerge:
    """Merge all generations of a shard that are there now, and drain what is merged.

    Safe to repeat, and beside writers, other mergers, readers and `vacuum`.

    Raises:
        ConflictError: others changed the same rows each time first; try again.
        CommitUnknownError: the outcome could not be learnt; repeat.
        LogLostError: a generation is missing: the table was restored to an older version.
        Other errors: of the stores; repeat.
    """
    done: list[int] = []
    written = replaced = tries = 0
    while True:
        merged, waiting = _waiting_sstables(table, manifests, shard_id)
        part = together(waiting, rows)
        if not part:
            break
        if tries >= TRIES + len(done):
            raise ConflictError(
                "others changed the same rows each time first: try again later",
                shard_id=shard_id,
                tries=tries,
            )
        tries += 1
        counts = _merge_once(table, shard_id, part)
        if counts is not None:
            done += [one.generation for one in part]
            written, replaced = written + counts[0], replaced + counts[1]
    return ShardMerge(
        shard_id=shard_id,
        generations=tuple(done),
        merged=merged,
        drained=drain(manifests, merged),
        written=written,
        replaced=replaced,
        tries=tries,
    )


def _merge_once(table: BaseTable, shard_id: str, part: Sequence[SsTable]) -> tuple[int, int] | None:
    try:
        begun = table.begin(shard_id, part)
        return None if begun is None else begun.commit()
    except MergedAlreadyError:
        return None  # another merger was faster: look again


def _waiting_sstables(
    table: BaseTable, manifests: ShardManifests, shard_id: str
) -> tuple[int, list[SsTable]]:
    """Return the newest merged generation and those that wait, in order and without a hole.

    Raises:
        LogLostError: there is a hole, however often one looks.
    """
    for _ in range(_LOOKS):
        current = manifests.latest()
        if current is None:
            return 0, []
        # After the manifest: draining follows merging, so what the manifest lacks is in this
        # version.
        merged = table.merged_generation(shard_id)
        tables = {one.generation: one for one in current.sstables if one.generation > merged}
        expected = list(range(merged + 1, current.current_generation))
        if sorted(tables) == expected:
            return merged, [tables[number] for number in sorted(tables)]
    raise LogLostError(
        "a generation is neither merged nor in its shard's manifest: the table was restored to "
        "an older version past Holdfast; merging newer ones would lose it. Say what becomes of "
        "the rows that wait: `holdfast wal reset URI --keep` or `--discard`",
        shard_id=shard_id,
        merged=merged,
        generations=sorted(tables),
    )


def together(waiting: Sequence[SsTable], rows: int) -> list[SsTable]:
    """Return the oldest generations that are merged in one commit: up to so many rows."""
    part: list[SsTable] = []
    room = rows
    for one in waiting:
        size = rows if one.physical_rows is None else one.physical_rows
        # At least one, however large: a generation cannot be divided, since the marker counts whole
        # ones.
        if part and size > room:
            break
        part.append(one)
        room -= size
    return part


def only_after(version: int, shard_id: str, sstables: Sequence[SsTable]) -> Edit:
    """Return the edit of a merge: its marker, in the version right after one that was read."""
    marked = {shard_id: sstables[-1].generation}
    before = {shard_id: sstables[0].generation - 1}

    def edit(manifest: bytes) -> bytes:
        now = Head(manifest).version
        if now != version + 1:
            # The rows to replace were looked for in one version; in a later one they may lie
            # elsewhere, so the changes are computed anew.
            raise OvertakenError("the table has changed since", read=version, now=now - 1)
        return mark_merged(manifest, marked, after=before)

    return edit


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRun:
    """Generations to merge into one version.

    Attributes:
        dataset: the version.
        changes: what they change in it.
        shard_id: their shard.
        sstables: the generations, oldest first.
    """

    dataset: lance.LanceDataset
    changes: RowChanges
    shard_id: str
    sstables: Sequence[SsTable]


class LanceBase:
    """The base table itself."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def merged_generation(self, shard_id: str) -> int:
        """Return the newest merged generation of the newest version."""
        return read_merged(self._versions.core, open_dataset(self._versions)).get(shard_id, 0)

    def begin(self, shard_id: str, sstables: Sequence[SsTable]) -> LancePass | None:
        """Compute the changes on the newest version."""
        try:
            work = self.work(shard_id, sstables)
            if work is None:
                return None
            numbers = range(len(sstables))
            new = [part for number in numbers for part in work.changes.write(number)]
            return self.ready(work, new, work.changes.mark())
        except HoldfastError as error:
            # Another merger finished, and a collection took the files from under our hands.
            if self.is_merged(shard_id, sstables):
                return None
            if isinstance(error, UnavailableError | PermissionDeniedError):
                raise
            explain_unreadable(self._versions, shard_id, sstables)
            raise

    def is_merged(self, shard_id: str, sstables: Sequence[SsTable]) -> bool:
        """Tell whether somebody else merged these meanwhile; then an error is no news.

        What is merged is drained and collected, and whoever reads it then fails anywhere, with
        any error: an SSTable that is gone, or that can be read no further.
        """
        try:
            return self.merged_generation(shard_id) >= sstables[0].generation
        except HoldfastError:
            return False

    def work(self, shard_id: str, sstables: Sequence[SsTable]) -> MergeRun | None:
        """Return what to do on the newest version; None if its next generation is another.

        Raises:
            InvalidInputError: the table has stable row ids, or no log.
            NotFoundError: an SSTable is gone that nobody merged.
        """
        dataset = open_dataset(self._versions)
        base = read_log_base(self._versions.core, dataset)
        if _next_of(base, shard_id) != sstables[0].generation:
            return None
        if dataset.has_stable_row_ids:
            raise InvalidInputError(
                "tables with stable row ids cannot take generations yet: use pylance's "
                "merge_insert with mark_sstables_as_compacted on `Table.dataset()`"
            )
        opened = [sstables_of(self._versions.core).open(shard_id, one.path) for one in sstables]
        changes = RowChanges(dataset, opened)
        return MergeRun(dataset=dataset, changes=changes, shard_id=shard_id, sstables=sstables)

    def ready(self, work: MergeRun, new: Sequence[Fragments], marked: Marked) -> LancePass:
        """Return changes, written here or by tasks, ready to be decided."""
        return LancePass(self._versions, work, new, marked)


def _next_of(base: Base, shard_id: str) -> int:
    compacted = base.details.compacted if base.details is not None else {}
    return compacted.get(shard_id, 0) + 1


class LancePass(LancePlan):
    """Changes of some generations, written and not yet decided.

    It is built once, by who made it: what must be computed anew begins with another look at the
    shard, since another merger may have merged the generations by then.
    """

    tries = 20  # how often one that nobody disturbed is put on top of what came meanwhile

    def __init__(
        self, versions: Versions, work: MergeRun, new: Sequence[Fragments], marked: Marked
    ) -> None:
        super().__init__(versions, begun_on=int(work.dataset.version), after={})
        self.work = work
        self.new = new
        self.marked = marked

    def commit(self) -> tuple[int, int] | None:
        """Decide rows and marker; None when others touched the same keys or fragments.

        Raises:
            MergedAlreadyError: another merger was faster.
            CommitUnknownError: the outcome could not be learnt.
        """
        try:
            make_version(self)
        except MergedAlreadyError:
            raise
        except ConflictError:
            return None
        return sum(int(part.physical_rows) for part in self.new), self.marked.rows

    def attempt(self) -> Committed:
        """Look what came since, and put the changes on top as the very next version."""
        # Before the turn, not in it: others need not wait while we look for keys.
        newest = open_dataset(self.versions)
        if not self._fits(newest):
            raise _SameRowsError("others touched the same rows", version=int(newest.version))
        self._read_version = int(newest.version)
        self.terms["edit"] = only_after(self._read_version, self.work.shard_id, self.work.sstables)
        return super().attempt()

    def operation(self, newest: lance.LanceDataset) -> tuple[LanceOperation, int]:
        """Return the changes, upon the version that was looked at; `only_after` refuses others."""
        del newest
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=list(self.marked.removed),
            updated_fragments=list(self.marked.updated),
            new_fragments=list(self.new),
        )
        return operation, self._read_version

    def judge(self, error: ConflictError) -> NextStep:
        """Look again whether it fits, unless it does not or its files may be gone."""
        if isinstance(error, MergedAlreadyError):
            return NextStep.NEVER
        # Of a mere loss Lance may say "rebuild", and it need not: the next look tells.
        rebuilds = isinstance(error, StaleWorkError | _SameRowsError)
        return NextStep.REBUILD if rebuilds else NextStep.AGAIN

    def _fits(self, newest: lance.LanceDataset) -> bool:
        """Tell whether a version differs from the one read only where it does not matter."""
        if newest.version == self.work.dataset.version:
            return True
        merged = read_merged(self.versions.core, newest).get(self.work.shard_id, 0)
        if merged + 1 != self.work.sstables[0].generation:
            raise MergedAlreadyError("merged already", shard_id=self.work.shard_id, merged=merged)
        if newest.lance_schema != self.work.dataset.lance_schema:
            return False
        before = {part.fragment_id: part.metadata for part in self.work.dataset.get_fragments()}
        after = {part.fragment_id: part for part in newest.get_fragments()}
        changed = [part for number, part in after.items() if before.get(number) != part.metadata]
        differ = {part.fragment_id for part in changed} | (set(before) - set(after))
        if differ & self.marked.touched:
            return False
        return not self.work.changes.holds_keys_of(newest, changed)


Merge = Callable[[str, ShardManifests], ShardMerge]


def compact_lsm(
    versions: Versions,
    *,
    shards: Sequence[str] | None = None,
    rows: int = ROWS_AT_ONCE,
    merge: Merge | None = None,
) -> CompactLsmResult:
    """Merge what the table's shards have flushed into the base table; see `Table.compact_lsm`."""
    if rows < 1:
        raise InvalidInputError("rows_at_once is at least 1", rows_at_once=rows)
    clock: Clock = versions.core.clock
    begun = clock.elapsed()
    known = versions.core.shard_ids()
    chosen = known if shards is None else list(shards)
    missing = sorted(set(chosen) - set(known))
    if missing:
        raise NotFoundError("there is no such shard", shard_id=missing[0])
    table = LanceBase(versions)

    def merge_here(shard_id: str, manifests: ShardManifests) -> ShardMerge:
        return merge_shard(table, manifests, shard_id, rows=rows)

    merges = []
    for shard_id in chosen:
        done = (merge or merge_here)(shard_id, ShardManifests(versions.core, shard_id))
        merges.append(done)
        if done.generations or done.drained:
            emit(
                EventKind.MERGED,
                shard_id=shard_id,
                generation=done.merged,
                rows=done.written,
                replaced=done.replaced,
                drained=done.drained,
            )
    return CompactLsmResult(
        version=int(open_dataset(versions).version),
        rows=sum(one.written for one in merges),
        applied=any(one.generations for one in merges),
        elapsed=clock.elapsed() - begun,
        shards=tuple(merges),
    )
