"""Appends: fragments in, one version out, each under its transaction id exactly once.

Fragments are immutable files under unique names, so writing them decides nothing. All
appends of a process that wait at the same time become one version (one Lance Append of all
their fragments); a transaction that is in the table already is left out and told so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from holdfast.commits._opening import opened
from holdfast.commits._operation import AlreadyAppliedError, Committed, Lent, Operation
from holdfast.commits._queue import Queue
from holdfast.commits._versions import Versions
from holdfast.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from holdfast.formats import version_name
from holdfast.txn import Txn

# Errors that one append may bring upon its group; all others would meet every append alike.
_OF_ONE = {
    ErrorKind.CONFLICT,
    ErrorKind.INTERNAL,
    ErrorKind.INVALID_INPUT,
    ErrorKind.NOT_FOUND,
}


_TRIES = 3
_SYNCING = 4  # threads that make data files durable


@dataclass(frozen=True, slots=True)
class Handle:
    """A version that was opened to look at, with its hook."""

    table: lance.LanceDataset
    hook: Lent


@dataclass(frozen=True, slots=True)
class Waiting:
    """An append, and what waits until its data files are durable; raises if they are not."""

    append: Append
    durable: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """What one caller wants to add.

    Attributes:
        fragments: where the rows are.
        txn: what makes a repeat harmless.
        columns: the columns that the fragments were written for; None when not known.
        handle: the version that they were written for, if it may be used to commit.
    """

    fragments: Sequence[Any]  # Any: Lance's FragmentMetadata, which ships no types
    txn: Txn | None = None
    columns: Columns | None = None
    handle: Handle | None = None

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


Tickets = Sequence[Ticket[Waiting, Committed]]


class Appender:
    """Commits appends to one table."""

    def __init__(self, versions: Versions, options: Mapping[str, str]) -> None:
        self._versions = versions
        self._options = options
        self._queue = Queue(versions.store)
        self._group: GroupCommit[Waiting, Committed] = GroupCommit(self._commit)
        self._syncing = ThreadPoolExecutor(_SYNCING, thread_name_prefix="holdfast-sync")

    def open(self) -> Handle:
        """Open the newest version; an append may use the handle once.

        Raises:
            HoldfastError: as for `Table.dataset`.
        """
        hook = Lent(self._versions, self._options)
        client: Any = hook  # Any: Lance wants a namespace and gets one by its methods
        with hook.settled():
            return Handle(opened(client), hook)

    def close(self) -> None:
        """Let go of the threads."""
        self._syncing.shutdown()

    def append(self, append: Append) -> Committed:
        """Add the fragments as a new version, alone or together with others.

        Raises:
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            ConflictError: other writers were faster, again and again, or changed the columns.
            InvalidInputError: the fragments do not belong to this table.
            NotFoundError: a data file is not there.
        """
        return self._group.submit(Waiting(append, self._sync(append.files)))

    def _sync(self, files: Sequence[str]) -> Callable[[], None]:
        """Make files durable: at once if we must wait anyway, else while Lance commits."""
        if self._group.busy:
            self._versions.sync(files)
            return _nothing
        return self._syncing.submit(self._versions.sync, files).result

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

    def _commit_once(self, waiting: Sequence[Waiting]) -> int:
        """Commit, and again when others were faster than Lance has patience for.

        Appends read nothing, so they fit on any newer version with the same columns.
        """
        for left in reversed(range(_TRIES)):
            try:
                return self._try_commit(waiting)
            except ConflictError as error:
                if type(error) is not ConflictError or not left:
                    raise
        raise AssertionError("unreachable")

    def _try_commit(self, waiting: Sequence[Waiting]) -> int:
        def when_durable(manifest: bytes) -> bytes:
            for one in waiting:
                one.durable()
            return manifest

        appends = [one.append for one in waiting]
        txns = [append.txn for append in appends if append.txn is not None]
        fragments = [fragment for append in appends for fragment in append.fragments]
        with self._queue.turn() as ended:
            operation = Operation(
                self._versions,
                self._options,
                txns,
                synced=True,
                edit=when_durable,
                decided=ended,
            )
            with operation.settled():
                table = self._borrowed(appends, operation) or self._opened(operation)
                _check_columns(columns_of(table), appends)
                done = lance.LanceDataset.commit(
                    table, lance.LanceOperation.Append(fragments), read_version=table.version
                )
                operation.returned(int(done.version))
        return int(operation.version or 0)

    def _opened(self, operation: Operation) -> lance.LanceDataset:
        client: Any = operation  # Any: Lance wants a namespace and gets one by its methods
        return opened(client)

    def _borrowed(
        self, appends: Sequence[Append], operation: Operation
    ) -> lance.LanceDataset | None:
        """Return the newest handle that the appends brought, unless there is a newer version.

        Only to save time: a version that is decided but not there yet shows in the decision.
        """
        handles = [append.handle for append in appends if append.handle is not None]
        if not handles:
            return None
        newest = max(handles, key=lambda handle: int(handle.table.version))
        try:
            self._versions.store.head(version_name(newest.table.version + 1).path)
        except NotFoundError:
            newest.hook.operation = operation
            return newest.table
        return None


def _nothing() -> None:
    pass


def _check_columns(now: Columns, appends: Sequence[Append]) -> None:
    """Refuse fragments that the table would misread."""
    for append in appends:
        if append.columns is not None:
            check_columns(append.columns, now, append.fields)
        elif not append.fields <= now.keys():
            raise InvalidInputError("the fragments have columns that the table does not have")


def _distinct(tickets: Tickets) -> list[Ticket[Waiting, Committed]]:
    """Leave out repeats of a transaction: they find it applied once the first one is in."""
    seen: set[Txn] = set()
    chosen = []
    for ticket in tickets:
        txn = ticket.item.append.txn
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
        if ticket.item.append.txn in applied:
            ticket.succeed(Committed(version, applied=False))
