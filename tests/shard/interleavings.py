"""The queue, the flusher and the budget under every interleaving of a few threads.

Run by `frontrun python -m shard.interleavings`, which makes every bytecode of the traced code
a point where threads may change.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import frontrun

from holdfast import _wakeup
from holdfast.commits import _group
from holdfast.commits._group import GroupCommit, GroupItem, _call
from holdfast.errors import BackpressureError, HoldfastError, PoisonedError
from holdfast.shard._budget import Budget, Charge

TRACED = ["holdfast.shard.*", "holdfast.commits._group"]
SECONDS = float(os.environ.get("HOLDFAST_EXPLORE_SECONDS", "4"))
"""How long one scenario may take; longer runs look at more interleavings."""
PATIENCE = 60.0
"""How long one interleaving may stand still on a busy machine, and a mutant go unnoticed."""


class Turn:
    """Waits and wakes as a `SimpleQueue` does, by means that the explorer can follow."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def put(self, _nothing: None) -> None:
        self._event.set()

    def get(self, timeout: float | None = None) -> None:
        if not self._event.wait(timeout):
            raise queue.Empty


for module in (_group, _wakeup):
    vars(module)["SimpleQueue"] = Turn
vars(_wakeup)["GLANCE_SECONDS"] = None  # here nobody is interrupted, and waiting takes no time


