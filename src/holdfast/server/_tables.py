"""Open tables of a server, by their ids: handles that are opened again when they are stale."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast import CommitResult, Table, open_table
from holdfast.commits import Namespace
from holdfast.errors import HoldfastError, NotFoundError, StaleHandleError
from holdfast.server._settings import ServerSettings
from holdfast.txn import TxnLike

CURRENT: ContextVar[str] = ContextVar("holdfast_table", default="")
"""The table that this thread works for: what events are counted under."""


Rows: TypeAlias = "pa.Table | list[dict[str, Any]]"
Insert: TypeAlias = tuple[Rows, TxnLike | None]
Id: TypeAlias = tuple[str, ...]


class OpenTables:
    """The tables that requests asked for. Handles only: nothing here decides anything."""

    def __init__(self, settings: ServerSettings, namespace: Namespace) -> None:
        self._settings = settings
        self._namespace = namespace
        self._lock = threading.Lock()  # guards _open
        self._open: dict[Id, Table] = {}

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

    def append(self, table_id: Id, inserts: Sequence[Insert]) -> list[CommitResult | HoldfastError]:
        """Add rows of several callers as one version and one fragment; return each one's outcome.

        Those that a stale handle refused are added once more: the table was made anew.

        Raises:
            HoldfastError: as for `Table.append_all`; nothing was added.
        """
        outcomes = self._append_once(table_id, inserts)
        stale = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, StaleHandleError)]
        if stale:
            self.forget(table_id)
            again = self._append_once(table_id, [inserts[number] for number in stale])
            for number, outcome in zip(stale, again, strict=True):
                outcomes[number] = outcome
        return outcomes

    def _append_once(
        self, table_id: Id, inserts: Sequence[Insert]
    ) -> list[CommitResult | HoldfastError]:
        try:
            return self.open(table_id).append_all(inserts)
        except StaleHandleError as error:
            return [error for _ in inserts]

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
