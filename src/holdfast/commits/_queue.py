"""Waiting in line: writers of one local table take turns instead of colliding.

A hint, never a lock: who waits too long goes on without it, and a holder that stalls only
slows others down. What is right is decided by the arbiter alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.formats import QUEUE_PATH
from holdfast.storage import LocalStore, ObjectStore

_LONGEST_WAIT_SECONDS = 5.0
_FIRST_NAP_SECONDS = 0.0005
_LONGEST_NAP_SECONDS = 0.008


class Queue:
    """The line in front of one table; empty for tables that are not on local disk."""

    def __init__(
        self, store: ObjectStore, clock: Clock | None = None, ids: Ids | None = None
    ) -> None:
        self._file = store.root / QUEUE_PATH if isinstance(store, LocalStore) else None
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for our turn, at most a few seconds, and keep it for the `with` block."""
        with contextlib.ExitStack() as stack:
            if self._file is not None:
                with contextlib.suppress(OSError):
                    fd = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)
                    stack.callback(os.close, fd)  # closing gives the turn to the next
                    self._wait(fd)
            yield

    def _wait(self, fd: int) -> None:
        until = self._clock.elapsed() + _LONGEST_WAIT_SECONDS
        nap = _FIRST_NAP_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.elapsed() >= until:
                    return
                self._clock.sleep(nap * (0.5 + self._ids.jitter()))
                nap = min(nap * 2, _LONGEST_NAP_SECONDS)
            else:
                return
