"""Worlds in which one process copies what another decided: helpers, and those who wait for them.

Version 1 is recorded and not at its name, and so may be version 2, as if those who decided them
were about to copy. Whoever repeats the decision of version 1 copies it, and then helps with those
beyond it. What must hold is what `decide_scenarios` says; and besides:

- a helper puts nothing into a place that holds another table since it confirmed its own version,
  and who waited none where the table was made anew, or where its look got no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast._ids import Ids
from holdfast.arbiter import Arbiter, Key, StoredEntry, SupportsChains, SupportsTurns, Won
from holdfast.errors import UnavailableError
from holdfast.formats import encode_record, make_record
from holdfast.testing import (
    CountedIds,
    Scenario,
    SimulatedCommitStore,
    SimulatedStore,
    State,
    World,
)
from model.decide_scenarios import PINNED, Maker, chain, encode, name_of, tells_loudly

FIRST, SECOND = CountedIds(71).token(), CountedIds(72).token()


def record(state: State, number: int, body: bytes, token: str, after: str | None) -> None:
    """Decide a number before anybody moves, and copy nothing."""
    made = make_record(name_of(number).path, body, token, after=after, inline=True)
    key = Key("hf-table/list", number)
    SimulatedCommitStore(state.apply).put_if_absent(key, encode_record(made))


def repeat_first(world: World, arbiter: Arbiter) -> None:
    """Repeat the decision of version 1, which copies it and helps with what is beyond."""
    assert isinstance(arbiter, SupportsChains)
    body = encode(("a",), FIRST)
    if isinstance(arbiter.decide_next(name_of(1), body, FIRST), Won):
        world.acknowledge("won", 1, body, "a")


def decide_third(world: World, arbiter: Arbiter, ids: Ids, mark: str) -> None:
    """Decide version 3 upon the version 2 that was recorded."""
    assert isinstance(arbiter, SupportsChains)
    token = ids.token()
    body = encode(("a", "b", mark), token)
    if isinstance(arbiter.decide_next(name_of(3), body, token), Won):
        world.acknowledge("won", 3, body, mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A helper, two that want version 3 one after the other, and a store that forgets."""

    name: str
    make: Maker

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=tells_loudly(self.make))

    def build(self) -> World:
        world = World(honest=False, preemptions=2, objects=PINNED)
        record(world.state, 1, encode(("a",), FIRST), FIRST, None)
        record(world.state, 2, encode(("a", "b"), SECOND), SECOND, FIRST)
        helper = self.make(world.store(), world.commit_store(), CountedIds(1))
        world.add("a", lambda: repeat_first(world, helper))
        for index, mark in ((2, "c"), (3, "d")):
            self._add_third(world, CountedIds(index), mark)
        world.add("backup", lambda: world.commit_store().forget("hf-table/list"))
        return world

    def _add_third(self, world: World, ids: CountedIds, mark: str) -> None:
        arbiter = self.make(world.store(), world.commit_store(), ids)
        world.add(mark, lambda: decide_third(world, arbiter, ids, mark))


class RemovedAfterConfirming(SimulatedCommitStore):
    """Somebody who does not know the commit store makes the table anew when it is first asked."""

    world: World
    removed = False

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        entries = super().scan(series, after=after, limit=limit, newest_first=newest_first)
        if not self.removed:
            self.removed = True
            state = self.world.state
            SimulatedStore(state.apply).delete(sorted(state.objects))
        return entries