class Numbered(GroupItem):
    """An item that knows what it is."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(size=1, rows=1)
        self.name = name


class World:
    """A queue whose writes are remembered; the write of `breaks` fails for good."""

    def __init__(self, breaks: str = "", max_bytes: int = 2) -> None:
        self.written: list[list[str]] = []
        self.writing = 0
        self.most = 0
        self.answers: dict[str, str] = {}
        self.breaks = breaks
        self.futures: dict[str, Future[object]] = {}
        self.group = GroupCommit(
            self.write,
            name="holdfast-explored",
            max_bytes=max_bytes,
            max_rows=10,
            wrapped=lambda error: PoisonedError(str(error)),
            stops=True,
            gathers=True,
        )

    def write(self, items: Sequence[GroupItem]) -> None:
        self.writing += 1
        self.most = max(self.most, self.writing)
        names = [item.name for item in items if isinstance(item, Numbered)]
        try:
            if self.breaks in names:
                raise OSError("broken")
            self.written.append(names)
        finally:
            self.writing -= 1

    def put(self, name: str) -> None:
        try:
            self.group.submit(Numbered(name))
            self.answers[name] = "done"
        except HoldfastError:
            self.answers[name] = "failed"

    def put_nowait(self, name: str) -> None:
        item = Numbered(name)
        item.future = self.futures[name] = Future()
        try:
            self.group.submit(item, wait=False)
        except HoldfastError as error:
            item.future.set_exception(error)

    def in_order(self, *names: str) -> bool:
        flat = [name for group in self.written for name in group]
        return [name for name in flat if name in names] == list(names)

    def whole(self, *names: str) -> bool:
        """Everything was written once, by one writer at a time, and nobody leads any more."""
        flat = [name for group in self.written for name in group]
        return (
            sorted(flat) == sorted(names)
            and self.most == 1
            and all(self.answers[name] == "done" for name in names if name in self.answers)
            and not self.group._leading
            and not self.group._queue
        )


def two_puts() -> Any:
    return frontrun.explore(
        World,
        [lambda w: w.put("a"), lambda w: w.put("b")],
        lambda w: w.whole("a", "b"),
        **bounds(),
    )


def three_puts() -> Any:
    return frontrun.explore(
        World,
        [lambda w: w.put("a"), lambda w: w.put("b"), lambda w: w.put("c")],
        lambda w: w.whole("a", "b", "c"),
        **bounds(preemptions=1),
    )


def three_are_done_together() -> Any:
    """One is passed the lead and wakes the second, which wakes the third."""
    return explore_waiting(GroupCommit)


def explore_waiting(kind: type[GroupCommit], *, mutant: bool = False) -> Any:
    def led() -> World:
        world = World(max_bytes=3)
        world.group.__class__ = kind
        world.group._leading = True
        return world

    def leave(world: World) -> None:
        with world.group._lock:
            world.group._pass_on(GroupItem())

    return frontrun.explore(
        led,
        [lambda w: w.put("a"), lambda w: w.put("b"), lambda w: w.put("c"), leave],
        lambda w: w.whole("a", "b", "c"),
        **bounds(preemptions=1, mutant=mutant),
    )


def one_thread_keeps_its_order() -> Any:
    def two(world: World) -> None:
        world.put("a")
        world.put("b")

    return frontrun.explore(
        World,
        [two, lambda w: w.put("c")],
        lambda w: w.whole("a", "b", "c") and w.in_order("a", "b"),
        **bounds(),
    )


def a_broken_write_fails_everybody_after_it() -> Any:
    def invariant(world: World) -> bool:
        flat = [name for group in world.written for name in group]
        done = [name for name, answer in world.answers.items() if answer == "done"]
        return (
            sorted(flat) == sorted(done)
            and world.answers["b"] == "failed"
            and len(world.answers) == 3
            and world.group.failure is not None
            and not world.group._queue
        )

    return frontrun.explore(
        lambda: World(breaks="b"),
        [lambda w: w.put("a"), lambda w: w.put("b"), lambda w: w.put("c")],
        invariant,
        **bounds(),
    )


def failing_from_outside() -> Any:
    """The flusher finds out that the writer is fenced while puts are on their way."""
    return explore_failing(World)


def explore_failing(world: type[World], *, mutant: bool = False) -> Any:
    def invariant(world: World) -> bool:
        flat = [name for group in world.written for name in group]
        done = [name for name, answer in world.answers.items() if answer == "done"]
        return sorted(flat) == sorted(done) and len(world.answers) == 2

    return frontrun.explore(
        world,
        [
            lambda w: w.put("a"),
            lambda w: w.put("b"),
            lambda w: w.group.fail(PoisonedError("elsewhere")),
        ],
        invariant,
        **bounds(mutant=mutant),
    )


def the_budget_is_kept() -> Any:
    class Purse:
        def __init__(self) -> None:
            self.budget = Budget(2)
            self.highest = 0
            self.refused = 0

    def spend(purse: Purse) -> None:
        try:
            purse.budget.take(Charge(2), 0.0, lambda: None)
        except BackpressureError:
            purse.refused += 1
            return
        purse.highest = max(purse.highest, purse.budget.used)
        purse.budget.give(2)

    return frontrun.explore(
        Purse,
        [spend, spend, spend],
        lambda p: p.budget.used == 0 and p.highest <= 2 and p.budget.waiting == 0,
        **bounds(),
    )


class Careless(GroupCommit):
    """A queue that forgets to pass the lead on: the scenarios must notice."""

    def _pass_on(self, me: GroupItem) -> None:
        me.leads = self._leading = False


def a_lead_that_is_not_passed_on() -> Any:
    class Forgetful(World):
        def __init__(self) -> None:
            super().__init__()
            self.group.__class__ = Careless

    return frontrun.explore(
        Forgetful,
        [lambda w: w.put("a"), lambda w: w.put("b"), lambda w: w.put("c")],
        lambda w: w.whole("a", "b", "c"),
        **bounds(mutant=True),
    )


class Sleepy(GroupCommit):
    """A queue whose callers wake nobody when they are done."""

    def _finish_group(self) -> GroupItem | None:
        group = self._group
        first = super()._finish_group()
        for item in group:
            item.follower = None
        return first


def a_caller_that_wakes_nobody() -> Any:
    return explore_waiting(Sleepy, mutant=True)


class Late(GroupCommit):
    """A queue that tells of a failure after it let the items go."""

    def fail(self, error: HoldfastError) -> None:
        with self._lock:
            self._failure = self._failure or error
            left = list(self._queue)
            self._queue.clear()
        for item in left:
            item.error = error
            item.done = True
            _call(item)


def a_failure_told_late() -> Any:
    """A put would be acknowledged that nobody wrote."""

    class Slow(World):
        def __init__(self) -> None:
            super().__init__()
            self.group.__class__ = Late

    return explore_failing(Slow, mutant=True)


def bounds(preemptions: int = 2, *, mutant: bool = False) -> dict[str, Any]:
    """Return how far to look; a mutant ends the search, or hangs, which shows soon enough."""
    still = 5.0 if mutant else PATIENCE
    return {
        "preemption_bound": preemptions,
        "max_executions": 20_000,
        "total_timeout": max(SECONDS, PATIENCE) if mutant else SECONDS,
        "timeout_per_run": still,
        "deadlock_timeout": still,
        "trace_packages": TRACED,
        "detect_io": False,
        "reproduce_on_failure": 0,
    }


SCENARIOS: dict[str, Callable[[], Any]] = {
    one.__name__: one
    for one in (
        two_puts,
        three_puts,
        three_are_done_together,
        one_thread_keeps_its_order,
        a_broken_write_fails_everybody_after_it,
        failing_from_outside,
        the_budget_is_kept,
    )
}
MUTANTS: dict[str, Callable[[], Any]] = {
    one.__name__: one
    for one in (a_lead_that_is_not_passed_on, a_caller_that_wakes_nobody, a_failure_told_late)
}


def main(name: str) -> int:
    threading.excepthook = lambda _: None
    found = {**SCENARIOS, **MUTANTS}[name]()
    print(f"{name}: holds={found.property_holds} interleavings={found.num_explored}")
    if not found.property_holds:
        print(found.explanation or "no explanation")
    return 0 if found.property_holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
