"""Places that a run hands to its tasks, under every schedule, and each safeguard taken out.

Run 1 owns the shard and has handed out a place; its task may run twice, late, or never. Run 2
claims the shard and repeats the batch; upkeep flushes and collects meanwhile. The table has no
key, so a batch that is applied twice is read twice. Claim, slots, memory, flush and collection
are the production code; the rows and the base are the model of `lsm.world`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import holdfast.wal._memory
import holdfast.wal._slots
from holdfast.core import TableCore
from holdfast.errors import FencedError, HoldfastError
from holdfast.testing import (
    SimulatedCommitStore,
    SimulatedStore,
    State,
    StillClock,
    Violation,
    World,
    explore,
    mutate,
)
from holdfast.txn import AppTxn
from holdfast.wal import ShardManifests, WalAppender
from holdfast.wal._log import Log
from lsm.test_txns import tidy
from lsm.world import HONEST, SHARD, Code, Hands, Lsm, flush, recorded

pytestmark = [pytest.mark.requirement("C7"), pytest.mark.requirement("S4")]

MAX_STATES = int(os.environ.get("HOLDFAST_LSM_STATES", "1200"))
FIRST, SECOND = AppTxn("query", 0, in_order=True), AppTxn("query", 1, in_order=True)
SLOTS = "holdfast.wal._slots"
MARKS = {FIRST: "t", SECOND: "u"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCode(Code):
    """What is under test, and what a mutant leaves out."""

    slots: Any = holdfast.wal._slots
    reads_before_fence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed(Lsm):
    """One row of the table of scenarios.

    Attributes:
        begun: the shard has a memory, as it has once a run claimed it.
        written: run 1's task has written its entry.
    """

    log: tuple[str, ...] = ()
    begun: bool = True
    written: bool = False
    code: SlotCode = field(default_factory=SlotCode)

    def _create(self, state: State) -> None:
        super(Handed, self)._create(state)
        hands = Hands(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 78)
        if self.begun:
            memory(hands).prepare(0)
        if self.written:
            task(hands, World(preemptions=0))

    def check(self, world: World, state: State) -> str | None:
        for actor in world.actors:
            if actor.error and not isinstance(actor.error, (*HONEST, FencedError)):
                return f"STOPPED: {actor.name}: {type(actor.error).__name__}: {actor.error}"
        hands = Hands(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 99)
        try:
            seen = hands.read()
        except HoldfastError as error:
            return f"unreadable: {type(error).__name__}: {error}"
        for mark in MARKS.values():
            if seen.count(mark) > 1:
                return f"DOUBLED: {mark} {seen.count(mark)} times"
            told = any(what == mark for what, _ in world.acknowledged)
            if told and mark not in seen:
                return f"LOST: {mark}"
        return None


def memory(hands: Hands) -> Any:
    return holdfast.wal._memory.LogMemory(
        TableCore(hands.store, hands.arbiter, ids=hands.ids), SHARD
    )


def first_slot(hands: Hands) -> Any:
    """The place that run 1, which owns an empty log, handed out."""
    code: Any = hands.code
    return code.slots.Slot(shard_id=SHARD, epoch=1, writer="w", position=1, sequence=1)


def write(hands: Hands, world: World, slot: Any, txn: AppTxn) -> Any:
    code: Any = hands.code
    batch = pa.RecordBatch.from_pydict({"mark": [MARKS[txn]], "_tombstone": [False]})
    taken = code.slots.append_at(hands.arbiter, slot, batch, [txn], ids=hands.ids)
    world.acknowledge(MARKS[txn], hands.owner)
    return slot.after(taken.position)


def task(hands: Hands, world: World) -> None:
    """A try of run 1's task."""
    write(hands, world, first_slot(hands), FIRST)


def goes_on(hands: Hands, world: World) -> None:
    """Run 1 finishes its batch and writes the next one."""
    write(hands, world, write(hands, world, first_slot(hands), FIRST), SECOND)


def next_batch_there(hands: Hands, world: World) -> None:
    """A driver that hands the same place to the next batch: it must be told, not believed."""
    write(hands, world, first_slot(hands), SECOND)


def run(hands: Hands, world: World) -> None:
    """A new run: claims the shard, and writes what the log does not have."""
    code: Any = hands.code
    known = memory(hands)
    if code.reads_before_fence:
        newest = ShardManifests(
            TableCore(hands.store, hands.arbiter, ids=hands.ids), SHARD
        ).latest()
        tip = max(Log(TableCore(hands.store, hands.arbiter), SHARD).list_entries(), default=0)
        known.read(max(tip, newest.replay_after if newest else 0))
    appender = WalAppender.claim(
        TableCore(hands.store, hands.arbiter, clock=StillClock(), ids=hands.ids), SHARD
    )
    if code.reads_before_fence:
        slots = code.slots.Slots(appender, known)
    else:
        slots = code.slots.Slots.of(appender, known)
    for txn in (FIRST, SECOND):
        if slots.holds(txn):
            world.acknowledge(MARKS[txn], hands.owner)
        else:
            behind = write(hands, world, slots.next, txn)
            slots.advance([(behind.position - 1, [txn])])


