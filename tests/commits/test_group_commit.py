"""Those who wait share one commit; whoever is interrupted while it waits takes nobody along."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

import pytest

from holdfast.commits import _group
from holdfast.commits._group import GroupCommit, GroupItem
from holdfast.errors import HoldfastError, PoisonedError
from holdfast.testing import StillClock

INTERRUPTED = "interrupted"


class Before(SimpleQueue[None]):
    """Interrupts a caller that begins to wait."""

    def get(self, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT002
        if threading.current_thread().name == INTERRUPTED:
            raise KeyboardInterrupt
        super().get(block, timeout)


class After(SimpleQueue[None]):
    """Interrupts a caller in the moment in which it is woken."""

    def get(self, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT002
        super().get(block, timeout)
        if threading.current_thread().name == INTERRUPTED:
            raise KeyboardInterrupt


def broken(error: BaseException) -> HoldfastError:
    return PoisonedError("writing failed", reason=repr(error))


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def wait_for_length(group: GroupCommit, length: int) -> None:
    wait_until(lambda: group.length >= length)


@pytest.mark.parametrize("event", [Before, After])
@pytest.mark.parametrize(
    "order",
    [
        [INTERRUPTED, "b", "c"],  # it would lead
        ["b", INTERRUPTED, "c"],  # it would wake the next
        ["b", "c", INTERRUPTED],
        [INTERRUPTED],
    ],
)
def test_an_interrupted_caller_takes_nobody_along(
    monkeypatch: pytest.MonkeyPatch, event: type[SimpleQueue[None]], order: list[str]
) -> None:
    monkeypatch.setattr(_group, "SimpleQueue", event)
    gate, begun = threading.Event(), threading.Event()
    written: list[GroupItem] = []

    def write(items: Sequence[GroupItem]) -> None:
        begun.set()
        assert gate.wait(60)
        written.extend(items)

    group = GroupCommit(
        write, name="worker", max_bytes=100, max_rows=100, wrapped=broken, stops=True, gathers=True
    )
    outcomes: dict[str, str] = {}
    items = {name: GroupItem() for name in ["leader", *order]}

    def submit(name: str) -> None:
        try:
            group.submit(items[name])
        except KeyboardInterrupt:
            outcomes[name] = "interrupted"
        else:
            outcomes[name] = "written"

    threads = []
    for number, name in enumerate(items):
        threads.append(threading.Thread(target=submit, args=(name,), name=name, daemon=True))
        threads[-1].start()
        if number == 0:
            assert begun.wait(60)
        elif event is Before and name == INTERRUPTED:
            threads[-1].join(60)  # it takes its item back
        else:
            gone = event is Before and INTERRUPTED in order[:number]
            wait_for_length(group, number - gone)
    gate.set()
    for thread in threads:
        thread.join(60)
    assert not [thread.name for thread in threads if thread.is_alive()]
    assert outcomes == {name: INTERRUPTED if name == INTERRUPTED else "written" for name in items}
    group.close(PoisonedError("closed"))
    ours = [item for item in items.values() if item.queued]
    assert [item for item in written if item in items.values()] == ours
    assert [name for name, item in items.items() if not item.queued] in ([], [INTERRUPTED])


def test_those_just_woken_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, the first to come back writes alone, and the others wait for it."""
    monkeypatch.setattr(_group, "_LONGEST_GATHERING_SECONDS", 60.0)
    sizes: list[int] = []
    clock = SlowWrites()

    def write(items: Sequence[GroupItem]) -> None:
        if not sizes:
            wait_for_length(group, callers - 1)
        sizes.append(len(items))
        clock.written()

    callers, rounds = 4, 6
    group = GroupCommit(
        write,
        name="t",
        max_bytes=1 << 20,
        max_rows=100,
        wrapped=broken,
        stops=True,
        gathers=True,
        clock=clock,
    )

    def work(times: int) -> None:
        for _ in range(times):
            group.submit(GroupItem(size=1, rows=1))

    # The first is alone once, and comes back for all the others' rounds.
    first, *others = (
        threading.Thread(target=work, args=(rounds if number else rounds + 1,))
        for number in range(callers)
    )
    first.start()
    wait_until(lambda: group._leading)
    for thread in others:
        thread.start()
    for thread in (first, *others):
        thread.join(240)
    assert sizes == [1, *([callers] * rounds)]


