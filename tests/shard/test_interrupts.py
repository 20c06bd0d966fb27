"""Ctrl-C anywhere inside a writer's calls: the others go on or get a typed error, in any mode."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.errors import HoldfastError, InvalidInputError, PoisonedError
from holdfast.shard import ShardWriter
from holdfast.shard._budget import Budget, Charge
from interrupts import Interrupt, each_step
from shard.writing import Config, rows

LONG = "HOLDFAST_EXPLORE" in os.environ
WAIT_SECONDS = 60
OWN = ("commits/_group.py", "shard/_budget.py", "shard/_engine.py", "shard/_writer.py")
FILES = (".py",) if LONG else (*OWN, "shard/_flusher.py", "shard/_tables.py", "_wakeup.py")
MODES = {
    "MemTable": Config(),
    "log only": Config(enable_memtable=False),
    "not durable": Config(durable_write=False),
}
CALLS: dict[str, Callable[[ShardWriter, int], object]] = {
    "put": lambda writer, key: writer.put(rows(key)),
    "put_nowait": lambda writer, key: writer.put_nowait(rows(key)),
    "delete": lambda writer, key: writer.delete_keys([key]),
    "flush": lambda writer, _: writer.flush(),
    "close": lambda writer, _: writer.close(),
}


class Others:
    """A thread that puts after each interrupt; knows what was acknowledged."""

    def __init__(self, writer: ShardWriter, key: int) -> None:
        self.errors: list[BaseException] = []
        self.written: list[int] = []
        self._writer = writer
        self._key = key

    def put(self, interrupt: Interrupt) -> None:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), f"a put hangs after an interrupt at {interrupt.at}"
        assert all(isinstance(one, HoldfastError) for one in self.errors), self.errors

    def _run(self) -> None:
        try:
            self._writer.put(rows(self._key))
            self._writer.put_nowait(rows(self._key + 1)).result(WAIT_SECONDS)
            self.written = [self._key, self._key + 1]
        except BaseException as error:  # noqa: BLE001 - looked at by `put`
            self.errors.append(error)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.requirement("L11", "P1", "P4")
@pytest.mark.parametrize(
    ("mode", "call", "stride"),
    [
        ("MemTable", "put", 3),
        ("MemTable", "put_nowait", 2),
        ("MemTable", "delete", 7),
        ("MemTable", "flush", 3),
        ("MemTable", "close", 5),
        ("log only", "put", 4),
        ("not durable", "put", 2),
    ],
)
def test_a_call_that_is_interrupted_anywhere(
    table: holdfast.Table, mode: str, call: str, stride: int
) -> None:
    config = MODES[mode]
    writers = [table.claim_writer("unsharded", config=config)]
    acknowledged: set[int] = set()
    keys = iter(range(0, 1 << 40, 10))

    def attempt(interrupt: Interrupt) -> None:
        writer, key = writers[-1], next(keys)
        try:
            with interrupt.armed():
                CALLS[call](writer, key)
            if (mode, call) in {("MemTable", "put"), ("log only", "put")}:
                acknowledged.add(key)
        except KeyboardInterrupt:
            pass
        others = Others(writer, key + 1)
        others.put(interrupt)
        acknowledged.update(others.written)
        if others.errors:
            expected = InvalidInputError if call == "close" else PoisonedError
            assert isinstance(others.errors[0], expected), interrupt.at
            writer.abort()
            writers.append(table.claim_writer("unsharded", config=config))
        elif mode == "log only":
            assert writer.stats().buffered_bytes == 0, interrupt.at
        assert not writer._budget.waiting

    tried = each_step(FILES, attempt, 1 if LONG else stride)
    assert tried > 5
    writers[-1].close()
    found = table.to_table()["k"].to_pylist()
    assert acknowledged <= set(found)
    assert len(set(found)) == len(found)


def test_what_was_interrupted_while_it_waited_for_room_leaves_no_trace() -> None:
    """Its bytes are not counted, or the buffer would shrink by every interrupt."""

    def attempt(interrupt: Interrupt) -> None:
        budget, charge = Budget(10), Charge(5)
        budget.add(10)
        try:
            with interrupt.armed():
                budget.take(charge, None, lambda: budget.give(10))
        except KeyboardInterrupt:
            budget.give_back(charge)
        assert (budget.used, budget.waiting) in {(10, 0), (0, 0), (5, 0)}, interrupt.at
        assert charge.taken == (budget.used == 5)
        budget.give_back(charge)
        budget.give(budget.used)
        budget.take(Charge(10), 0.0, lambda: None)

    assert each_step(("shard/_budget.py", "_wakeup.py"), attempt) > 10


@pytest.mark.parametrize("call", ["put", "delete", "put_nowait", "flush", "lookup", "close"])
def test_a_callback_may_use_the_writer(table: holdfast.Table, call: str) -> None:
    ended = threading.Event()
    errors: list[BaseException] = []
    writer = table.claim_writer("unsharded")
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: writer.put(rows(2)),
        "delete": lambda: writer.delete_keys([1]),
        "put_nowait": lambda: writer.put_nowait(rows(2)),
        "flush": writer.flush,
        "lookup": lambda: writer.lookup([1]),
        "close": writer.close,
    }

    def callback(_: Any) -> None:
        try:
            calls[call]()
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)
        ended.set()

    writer.put_nowait(rows(1)).add_done_callback(callback)
    assert ended.wait(WAIT_SECONDS), "the callback hangs"
    assert not errors
    writer.close()
    expected = {"put": {1, 2}, "put_nowait": {1, 2}, "delete": set()}.get(call, {1})
    assert set(table.to_table()["k"].to_pylist()) == expected


def test_a_callback_that_fails_ends_nothing(table: holdfast.Table) -> None:
    """Python logs an `Exception` of a callback itself; others would end the thread."""

    def fail(_: Any) -> None:
        raise SystemExit

    with table.claim_writer("unsharded") as writer:
        first = writer.put_nowait(rows(1))
        first.add_done_callback(fail)
        assert writer.put_nowait(rows(2)).result(WAIT_SECONDS).rows == 1
        assert writer.put(rows(3)).rows == 1


@pytest.mark.requirement("W2")
def test_rows_are_readable_when_a_put_returns_that_is_not_durable(table: holdfast.Table) -> None:
    with table.claim_writer("unsharded", config=Config(durable_write=False)) as writer:
        for key in range(20):
            assert writer.put(rows(key)).position is None
            assert writer.lookup([key]).num_rows == 1
            assert writer.to_table(filter=f"k = {key}").num_rows == 1
        writer.delete_keys([3])
        assert writer.lookup([3]).num_rows == 0
