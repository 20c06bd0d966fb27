"""`GroupCommit`: what callers hand in while one of them writes is written together next.

There is no thread to wait for: a caller that finds nobody writing writes at once, itself, and
leads. Those who come meanwhile wait in a queue; when the leader's own item is done it passes
the lead to the first of them, who takes everything that is there. Items whose callers do not
wait are written by a worker thread, which starts when it is first needed.

    submit(a) leads: [a]          submit(b), submit(c) wait
    a is done, b leads: [b c]     submit(d) waits ...

Items are written in the order they came, and are done in that order. When writing fails for
good, every item that is not done gets the error, and so does every later caller.

A leader wakes two: the next leader, and one of those whose items are done; that one wakes the
next, and so on. Were the leader to wake all, each would take its turn at Python's lock before
the log gets on.

The lock guards the queue and who leads. It is never held while writing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from holdfast.errors import HoldfastError


class Item:
    """One thing to write.

    Args:
        size: bytes it counts for.
        rows: rows it counts for.
        alone: it is never written together with others.
    """

    __slots__ = ("alone", "done", "error", "follower", "future", "rows", "size", "turn", "waits")

    def __init__(self, size: int = 0, rows: int = 0, *, alone: bool = False) -> None:
        self.size = size
        self.rows = rows
        self.alone = alone
        self.waits = False
        self.done = False
        self.error: HoldfastError | None = None
        self.future: Future[object] | None = None
        # Tells a caller that waits: its item is done, or it is to lead.
        self.turn: threading.Event | None = None
        self.follower: Item | None = None  # whom the caller wakes when its own item is done

    def result(self) -> object:
        """Return what a future is given when this is done."""
        return None

    def failed(self, error: HoldfastError) -> HoldfastError:
        """Return an error as this item's caller gets it."""
        return error


class Write(Protocol):
    """Writes items, all of them or none; raises only when writing has failed for good."""

    def __call__(self, items: Sequence[Item]) -> None:
        """Write."""
        ...


