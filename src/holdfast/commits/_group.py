"""`GroupCommit`: what callers hand in while one of them commits is committed together next.

A table's appends become one version, a writer's puts one entry of the log. Each caller gets its
own result, or the error that is its own; an outcome that nobody knows is everybody's.

There is no thread to wait for: a caller that finds nobody committing commits itself, and leads.
Those who come meanwhile wait in a queue; when the leader's own item is done it passes the lead to
the first of them, who takes everything that is there. Items whose callers do not wait are
committed by a worker thread, which starts when it is first needed.

    submit(a) leads: [a]          submit(b), submit(c) wait
    a is done, b leads: [b c]     submit(d) waits ...

Items are committed in the order they came, and are done in that order.

| an error of ...                | who gets it                                                   |
|--------------------------------|---------------------------------------------------------------|
| one item (`item.answer`)       | its caller                                                    |
| the whole group, or Ctrl-C in  | every item of the group that has no outcome yet, as `wrapped` |
| the leader                     | makes it; a queue that `stops` gives it to all who wait and   |
|                                | all who come, else the next group goes on                     |

A log stops: what may or may not be at a position would be followed by what must come after it. A
table goes on: its versions do not follow each other in any order that callers know.

Those who were just woken often come back with their next item. Were the next leader to commit
before they do, two halves would take turns, each waiting for the other. So where `gathers` is set,
a leader waits until as many have come back as were woken, for at most a part of the time that the
last commit took; and when they do not come back, the next leaders do not wait. A caller that was
alone in the last group waits for nobody.

A leader wakes two: the next leader, and one of those whose items are done; that one wakes the
next, and so on. Were the leader to wake all, each would take its turn at Python's lock before
the next commit gets on.

Items whose callers do not wait may wait for each other: the worker lets up to `linger` pass
since the oldest of them came, unless somebody waits behind them or a group is full.

Futures are told by the worker while it does not lead, or by who stops everything: what is done
as their callback may put and flush like everybody else.

A caller may be interrupted (Ctrl-C) at any point: one that waits takes its item back or leaves
it to the leader, one that leads gives up its group with the error that `wrapped` makes, and nobody
waits for either. So the lock is a plain one, taken by `with` alone; what must change together
changes without a call in between, since only calls and jumps back are interrupted; and callers
wait for a `SimpleQueue`, never for an `Event` (`_wakeup.py` says why).

The lock guards the queue and who leads. It is never held while committing.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Protocol

from holdfast._clock import Clock, SystemClock
from holdfast._wakeup import await_item
from holdfast.commits._lance import is_panic
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.commits")

GATHERING_SHARE = 1.0
"""How long a leader waits for those just woken, as a share of what the last commit took."""
_LONGEST_GATHERING_SECONDS = 0.05
_MOST_SKIPPED = 64
_NO_LIMIT = sys.maxsize


class GroupItem:
    """One thing to commit.

    Args:
        size: bytes it counts for.
        rows: rows it counts for.
        alone: it is never committed together with others.
    """

    __slots__ = (
        "alone",
        "answered",
        "done",
        "error",
        "follower",
        "future",
        "leads",
        "queued",
        "queued_at",
        "rows",
        "size",
        "turn",
        "waits",
    )

    def __init__(self, size: int = 0, rows: int = 0, *, alone: bool = False) -> None:
        self.size = size
        self.rows = rows
        self.alone = alone
        self.queued = False  # False again when it was taken back
        self.queued_at = 0.0
        self.leads = False
        self.waits = False
        self.done = False
        self.answered = False  # it has an outcome of its own, whatever becomes of its group
        self.error: Exception | None = None
        self.future: Future[object] | None = None
        # Tells a caller that waits: its item is done, or it is to lead.
        self.turn: SimpleQueue[None] = SimpleQueue()
        self.follower: GroupItem | None = None  # whom the caller wakes when its own item is done

    def result(self) -> object:
        """Return what a future is given when this is done."""
        return None

    def error_for_caller(self, error: HoldfastError) -> HoldfastError:
        """Return an error as this item's caller gets it."""
        return error

    def answer(self, error: Exception | None = None) -> None:
        """Give the item an outcome of its own: it is committed, or has an error."""
        self.error = error
        self.answered = True


