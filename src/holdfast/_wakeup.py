"""Waiting for another thread so that an interrupt (Ctrl-C) leaves nothing locked behind.

`threading.Event` and `Condition` are written in Python: an interrupt inside them may leave
their inner lock taken, or release one that another thread holds, and whoever wakes others then
hangs. A `SimpleQueue` puts and gets by one instruction each, so waiting is getting from one.

A signal that arrives after Python's last look for one, and before the thread sleeps, wakes nobody:
Python notes it and sleeps on. So nobody sleeps for longer than a glance without looking.

    wakeup = bell.listen()     # first, so that no ring is missed
    if not ready():
        wakeup.wait()          # until bell.ring()
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")

GLANCE_SECONDS = 0.5


def await_item(queue: SimpleQueue[Item]) -> Item:
    """Get from a queue, however long that takes; an interrupt is noticed within a glance."""
    while True:
        with suppress(Empty):
            return queue.get(timeout=GLANCE_SECONDS)


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
        if seconds is None:
            await_item(self._calls)
            return True
        try:
            self._calls.get(timeout=max(0.0, seconds))
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
