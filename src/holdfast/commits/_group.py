"""Group commit: writes of one process that wait at the same time become one commit.

The first to arrive commits at once, alone; nobody waits for a timer. Whoever arrives while
a commit is under way waits for it, and one of them then commits for all who wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Ticket(Generic[Item, Result]):
    """One waiting write: its item, and its result or error once it has one."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self._woken = threading.Event()
        self._done = False
        self._result: Result | None = None
        self._error: BaseException | None = None

    def succeed(self, result: Result) -> None:
        """Give the write its result."""
        self._result = result
        self._done = True

    def fail(self, error: BaseException) -> None:
        """Give the write its error."""
        self._error = error
        self._done = True

    @property
    def done(self) -> bool:
        """Tell whether the write has its result or error."""
        return self._done

    def wake(self) -> None:
        """Let the waiting thread go on: to take its result, or to lead."""
        self._woken.set()

    def wait(self) -> None:
        """Wait until woken."""
        self._woken.wait()

    def outcome(self) -> Result:
        """Return the result or raise the error."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class GroupCommit(Generic[Item, Result]):
    """Collects writes and commits them together.

    Args:
        commit: commits tickets as one; must give each its result or error. Called by one
            thread at a time.
    """

    def __init__(self, commit: Callable[[Sequence[Ticket[Item, Result]]], None]) -> None:
        self._commit = commit
        self._lock = threading.Lock()  # guards _waiting and _led
        self._waiting: list[Ticket[Item, Result]] = []
        self._led = False

    @property
    def busy(self) -> bool:
        """Tell whether whoever submits now will have to wait."""
        with self._lock:
            return self._led

    def submit(self, item: Item) -> Result:
        """Commit `item`, alone or with others, and return its result.

        Raises:
            BaseException: whatever `commit` gave this item.
        """
        ticket: Ticket[Item, Result] = Ticket(item)
        with self._lock:
            self._waiting.append(ticket)
            leads, self._led = not self._led, True
        if not leads:
            ticket.wait()
        if not ticket.done:
            self._lead()
        return ticket.outcome()

    def _lead(self) -> None:
        with self._lock:
            group, self._waiting = self._waiting, []
        try:
            self._commit(group)
        except BaseException as error:
            for ticket in group:
                if not ticket.done:
                    ticket.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                successor = self._waiting[0] if self._waiting else None
                self._led = successor is not None
            for ticket in group:
                ticket.wake()
            if successor is not None:
                successor.wake()
