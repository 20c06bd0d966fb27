"""`Writes`: what a table commits for its users: appends, fragments, operations, overwrites.

Each is applied once under its transaction id. Rows that wait in the log of a table with a key
are merged before rows are appended, so that older rows do not come back over newer ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from holdfast.commits._appends import Append, Appender, Prepared
from holdfast.commits._columns import columns_of
from holdfast.commits._committer import LanceOperation, OperationPlan, ReplacingPlan, Terms
from holdfast.commits._data import Data, as_reader, check_stream, read_any
from holdfast.commits._dataset import open_dataset
from holdfast.commits._joined import join_rows
from holdfast.commits._lance import translate_errors
from holdfast.commits._log_rules import After
from holdfast.commits._loop import CommitPlan, make_version
from holdfast.commits._operation import Committed
from holdfast.commits._results import CommitResult
from holdfast.commits._versions import Edit, Versions
from holdfast.errors import (
    ConflictError,
    ErrorKind,
    HoldfastError,
    InvalidInputError,
    LogWaitsError,
    NextStep,
)
from holdfast.formats import add_key, key_columns
from holdfast.txn import TxnLike, parse_txn

Rows: TypeAlias = "pa.Table | list[dict[str, Any]]"


class Writes:
    """Commits to one table. Threads may share it.

    Args:
        versions: of the table.
        merge_waiting: merges what waits in the table's log, and tells how far it is merged.
    """

    def __init__(
        self, versions: Versions, merge_waiting: Callable[[Versions], After | None]
    ) -> None:
        self._versions = versions
        self._core = versions.core
        self._merge_waiting = merge_waiting
        self.appender = Appender(versions)
        self.has_log = False  # whether an append found rows that waited

    def append(self, data: Data, txn: TxnLike | None = None) -> CommitResult:
        """Add rows; see `Table.append`."""
        begun = self._core.clock.elapsed()
        parsed = None if txn is None else parse_txn(txn)
        self._core.check_writable()
        prepared = self.appender.prepare()
        ledger = self._versions.ledger
        if parsed is not None and ledger.may_hold(prepared.config, parsed):
            prepared = self.appender.prepare(exact=True)
            if ledger.holds(prepared.config, parsed):
                return self._result(prepared.version, 0, txn, applied=False, begun=begun)
        if parsed is not None:
            ledger.check_room(prepared.config, parsed)
        renewed: list[Prepared] = []

        def schema_now() -> pa.Schema:
            renewed.append(self.appender.prepare(exact=True))
            return renewed[0].table.schema

        # What rows are written for is remembered: others may have changed the columns since.
        reader = as_reader(data, prepared.table.schema, schema_now)
        prepared = renewed[0] if renewed else prepared
        with translate_errors(self._core.location):
            fragments = write_fragments(reader, prepared.table, mode="append")
        return self._commit(prepared.append(fragments, parsed), txn, begun)

    def append_all(
        self, items: Sequence[tuple[Rows, TxnLike | None]]
    ) -> list[CommitResult | HoldfastError]:
        """Add the rows of several callers together; see `Table.append_all`."""
        begun = self._core.clock.elapsed()
        outcomes = self._append_joined(items, begun) if len(items) > 1 else {}
        for number, (data, txn) in enumerate(items):
            if number not in outcomes:
                try:
                    outcomes[number] = self.append(data, txn)
                except HoldfastError as error:
                    outcomes[number] = error
        return [outcomes[number] for number in range(len(items))]

    def _append_joined(
        self, items: Sequence[tuple[Rows, TxnLike | None]], begun: float
    ) -> dict[int, CommitResult | HoldfastError]:
        """Add those that fit together as one fragment; return their outcomes by their numbers."""
        prepared = self.appender.prepare()
        joined = join_rows(items, prepared, self._versions.ledger)
        if len(joined) < 2:  # noqa: PLR2004 - nothing to join
            return {}
        txns = tuple(part.txn for part in joined if part.txn is not None)
        try:
            with translate_errors(self._core.location):
                rows = pa.concat_tables([part.rows for part in joined])
                fragments = write_fragments(rows, prepared.table, mode="append")
            append = replace(prepared.append(fragments, None), txn=next(iter(txns), None))
            done = self._append_over_log(replace(append, others=txns[1:]))
        except HoldfastError as error:
            # Nothing was added: one of them may be the reason, or be in the table already.
            alone = error.kind in {ErrorKind.CONFLICT, ErrorKind.INVALID_INPUT}
            return {} if alone else dict.fromkeys((part.number for part in joined), error)
        return {
            part.number: self._result(
                done.version, part.rows.num_rows, items[part.number][1], applied=True, begun=begun
            )
            for part in joined
        }

    def commit_fragments(
        self,
        fragments: Iterable[Any],  # Any: Lance's FragmentMetadata
        txn: TxnLike | None = None,
        read_version: int | None = None,
    ) -> CommitResult:
        """Append fragments that were written elsewhere; see `Table.commit`."""
        begun = self._core.clock.elapsed()
        parsed = None if txn is None else parse_txn(txn)
        given = list(fragments)
        if not all(isinstance(part, FragmentMetadata) for part in given):
            raise InvalidInputError("fragments are what lance.fragment.write_fragments returns")
        columns = None
        if read_version is not None:
            columns = columns_of(open_dataset(self._versions, read_version))
        append = Append(fragments=given, txn=parsed, columns=columns, read_version=read_version)
        return self._commit(append, txn, begun)

    def commit_operation(
        self,
        operation: LanceOperation,
        *,
        read_version: int,
        txn: TxnLike | None = None,
        edit: Edit | None = None,
        begun_on: int | None = None,
        after: After | None = None,
    ) -> CommitResult:
        """Commit an operation; `edit` changes the manifest that is decided, or refuses.

        `begun_on` is the version that was read before files were written, if it is older;
        `after` tells how far the table's log was merged before the operation was built.
        """
        begun = self._core.clock.elapsed()
        parsed = None if txn is None else parse_txn(txn)
        _check_version(read_version)
        if isinstance(operation, lance.LanceOperation.Append) and edit is None:
            return self.commit_fragments(operation.fragments, txn, read_version)
        terms = Terms(edit=edit, begun_on=begun_on, after=after)
        plan = OperationPlan(self._versions, operation, read_version, parsed, **terms)
        return self._commit_plan(plan, operation, txn, begun)

    def restore(self, version: int, txn: TxnLike | None = None) -> CommitResult:
        """Make an older version the newest one; see `Table.restore`."""
        _check_version(version)
        begun = self._core.clock.elapsed()
        self._core.check_writable()
        if txn is not None and self.is_repeat(txn):
            newest = int(open_dataset(self._versions).version)
            return self._result(newest, 0, txn, applied=False, begun=begun)
        open_dataset(self._versions, version)
        operation = lance.LanceOperation.Restore(version)
        parsed = None if txn is None else parse_txn(txn)
        plan = ReplacingPlan(self._versions, operation, None, parsed)
        return self._commit_plan(plan, operation, txn, begun)

    def overwrite(self, data: Data, txn: TxnLike | None) -> CommitResult:
        """Replace all rows and columns; the newest of several overwrites stands."""
        parsed = None if txn is None else parse_txn(txn)
        begun = self._core.clock.elapsed()
        self._core.check_writable()
        table = open_dataset(self._versions)
        if parsed is not None:
            if self._versions.ledger.holds(table.config(), parsed):
                return self._result(table.version, 0, txn, applied=False, begun=begun)
            self._versions.ledger.check_room(table.config(), parsed)
        reader = require_rows(read_any(data))
        schema = add_key(reader.schema, key_columns(table.schema))
        with translate_errors(self._core.location):
            fragments = write_fragments(check_stream(reader, schema), table, mode="overwrite")
        operation = lance.LanceOperation.Overwrite(schema, fragments)
        begun_on = int(table.version)
        plan = ReplacingPlan(self._versions, operation, None, parsed, begun_on=begun_on)
        return self._commit_plan(plan, operation, txn, begun)

    def applied(self, txns: Sequence[TxnLike]) -> list[bool]:
        """Tell of each transaction whether the newest version holds it; see `Table.applied`."""
        parsed = [parse_txn(txn) for txn in txns]
        config = open_dataset(self._versions).config()
        applied = set(self._versions.ledger.applied(config, parsed))
        return [txn in applied for txn in parsed]

    def is_repeat(self, txn: TxnLike) -> bool:
        """Tell whether a transaction is applied; refuse, before work begins, one that cannot be.

        Raises:
            InvalidInputError: a malformed txn, or one of an app whose numbers have too many gaps.
        """
        parsed, config = parse_txn(txn), open_dataset(self._versions).config()
        if self._versions.ledger.holds(config, parsed):
            return True
        self._versions.ledger.check_room(config, parsed)
        return False

    def _commit_plan(
        self, plan: OperationPlan, operation: LanceOperation, txn: TxnLike | None, begun: float
    ) -> CommitResult:
        done = make_version(plan)
        rows = _rows_of(operation) if done.applied else 0
        return self._result(done.version, rows, txn, applied=done.applied, begun=begun)

    def _commit(self, append: Append, txn: TxnLike | None, begun: float) -> CommitResult:
        if not append.rows:
            raise InvalidInputError("there are no rows to append", table=self._core.location)
        done = self._append_over_log(append)
        rows = append.rows if done.applied else 0
        return self._result(done.version, rows, txn, applied=done.applied, begun=begun)

    def _append_over_log(self, append: Append) -> Committed:
        """Append; rows that wait in the log of a table with a key are merged first."""
        return make_version(OverLogPlan(self, append))

    def merge_first(self) -> After | None:
        """Merge what waits in the log, if the table is known to have one; tell how far.

        That it has one is learnt from the manifest that is about to be decided, so one without
        pays nothing; it is kept in mind for the next append.
        """
        return self._merge_waiting(self._versions) if self.has_log else None

    def _result(
        self, version: int, rows: int, txn: TxnLike | None, *, applied: bool, begun: float
    ) -> CommitResult:
        elapsed = self._core.clock.elapsed() - begun
        return CommitResult(version=version, rows=rows, txn=txn, applied=applied, elapsed=elapsed)


class OverLogPlan(CommitPlan[Committed]):
    """An append, built by merging what waits in the table's log, tried together with others'."""

    builds = 10

    def __init__(self, writes: Writes, append: Append) -> None:
        self._writes = writes
        self._append = append

    def build(self) -> None:
        """Merge what waits now; what is put from now on is concurrent, and may win."""
        self._append = replace(self._append, after=self._writes.merge_first())

    def attempt(self) -> Committed:
        """Append, as one version with others that wait."""
        return self._writes.appender.append(self._append)

    def judge(self, error: ConflictError) -> NextStep:
        """Merge if rows wait; what else was in the way has been tried by the appender."""
        if not isinstance(error, LogWaitsError):
            return NextStep.NEVER
        self._writes.has_log = True
        self._append = replace(self._append, handle=None)  # it may be used once
        return NextStep.REBUILD


def _check_version(given: object) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidInputError("a version is a number from 1", given=repr(given))


def _rows_of(operation: LanceOperation) -> int:
    """Count the rows in the fragments that an operation brings."""
    brought: Any = operation  # Any: each has fields of its own
    match operation:
        case lance.LanceOperation.Append() | lance.LanceOperation.Overwrite():
            return sum(int(part.physical_rows) for part in brought.fragments)
        case lance.LanceOperation.Update():
            return sum(int(part.physical_rows) for part in brought.new_fragments)
        case _:
            return 0


def require_rows(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return the same stream once it has shown a row.

    Raises:
        InvalidInputError: it has none.
    """
    with translate_errors("data"):
        first = next((batch for batch in reader if batch.num_rows), None)
    if first is None:
        raise InvalidInputError("there are no rows to append")
    return pa.RecordBatchReader.from_batches(reader.schema, itertools.chain([first], reader))
