"""The walk from one cursor to a later one: which steps lie between, and where it ends.

The state that a cursor names is base version v with, above it, each shard's log up to position
p. Two moves lead on:

* **entries of a shard**: p grows. What they change is told by the state before them.
* **the next version**: v grows by one. If it has merged a generation, the shard's entries up to
  the end of that generation are read first; then the merge itself moves rows and changes none.

Versions go first, and entries only as far as the next version needs them; at the newest version
the rest of the logs follows. So the same two cursors always have the same changes between them,
whoever walks and whenever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.changes._cursor import ChangeCursor
from holdfast.changes._history import History, VersionLook
from holdfast.changes._steps import Compared, Inserted, Logged, Step
from holdfast.errors import InvalidInputError
from holdfast.formats import SnapshotRecord
from holdfast.read import SnapshotPart, drop_empty_shards, parts_above

# What changes no row. A `Merge` adds columns: rows get new fields, and that is no change of theirs.
_QUIET = frozenset(
    {
        "Clone",
        "CreateIndex",
        "Merge",
        "Project",
        "ReserveFragments",
        "Rewrite",
        "UpdateBases",
        "UpdateConfig",
        "UpdateMemWalState",
    }
)
_MERGES = frozenset({"Update", "UpdateMemWalState"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one walk may hold; at least one step is always made.

    Attributes:
        rows: about so many rows; a version that is compared counts with the rows it reads.
        files: so many fragments.
        entries: so many log entries.
    """

    rows: int | None = None
    files: int | None = None
    entries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTarget:
    """Where a walk ends at the latest.

    Attributes:
        version: the last base version.
        files: fragments of the next one, and entries before them.
        log: positions of shards; None for what `version` needs.
        begin: the walk ends inside the first snapshot, behind `files` of its parts.
    """

    version: int
    files: int = 0
    log: Mapping[str, int] | None = None
    begin: bool = False

    @classmethod
    def of(cls, cursor: ChangeCursor) -> ChangeTarget:
        """Return the target that a cursor is."""
        return cls(
            version=cursor.version,
            files=cursor.files,
            log=cursor.log,
            begin=cursor.begin is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """The steps between two cursors."""

    steps: tuple[Step, ...]
    end: ChangeCursor

    def measure(self) -> dict[str, int]:
        """Return how many log entries, files and, about, bytes the steps read."""
        return {
            "entries": sum(one.entries for one in self.steps if isinstance(one, Logged)),
            "files": sum(one.files for one in self.steps),
            "bytes": sum(one.size for one in self.steps),
        }


def plan_changes(
    history: History, start: ChangeCursor, target: ChangeTarget, limits: Limits | None = None
) -> ChangePlan:
    """Return the steps from a cursor to a target, or as far as the limits reach.

    Raises:
        InvalidInputError: the target lies before the cursor.
        CollectedError: something that lies between was collected.
        LogLostError: a version does not say how far the log is merged.
    """
    walk = _Walk(history, start, limits or Limits())
    walk.run(target)
    return ChangePlan(steps=tuple(walk.steps), end=walk.cursor)


class _Walk:
    def __init__(self, history: History, start: ChangeCursor, limits: Limits) -> None:
        self.cursor = start
        self.steps: list[Step] = []
        self._history = history
        self._rows, self._files, self._entries = limits.rows, limits.files, limits.entries
        self._fresh = start.freshness == "latest"
        self._moved = False  # at least one step is made, whatever the limits say

    def run(self, target: ChangeTarget) -> None:
        """Go to the target, or until the limits are reached."""
        if self.cursor.begin is not None and not self._begin(self.cursor.begin, target):
            return
        if target.begin or target.version < self.cursor.version:
            raise InvalidInputError(
                "the end lies before the start", start=self.cursor.version, end=target.version
            )
        while self.cursor.version < target.version:
            following = self._history.look(self.cursor.version + 1)
            # The log before the version that merged it: its entries tell each change in order, the
            # version only what came of them.
            if not self._read_logs(self._needed_positions(following)) or not self._version(
                following
            ):
                return
        if target.log is not None and not self._read_logs(target.log):
            return
        if target.files > self.cursor.files:
            self._version(self._history.look(self.cursor.version + 1), target.files)

    def _begin(self, record: SnapshotRecord, target: ChangeTarget) -> bool:
        """Read the first snapshot; tell whether it is read to its end."""
        look = self._history.look(record.base_version)
        parts = parts_above(drop_empty_shards(record))
        known = self.cursor.files
        for part in parts[known : target.files if target.begin else None]:
            if self._is_full():
                return False
            self._add(Inserted(part=part, version=look.version, time=look.time), files=1)
            self.cursor = replace(self.cursor, files=self.cursor.files + 1)
        base = SnapshotPart(record=drop_empty_shards(record), fragments=tuple(look.fragments))
        until = target.files - len(parts) if target.begin else None
        done = self.cursor.files - len(parts)
        if not self._insert(base, look, done, until) or target.begin:
            return False
        log = {shard.shard_id: shard.last_position for shard in record.shards}
        self.cursor = replace(self.cursor, begin=None, files=0, log=log)
        return True

    def _insert(self, part: SnapshotPart, look: VersionLook, done: int, until: int | None) -> bool:
        """Add rows of fragments, one fragment after the other; tell whether all are read."""
        fragments = part.fragments or ()
        end = done
        for fragment in fragments[done:until]:
            if self._is_full():
                break
            self._spend(files=1, rows=look.fragments[fragment].rows)
            end += 1
        if end > done:
            chosen = fragments[done:end]
            sizes = tuple(look.fragments[one].size for one in chosen)
            part = replace(part, fragments=chosen)
            step = Inserted(part=part, version=look.version, time=look.time, sizes=sizes)
            self.steps.append(step)
            self.cursor = replace(self.cursor, files=self.cursor.files + end - done)
        return end == len(fragments)

    def _needed_positions(self, following: VersionLook) -> dict[str, int]:
        """Return how far logs must be read before a version is: what it merged is in them."""
        if not self._fresh:
            return {}
        before = self._history.look(self.cursor.version).merged
        return {
            shard_id: self._history.covered_position(shard_id, generation)
            for shard_id, generation in following.merged.items()
            if before.get(shard_id, 0) != generation
        }

    def _read_logs(self, through: Mapping[str, int]) -> bool:
        """Read entries of shards up to positions; tell whether the limits let all of them in."""
        if not self._fresh:
            return True
        at = {one: self._history.position(self.cursor, one) for one in through}
        ends = {one: max(at[one], end) for one, end in through.items()}
        allowed = self._share_entries({one: ends[one] - at[one] for one in through})
        whole = True
        for shard_id, end in ends.items():
            first, last = at[shard_id], min(end, at[shard_id] + allowed[shard_id])
            if last > first and self._is_full():
                last = first
            if last > first:
                last = self._entries_of(shard_id, first, last)
            whole = whole and last == end
            self.cursor = replace(self.cursor, log={**self.cursor.log, shard_id: last})
        return whole

    def _entries_of(self, shard_id: str, after: int, through: int) -> int:
        rows = 0
        if self._rows is not None:
            through, rows = self._history.count_rows(shard_id, after, through, self._rows)
        state = self._history.state(self.cursor.version, shard_id, after)
        size = self._history.size_of(shard_id, through - after)
        step = Logged(state=state, shard_id=shard_id, after=after, through=through, size=size)
        self._add(step, entries=through - after, rows=rows)
        return through

    def _share_entries(self, waiting: Mapping[str, int]) -> Mapping[str, int]:
        """Share the entries that are left evenly, so that no shard starves behind a busy one."""
        left = self._entries
        if left is None:
            return waiting
        given = dict.fromkeys(waiting, 0)
        open_ = {one for one, count in waiting.items() if count}
        while left > 0 and open_:
            share = max(1, left // len(open_))
            for one in sorted(open_):
                more = min(share, left, waiting[one] - given[one])
                given[one], left = given[one] + more, left - more
            open_ = {one for one in open_ if given[one] < waiting[one]}
        return given

    def _version(self, look: VersionLook, until: int | None = None) -> bool:
        """Take the next version, or `until` fragments of it; tell whether it is read whole."""
        steps = self._steps_to(look)
        if isinstance(steps, SnapshotPart):
            whole = self._insert(steps, look, self.cursor.files, until)
            if not whole or until is not None:
                return False
        elif steps is not None:
            # A comparison is made whole or not at all: half of it could show an update without its
            # other half.
            if self._is_full():
                return False
            self._add(steps, files=_files_of(steps), rows=_rows_of(steps, look))
        self.cursor = replace(self.cursor, version=look.version, files=0)
        return True

    def _steps_to(self, look: VersionLook) -> Step | SnapshotPart | None:
        """Return what leads to the next version: rows that were added, a comparison, or nothing."""
        before = self._history.look(self.cursor.version)
        if self._fresh and before.version and dict(look.merged) != dict(before.merged):
            # What was merged was told by the log already. A restore or an overwrite moves the
            # marker, too, and there the rows must be compared.
            return None if look.operation in _MERGES else self._compare_all(before, look)
        if look.operation in _QUIET and before.version:
            return None
        removed, added, masked = _differences(before, look)
        if not (removed or added or masked):
            return None
        above = self._history.above(look.version, self.cursor.log) if self._hides(look) else ()
        after = SnapshotRecord(base_version=look.version, shards=above)
        if not removed and not masked:
            return SnapshotPart(record=after, fragments=added)
        return Compared(
            before=SnapshotRecord(base_version=before.version, shards=above),
            after=after,
            removed=removed,
            added=added,
            masked=masked,
            version=look.version,
            time=look.time,
            size=_size(before, (*removed, *masked)) + _size(look, added),
        )

    def _compare_all(self, before: VersionLook, look: VersionLook) -> Compared:
        """Return the comparison of two whole states: rows of the log were superseded."""
        return Compared(
            before=self._state(before.version),
            after=self._state(look.version),
            removed=None,
            added=None,
            masked=(),
            version=look.version,
            time=look.time,
            size=_size(before, before.fragments) + _size(look, look.fragments),
        )

    def _state(self, version: int) -> SnapshotRecord:
        above = self._history.above(version, self.cursor.log)
        return SnapshotRecord(base_version=version, shards=above)

    def _hides(self, look: VersionLook) -> bool:
        return self._fresh and look.keyed

    def _is_full(self) -> bool:
        limits = (self._rows, self._files, self._entries)
        return self._moved and any(left is not None and left <= 0 for left in limits)

    def _add(self, step: Step, *, files: int = 0, entries: int = 0, rows: int = 0) -> None:
        self.steps.append(step)
        self._spend(files=files, entries=entries, rows=rows)

    def _spend(self, *, files: int = 0, entries: int = 0, rows: int = 0) -> None:
        self._moved = True
        self._files = None if self._files is None else self._files - files
        self._entries = None if self._entries is None else self._entries - entries
        self._rows = None if self._rows is None else self._rows - rows


def _differences(
    before: VersionLook, after: VersionLook
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the fragments that went, that came, and that only lost or regained rows."""
    old, new = before.fragments, after.fragments
    same = [one for one in old if one in new and old[one].files == new[one].files]
    removed = tuple(one for one in old if one not in set(same))
    added = tuple(one for one in new if one not in set(same))
    masked = tuple(one for one in same if old[one].deletions != new[one].deletions)
    return removed, added, masked


def _files_of(step: Step) -> int:
    if not isinstance(step, Compared):
        return 1
    return max(1, len(step.removed or ()) + len(step.added or ()) + len(step.masked))


def _rows_of(step: Step, look: VersionLook) -> int:
    chosen: Sequence[int] = tuple(look.fragments)
    if isinstance(step, Compared) and step.added is not None:
        chosen = (*step.added, *step.masked)
    return sum(look.fragments[one].rows for one in chosen if one in look.fragments)


def _size(look: VersionLook, fragments: Iterable[int]) -> int:
    return sum(look.fragments[one].size for one in fragments)