class Watched(SimulatedStore):
    """The helper's store, which notes what it puts into the other table."""

    world: World
    commits: RemovedAfterConfirming

    def put_if_absent(self, path: str, body: bytes) -> None:
        if self.commits.removed:
            self.world.acknowledge("harm", path)
        super().put_if_absent(path, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A helper whose table is gone when it has confirmed its own version, and one that waits."""

    name: str
    make: Maker

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    def build(self) -> World:
        world = World(honest=False, objects=PINNED)
        record(world.state, 1, encode(("a",), FIRST), FIRST, None)
        plain = world.commit_store()
        commits = RemovedAfterConfirming(plain._ask)
        commits.world = world
        store = Watched(world.store()._ask)
        store.world, store.commits = world, commits
        helper = self.make(store, commits, CountedIds(1))
        world.add("a", lambda: repeat_first(world, helper))
        ids = CountedIds(2)
        waiting = self.make(world.store(), plain, ids)
        world.add("b", lambda: chain(world, waiting, ids, "b"))
        return world

    def check(self, world: World, _state: State) -> str | None:
        harm = [path for kind, path, *_ in world.acknowledged if kind == "harm"]
        return f"HARM: {harm} was put into another table" if harm else None


def repeat_second(world: World, arbiter: Arbiter) -> None:
    """Lose version 1, and repeat the decision of version 2, as one that met others."""
    assert isinstance(arbiter, SupportsChains)
    late = CountedIds(73).token()
    arbiter.decide_next(name_of(1), encode(("late",), late), late)
    body = encode(("a", "b"), SECOND)
    if isinstance(arbiter.decide_next(name_of(2), body, SECOND), Won):
        world.acknowledge("won", 2, body, "b")


def decide_and_die(world: World, token: str) -> None:
    """Record version 3 upon version 2, and do no more."""
    body = encode(("a", "b", "d"), token)
    made = make_record(name_of(3).path, body, token, after=SECOND, inline=True)
    world.commit_store().put_if_absent(Key("hf-table/list", 3), encode_record(made))


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAhead(Forgotten):
    """A helper looks at version 3 while it copies its own; the second who wants that one dies.

    It dies when it has decided: nobody is left who would tell of two decisions.
    """

    def build(self) -> World:
        world = World(honest=False, preemptions=2, objects=PINNED)
        record(world.state, 1, encode(("a",), FIRST), FIRST, None)
        record(world.state, 2, encode(("a", "b"), SECOND), SECOND, FIRST)
        helper = self.make(world.store(), world.commit_store(), CountedIds(1))
        world.add("a", lambda: repeat_second(world, helper))
        self._add_next(world, CountedIds(2), "c")
        world.add("d", lambda: decide_and_die(world, CountedIds(3).token()))
        world.add("backup", lambda: world.commit_store().forget("hf-table/list"))
        return world

    def _add_next(self, world: World, ids: CountedIds, mark: str) -> None:
        arbiter = self.make(world.store(), world.commit_store(), ids)

        def decide() -> None:
            assert isinstance(arbiter, SupportsTurns)
            arbiter.peek_newest("list")  # so version 2 need not be finished first
            decide_third(world, arbiter, ids, mark)

        world.add(mark, decide)


class RemovedWhenSeen(SimulatedStore):
    """Somebody makes the table anew as soon as version 1 was seen at its name."""

    world: World
    removed = False

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        body = super().get(path, start=start, end=end)
        if path == name_of(1).path and not self.removed:
            self.removed = True
            state = self.world.state
            SimulatedStore(state.apply).delete(sorted(state.objects))
        return body

    def put_if_absent(self, path: str, body: bytes) -> None:
        if self.removed:
            self.world.acknowledge("harm", path)
        super().put_if_absent(path, body)


class SilentOnce(SimulatedStore):
    """The first look at version 2, where a forgotten decision has its bytes, gets no answer."""

    world: World
    asked = False

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        if path == name_of(2).path and not self.asked:
            self.asked = True
            raise UnavailableError("no answer")
        return super().get(path, start=start, end=end)

    def put_if_absent(self, path: str, body: bytes) -> None:
        if path == name_of(2).path:
            self.world.acknowledge("harm", path)
        super().put_if_absent(path, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """Who finds the version before in place when it first looks copies upon that very look."""

    name: str
    make: Maker
    store: type[RemovedWhenSeen | SilentOnce]

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    def build(self) -> World:
        first = encode(("a",), FIRST)
        there = {name_of(1).path: first}
        if self.store is SilentOnce:
            there[name_of(2).path] = encode(("a", "b"), SECOND)
        world = World(honest=False, objects={**PINNED, **there})
        record(world.state, 1, first, FIRST, None)
        store = self.store(world.store()._ask)
        store.world = world
        ids = CountedIds(2)
        waiting = self.make(store, world.commit_store(), ids)
        world.add("b", lambda: chain(world, waiting, ids, "b"))
        return world

    def check(self, world: World, _state: State) -> str | None:
        harm = [path for kind, path, *_ in world.acknowledged if kind == "harm"]
        return f"HARM: {harm} was put where it must not be" if harm else None
