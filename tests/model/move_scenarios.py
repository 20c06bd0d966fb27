"""Worlds in which a table moves to another commit store while processes append to it.

Version N of the table is a list: every mark so far. The table has version 1, and one or more
versions that were decided and are not at their names, as processes leave them that died or that
are about to copy. A writer that is told to come back opens the table again, by the pin that is
there, and appends its mark unless the list has it. What must hold in every state, with everybody
dead and the move repeated by somebody:

- the pin names the new store, and what was acknowledged is at its name, for a plain reader, too;
- no version is missing below the newest, each extends the one before, and no mark is there twice;
- no number has two different decisions, one in each store;
- the next append is decided, and nobody stops with an error of an operator's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from holdfast.arbiter import CommitStore, Key, RecordedDecisions, Won, read_pin
from holdfast.arbiter._move import move_between
from holdfast.arbiter._moving import read_move
from holdfast.arbiter._parallel import one_by_one
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    PermissionDeniedError,
    PinMismatchError,
    StaleHandleError,
    UnavailableError,
)
from holdfast.formats import (
    PIN_PATH,
    ArbiterKind,
    Name,
    Pin,
    encode_pin,
    encode_record,
    make_record,
    version_name,
)
from holdfast.formats._wal_names import entry_name
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
from model.decide_scenarios import RETRY, encode, marks_of

OLD, NEW = "old", "new"
SHARD = "11111111-2222-3333-4444-555555555555"
HONEST_ANSWERS = (
    CommitUnknownError,
    ConflictError,
    PermissionDeniedError,
    PinMismatchError,
    StaleHandleError,
    UnavailableError,
)
PIN = Pin(
    table_id="hf-old-table",
    arbiter=ArbiterKind.COMMIT_STORE,
    location="memory://simulated",
    store_id=OLD,
    store_url="simulated://old",
)
Move = Callable[..., Pin]
_TRIES = 3


def make_arbiter(store: ObjectStore, commit_store: CommitStore, pin: Pin) -> RecordedDecisions:
    return RecordedDecisions(
        store,
        commit_store,
        pin,
        clock=StillClock(),
        ids=CountedIds(7),
        retry=RETRY,
        patience=0,
        together=one_by_one,
    )


def name_of_version(number: int) -> Name:
    return version_name(number)


def name_of_entry(number: int) -> Name:
    return entry_name(SHARD, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """One row of the table of scenarios.

    Attributes:
        waiting: how many versions are decided and not at their names when it begins.
        collected: the first name was used and collected, as in a log.
        writers, movers: how many of each.
    """

    name: str
    waiting: int = 1
    collected: bool = False
    writers: int = 1
    movers: int = 1
    honest: bool = False
    faults: int = 0
    crashes: int = 0
    preemptions: int | None = 2
    name_of: Callable[[int], Name] = name_of_version
    move: Move = move_between

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    def but(self, *, move: Move) -> Moving:
        return replace(self, move=move)

    def build(self) -> World:
        world = World(
            honest=self.honest,
            faults=self.faults,
            crashes=self.crashes,
            preemptions=self.preemptions,
        )
        self._make_table(world.state)
        for place in range(self.writers):
            world.add(f"writer {place}", partial(self._write, world, place))
        for place in range(self.movers):
            world.add(f"mover {place}", partial(self._move, world, place))
        return world

    def _make_table(self, state: State) -> None:
        """Leave a table with a finished name, and decided names that nobody copied yet."""
        store, old = SimulatedStore(state.apply), SimulatedCommitStore(state.apply, OLD)
        store.put(PIN_PATH, encode_pin(PIN))
        store.put(f"_mem_wal/{SHARD}/manifest/version_hint.json", b"{}")
        ids, after = CountedIds(77), None
        marks: tuple[str, ...] = ("first",)
        for number in range(1, self.waiting + 2):
            name, token = self.name_of(number), ids.token()
            body = encode(marks, token)
            record = make_record(name.path, body, token, after=after, inline=True)
            old.put_if_absent(Key(f"{PIN.table_id}/{name.series}", number), encode_record(record))
            if number == 1:
                store.put(name.path, body)
            after, marks = token, (*marks, f"w{number + 1}")
        if self.collected:
            old.collect(f"{PIN.table_id}/{self.name_of(1).series}", 1)
            store.delete([self.name_of(1).path])

    def _write(self, world: World, place: int) -> None:
        """Append one mark once, opening the table again when told to."""
        ids, mark = CountedIds(place), f"a{place}"
        for _ in range(_TRIES):
            store = world.store()
            pin = read_pin(store)
            assert pin is not None
            arbiter = make_arbiter(store, world.commit_store(str(pin.store_id)), pin)
            try:
                return self._append(world, arbiter, ids, mark)
            except StaleHandleError:
                continue
        return None

    def _append(self, world: World, arbiter: RecordedDecisions, ids: CountedIds, mark: str) -> None:
        first = 2 if self.collected else 1
        number, marks = self._newest(arbiter, first)
        while mark not in marks:
            token = ids.token()
            decision = arbiter.decide_next(
                self.name_of(number), encode((*marks, mark), token), token
            )
            if isinstance(decision, Won):
                break
            marks, number = marks_of(decision.body), number + 1
        else:
            number -= 1  # it was decided before, and what was read is finished
        world.acknowledge(mark, number)

    def _newest(self, arbiter: RecordedDecisions, first: int) -> tuple[int, tuple[str, ...]]:
        """Return the first free number and the newest list, as who opens the table reads it."""
        number = first
        marks: tuple[str, ...] = ()
        while (body := arbiter.read_finished(self.name_of(number))) is not None:
            number, marks = number + 1, marks_of(body)
        return number, marks

    def _move(self, world: World, place: int) -> None:
        self._move_with(
            world.store(), world.commit_store(OLD), world.commit_store(NEW), CountedIds(50 + place)
        )

    def _move_with(
        self,
        store: SimulatedStore,
        old: SimulatedCommitStore,
        new: SimulatedCommitStore,
        ids: CountedIds,
        move: Move | None = None,
    ) -> Pin:
        pin = read_pin(store)
        assert pin is not None
        if pin.store_id == NEW:
            return pin
        return (move or self.move)(
            store, old, new, pin, new.url, ids=ids, make_arbiter=make_arbiter
        )

    def check(self, world: World, state: State) -> str | None:
        for actor in world.actors:
            if actor.error and not isinstance(actor.error, HONEST_ANSWERS):
                return f"STOPPED: {actor.name}: {actor.error}"
        try:
            return self._two_decisions(state) or self._read(world, state)
        except HoldfastError as error:
            return f"STOPPED: {error}"

    def _two_decisions(self, state: State) -> str | None:
        """Tell of a number that was decided in both stores."""
        decided: dict[int, str] = {}
        for owner, key in state.records:
            if key.series.partition("/")[2] != self.name_of(1).series:
                continue
            if decided.setdefault(key.number, owner) != owner:
                return f"TWICE: number {key.number} is decided in both stores"
        return None

    def _read(self, world: World, state: State) -> str | None:
        """Let somebody finish the move, read everything, and append once more."""
        store = SimulatedStore(state.apply)
        old, new = (SimulatedCommitStore(state.apply, name) for name in (OLD, NEW))
        moved = read_pin(store)
        assert moved is not None
        if moved.store_id == OLD and read_move(old, PIN) is None:
            return None  # nobody began: `decide_scenarios` has this world
        pin = self._move_with(store, old, new, CountedIds(90), move_between)
        arbiter = make_arbiter(store, new, pin)
        found: list[tuple[str, ...]] = []
        number = first = 2 if self.collected else 1
        while (body := arbiter.read_finished(self.name_of(number))) is not None:
            if store.get(self.name_of(number).path) != body:
                return f"LOST: a plain reader finds other bytes at {number}"
            if found and marks_of(body)[:-1] != found[-1]:
                return f"BROKEN: {number} does not extend the one before"
            found.append(marks_of(body))
            number += 1
        for mark, at in world.acknowledged:
            if len(found) <= int(str(at)) - first or mark not in found[int(str(at)) - first]:
                return f"LOST: {mark} was acknowledged at {at}"
        newest = found[-1] if found else ()
        if len(set(newest)) != len(newest):
            return f"DOUBLED: {newest}"
        return self._append_more(store, arbiter, number, newest)

    def _append_more(
        self,
        store: SimulatedStore,
        arbiter: RecordedDecisions,
        number: int,
        newest: tuple[str, ...],
    ) -> str | None:
        if any(info.path == self.name_of(number + 1).path for info in store.list()):
            return f"MISSING: {number}, though there is one above it"
        token = CountedIds(91).token()
        decision = arbiter.decide(self.name_of(number), encode((*newest, "z"), token), token)
        return None if isinstance(decision, Won) else "STOPPED: the next append was not decided"


DEEPER = [
    Moving(name="a move, 3 preemptions, a crash", crashes=1, preemptions=3),
    Moving(name="a move, an honest store, 2 crashes", honest=True, crashes=2),
    Moving(name="a move, 2 faults", faults=2, preemptions=1),
    Moving(name="a move, three wait, a fault", waiting=3, faults=1, crashes=1, preemptions=1),
    Moving(name="two movers, a crash", movers=2, crashes=1, preemptions=1),
    Moving(name="a move, two writers", writers=2, crashes=1),
    Moving(name="a move, a collected log", collected=True, crashes=1, name_of=name_of_entry),
]
