"""Group commit: writes of one process that wait at the same time become one commit.

The first to arrive commits immediately, alone; nobody waits for a timer. Whoever arrives while
a commit is under way waits for it, and one of them then commits for all who wait.

A caller may be interrupted (Ctrl-C) at any point. One that waits takes its write back, if nobody
has begun it. One that leads gives the lead to the next, and those whose writes it had begun
get `CommitUnknownError`: whether they are in the table only a repeat with their transaction tells.
Callers wait for a `SimpleQueue`, never for an `Event`; `_wakeup.py` says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, TypeVar

from holdfast._wakeup import await_item
from holdfast.commits._lance import is_panic
from holdfast.errors import CommitUnknownError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Ticket(Generic[Item, Result]):
    """One waiting write: its item, and its result or error once it has one."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.leads = False
        self.turn: SimpleQueue[None] = SimpleQueue()  # tells the waiting thread to go on
        self._done = False
        self._result: Result | None = None
        self._error: Exception | None = None

    def succeed(self, result: Result) -> None:
        """Give the write its result."""
        self._result = result
        self._done = True

    def fail(self, error: Exception) -> None:
        """Give the write its error."""
        self._error = error
        self._done = True

    @property
    def done(self) -> bool:
        """Tell whether the write has its result or error."""
        return self._done

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
        self._lock = threading.Lock()  # guards everything below, and who leads
        self._waiting: list[Ticket[Item, Result]] = []
        self._group: list[Ticket[Item, Result]] = []  # what the leader has begun
        self._led = False

    @property
    def busy(self) -> bool:
        """Tell whether whoever submits now will have to wait."""
        with self._lock:
            return self._led

    def submit(self, item: Item) -> Result:
        """Commit `item`, alone or with others, and return its result.

        Raises:
            CommitUnknownError: the thread that committed it was interrupted.
            Exception: whatever `commit` gave this item.
        """
        ticket: Ticket[Item, Result] = Ticket(item)
        try:
            with self._lock:
                # No call between these: an interrupt comes before or after all of them.
                leads = not self._led
                self._led = True
                ticket.leads = leads
                self._waiting.append(ticket)
            if not leads:
                await_item(ticket.turn)  # until it is done, or is to lead
            if not ticket.done:
                self._lead()
                self._leave(ticket, None)
        except BaseException as error:
            self._leave(ticket, error)
            if not is_panic(error):
                raise
        return ticket.outcome()

    def _lead(self) -> None:
        with self._lock:
            # Both lists change in one step, or an interrupt would lose those in between.
            self._group, self._waiting = self._waiting, []
            group = self._group
        try:
            self._commit(group)
        except Exception as error:  # noqa: BLE001 - each waiter gets it, as it is
            for ticket in group:
                if not ticket.done:
                    ticket.fail(error)

    def _leave(self, ticket: Ticket[Item, Result], error: BaseException | None) -> None:
        """Pass the lead on if this caller has it; after an interrupt, count on it no more.

        Safe to repeat after it was interrupted itself: what it changes last, it changes in one go.
        """
        with self._lock:
            if error is not None:
                self._waiting = [other for other in self._waiting if other is not ticket]
            if not ticket.leads:
                return
            for other in self._group:
                if not other.done:
                    other.fail(_cut_short(error))
                other.turn.put(None)
            successor = self._waiting[0] if self._waiting else None
            # From here on no call but the last: an interrupt comes before or after all of it.
            self._group = []
            ticket.leads = False
            if successor is None:
                self._led = False
            else:
                successor.leads = True
                successor.turn.put(None)


def _cut_short(error: BaseException | None) -> CommitUnknownError:
    return CommitUnknownError(
        "the thread that committed this write was interrupted, so its outcome is unknown: repeat "
        "it with the same txn",
        reason=type(error).__name__ if error is not None else None,
    )
