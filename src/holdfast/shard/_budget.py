"""`Budget`: how many bytes of rows a writer may hold; who comes when it is spent waits for room.

A caller may be interrupted (Ctrl-C) at any point: what it took is in its `Charge`, from the very
instruction that takes it, and can be given back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast._clock import SystemClock
from holdfast._wakeup import Bell
from holdfast.errors import BackpressureError, HoldfastError

_CLOCK = SystemClock()  # only bounds waiting


class Charge:
    """Bytes that one caller wants, and whether it has them."""

    __slots__ = ("size", "taken")

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = False


class Budget:
    """Bytes that are taken and given back. The lock guards the counts alone.

    Args:
        limit: how many bytes may be taken. A larger single charge is let in when nothing is.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._room = Bell()
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

    def take(self, charge: Charge, timeout: float | None, crowded: Callable[[], None]) -> None:
        """Take bytes, waiting until there is room.

        Args:
            charge: how many; says from then on that they are taken.
            timeout: how many seconds to wait at most; None for as long as it takes.
            crowded: called once before waiting, to make room.

        Raises:
            BackpressureError: there was no room in time; nothing is taken.
            HoldfastError: the writer stopped.
        """
        if self._try_take(charge):
            return
        waits = False
        try:
            with self._lock:
                waits = True
                self._waiting += 1
                self.waits += 1
            crowded()
            self._wait(charge, timeout)
        finally:
            if waits:
                with self._lock:
                    self._waiting -= 1

    def _wait(self, charge: Charge, timeout: float | None) -> None:
        end = None if timeout is None else _CLOCK.elapsed() + timeout
        while True:
            # Before the try: room that is made between the two rings a bell that is listened to
            # already.
            room = self._room.listen()
            if self._try_take(charge):
                return
            if not room.wait(None if end is None else end - _CLOCK.elapsed()):
                break
        raise BackpressureError(
            "the writer's buffer is full and was not flushed in time: wait, or write fewer rows "
            "per put",
            used=self._used,
            limit=self.limit,
            wanted=charge.size,
        )

    def _try_take(self, charge: Charge) -> bool:
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            size = charge.size
            # A single put that is larger than the whole buffer is let in when it is alone: refused,
            # it could never be written at all.
            if self._used and self._used + size > self.limit:
                return False
            # No call between: an interrupt comes before or after both.
            self._used += size
            charge.taken = True
        return True

    def give_back(self, charge: Charge) -> None:
        """Give back what a charge took; nothing if it took nothing, or gave it back before."""
        with self._lock:
            if charge.taken:
                self._used -= charge.size
                charge.taken = False
        self._room.ring()

    def add(self, size: int) -> None:
        """Take bytes that are there already, room or not."""
        with self._lock:
            self._used += size

    def give(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._used -= size
        self._room.ring()

    def stop(self, error: HoldfastError) -> None:
        """Let everybody who waits, or comes, go with an error."""
        with self._lock:
            self._stopped = self._stopped or error
        self._room.ring()
