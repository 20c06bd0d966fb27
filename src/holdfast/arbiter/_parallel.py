"""Requests that do not depend on each other, sent side by side.

A few threads for the whole process, started when first needed, and anew in a child that was
forked. The simulated world has no threads: there `one_by_one` takes the place of `together`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeAlias

from holdfast.storage import ObjectStore, SupportsReadAhead

_THREADS = 8

Call: TypeAlias = Callable[[], object]
Together: TypeAlias = Callable[[Sequence[Call]], list[object]]
"""Runs calls and returns their answers; of several errors the first one's is raised."""


class _Threads:
    """A pool that survives forks."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start over: the threads of a parent process are not ours."""
        self._lock = threading.Lock()  # guards _pool
        self._pool: ThreadPoolExecutor | None = None

    def together(self, calls: Sequence[Call]) -> list[object]:
        """Run calls side by side, the first one in this thread."""
        if len(calls) < 2:  # noqa: PLR2004 - nothing to run beside
            return one_by_one(calls)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-ask")
            others = [self._pool.submit(call) for call in calls[1:]]
        try:
            # In this thread, which would only wait otherwise.
            answers = [calls[0]()]
        finally:
            # Also after an error: a call that is still under way must not outlive its decision.
            wait(others)
        return answers + [other.result() for other in others]


def one_by_one(calls: Sequence[Call]) -> list[object]:
    """Run calls one after the other."""
    return [call() for call in calls]


def choose_together(store: ObjectStore) -> Together:
    """Return what asks a store soonest: a file is opened faster than a thread is woken."""
    waits = isinstance(store, SupportsReadAhead) and store.reads_ahead
    return together if waits else one_by_one


_threads = _Threads()
together: Together = _threads.together
os.register_at_fork(after_in_child=_threads.forget)
