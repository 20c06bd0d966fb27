"""Threads that make data files durable while Lance or we do something else.

A few for the whole process, however many tables it has open: started when first needed, and
anew in a child that was forked.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_THREADS = 4


class Syncing:
    """A pool of threads that survives forks."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start over: the threads of a parent process are not ours."""
        self._lock = threading.Lock()  # guards _pool
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Run a call in one of the threads."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-sync")
            return self._pool.submit(call)


SYNCING = Syncing()
os.register_at_fork(after_in_child=SYNCING.forget)
