"""A pool of connections for one process: safe in any thread, and never carried over a fork.

`connection()` lends a connection to the calling thread and takes it back. Threads that
call in from Rust live for one callback only, so nothing is kept per thread. A connection
whose use raised is closed, not lent again: its protocol state is unknown. The idle ones go
with it: when a server restarts, all of them are dead, and each would cost a caller a try.

A forked child starts with no connections. It neither uses nor closes its parent's: a
`close` in the child would speak to the server on the parent's behalf, and in SQLite it would
touch the parent's locks.

    pool = Pool(lambda: sqlite3.connect(path), lambda connection: connection.close())
    with pool.connection() as connection:
        connection.execute("SELECT 1")
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

C = TypeVar("C")

MAX_IDLE = 32
"""Connections kept open while nobody uses them; more are opened when more threads ask."""

_inherited: list[object] = []  # connections of a parent process, never to be touched


class Pool(Generic[C]):
    """Lends connections that `open_` made in this process; `close` ends one.

    There is no lock: `deque.append`, `deque.pop` and `dict.setdefault` are atomic, and a lock
    that another thread held at the moment of a fork would stay locked in the child for ever.
    """

    def __init__(
        self,
        open_: Callable[[], C],
        close: Callable[[C], None],
        *,
        discard: Callable[[C], None] | None = None,
        usable: Callable[[C], bool] | None = None,
    ) -> None:
        """Remember how to open, close and (after an error) discard a connection.

        `usable` is asked before an idle one is lent; one that is not is discarded.
        """
        self._open = open_
        self._close = close
        self._discard = discard or close
        self._usable = usable
        self._idle: dict[int, deque[C]] = {}
        self._closed = False
        _pools.add(self)

    @contextlib.contextmanager
    def connection(self) -> Iterator[C]:
        """Lend a connection; after an error in the block it is discarded."""
        connection = self._take()
        try:
            yield connection
        except BaseException:
            self._quietly(self._discard, connection)
            self._close_idle()
            raise
        self._give_back(connection)

    def close(self) -> None:
        """Close the idle connections of this process, and lent ones when they come back."""
        self._closed = True
        self._close_idle()

    def _take(self) -> C:
        while True:
            try:
                connection = self._mine().pop()
            except IndexError:
                return self._open()
            if self._usable is None or self._usable(connection):
                return connection
            self._quietly(self._discard, connection)

    def _give_back(self, connection: C) -> None:
        idle = self._mine()
        if len(idle) >= MAX_IDLE:
            self._quietly(self._close, connection)
            return
        idle.append(connection)
        if self._closed:  # looked at after the append, so a racing `close` misses nothing
            self._close_idle()

    def _mine(self) -> deque[C]:
        return self._idle.setdefault(os.getpid(), deque())

    def _close_idle(self) -> None:
        idle = self._mine()
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                return
            self._quietly(self._close, connection)

    def _disinherit(self) -> None:
        """Put the parent's connections out of reach; runs in a child right after the fork."""
        _inherited.append(self._idle)
        # One reference too many: else the interpreter collects, and so closes, the parent's
        # connections when the child exits. SQLAlchemy would even say goodbye to the server.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._idle))
        self._idle = {}

    @staticmethod
    def _quietly(end: Callable[[C], None], connection: C) -> None:
        # Every verb was answered before; an error while hanging up changes no outcome.
        with contextlib.suppress(Exception):
            end(connection)


# Any: pools of every kind of connection.
_pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()


def _disinherit_all() -> None:
    for pool in list(_pools):
        pool._disinherit()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_disinherit_all)
