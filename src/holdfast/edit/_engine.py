"""`apply_change`: compute a change of rows, and make it the next version, or nothing.

1. Merge what waits in the table's log, so that no older row comes back over this change.
2. Read the newest version, N. Compute the change; write new rows under new names.
3. Look at the versions after N, if there are any. If one of them changed the same rows, or
   brought rows that this change would have looked at, begin anew at 2.
4. Write deletion files for the rows that go, upon the newest version, M. Decide all of it as
   *the version right after M*; when somebody was faster, go on at 3.

| stopped after | readers see    | who goes on                                          |
|---------------|----------------|------------------------------------------------------|
| 1             | the merged log | the caller, who repeats the call                     |
| 2, 3          | version M      | the caller; `vacuum` takes the files                 |
| 4             | the change     | nobody needs to; repeated under its `txn`: no change |

Two rules keep this serial. The number of the version is checked in the very bytes that are
decided, so nothing comes between the last look and the decision. And rows are compared, not
fragments: two changes of one fragment both go through when they take different rows of it, by
deletion files that hold both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lance
import numpy as np
from lance.fragment import FragmentMetadata

from holdfast.commits import (
    Committed,
    Edit,
    LanceOperation,
    LancePlan,
    Versions,
    in_parallel,
    make_version,
    open_dataset,
    transaction_of,
    translate_errors,
)
from holdfast.edit._computed import Computed, Fragment, RowChange
from holdfast.edit._results import ChangeResult, Counts
from holdfast.errors import (
    ConflictError,
    InvalidInputError,
    LogWaitsError,
    NextStep,
    RowConflictError,
    StaleWorkError,
)
from holdfast.formats import Head, VersionFacts, version_name
from holdfast.txn import TxnLike, parse_txn
from holdfast.upkeep import merge_waiting, merged_in

TRIES = 5
"""How often a change begins anew when other writers change the same rows first."""

# Operations after which fragments hold what they held, but for deleted rows and new fragments.
# A restore may bring deleted rows back; of one that is not known anything may be true.
_KEEPS_ROWS = {
    "Append",
    "CreateIndex",
    "DataReplacement",
    "Delete",
    "Merge",
    "Project",
    "ReserveFragments",
    "Rewrite",
    "Update",
    "UpdateBases",
    "UpdateConfig",
    "UpdateMemWalState",
}


class _RowsOvertakenError(ConflictError):
    """Another version came between the one that was looked at and the one to be made."""

    next_step = NextStep.REBUILD


class _ObstacleError(ConflictError):
    """What others did meanwhile is about the same rows: the change must be computed anew."""

    next_step = NextStep.REBUILD


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a change that was computed does not fit any more.

    Attributes:
        reason: in words.
        version: the version that was found.
        operation: what made it, if that is known.
    """

    reason: str
    version: int
    operation: str = ""


def apply_change(
    versions: Versions,
    change: RowChange,
    *,
    txn: TxnLike | None = None,
    tries: int = TRIES,
    over_log: bool = False,
    upon: lance.LanceDataset | None = None,
) -> ChangeResult:
    """Compute a change and commit it, once per transaction id.

    Args:
        versions: of the table.
        change: what to do.
        txn: makes a repeat harmless.
        tries: how often to begin.
        over_log: change rows although others wait in the table's log.
        upon: the one version that the change is computed on, if it cannot be computed anew:
            nothing waited in the log beyond what this version holds. Then there is one try.

    Raises:
        RowConflictError: other writers changed the same rows first, `tries` times.
        ConflictError: others were faster each time, although none of them changed these rows.
        LogWaitsError: rows wait in the table's log that cannot be merged now.
        LogLostError: the table does not say how far its log is merged.
        CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
        InvalidInputError: what `change` refuses, or a malformed txn.
        HoldfastError: a store did not do its part; nothing was changed.
    """
    given: object = tries
    if not isinstance(given, int) or given < 1:
        raise InvalidInputError("tries is at least 1", tries=repr(given))
    plan = RowChangePlan(versions, change, txn, over_log=over_log, upon=upon)
    plan.builds = tries if upon is None else 1
    return plan.run()


