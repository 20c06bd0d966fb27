"""Whoever is interrupted while it waits takes nobody along: the others' items are written."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from holdfast.errors import HoldfastError, PoisonedError
from holdfast.shard import _group
from holdfast.shard._group import GroupCommit, Item

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


def wait_for_length(group: GroupCommit, length: int) -> None:
    deadline = time.monotonic() + 60
    while group.length < length:
        assert time.monotonic() < deadline
        time.sleep(0.001)


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
    written: list[Item] = []

    def write(items: Sequence[Item]) -> None:
        begun.set()
        assert gate.wait(60)
        written.extend(items)

    group = GroupCommit(write, name="worker", max_bytes=100, max_rows=100, wrapped=broken)
    outcomes: dict[str, str] = {}
    items = {name: Item() for name in ["leader", *order]}

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
