"""Bounds of a server: threads per kind of request, requests that wait, bytes in memory.

Nobody waits for room: a request that does not fit is refused immediately, to be sent again later.
So no request holds another up, whatever it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from holdfast.errors import BackpressureError

Result = TypeVar("Result")
_AFTERWARDS_THREADS = 4
_MOST_AFTERWARDS = 64


class Lane:
    """A pool of threads for one kind of request, and how many may wait for one."""

    def __init__(self, name: str, threads: int, max_waiting: int) -> None:
        self.name = name
        self._most = threads + max_waiting
        self._inside = 0  # only the event loop's thread touches it
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"holdfast-{name}")

    @property
    def inside(self) -> int:
        """Return how many requests run or wait."""
        return self._inside

    def enter(self) -> None:
        """Take a place; `leave` gives it back.

        Raises:
            BackpressureError: all are taken.
        """
        if self._inside >= self._most:
            raise BackpressureError(
                "too many requests are waiting: send it again later", lane=self.name
            )
        self._inside += 1

    def leave(self) -> None:
        """Give a place back."""
        self._inside -= 1

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run what blocks. It goes on to its end even if nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, copy_context().run, work)

    def close(self) -> None:
        """Wait for what runs, and end the threads."""
        self._pool.shutdown(wait=True)


class Afterwards:
    """Runs what nobody waits for beside the answers; with many of them waiting, before."""

    def __init__(self) -> None:
        self._room = threading.BoundedSemaphore(_MOST_AFTERWARDS)
        self._pool = ThreadPoolExecutor(_AFTERWARDS_THREADS, thread_name_prefix="holdfast-after")

    def run(self, work: Callable[[], None]) -> None:
        """Run it soon, or now where too much waits."""
        if not self._room.acquire(blocking=False):
            work()
            return
        try:
            self._pool.submit(self._work, work)
        except RuntimeError:  # closed
            self._room.release()
            work()

    def close(self) -> None:
        """Wait for what was begun, and end the threads."""
        self._pool.shutdown(wait=True)

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._room.release()


class Buffers:
    """How many bytes of requests, or of answers, are in memory."""

    def __init__(self, most: int, what: str = "requests") -> None:
        self._most = most
        self._what = what
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Return how many bytes are in memory."""
        return self._used

    def take(self, size: int) -> None:
        """Count bytes.

        Raises:
            BackpressureError: there is no room for them.
        """
        with self._lock:
            if self._used + size > self._most:
                raise BackpressureError(
                    f"the server holds as many bytes of {self._what} as it may: ask again later",
                    bytes=size,
                    used=self._used,
                    limit=self._most,
                )
            self._used += size

    def give_back(self, size: int) -> None:
        """Forget bytes."""
        with self._lock:
            self._used -= size
