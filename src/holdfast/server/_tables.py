"""Open tables of a server, by their ids: handles that are opened again when they are stale."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import pyarrow as pa

from holdfast import CommitResult, Table, open_table
from holdfast.commits import GroupCommit, Namespace, Ticket
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.server._settings import ServerSettings
from holdfast.txn import TxnLike

CURRENT: ContextVar[str] = ContextVar("holdfast_table", default="")
"""The table that this thread works for: what events are counted under."""


Rows: TypeAlias = "pa.Table | list[dict[str, Any]]"
Insert: TypeAlias = tuple[Rows, TxnLike | None]
Group: TypeAlias = GroupCommit[Insert, CommitResult]

_LARGE_BYTES = 4 << 20  # from here on a fragment of its own costs little


class Tables:
    """The tables that requests asked for. Handles only: nothing here decides anything."""

    def __init__(self, settings: ServerSettings, namespace: Namespace) -> None:
        self._settings = settings
        self._namespace = namespace
        self._lock = threading.Lock()  # guards _open
        self._open: dict[tuple[str, ...], Table] = {}
        self._groups: WeakKeyDictionary[Table, Group] = WeakKeyDictionary()

    def open(self, table_id: Sequence[str]) -> Table:
        """Return a table.

        Raises:
            NotFoundError: there is none of this name.
            HoldfastError: as for `holdfast.open_table`.
        """
        key = tuple(table_id)
        with self._lock:
            table = self._open.get(key)
        if table is None:
            location = self._namespace.location(key)
            try:
                opened = open_table(location, self._settings.storage_options)
            except NotFoundError as error:
                raise NotFoundError(
                    "the table was not found: create it, or register a plain Lance table first",
                    table=".".join(key),
                ) from error
            with self._lock:
                table = self._open.setdefault(key, opened)
        CURRENT.set(".".join(key))
        return table

    def insert(
        self, table_id: Sequence[str], rows: Rows, txn: TxnLike | None, size: int
    ) -> CommitResult:
        """Add rows; small ones that arrive at the same time become one version and one fragment.

        `size` is how many bytes they came in.

        Raises:
            HoldfastError: as for `Table.append`.
        """
        table = self.open(table_id)
        if size > _LARGE_BYTES:
            return table.append(rows, txn=txn)  # its own fragment, maybe in a common version
        with self._lock:
            group = self._groups.get(table)
            if group is None:
                group = self._groups[table] = GroupCommit(partial(_append_all, table))
        return group.submit((rows, txn))

    def forget(self, table_id: Sequence[str]) -> None:
        """Let go of a handle; calls that are under way keep it to their end."""
        with self._lock:
            self._open.pop(tuple(table_id), None)

    def close(self) -> None:
        """Close all tables."""
        with self._lock:
            tables, self._open = list(self._open.values()), {}
        for table in tables:
            table.close()


def _append_all(table: Table, tickets: Sequence[Ticket[Insert, CommitResult]]) -> None:
    """Add the rows of all who wait, and give each its outcome."""
    outcomes = table.append_all([ticket.item for ticket in tickets])
    for ticket, outcome in zip(tickets, outcomes, strict=True):
        if isinstance(outcome, HoldfastError):
            ticket.fail(outcome)
        else:
            ticket.succeed(outcome)
