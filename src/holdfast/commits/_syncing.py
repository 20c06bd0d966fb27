"""Threads that make data files durable while Lance or we do something else.

A few for the whole process, however many tables it has open: started when first needed, and
anew in a child that was forked. Python's own pool would not do: an interrupt (Ctrl-C) inside its
`submit` can leave a lock of it taken, and every later append of the process would hang.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from holdfast._wakeup import Wakeup

_THREADS = 4


class SyncCall:
    """A call that runs in another thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._ended = Wakeup()
        self._done = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call, and keep its error; whatever it is, it must not end the thread."""
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self._done = True
        self._ended.wake()

    def result(self) -> None:
        """Wait until the call is done and raise its error; one thread after the other may.

        Raises:
            BaseException: what the call raised.
        """
        if not self._done:
            self._ended.wait()
        if self._error is not None:
            raise self._error


class Syncing:
    """A pool of threads that survives forks and interrupts."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start over: the threads of a parent process are not ours."""
        self._calls: SimpleQueue[SyncCall] = SimpleQueue()
        self._lock = threading.Lock()  # guards _threads
        self._threads = 0

    def submit(self, call: Callable[[], None]) -> SyncCall:
        """Run a call in one of the threads."""
        made = SyncCall(call)
        with self._lock:
            if self._threads < _THREADS and self._start():
                self._threads += 1
            some = self._threads > 0
        if some:
            self._calls.put(made)
        else:
            made.run()  # no more threads on this machine
        return made

    def _start(self) -> bool:
        name = f"holdfast-sync-{self._threads}"
        try:
            threading.Thread(target=_run, args=(self._calls,), name=name, daemon=True).start()
        except RuntimeError:
            return False
        return True


def _run(calls: SimpleQueue[SyncCall]) -> None:
    while True:
        calls.get().run()


SYNCING = Syncing()
os.register_at_fork(after_in_child=SYNCING.forget)