class GroupCommit:
    """Writes what many threads submit, in order.

    Args:
        write: writes a group; called by one thread at a time.
        name: of the worker thread.
        max_bytes: how large a group may be; a single larger item is a group of its own.
        max_rows: likewise in rows.
        wrapped: turns what `write` raised into the error that everybody gets.
    """

    def __init__(
        self,
        write: Write,
        *,
        name: str,
        max_bytes: int,
        max_rows: int,
        wrapped: Callable[[BaseException], HoldfastError],
    ) -> None:
        self._write = write
        self._name = name
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._wrapped = wrapped
        self._lock = threading.Lock()  # guards everything below
        self._work = threading.Condition(self._lock)
        self._queue: deque[Item] = deque()
        self._leading = False
        self._worker_leads = False
        self._worker: threading.Thread | None = None
        self._closed: HoldfastError | None = None
        self._failure: HoldfastError | None = None

    @property
    def failure(self) -> HoldfastError | None:
        """Return why this stopped for good."""
        return self._failure

    @property
    def length(self) -> int:
        """Return how many items wait."""
        return len(self._queue)

    @property
    def waiting_bytes(self) -> int:
        """Return how many bytes are in them."""
        with self._lock:
            return sum(item.size for item in self._queue)

    def submit(self, item: Item, *, wait: bool = True) -> None:
        """Write an item, in its turn.

        Args:
            item: a new item.
            wait: return when it is written; otherwise at once, and its future tells.

        Raises:
            HoldfastError: writing failed for good, now or before; `item.failed` made it.
        """
        with self._lock:
            stopped = self._failure or self._closed
            if stopped is not None:
                raise item.failed(stopped)
            self._queue.append(item)
            leads = not self._leading
            self._leading = True
            if wait:
                item.waits = True
                if not leads:
                    item.turn = threading.Event()
            elif leads:
                self._call_worker()
        if not wait:
            return
        if not leads:
            self._await(item)
        if not item.done:
            self._lead(item)
        if item.error is not None:
            raise item.error

    def fail(self, error: HoldfastError) -> None:
        """Stop for good: give an error to everybody who waits, and to all who come."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            left = list(self._queue)
            self._queue.clear()
            for item in left:
                # Under the lock: who leads and finds the queue empty must find its item done.
                _mark(item, item.failed(self._failure))
        for item in left:
            _tell(item)

    def close(self, error: HoldfastError) -> None:
        """Take no more items, write those that are there, and end the worker.

        Args:
            error: what later callers get.
        """
        with self._lock:
            self._closed = self._closed or error
        if self._failure is None:
            self._drain()
        with self._lock:
            worker, self._worker = self._worker, None
            self._work.notify_all()
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def _drain(self) -> None:
        """Return when everything that was submitted is done; nothing more can be."""
        with self._lock:
            if not self._leading:
                return
            last = Item()
            last.waits = True
            last.turn = threading.Event()
            self._queue.append(last)
        self._await(last)
        if not last.done:
            self._lead(last)

    def _await(self, item: Item) -> None:
        """Wait until an item is done or its caller leads."""
        turn = item.turn
        assert turn is not None  # noqa: S101 - made under the lock when it was queued
        try:
            turn.wait()
        except BaseException:
            # Interrupted: nobody may count on a caller that went away.
            with self._lock:
                item.waits = False
                if turn.is_set() and not item.done:
                    self._pass_on()
            raise
        finally:
            if item.follower is not None:
                _call(item.follower)

    def _lead(self, until: Item | None) -> None:
        """Write groups until an item is done, or all are; then pass the lead on."""
        while True:
            group: list[Item] = []
            try:
                with self._lock:
                    group = self._take()
                    if not group:
                        self._leading = False
                        return
                self._write(group)
            except BaseException as error:
                self._failed(group, error)
                if not isinstance(error, Exception):
                    raise
                return
            first = self._done(group)
            leaves = until is not None and until.done
            if leaves:
                with self._lock:
                    self._pass_on()
            if first is not None:
                _call(first)
            if leaves:
                return

    def _done(self, group: Sequence[Item]) -> Item | None:
        """Mark a group as written; return the first whose caller must be woken."""
        first = None
        with self._lock:
            for item in reversed(group):
                item.done = True
                if item.waits and item.turn is not None and not item.turn.is_set():
                    item.follower, first = first, item
        for item in group:
            _tell(item)
        return first

    def _take(self) -> list[Item]:
        group: list[Item] = []
        size = rows = 0
        while self._queue:
            item = self._queue[0]
            size, rows = size + item.size, rows + item.rows
            full = size > self._max_bytes or rows > self._max_rows
            if group and (item.alone or group[0].alone or full):
                break
            group.append(self._queue.popleft())
        return group

    def _pass_on(self) -> None:
        """Give the lead to somebody who waits, to the worker, or to nobody. Under the lock."""
        for item in self._queue:
            if item.waits:
                _call(item)
                return
        if self._queue:
            self._call_worker()
        else:
            self._leading = False

    def _failed(self, group: Sequence[Item], error: BaseException) -> None:
        self.fail(self._wrapped(error))
        failure = self._failure
        assert failure is not None  # noqa: S101 - `fail` set it
        for item in group:
            _finish(item, item.failed(failure))
        with self._lock:
            self._leading = False

    def _call_worker(self) -> None:
        """Let the worker lead. Under the lock."""
        self._worker_leads = True
        if self._worker is None:
            self._worker = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._worker.start()
        self._work.notify_all()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._lock:
                while not self._worker_leads and self._worker is me:
                    self._work.wait()
                if not self._worker_leads:
                    return
                self._worker_leads = False
            self._lead(None)


def _call(item: Item) -> None:
    """Wake the caller, if it waits."""
    if item.turn is not None:
        item.turn.set()


def _finish(item: Item, error: HoldfastError | None) -> None:
    _mark(item, error)
    _tell(item)


def _mark(item: Item, error: HoldfastError | None) -> None:
    item.error = error
    item.done = True
    _call(item)


def _tell(item: Item) -> None:
    """Settle the future; what hangs on it runs here, so never under the lock."""
    if item.future is not None:
        if item.error is None:
            item.future.set_result(item.result())
        else:
            item.future.set_exception(item.error)
