"""Transaction ids of a log under every schedule, and each safeguard taken out in turn.

A mark is put under one id by whoever comes: the writer of the log, its successor, and one more.
The table has no key, so a mark that is applied twice is read twice. Claim, memory, flush and
collection are the production code; the rows and the base are the model of `lsm.world`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import holdfast.wal._collect
import holdfast.wal._memory
from holdfast.core import TableCore
from holdfast.errors import FencedError, HoldfastError, PoisonedError
from holdfast.formats import TXNS_TAG, txns_tag
from holdfast.formats._entry import draft_entry
from holdfast.formats._wal_names import entry_name
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
from holdfast.txn import parse_txn
from holdfast.wal import ShardManifests, WalAppender
from holdfast.wal._log import Log
from lsm.world import HONEST, SHARD, Code, Hands, Lsm, flush, recorded

pytestmark = [pytest.mark.requirement("P3"), pytest.mark.requirement("L12")]

MAX_STATES = int(os.environ.get("HOLDFAST_LSM_STATES", "1200"))
TXN = parse_txn(("app", 0))
MARK = "t"


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnCode(Code):
    """What is under test, and what a mutant leaves out."""

    memory: Any = holdfast.wal._memory
    reads_before_fence: bool = False
    prepares: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(Lsm):
    """One row of the table of scenarios.

    Attributes:
        begun: the shard has a memory before anybody moves.
        applied: and the mark is in its log.
    """

    log: tuple[str, ...] = ()
    begun: bool = True
    applied: bool = False
    code: TxnCode = field(default_factory=TxnCode)

    def _create(self, state: State) -> None:
        super(Repeated, self)._create(state)
        hands = Hands(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 78)
        if self.begun:
            memory(hands).prepare(0)
        if self.applied:
            owner_puts(hands, World(preemptions=0))

    def check(self, world: World, state: State) -> str | None:
        for actor in world.actors:
            fine = (*HONEST, FencedError, PoisonedError)
            if actor.error and not isinstance(actor.error, fine):
                return f"STOPPED: {actor.name}: {type(actor.error).__name__}: {actor.error}"
        hands = Hands(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 99)
        try:
            seen = hands.read().count(MARK)
        except HoldfastError as error:
            return f"unreadable: {type(error).__name__}: {error}"
        if seen > 1:
            return f"DOUBLED: {seen} times"
        return f"LOST: {world.acknowledged}" if world.acknowledged and not seen else None


def memory(hands: Hands) -> Any:
    code: Any = hands.code
    return code.memory.LogMemory(TableCore(hands.store, hands.arbiter, ids=hands.ids), SHARD)


def owner_puts(hands: Hands, world: World) -> None:
    """The writer of epoch 1, which owns an empty log, puts the mark; then it is gone."""
    code: Any = hands.code
    known = memory(hands)
    if code.prepares:
        known.prepare(0)
    batch = pa.RecordBatch.from_pydict({"mark": [MARK], "_tombstone": [False]})
    draft = draft_entry(
        [batch], shard_id=SHARD, epoch=1, writer="w", tags={TXNS_TAG: txns_tag([TXN])}
    )
    token = f"hf-{1:032x}"
    body = draft.stamp(position=1, sequence=1, token=token)
    decision = hands.arbiter.decide(entry_name(SHARD, 1), body, token)
    if type(decision).__name__ != "Lost":
        world.acknowledge("put", hands.owner)


def repeat(hands: Hands, world: World) -> None:
    """A new writer: claims the shard, and puts the mark unless it is applied."""
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
    if not code.reads_before_fence:
        known.read(appender.fence_position)
    chosen = known.begin()
    if chosen.takes(TXN):
        if code.prepares:
            known.prepare(appender.fence_position)
        batch = pa.RecordBatch.from_pydict({"mark": [MARK], "_tombstone": [False]})
        done = appender.append(batch, tags={TXNS_TAG: txns_tag(chosen.txns)})
        known.add(done.position, chosen.txns)
    world.acknowledge("put", hands.owner)


def flush_and_remember(hands: Hands, _world: World) -> None:
    hands.flush()
    current = hands.manifests.latest()
    code: Any = hands.code
    if current is not None:
        code.memory.remember(TableCore(hands.store, hands.arbiter), SHARD, current.replay_after)


def tidy(hands: Hands, _world: World) -> None:
    """Flush by somebody who writes no memory, as stock does, and collect."""
    hands.flush()
    hands.code.collect.collect_log(
        TableCore(hands.store, hands.arbiter, ids=hands.ids), SHARD, confirm=True
    )


Actors = Mapping[str, Callable[[Hands, World], None]]
SCENARIOS = [
    Repeated(name="a writer and its successor", actors={"w": owner_puts, "s": repeat}, crashes=1),
    Repeated(name="the first id", actors={"w": owner_puts, "s": repeat}, begun=False, crashes=1),
    Repeated(
        name="a flush between", actors={"w": owner_puts, "f": flush, "s": repeat}, preemptions=2
    ),
    Repeated(
        name="collected", actors={"w": owner_puts, "t": tidy, "s": repeat}, crashes=1, preemptions=2
    ),
    Repeated(
        name="the first id is collected",
        actors={"w": owner_puts, "t": tidy, "s": repeat},
        begun=False,
        preemptions=2,
    ),
    Repeated(
        name="collected while a writer opens",
        actors={"t": tidy, "s": repeat},
        applied=True,
        preemptions=2,
    ),
    Repeated(
        name="two successors", actors={"w": owner_puts, "s": repeat, "u": repeat}, preemptions=1
    ),
    Repeated(
        name="remembered, then collected",
        actors={"w": owner_puts, "f": flush_and_remember, "t": tidy, "s": repeat},
        begun=False,
        preemptions=1,
    ),
    Repeated(
        name="answers get lost",
        actors={"s": repeat, "u": repeat},
        faults=1,
        preemptions=1,
    ),
    Repeated(
        name="commit store",
        actors={"w": owner_puts, "t": tidy, "s": repeat},
        make=recorded,
        honest=False,
        begun=False,
        preemptions=1,
        crashes=1,
    ),
]


@pytest.mark.parametrize("setup", SCENARIOS, ids=lambda one: one.name)
def test_an_id_is_applied_once_in_every_state(setup: Repeated) -> None:
    report = explore(setup.scenario(), max_states=MAX_STATES)
    print(report)
    assert report.states > 50


class Mutant(NamedTuple):
    name: str
    scenario: str
    code: Callable[[], TxnCode]


MEMORY = "holdfast.wal._memory"
CURSOR = """def _cursor(core, shard_id):
    from holdfast.wal import ShardManifests
    return ShardManifests(core, shard_id).latest().replay_after


