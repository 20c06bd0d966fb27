"""Waiting for another thread so that an interrupt (Ctrl-C) leaves nothing locked behind.

`threading.Event` and `Condition` are written in Python: an interrupt inside them may leave
their inner lock taken, or release one that another thread holds, and whoever wakes others then
hangs. A `SimpleQueue` puts and gets by one instruction each, so waiting is getting from one.

    wakeup = bell.listen()     # first, so that no ring is missed
    if not ready():
        wakeup.wait()          # until bell.ring()
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue


class Wakeup:
    """Lets one thread wait until another wakes it; for one time only."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: SimpleQueue[None] = SimpleQueue()

    def wake(self) -> None:
        """Let the thread go on; may be repeated."""
        self._calls.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until woken, at most so many seconds; tell whether it was."""
        try:
            self._calls.get(timeout=None if seconds is None else max(0.0, seconds))
        except Empty:
            return False
        return True


class Bell:
    """Wakes all threads that listen."""

    __slots__ = ("_listening",)

    def __init__(self) -> None:
        self._listening: deque[Wakeup] = deque()

    def listen(self) -> Wakeup:
        """Return what the next `ring` wakes."""
        wakeup = Wakeup()
        self._listening.append(wakeup)
        return wakeup

    def ring(self) -> None:
        """Wake everybody who listens."""
        while True:
            try:
                wakeup = self._listening.popleft()
            except IndexError:
                return
            wakeup.wake()