class CommitGroup(Protocol):
    """Commits items, all of them or none, but for those that it answers one by one."""

    def __call__(self, items: Sequence[GroupItem]) -> None:
        """Commit; an error that is raised is that of all items which are not answered."""
        ...


class GroupCommit:
    """Commits what many threads submit, in order.

    Args:
        commit: commits a group; called by one thread at a time.
        name: of the worker thread.
        wrapped: turns what `commit` raised into the error that its group gets.
        stops: such an error ends everything.
        gathers: a leader waits for those who were just woken.
        max_bytes: how large a group may be; a single larger item is a group of its own.
        max_rows: likewise in rows.
        linger: how long items whose callers do not wait may wait for others.
        clock: time.
    """

    def __init__(
        self,
        commit: CommitGroup,
        *,
        name: str,
        wrapped: Callable[[BaseException], HoldfastError],
        stops: bool,
        gathers: bool,
        max_bytes: int = _NO_LIMIT,
        max_rows: int = _NO_LIMIT,
        linger: timedelta = timedelta(0),
        clock: Clock | None = None,
    ) -> None:
        self._commit = commit
        self._stops = stops
        self._gathers = gathers
        self._clock = clock or SystemClock()
        self._name = name
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._wrapped = wrapped
        self._linger_seconds = linger.total_seconds()
        self._lock = threading.Lock()  # guards everything below
        self._work = threading.Condition(self._lock)
        self._queue: deque[GroupItem] = deque()
        self._group: list[GroupItem] = []  # what the leader has taken from the queue
        self._told: deque[GroupItem] = deque()  # those whose futures are to be told
        self._leading = False
        self._commit_seconds = 0.0  # what the last commit took
        self._ended = 0.0  # when that was
        self._woken = 0  # callers of the last group, who may come back
        self._gathering: GroupItem | None = None  # the leader that waits for them
        self._awaited = 0  # how long the queue is when they are all back
        self._skip = 0  # leaders that are not to wait, since it was in vain
        self._skipped = 0
        self._worker_leads = False
        self._lingering = False  # the worker leads, and waits for more
        self._hurried = False  # somebody needs what is queued to be written
        self._worker: threading.Thread | None = None
        self._closed: HoldfastError | None = None
        self._failure: HoldfastError | None = None

    @property
    def failure(self) -> HoldfastError | None:
        """Return why this stopped for good."""
        return self._failure

    @property
    def busy(self) -> bool:
        """Tell whether whoever submits now will have to wait."""
        return self._leading

    @property
    def length(self) -> int:
        """Return how many items wait."""
        return len(self._queue)

    @property
    def waiting_bytes(self) -> int:
        """Return how many bytes are in them."""
        with self._lock:
            return sum(item.size for item in self._queue)

    def submit(self, item: GroupItem, *, wait: bool = True) -> None:
        """Commit an item, in its turn.

        Args:
            item: a new item.
            wait: return when it is committed; otherwise immediately, and its future tells.

        Raises:
            HoldfastError: its group failed, or everything stopped; `item.error_for_caller` made it.
            Exception: what the item was answered with.
        """
        try:
            with self._lock:
                stopped = self._failure or self._closed
                if stopped is not None:
                    raise item.error_for_caller(stopped)
                self._enqueue(item, wait=wait)
            if wait:
                self._await(item)
        except BaseException as error:
            self._abandon(item)
            if not is_panic(error) or item.error is None:
                raise
        if item.error is not None:
            raise item.error

    def drain(self) -> None:
        """Return when everything that was submitted so far is committed, or has failed."""
        last = GroupItem()
        try:
            with self._lock:
                if self._failure is not None or not (self._leading or self._queue):
                    return
                self._enqueue(last, wait=True)
            self._await(last)
        except BaseException as error:
            self._abandon(last)
            if not is_panic(error):
                raise

    def hurry(self) -> None:
        """Let what is queued be committed without waiting for more."""
        with self._lock:
            self._hurried = bool(self._queue)
            self._work.notify_all()

    def _enqueue(self, item: GroupItem, *, wait: bool) -> None:
        """Queue an item, and take or give the lead if nobody has it. Under the lock."""
        item.waits = wait
        item.leads = leads = not self._leading
        item.queued = self._leading = True
        if self._linger_seconds:
            item.queued_at = self._clock.elapsed()
        self._queue.append(item)
        if self._lingering and self._is_due():
            self._work.notify_all()
        if self._gathering is not None and len(self._queue) >= self._awaited:
            _call(self._gathering)
        if leads and not wait:
            self._call_worker(item)

    def _await(self, item: GroupItem) -> None:
        """Return when an item is done; lead when that is its caller's turn."""
        if not item.leads:
            await_item(item.turn)
            if item.follower is not None:
                _call(item.follower)
        if not item.done:
            self._lead(item)

    def _gather(self, me: GroupItem) -> None:
        """Wait for those who were just woken, if they usually come back. For speed alone."""
        if not self._gathers:
            return
        with self._lock:
            longest = min(self._commit_seconds * GATHERING_SHARE, _LONGEST_GATHERING_SECONDS)
            seconds = longest - (self._clock.elapsed() - self._ended)
            if len(self._queue) >= self._awaited or seconds <= 0:
                return
            if self._skip:
                self._skip -= 1
                return
            self._gathering = me
        with suppress(Empty):
            me.turn.get(timeout=seconds)
        with self._lock:
            self._gathering = None
            in_vain = (self._awaited - len(self._queue)) * 2 > self._woken
            self._skipped = min(_MOST_SKIPPED, self._skipped * 2 + 1) if in_vain else 0
            self._skip = self._skipped

    def _abandon(self, item: GroupItem) -> None:
        """Count no more on a caller that was interrupted."""
        with self._lock:
            item.waits = False
            if item.queued and not item.done and item not in self._group:
                with suppress(ValueError):
                    self._queue.remove(item)
                    item.queued = False
            if item.leads:
                self._pass_on(item)
            elif self._worker_leads or self._told:
                self._start_worker()
            if item.done and item.follower is not None:
                _call(item.follower)

    def fail(self, error: HoldfastError) -> None:
        """Stop for good: give an error to everybody who waits, and to all who come."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            for item in self._queue:
                # Under the lock: who leads and finds the queue empty must find its item done.
                self._mark(item, item.error_for_caller(self._failure))
            self._queue.clear()
        self._tell()  # not left to the worker, which may be stuck in a write

    def close(self, error: HoldfastError) -> None:
        """Take no more items, commit those that are there, and end the worker.

        Args:
            error: what later callers get.
        """
        with self._lock:
            self._closed = self._closed or error
            self._work.notify_all()
        self.drain()
        with self._lock:
            worker, self._worker = self._worker, None
            self._work.notify_all()
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def _lead(self, me: GroupItem) -> None:
        """Commit groups until an item is done; then pass the lead on."""
        try:
            self._gather(me)
            while not me.done:
                self._lead_once()
        except BaseException as error:
            if self._group or isinstance(error, Exception):
                self._fail_group(me, error)
            if not isinstance(error, Exception) and not is_panic(error):
                raise
        else:
            with self._lock:
                self._pass_on(me)
            if me.follower is not None:
                _call(me.follower)

    def _lead_once(self) -> GroupItem | None:
        """Commit one group; return the first whose caller waits, to be woken."""
        if self._failure is not None:
            self.fail(self._failure)
            return None
        with self._lock:
            self._take()
        if not self._group:
            return None
        begun = self._clock.elapsed()
        self._commit(self._group)
        self._ended = self._clock.elapsed()
        self._commit_seconds = self._ended - begun
        return self._finish_group()

    def _finish_group(self) -> GroupItem | None:
        """Mark the group as done; return the first whose caller waits, each wakes the next.

        A caller that leads is that one: nobody before it in the queue waits.
        """
        first = None
        with self._lock:
            self._woken = 0
            for item in reversed(self._group):
                item.done = True
                if item.waits:
                    item.follower, first = first, item
                    self._woken += 1
            self._awaited = len(self._queue) + self._woken
            self._told.extend(item for item in self._group if item.future is not None)
            if self._told:
                self._start_worker()
            self._group = []
        return first

    def _take(self) -> None:
        """Move what is committed together from the queue to the group. Under the lock."""
        group = self._group
        self._hurried = False
        size = rows = 0
        while self._queue:
            item = self._queue[0]
            size, rows = size + item.size, rows + item.rows
            full = size > self._max_bytes or rows > self._max_rows
            if group and (item.alone or group[0].alone or full):
                break
            group.append(item)  # first: an interrupt may leave it in both, never in none
            self._queue.popleft()

    def _pass_on(self, me: GroupItem) -> None:
        """Give the lead to somebody who waits, to the worker, or to nobody. Under the lock."""
        successor = None
        for item in self._queue:
            if item.waits:
                successor = item
                break
        if successor is None and self._queue:
            self._call_worker(me)
            return
        # No call from here on but the last: an interrupt comes before or after all of it.
        me.leads = False
        if successor is None:
            self._leading = False
        else:
            successor.leads = True
            successor.turn.put(None)

    def _fail_group(self, me: GroupItem, error: BaseException) -> None:
        """Give up the group after an error of this leader; stop for good, or go on."""
        failure = self._wrapped(error)
        if self._stops:
            self.fail(failure)
            failure = self._failure or failure  # the first one counts
        with self._lock:
            for item in dict.fromkeys((*self._group, me)):
                if not item.done:
                    self._mark(item, item.error_for_caller(failure))
                _call(item)
                if item in self._queue:  # it was not taken, or an interrupt came in between
                    self._queue.remove(item)
            self._group = []
            self._pass_on(me)  # to nobody, if everything stopped: the queue is empty
        self._tell()

    def _mark(self, item: GroupItem, error: HoldfastError) -> None:
        """Let an item fail, unless it has an outcome of its own. Under the lock."""
        if not item.answered:
            item.error = error
        item.done = True
        _call(item)
        if item.future is not None:
            self._told.append(item)

    def _call_worker(self, me: GroupItem) -> None:
        """Give the lead to the worker. Under the lock."""
        me.leads = False
        self._worker_leads = True
        if not self._start_worker():  # whoever comes next leads
            self._worker_leads = self._leading = False

    def _start_worker(self) -> bool:
        """See to it that the worker looks at what there is to do. Under the lock.

        Returns:
            False when no thread can be started.
        """
        if self._worker is None:
            worker = threading.Thread(target=self._run, name=self._name, daemon=True)
            # Kept once it has started: after an interrupt in between, the next call starts
            # another, and this one ends by itself.
            try:
                worker.start()
            except RuntimeError:
                log.warning("%s: no thread can be started, a later call does its work", self._name)
                return False
            self._worker = worker
        self._work.notify_all()
        return True

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._lock:
                while not self._worker_leads and not self._told and self._worker is me:
                    self._work.wait()
                leads, self._worker_leads = self._worker_leads, False
                if not leads and not self._told:
                    return
            if leads:
                self._lead_in_worker()
            self._tell()

    def _lead_in_worker(self) -> None:
        """Commit one group; the lead comes back here while nobody waits for it."""
        me = GroupItem()
        me.leads = True
        try:
            self._linger()
            first = self._lead_once()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._fail_group(me, error)
            return
        with self._lock:
            self._pass_on(me)
        if first is not None:
            _call(first)

    def _linger(self) -> None:
        """Wait for more items while nobody waits for those that are there."""
        with self._lock:
            self._lingering = True
            while not self._is_due():
                waited = self._clock.elapsed() - self._queue[0].queued_at
                if waited >= self._linger_seconds:
                    break
                self._work.wait(self._linger_seconds - waited)
            self._lingering = False

    def _is_due(self) -> bool:
        """Tell whether what is queued is committed without waiting for more. Under the lock."""
        queue = self._queue
        if not self._linger_seconds or not queue or self._failure or self._closed or self._hurried:
            return True
        return (
            any(item.waits or item.alone for item in queue)
            or sum(item.size for item in queue) >= self._max_bytes
            or sum(item.rows for item in queue) >= self._max_rows
        )

    def _tell(self) -> None:
        """Tell futures, in the order of their items; callbacks run here, and nothing is locked."""
        while True:
            try:
                item = self._told.popleft()
            except IndexError:
                return
            future = item.future
            try:
                if future is not None and item.error is None:
                    future.set_result(item.result())
                elif future is not None:
                    future.set_exception(item.error)
            except BaseException:
                # A callback's, if it is no `Exception`; the futures behind it wait for this thread.
                log.exception("a callback of a future failed")


def _call(item: GroupItem) -> None:
    """Wake the caller, if it waits; may be repeated."""
    item.turn.put(None)