class RowChangePlan(LancePlan):
    """One change on its way into the table.

    It is built by computing it, and tried by looking at what came since: rows that others changed
    are an obstacle, versions about other rows are not.
    """

    tries = 200  # how often one that nobody disturbed is put on top of what came meanwhile

    def __init__(
        self,
        versions: Versions,
        change: RowChange,
        txn: TxnLike | None,
        *,
        over_log: bool,
        upon: lance.LanceDataset | None,
    ) -> None:
        super().__init__(versions, [] if txn is None else [parse_txn(txn)])
        self._change = change
        self._given = txn
        self._over_log = over_log
        self._upon = upon
        self._obstacle: Obstacle | None = None
        self._counts: Counts | None = None
        self._builds = 0
        self._begun = versions.core.clock.elapsed()

    def run(self) -> ChangeResult:
        """Apply it."""
        if self.txns:
            first = open_dataset(self.versions)
            ledger = self.versions.ledger
            if ledger.holds(first.config(), self.txns[0]):
                return self._result(Committed(int(first.version), applied=False))
            ledger.check_room(first.config(), self.txns[0])
        self._merge_waiting()
        return self._result(make_version(self))

    def build(self) -> Committed | None:
        """Compute the change; nothing is committed if there is none, but for its transaction."""
        self._builds += 1
        self._obstacle = None
        base = self._upon or open_dataset(self.versions)
        computed = self._change.compute(base)
        version = int(base.version)
        self._counts = computed.counts
        if computed.is_empty and not self.txns:
            return Committed(version, applied=True)
        self._computed = computed
        self._seen = base
        self._files = _DeletionFiles(computed.gone)
        self.terms["begun_on"] = min(version, computed.begun_on or version)
        return None

    def attempt(self) -> Committed:
        """Look what came since, and put the change on top as the very next version."""
        # Before the turn, not in it: others need not wait while we look and write files.
        newest = open_dataset(self.versions)
        obstacle = self._look(self._seen, newest, self._computed)
        if obstacle is not None:
            raise self._stopped_by(obstacle)
        self._seen = newest
        operation = self._files.operation(newest, self._computed.new)
        if operation is None:
            raise self._stopped_by(Obstacle("it changed the same rows", int(newest.version)))
        self._built = operation
        self.terms["edit"] = only_after(int(newest.version))
        return super().attempt()

    def operation(self, newest: lance.LanceDataset) -> tuple[LanceOperation, int]:
        """Return the change, upon the version that was looked at; `only_after` refuses others."""
        del newest
        return self._built, int(self._seen.version)

    def judge(self, error: ConflictError) -> NextStep:
        """Compute it anew if its rows or files are concerned; else look whether it still fits."""
        if isinstance(error, LogWaitsError):
            self._stopped_by(Obstacle("a log came, in which rows wait", int(self._seen.version)))
            self._merge_waiting()
            return NextStep.REBUILD
        if isinstance(error, StaleWorkError):
            self._change.renew()
            self._stopped_by(Obstacle("vacuum ran twice meanwhile", int(self._seen.version)))
            return NextStep.REBUILD
        return NextStep.REBUILD if isinstance(error, _ObstacleError) else NextStep.AGAIN

    def give_up(self, error: ConflictError) -> ConflictError:
        """Say who was in the way: those who changed the same rows, or just faster ones."""
        if self._obstacle is not None:
            return self._conflict(self._obstacle)
        return ConflictError(
            "others were faster each time, although none of them changed these rows: try again",
            table=self.versions.core.location,
            commits=self.tries,
            reason=error.message,
        )

    def _stopped_by(self, obstacle: Obstacle) -> _ObstacleError:
        self._obstacle = obstacle
        return _ObstacleError(obstacle.reason, version=obstacle.version)

    def _merge_waiting(self) -> None:
        # What waits now counts; what is put from now on is concurrent, and may win.
        if self._over_log:
            self.terms["after"] = {}
        elif self._upon is None:
            self.terms["after"] = merge_waiting(self.versions)
        else:
            self.terms["after"] = merged_in(self.versions, self._upon)

    def _look(
        self, seen: lance.LanceDataset, newest: lance.LanceDataset, computed: Computed
    ) -> Obstacle | None:
        """Return what keeps a change that fitted one version from fitting a later one."""
        if newest.version == seen.version:
            return None
        version = int(newest.version)
        operations = self._operations(int(seen.version), version)
        last = operations[-1] if operations else ""
        if not set(operations) <= _KEEPS_ROWS:
            return Obstacle("it replaced the table's rows", version, last)
        if newest.lance_schema != seen.lance_schema:
            return Obstacle("it changed the table's columns", version, last)
        before = {part.fragment_id: part.metadata for part in seen.get_fragments()}
        after = {part.fragment_id: part for part in newest.get_fragments()}
        touched = set(computed.gone)
        changed = {
            number: part
            for number, part in after.items()
            if number not in before or not _has_same_files(before[number], part.metadata)
        }
        if touched & (set(changed) | (set(before) - set(after))):
            return Obstacle("it rewrote fragments with the same rows", version, last)
        if changed and self._change.concerns(newest, list(changed.values())):
            return Obstacle("it brought rows that this change is about", version, last)
        return None

    def _operations(self, seen: int, newest: int) -> list[str]:
        """Return what made the versions after one, as far as that is known."""
        return list(in_parallel(self._operation, range(seen + 1, newest + 1)))

    def _operation(self, version: int) -> str:
        body = self.versions.core.arbiter.read(version_name(version))
        if body is None:
            return "Unknown"
        transaction = transaction_of(self.versions.core.store, VersionFacts(body))
        return "Unknown" if transaction is None else transaction.operation

    def _conflict(self, obstacle: Obstacle) -> ConflictError:
        return RowConflictError(
            "other writers were first each time, and what they did is about the same rows; "
            "nothing was changed: try again",
            table=self.versions.core.location,
            tries=self._builds,
            version=obstacle.version,
            operation=obstacle.operation or None,
            reason=obstacle.reason,
        )

    def _result(self, done: Committed) -> ChangeResult:
        counts = self._counts if done.applied else None
        told = counts or Counts()
        return ChangeResult(
            version=done.version,
            rows=told.updated + told.inserted + told.deleted,
            updated=told.updated,
            inserted=told.inserted,
            deleted=told.deleted,
            txn=self._given,
            applied=counts is not None,
            tries=self._builds,
            elapsed=self.versions.core.clock.elapsed() - self._begun,
        )


