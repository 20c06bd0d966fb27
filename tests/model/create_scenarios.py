"""Worlds in which two processes create one table concurrently, on a store that ignores conditions.

A creator ties the table to its commit store, decides version 1, reads the pin again, and
only then acknowledges. With one commit store between them they agree on one table. With
two, nobody can arbitrate; still at most one create is acknowledged, and the other stops.
"""

from __future__ import annotations

import functools

from holdfast.arbiter import RecordedDecisions, Won, confirm_pin, pin_to_commit_store, read_pin
from holdfast.arbiter._parallel import one_by_one
from holdfast.formats import PIN_PATH, decode_pin, version_name
from holdfast.testing import (
    CountedIds,
    Scenario,
    SimulatedCommitStore,
    SimulatedStore,
    State,
    StillClock,
    World,
)
from model.decide_scenarios import RETRY


def create(world: World, commit_store: SimulatedCommitStore, ids: CountedIds, who: str) -> None:
    store = world.store()
    pin = pin_to_commit_store(store, commit_store, ids)
    arbiter = RecordedDecisions(
        store,
        commit_store,
        pin,
        clock=StillClock(),
        ids=ids,
        retry=RETRY,
        together=one_by_one,
    )
    token = ids.token()
    decision = arbiter.decide(version_name(1), f"by {who} {token}".encode(), token)
    confirm_pin(store, pin)
    outcome = "created" if isinstance(decision, Won) else "opened"
    world.acknowledge(outcome, pin.table_id, f"by {who} {token}".encode())


def creators(*, stores: int, faults: int = 0, crashes: int = 0, honest: bool = False) -> Scenario:
    def build() -> World:
        world = World(honest=honest, faults=faults, crashes=crashes)
        for index, who in enumerate("ab"):
            commit_store = world.commit_store(f"store{index % stores}")
            ids = CountedIds(index + 1)
            world.add(who, functools.partial(create, world, commit_store, ids, who))
        return world

    kind = "honest" if honest else "lying"
    name = f"two creators, {stores} commit store(s), {kind}, {faults} faults, {crashes} crashes"
    check = _pin_stays if honest else _one_table if stores == 1 else _one_creator
    return Scenario(name=name, build=build, check=check)


def _one_table(world: World, state: State) -> str | None:
    """All who succeeded hold the same table, one of them made it, and its bytes are there."""
    tables = {facts[1] for facts in world.acknowledged}
    if len(tables) > 1:
        return f"TWO TABLES: {tables}"
    made = [facts[2] for facts in world.acknowledged if facts[0] == "created"]
    if len(made) > 1:
        return f"TWO FIRST VERSIONS: {made}"
    if not world.acknowledged:
        return None
    if decode_pin(state.objects[PIN_PATH]).table_id not in tables:
        return "the pin is not the acknowledged one"
    store = SimulatedStore(state.apply)
    pin = read_pin(store)
    assert pin is not None
    commit_store = SimulatedCommitStore(state.apply, "store0")
    found = RecordedDecisions(store, commit_store, pin, clock=StillClock(), retry=RETRY).read(
        version_name(1)
    )
    return None if not made or found == made[0] else f"LOST: {made[0]!r}"


def _one_creator(world: World, _state: State) -> str | None:
    made = [facts for facts in world.acknowledged if facts[0] == "created"]
    return f"TWO CREATORS: {made}" if len(made) > 1 else None


def _pin_stays(world: World, state: State) -> str | None:
    """On a store that keeps conditions, an acknowledged pin is never replaced."""
    for facts in world.acknowledged:
        if decode_pin(state.objects[PIN_PATH]).table_id != facts[1]:
            return f"PIN REPLACED: {facts}"
    return None
