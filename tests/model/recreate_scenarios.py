"""Worlds in which a table is removed and made anew while another process still has it open.

The old table has version 1 and a version 2 that is decided, but not at its name. A stale
handle reads on, which finishes version 2, or decides version 3. Meanwhile a creator removes
every object, makes the table anew at the same place and decides two versions of it. What
must hold in every state, with everybody dead:

- what the creator was acknowledged is in the new table, and a fresh reader gets it;
- a decision of the old handle is never acknowledged after the new table was;
- nobody stops with an error of an operator's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.arbiter import (
    CommitStore,
    Key,
    RecordedDecisions,
    Won,
    confirm_pin,
    pin_to_commit_store,
    read_pin,
)
from holdfast.arbiter._parallel import one_by_one
from holdfast.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    PinMismatchError,
    StaleHandleError,
)
from holdfast.formats import Pin, encode_record, make_record, version_name
from holdfast.storage import ObjectStore
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

HONEST_ANSWERS = (
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    PinMismatchError,
    StaleHandleError,
)
Opened = Callable[[ObjectStore, CommitStore, Pin, CountedIds], RecordedDecisions]


def opened(
    store: ObjectStore, commit_store: CommitStore, pin: Pin, ids: CountedIds
) -> RecordedDecisions:
    return RecordedDecisions(
        store,
        commit_store,
        pin,
        clock=StillClock(),
        ids=ids,
        retry=RETRY,
        patience=0,
        together=one_by_one,
    )


def body_of(text: str, ids: CountedIds) -> tuple[bytes, str]:
    token = ids.token()
    return f"{text} {token}".encode(), token


@dataclass(frozen=True, slots=True, kw_only=True)
class Recreation:
    """One row of the table of scenarios."""

    name: str
    writes: bool
    honest: bool = False
    preemptions: int | None = 3
    crashes: int = 0
    pin_to: Any = pin_to_commit_store
    opened: Opened = opened

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    def build(self) -> World:
        world = World(honest=self.honest, preemptions=self.preemptions, crashes=self.crashes)
        pin = self._make_old(world.state)
        world.add("stale", lambda: self._be_stale(world, pin))
        world.add("creator", lambda: self._create(world))
        return world

    def _make_old(self, state: State) -> Pin:
        store, commit_store = SimulatedStore(state.apply), SimulatedCommitStore(state.apply)
        ids = CountedIds(77)
        pin: Pin = self.pin_to(store, commit_store, ids)
        body, token = body_of("old 1", ids)
        opened(store, commit_store, pin, ids).decide(version_name(1), body, token)
        name, (body, after) = version_name(2), (body_of("old 2", ids)[0], token)
        token = body.decode().split()[-1]
        record = make_record(name.path, body, token, after=after, inline=True)
        key = Key(f"{pin.table_id}/{name.series}", name.number)
        commit_store.put_if_absent(key, encode_record(record))
        return pin

    def _be_stale(self, world: World, pin: Pin) -> None:
        ids = CountedIds(1)
        arbiter = self.opened(world.store(), world.commit_store(), pin, ids)
        arbiter.read(version_name(2))
        if self.writes:
            body, token = body_of("old 3", ids)
            if isinstance(arbiter.decide(version_name(3), body, token), Won):
                world.acknowledge("old", 3, body)

    def _create(self, world: World) -> None:
        ids, store, commit_store = CountedIds(2), world.store(), world.commit_store()
        store.delete([info.path for info in store.list()])
        if store.list("_versions"):
            raise AlreadyExistsError("there is a table already")
        pin = self.pin_to(store, commit_store, ids)
        arbiter = self.opened(store, commit_store, pin, ids)
        for number in (1, 2, 3):
            body, token = body_of(f"new {number}", ids)
            decision = arbiter.decide(version_name(number), body, token)
            assert isinstance(decision, Won)
            if number == 1:
                confirm_pin(store, pin)
            world.acknowledge("new", number, body)

    def check(self, world: World, state: State) -> str | None:
        for actor in world.actors:
            if actor.error and not isinstance(actor.error, HONEST_ANSWERS):
                return f"STOPPED: {actor.name}: {actor.error}"
        kinds = [facts[0] for facts in world.acknowledged]
        if "new" in kinds and "old" in kinds[kinds.index("new") :]:
            return "INVISIBLE: the old table's append was acknowledged after the new table"
        try:
            return self._read(world, state)
        except HoldfastError as error:
            return f"unreadable: {error}"

    def _read(self, world: World, state: State) -> str | None:
        """Read the new table as a fresh process does, one name beyond what is there."""
        new = {int(str(f[1])): f[2] for f in world.acknowledged if f[0] == "new"}
        store = SimulatedStore(state.apply)
        pin = read_pin(store)
        if not new or pin is None:
            return "LOST: the pin" if new else None
        arbiter = self.opened(store, SimulatedCommitStore(state.apply), pin, CountedIds(99))
        found = {number: arbiter.read(version_name(number)) for number in (1, 2, 3, 4)}
        lost = [number for number, body in new.items() if found[number] != body]
        foreign = [n for n, body in found.items() if body is not None and b"old" in body]
        return f"LOST: {lost}, of the old table: {foreign}" if lost or foreign else None