@dataclass(slots=True)
class _DeletionFiles:
    """The deletion files of one change, written anew only where others deleted rows meanwhile."""

    gone: Mapping[int, np.ndarray]
    _written: dict[int, tuple[Any, FragmentMetadata | None]] = field(default_factory=dict)

    def operation(
        self, newest: lance.LanceDataset, new: Sequence[FragmentMetadata]
    ) -> lance.LanceOperation.BaseOperation | None:
        """Return the change as Lance's operation upon a version; None if a row is gone already."""
        with translate_errors(newest.uri):
            fitting = list(in_parallel(lambda number: self._write(newest, number), self.gone))
        if not all(fitting):
            return None
        left = {number: self._written[number][1] for number in self.gone}
        removed = [number for number, part in left.items() if part is None]
        updated = [part for part in left.values() if part is not None]
        if not new and left:
            return lance.LanceOperation.Delete(
                updated_fragments=updated, deleted_fragment_ids=removed, predicate=""
            )
        return lance.LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=updated, new_fragments=list(new)
        )

    def _write(self, newest: lance.LanceDataset, number: int) -> bool:
        """Write the file of one fragment; False if one of its rows is gone already."""
        fragment: Fragment = newest.get_fragment(number)
        before, offsets = fragment.metadata, self.gone[number]
        kept = self._written.get(number)
        if kept is not None and kept[0] == before.deletion_file:
            return True
        left = fragment.delete_rows(offsets.tolist())
        there = int(before.physical_rows) - int(fragment.count_rows())
        after = int(before.physical_rows) if left is None else int(left.num_deletions)
        self._written[number] = before.deletion_file, left
        return after == there + len(offsets)


def only_after(seen: int) -> Edit:
    """Return what refuses a manifest that is not of the version right after `seen`."""

    def check(manifest: bytes) -> bytes:
        version = Head(manifest).version
        if version != seen + 1:
            raise _RowsOvertakenError("the table has changed since", read=seen, now=version - 1)
        return manifest

    return check


def _has_same_files(one: FragmentMetadata, two: FragmentMetadata) -> bool:
    """Tell whether two states of a fragment differ at most in which rows are deleted."""
    return _without_deletions(one) == _without_deletions(two)


def _without_deletions(part: FragmentMetadata) -> dict[str, Any]:
    # Any: JSON, as Lance writes a fragment
    return {key: value for key, value in part.to_json().items() if key != "deletion_file"}
