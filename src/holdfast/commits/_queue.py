"""Waiting in line: writers of one local table take turns instead of colliding.

A hint, never a lock: who waits too long goes on without it, and a holder that stalls only
slows others down. What is right is decided by the arbiter alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import threading

from holdfast.formats import QUEUE_PATH
from holdfast.storage import ObjectStore, SupportsLocalFiles

_LONGEST_WAIT_SECONDS = 5.0


class Queue:
    """The line in front of one table; empty for tables that are not on local disk."""

    def __init__(
        self, store: ObjectStore, *, longest_wait_seconds: float = _LONGEST_WAIT_SECONDS
    ) -> None:
        self._file = store.root / QUEUE_PATH if isinstance(store, SupportsLocalFiles) else None
        self._longest_wait_seconds = longest_wait_seconds

    def line(self) -> io.FileIO | io.BytesIO:
        """Return what a writer stands in line with; closing it gives the turn to the next.

            with queue.line() as line:
                queue.wait(line)

        A file, closed by `with` in one instruction: with a context manager of our own, an
        interrupt (Ctrl-C) in its exit would keep the turn for as long as the process lives.
        """
        if self._file is not None:
            with contextlib.suppress(OSError):
                return io.FileIO(self._file, "a")
        return io.BytesIO()

    def wait(self, line: io.FileIO | io.BytesIO) -> None:
        """Wait for our turn, at most a few seconds; it lasts until `line` is closed."""
        if isinstance(line, io.FileIO):
            with contextlib.suppress(OSError):
                self._wait(line.fileno())

    def _wait(self, fd: int) -> None:
        """Wait in the kernel, whose line is fair and wakes the next immediately.

        Asking again and again is neither: with 8 processes, naps of 0.5 to 8 ms gave a 99th
        percentile that was 1.6 to 5 times as long.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # `flock` has no time limit, so a thread waits. The turn belongs to both
            # descriptors: one that comes after we gave up ends when the thread closes its own.
            waiting = os.dup(fd)
            waiter = threading.Thread(
                target=_wait_and_close, args=(waiting,), name="holdfast-queue", daemon=True
            )
            try:
                waiter.start()
            except RuntimeError:  # no more threads: go on without a turn
                os.close(waiting)
            else:
                waiter.join(self._longest_wait_seconds)


def _wait_and_close(fd: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)
