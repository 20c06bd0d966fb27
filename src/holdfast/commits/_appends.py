"""Appends: fragments in, one version out, each under its transaction id exactly once.

Fragments are immutable files under unique names, so writing them decides nothing. All
appends of a process that wait at the same time become one version (one Lance Append of all
their fragments); a transaction that is in the table already is left out and told so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lance

from holdfast.commits._columns import (
    Columns,
    check_columns,
    columns_of,
    fields_of,
)
from holdfast.commits._group import GroupCommit, Ticket
from holdfast.commits._operation import TABLE_ID, AlreadyAppliedError, Committed, Operation
from holdfast.commits._queue import Queue
from holdfast.commits._versions import Versions
from holdfast.errors import ConflictError, ErrorKind, InvalidInputError
from holdfast.txn import Txn

# Errors that one append may bring upon its group; all others would meet every append alike.
_OF_ONE = {
    ErrorKind.CONFLICT,
    ErrorKind.INTERNAL,
    ErrorKind.INVALID_INPUT,
    ErrorKind.NOT_FOUND,
}


_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """What one caller wants to add.

    Attributes:
        fragments: where the rows are.
        txn: what makes a repeat harmless.
        columns: the columns that the fragments were written for; None when not known.
    """

    fragments: Sequence[Any]  # Any: Lance's FragmentMetadata, which ships no types
    txn: Txn | None = None
    columns: Columns | None = None

    @property
    def rows(self) -> int:
        """Count the rows."""
        return sum(int(fragment.physical_rows) for fragment in self.fragments)

    @property
    def files(self) -> list[str]:
        """Return the data files, as paths in the table."""
        return [f"data/{file.path}" for part in self.fragments for file in part.files]

    @property
    def fields(self) -> set[int]:
        """Return the ids of the columns that are in the files."""
        return fields_of(self.fragments)


Tickets = Sequence[Ticket[Append, Committed]]


class Appender:
    """Commits appends to one table."""

    def __init__(self, versions: Versions, options: Mapping[str, str]) -> None:
        self._versions = versions
        self._options = options
        self._queue = Queue(versions.store)
        self._group: GroupCommit[Append, Committed] = GroupCommit(self._commit)

    def append(self, append: Append) -> Committed:
        """Add the fragments as a new version, alone or together with others.

        Raises:
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            ConflictError: other writers were faster, again and again, or changed the columns.
            InvalidInputError: the fragments do not belong to this table.
            NotFoundError: a data file is not there.
        """
        self._versions.sync(append.files)
        return self._group.submit(append)

    def _commit(self, tickets: Tickets) -> None:
        """Give every ticket its outcome."""
        waiting = list(tickets)
        while waiting:
            now = _distinct(waiting)
            try:
                version = self._commit_once([ticket.item for ticket in now])
            except AlreadyAppliedError as error:
                _settle_applied(now, error)
            except Exception as error:  # noqa: BLE001 - each waiter gets it, as it is
                self._fail(now, error)
            else:
                for ticket in now:
                    ticket.succeed(Committed(version, applied=True))
            waiting = [ticket for ticket in waiting if not ticket.done]

    def _fail(self, tickets: Tickets, error: Exception) -> None:
        """Let one bad append not sink the others; but never repeat what may have landed."""
        kind = getattr(error, "kind", ErrorKind.COMMIT_UNKNOWN)
        if len(tickets) == 1 or kind not in _OF_ONE:
            for ticket in tickets:
                ticket.fail(error)
            return
        for ticket in tickets:
            self._commit([ticket])

    def _commit_once(self, appends: Sequence[Append]) -> int:
        """Commit, and again when others were faster than Lance has patience for.

        Appends read nothing, so they fit on any newer version with the same columns.
        """
        for left in reversed(range(_TRIES)):
            try:
                return self._try_commit(appends)
            except ConflictError as error:
                if type(error) is not ConflictError or not left:
                    raise
        raise AssertionError("unreachable")

    def _try_commit(self, appends: Sequence[Append]) -> int:
        txns = [append.txn for append in appends if append.txn is not None]
        operation = Operation(self._versions, self._options, txns, synced=True)
        fragments = [fragment for append in appends for fragment in append.fragments]
        hook: Any = operation  # Any: Lance wants a namespace and gets one by its methods
        with self._queue.turn(), operation.settled():
            table = lance.dataset(namespace_client=hook, table_id=TABLE_ID)
            _check_columns(columns_of(table), appends)
            done = lance.LanceDataset.commit(
                table, lance.LanceOperation.Append(fragments), read_version=table.version
            )
            operation.returned(int(done.version))
        return int(operation.version or 0)


def _check_columns(now: Columns, appends: Sequence[Append]) -> None:
    """Refuse fragments that the table would misread."""
    for append in appends:
        if append.columns is not None:
            check_columns(append.columns, now, append.fields)
        elif not append.fields <= now.keys():
            raise InvalidInputError("the fragments have columns that the table does not have")


def _distinct(tickets: Tickets) -> list[Ticket[Append, Committed]]:
    """Leave out repeats of a transaction: they find it applied once the first one is in."""
    seen: set[Txn] = set()
    chosen = []
    for ticket in tickets:
        txn = ticket.item.txn
        if txn is None or txn not in seen:
            chosen.append(ticket)
        if txn is not None:
            seen.add(txn)
    return chosen


def _settle_applied(tickets: Tickets, error: AlreadyAppliedError) -> None:
    applied = error.details["txns"]
    assert isinstance(applied, tuple)  # noqa: S101 - set by AlreadyAppliedError itself
    version = int(str(error.details["version"]))
    for ticket in tickets:
        if ticket.item.txn in applied:
            ticket.succeed(Committed(version, applied=False))