def one_batch(hands: Hands, world: World) -> None:
    """A new run that only repeats the batch; it may be killed between claim and entry."""
    code: Any = hands.code
    appender = WalAppender.claim(
        TableCore(hands.store, hands.arbiter, clock=StillClock(), ids=hands.ids), SHARD
    )
    slots = code.slots.Slots.of(appender, memory(hands))
    if not slots.holds(FIRST):
        write(hands, world, slots.next, FIRST)
    world.acknowledge(MARKS[FIRST], hands.owner)


SCENARIOS = [
    Handed(name="a task runs twice", actors={"a": task, "b": task}, faults=1),
    Handed(name="a late task of a run that went on", actors={"a": goes_on, "b": task}, crashes=1),
    Handed(name="two runs", actors={"a": task, "r": run}, crashes=1),
    Handed(
        name="a zombie task and its twin meet the next run",
        actors={"a": task, "b": task, "r": one_batch},
        preemptions=2,
    ),
    Handed(name="three runs", actors={"a": task, "r": one_batch, "s": one_batch}, preemptions=1),
    Handed(
        name="replay after collection",
        actors={"t": tidy, "r": run},
        written=True,
        preemptions=2,
        crashes=1,
    ),
    Handed(
        name="a first run, collected, and its replay",
        actors={"r": one_batch, "t": tidy, "s": one_batch},
        begun=False,
        preemptions=1,
    ),
    Handed(
        name="a memory after each batch, collected, and its replay",
        actors={"r": run, "t": tidy, "s": run},
        begun=False,
        preemptions=1,
        code=SlotCode(slots=mutate(SLOTS, ("_KEEP_EVERY = 1_000", "_KEEP_EVERY = 1"))),
    ),
    Handed(
        name="a twin wakes up after the collection",
        actors={"t": tidy, "b": task, "r": one_batch},
        written=True,
        preemptions=2,
    ),
    Handed(
        name="a place that another batch took",
        actors={"a": task, "n": next_batch_there},
        faults=1,
    ),
    Handed(
        name="flushed while tasks write",
        actors={"a": goes_on, "f": flush, "b": task},
        preemptions=2,
    ),
    Handed(
        name="commit store",
        actors={"a": task, "t": tidy, "r": one_batch},
        make=recorded,
        honest=False,
        preemptions=1,
        crashes=1,
    ),
    Handed(
        name="a twin after the collection, with a commit store",
        actors={"t": tidy, "b": task},
        make=recorded,
        honest=False,
        written=True,
        preemptions=2,
    ),
]


@pytest.mark.parametrize("setup", SCENARIOS, ids=lambda one: one.name)
def test_a_batch_is_in_the_log_once_whoever_writes_it(setup: Handed) -> None:
    report = explore(setup.scenario(), max_states=MAX_STATES)
    print(report)
    assert report.states > 20


class Mutant(NamedTuple):
    name: str
    scenario: str
    says: str
    code: Callable[[], SlotCode]


SAME_IDS = "        if set(txns) <= set(there):\n"
OTHERS = "        if not (entry.fence and entry.epoch < slot.epoch):\n"
MUTANTS = [
    Mutant(
        "a task that finds its place taken takes the next one",
        "a task runs twice",
        "is damaged",
        lambda: SlotCode(
            slots=mutate(
                SLOTS,
                (SAME_IDS, "        if False:\n"),
                (OTHERS, "        if entry.epoch > slot.epoch:\n"),
            )
        ),
    ),
    Mutant(
        "a task that finds any rows in its place is done",
        "a place that another batch took",
        "LOST",
        lambda: SlotCode(slots=mutate(SLOTS, (SAME_IDS, "        if not entry.fence:\n"))),
    ),
    Mutant(
        "a task steps over the fence of the next run",
        "two runs",
        "is damaged",
        lambda: SlotCode(slots=mutate(SLOTS, (OTHERS, "        if not entry.fence:\n"))),
    ),
    Mutant(
        "the ids are read before the fence",
        "two runs",
        "DOUBLED",
        lambda: SlotCode(reads_before_fence=True),
    ),
    Mutant(
        "no memory before the first id",
        "a first run, collected, and its replay",
        "DOUBLED",
        lambda: SlotCode(
            slots=mutate(
                SLOTS, ("        memory.prepare(appender.fence_position)\n", "        pass\n")
            )
        ),
    ),
    Mutant(
        "a memory leaves out ids of the entries below it",
        "a memory after each batch, collected, and its replay",
        "DOUBLED",
        lambda: SlotCode(
            slots=mutate(
                SLOTS,
                ("_KEEP_EVERY = 1_000", "_KEEP_EVERY = 1"),
                (
                    "            self._memory.add(position, txns)\n",
                    "            self._memory.add(position, [])\n",
                ),
            )
        ),
    ),
    Mutant(
        "the ids of earlier runs are not read",
        "two runs",
        "DOUBLED",
        lambda: SlotCode(
            slots=mutate(
                SLOTS, ("        memory.read(appender.fence_position)\n", "        pass\n")
            )
        ),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_safeguard_of_the_places_taken_out_is_noticed(mutant: Mutant) -> None:
    setup = next(one for one in SCENARIOS if one.name == mutant.scenario)
    with pytest.raises(Violation) as found:
        explore(replace(setup, code=mutant.code()).scenario(), max_states=30_000)
    print(found.value)
    assert mutant.says in str(found.value)