class SlowWrites(StillClock):
    """A clock by which every write takes a minute, and nothing else takes any time."""

    def __init__(self) -> None:
        self._now = 0.0

    def elapsed(self) -> float:
        return self._now

    def written(self) -> None:
        self._now += 60.0


def test_who_is_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_group, "_LONGEST_GATHERING_SECONDS", 600.0)
    clock = SlowWrites()
    sizes: list[int] = []

    def write(items: Sequence[GroupItem]) -> None:
        sizes.append(len(items))
        clock.written()

    group = GroupCommit(
        write,
        name="t",
        max_bytes=1,
        max_rows=1,
        wrapped=broken,
        stops=True,
        gathers=True,
        clock=clock,
    )
    for _ in range(5):
        group.submit(GroupItem())
    assert sizes == [1] * 5


@pytest.mark.parametrize("gathers", [True, False])
def test_those_who_do_not_come_back_are_waited_for_ever_less_often(gathers: bool) -> None:
    group = GroupCommit(
        lambda _: None,
        name="t",
        max_bytes=1,
        max_rows=1,
        wrapped=broken,
        stops=True,
        gathers=gathers,
    )
    waits: list[float] = []

    class Noted(SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT002
            waits.append(timeout or 0.0)
            raise Empty

    for _ in range(64):
        leader = GroupItem()
        leader.turn = Noted()
        group._woken, group._awaited, group._commit_seconds = 8, 9, 60.0
        group._ended = group._clock.elapsed()
        group._queue.append(leader)
        group._gather(leader)
        group._queue.clear()
    assert len(waits) == (6 if gathers else 0)  # after 1, 3, 7, 15 and 31 others


class Named(GroupItem):
    """An item that knows its name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class Outcomes:
    """Submits items by name, each in a thread of its own, behind one that is held."""

    def __init__(self, *, stops: bool, fails: BaseException) -> None:
        self.outcomes: dict[str, object] = {}
        self.groups: list[list[str]] = []
        self._fails = fails
        self._threads: list[threading.Thread] = []
        self._gate, self._begun = threading.Event(), threading.Event()
        self.group = GroupCommit(
            self._commit, name="worker", wrapped=broken, stops=stops, gathers=False
        )

    def _commit(self, items: Sequence[GroupItem]) -> None:
        named = [item for item in items if isinstance(item, Named)]
        self.groups.append([item.name for item in named])
        self._begun.set()
        assert self._gate.wait(60)
        for item in named:
            if item.name == "own":
                item.answer()
            if item.name == "bad":
                item.answer(ValueError("its own"))
            if item.name == "breaks":
                self._start("behind")
                wait_for_length(self.group, 1)
                raise self._fails

    def submit(self, name: str) -> None:
        try:
            self.group.submit(Named(name))
            self.outcomes[name] = "committed"
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.outcomes[name] = type(error)

    def run(self, *names: str) -> None:
        self._start("first")
        assert self._begun.wait(60)
        for number, name in enumerate(names, 1):
            self._start(name)
            wait_for_length(self.group, number)
        self._gate.set()
        for thread in self._threads:  # grows meanwhile
            thread.join(60)
            assert not thread.is_alive()

    def _start(self, name: str) -> None:
        self._threads.append(threading.Thread(target=self.submit, args=(name,), daemon=True))
        self._threads[-1].start()


@pytest.mark.requirement("C1", "C8")
def test_each_gets_its_own_outcome_and_what_is_unknown_is_everybody_s() -> None:
    world = Outcomes(stops=False, fails=OSError("broken"))
    world.run("own", "bad", "breaks", "last")
    assert world.groups == [["first"], ["own", "bad", "breaks", "last"], ["behind"]]
    assert world.outcomes == {
        "first": "committed",
        "own": "committed",
        "bad": ValueError,
        "breaks": PoisonedError,
        "last": PoisonedError,
        "behind": "committed",
    }
    world.submit("later")
    assert world.outcomes["later"] == "committed"
    assert not world.group.busy


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("stops", [False, True])
def test_an_interrupted_leader_gives_its_group_up(stops: bool) -> None:
    world = Outcomes(stops=stops, fails=KeyboardInterrupt())
    world.run("breaks", "last")
    assert world.outcomes["breaks"] is KeyboardInterrupt
    assert world.outcomes["last"] is PoisonedError
    world.submit("later")
    for name in ("behind", "later"):
        assert world.outcomes[name] == (PoisonedError if stops else "committed")
    assert not world.group.busy