def _ids_behind("""
MUTANTS = [
    Mutant(
        "forgotten at the flush: only entries that are not flushed are read",
        "a flush between",
        lambda: TxnCode(
            memory=mutate(
                MEMORY,
                (
                    "start = max(memory.position, gone)",
                    "start = max(memory.position, gone, _cursor(core, shard_id))",
                ),
                (
                    "def _ids_behind(",
                    CURSOR,
                ),
            )
        ),
    ),
    Mutant(
        "forgotten at collection: no memory before the boundary",
        "collected",
        lambda: TxnCode(
            collect=mutate(
                "holdfast.wal._collect",
                ("        remember(core, shard_id, collected.boundary)", "        pass"),
            )
        ),
    ),
    Mutant(
        "the ids are read before the fence",
        "a writer and its successor",
        lambda: TxnCode(reads_before_fence=True),
    ),
    Mutant(
        "no memory before the first id",
        "the first id is collected",
        lambda: TxnCode(prepares=False),
    ),
    Mutant(
        "the boundary is read after the memories",
        "collected while a writer opens",
        lambda: TxnCode(
            memory=mutate(
                MEMORY,
                (
                    "        gone = boundary.read()\n        memory = memories.newest()\n",
                    "        memory = memories.newest()\n        gone = boundary.read()\n",
                ),
            )
        ),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_safeguard_of_the_ids_taken_out_is_noticed(mutant: Mutant) -> None:
    setup = next(one for one in SCENARIOS if one.name == mutant.scenario)
    with pytest.raises(Violation) as found:
        explore(replace(setup, code=mutant.code()).scenario(), max_states=30_000)
    print(found.value)
    assert "DOUBLED" in str(found.value)
