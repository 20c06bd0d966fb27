"""`Budget`: how many bytes of rows a writer may hold; who comes when it is spent waits for room."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.errors import BackpressureError, HoldfastError


class Budget:
    """Bytes that are taken and given back. The lock guards the counts alone.

    Args:
        limit: how many bytes may be taken. More than that at once is let in when nothing is.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._used = 0
        self._waiting = 0
        self._stopped: HoldfastError | None = None
        self.waits = 0

    @property
    def used(self) -> int:
        """Return how many bytes are taken."""
        return self._used

    @property
    def waiting(self) -> int:
        """Return how many callers wait for room."""
        return self._waiting

    def take(self, size: int, timeout: float | None, crowded: Callable[[], None]) -> None:
        """Take bytes, waiting until there is room.

        Args:
            size: how many.
            timeout: how many seconds to wait at most; None for as long as it takes.
            crowded: called once before waiting, to make room.

        Raises:
            BackpressureError: there was no room in time; nothing is taken.
            HoldfastError: the writer stopped.
        """
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            if self._fits(size):
                self._used += size
                return
            self._waiting += 1
            self.waits += 1
        try:
            crowded()
            with self._lock:
                free = self._room.wait_for(
                    lambda: self._fits(size) or self._stopped is not None, timeout
                )
                if self._stopped is not None:
                    raise self._stopped
                if not free:
                    raise BackpressureError(
                        "the writer's buffer is full and was not flushed in time: wait, or "
                        "write less at once",
                        used=self._used,
                        limit=self.limit,
                        wanted=size,
                    )
                self._used += size
        finally:
            with self._lock:
                self._waiting -= 1

    def add(self, size: int) -> None:
        """Take bytes that are there already, room or not."""
        with self._lock:
            self._used += size

    def give(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._used -= size
            self._room.notify_all()

    def stop(self, error: HoldfastError) -> None:
        """Let everybody who waits, or comes, go with an error."""
        with self._lock:
            self._stopped = self._stopped or error
            self._room.notify_all()

    def _fits(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self.limit
