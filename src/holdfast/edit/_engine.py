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
    After,
    Committed,
    Committer,
    Edit,
    Versions,
    in_parallel,
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

_COMMITS = 200  # how often one that nobody disturbed is put on top of what came meanwhile
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
    if tries < 1:
        raise InvalidInputError("tries is at least 1", tries=tries)
    return _Applied(versions, change, txn, over_log=over_log, upon=upon).run(tries)


class _Applied:
    """One change on its way into the table."""

    def __init__(
        self,
        versions: Versions,
        change: RowChange,
        txn: TxnLike | None,
        *,
        over_log: bool,
        upon: lance.LanceDataset | None,
    ) -> None:
        self._versions = versions
        self._change = change
        self._given = txn
        self._txn = None if txn is None else parse_txn(txn)
        self._over_log = over_log
        self._upon = upon
        self._committer = Committer(versions)
        self._after: After | None = {}
        self._obstacle: Obstacle | None = None
        self._tries = 0
        self._begun = versions.core.clock.elapsed()

    def run(self, tries: int) -> ChangeResult:
        """Apply it."""
        if self._txn is not None:
            first = open_dataset(self._versions)
            ledger = self._versions.ledger
            if ledger.holds(first.config(), self._txn):
                return self._result(int(first.version), None)
            ledger.check_room(first.config(), self._txn)
        self._merge_waiting()
        for _ in range(tries if self._upon is None else 1):
            self._tries += 1
            base = self._upon or open_dataset(self._versions)
            computed = self._change.compute(base)
            if computed.is_empty and self._txn is None:
                return self._result(int(base.version), computed.counts)
            done = self._commit(base, computed)
            if done is not None:
                return self._result(done.version, computed.counts if done.applied else None)
        raise self._conflict()

    def _merge_waiting(self) -> None:
        # What waits now counts; what is put from now on is concurrent, and may win.
        if self._over_log:
            self._after = {}
        elif self._upon is None:
            self._after = merge_waiting(self._versions)
        else:
            self._after = merged_in(self._versions, self._upon)

    def _commit(self, base: lance.LanceDataset, computed: Computed) -> Committed | None:
        """Make it the next version; None when it must be computed anew."""
        seen = base
        files = _DeletionFiles(computed.gone)
        for _ in range(_COMMITS):
            newest = open_dataset(self._versions)
            self._obstacle = self._look(seen, newest, computed)
            if self._obstacle is not None:
                return None
            seen = newest
            operation = files.operation(newest, computed.new)
            if operation is None:
                self._obstacle = Obstacle("it changed the same rows", int(newest.version))
                return None
            try:
                return self._committer.commit(
                    operation,
                    read_version=int(newest.version),
                    txn=self._txn,
                    edit=only_after(int(newest.version)),
                    begun_on=min(int(base.version), computed.begun_on or int(base.version)),
                    after=self._after,
                )
            except LogWaitsError:
                self._obstacle = Obstacle("a log came, in which rows wait", int(newest.version))
                self._merge_waiting()
                return None
            except StaleWorkError:
                self._change.renew()
                self._obstacle = Obstacle("vacuum ran twice meanwhile", int(newest.version))
                return None
            except ConflictError:
                continue  # somebody was faster: does it still fit?
        raise ConflictError(
            "others were faster each time, although none of them changed these rows: try again",
            table=self._versions.core.location,
            commits=_COMMITS,
        )

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
        body = self._versions.core.arbiter.read(version_name(version))
        if body is None:
            return "Unknown"
        transaction = transaction_of(self._versions.core.store, VersionFacts(body))
        return "Unknown" if transaction is None else transaction.operation

    def _conflict(self) -> ConflictError:
        obstacle = self._obstacle or Obstacle("", 0)
        return RowConflictError(
            "other writers were first each time, and what they did is about the same rows; "
            "nothing was changed: try again",
            table=self._versions.core.location,
            tries=self._tries,
            version=obstacle.version,
            operation=obstacle.operation or None,
            reason=obstacle.reason,
        )

    def _result(self, version: int, counts: Counts | None) -> ChangeResult:
        told = counts or Counts()
        return ChangeResult(
            version=version,
            rows=told.updated + told.inserted + told.deleted,
            updated=told.updated,
            inserted=told.inserted,
            deleted=told.deleted,
            txn=self._given,
            applied=counts is not None,
            tries=self._tries,
            elapsed=self._versions.core.clock.elapsed() - self._begun,
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
