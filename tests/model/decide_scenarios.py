"""Worlds in which several processes append to one list by `decide`, on either arbiter.

Version N of the list is the body of name N: every mark so far, and the token of the
decision. An appender that loses rebuilds on the winner. What must hold in every state:

- what was acknowledged is at its name, for the arbiter and for a plain reader of the store;
- what anybody was shown at a name stays there;
- the newest version has every acknowledged mark once, and each version extends the one before;
- everybody may die now: a fresh reader still gets all of this, without an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from greenlet import GreenletExit

from holdfast._clock import Clock
from holdfast._ids import Ids
from holdfast.arbiter import (
    Arbiter,
    ConditionalPut,
    Decision,
    EndsTurn,
    RecordedDecisions,
    RetryPolicy,
    SupportsChains,
    SupportsRaces,
    SupportsTurns,
    Verdict,
    Won,
)
from holdfast.arbiter._parallel import Call, Together, one_by_one
from holdfast.errors import (
    CollectedError,
    CommitStoreRegressedError,
    CommitUnknownError,
    ConflictError,
    CorruptError,
    ForeignVersionError,
    HoldfastError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.formats import PIN_PATH, ArbiterKind, Name, Pin, encode_pin
from holdfast.testing import (
    CountedIds,
    Scenario,
    SimulatedCommitStore,
    SimulatedStore,
    State,
    StillClock,
    World,
)

PIN = Pin(
    table_id="hf-table",
    arbiter=ArbiterKind.COMMIT_STORE,
    location="memory://simulated",
    store_id="store",
    store_url="simulated://store",
)
PINNED = {PIN_PATH: encode_pin(PIN)}
UNDECIDED = (UnavailableError, PermissionDeniedError)
HONEST_ANSWERS = (CommitUnknownError, CollectedError, *UNDECIDED)
LOUD = (CommitStoreRegressedError, ForeignVersionError, CorruptError)


def name_of(number: int) -> Name:
    return Name(f"list/{number}", "list", number, f"list/{number - 1}" if number > 1 else None)


Maker = Callable[[SimulatedStore, SimulatedCommitStore, Ids], Arbiter]
"""Makes an arbiter over the stores of a world; a mutant has another one."""


RETRY = RetryPolicy(attempts=3)


def conditional(store: SimulatedStore, _commit_store: SimulatedCommitStore, ids: Ids) -> Arbiter:
    return ConditionalPut(store, Verdict.ENFORCED, clock=StillClock(), ids=ids, retry=RETRY)


def look_first(calls: Sequence[Call]) -> list[object]:
    """Run what stands beside the first call before it."""
    *rest, answer = one_by_one([*calls[1:], calls[0]])
    return [answer, *rest]


def look_last(calls: Sequence[Call]) -> list[object]:
    """Run what stands beside the first call after it, whatever came of that."""
    try:
        answer = calls[0]()
    except HoldfastError:
        one_by_one(calls[1:])
        raise
    return [answer, *one_by_one(calls[1:])]


def racing_with(together: Together, factory: type[ConditionalPut] = ConditionalPut) -> Maker:
    """Make arbiters that read a name beside the put, in one order of the two."""

    def make(store: SimulatedStore, _commit_store: SimulatedCommitStore, ids: Ids) -> Arbiter:
        return factory(
            store,
            Verdict.ENFORCED,
            clock=StillClock(),
            ids=ids,
            retry=RETRY,
            together=together,
        )

    return make


def recorded_with(
    inline_bytes: int,
    factory: type[RecordedDecisions] = RecordedDecisions,
    *,
    most_unfinished: int = 8,
    patience: int = 0,
    clock: type[Clock] = StillClock,
) -> Maker:
    def make(store: SimulatedStore, commit_store: SimulatedCommitStore, ids: Ids) -> Arbiter:
        return factory(
            store,
            commit_store,
            PIN,
            clock=clock(),
            ids=ids,
            retry=RETRY,
            inline_bytes=inline_bytes,
            most_unfinished=most_unfinished,
            patience=patience,
            together=one_by_one,
        )

    return make


class RushingClock(StillClock):
    """A clock by which each wait takes most of a second; who waits too often never gets on."""

    def __init__(self) -> None:
        self._waits = 0

    def elapsed(self) -> float:
        return self._waits * 0.8

    def sleep(self, seconds: float) -> None:
        self._waits += 1
        if self._waits > 12:
            raise GreenletExit


inline = recorded_with(1 << 16)
staged = recorded_with(0)


def encode(marks: tuple[str, ...], token: str) -> bytes:
    return f"{' '.join(marks)}|{token}".encode()


def marks_of(body: bytes) -> tuple[str, ...]:
    return tuple(body.decode().partition("|")[0].split())


def append(world: World, arbiter: Arbiter, ids: Ids, mark: str, *, races: bool = False) -> None:
    """Append `mark` once: what a committing writer does, in small."""
    number = 1
    marks: tuple[str, ...] = ()
    while True:
        token = ids.token()
        body = encode((*marks, mark), token)
        decision = _decide_stubbornly(arbiter, name_of(number), body, token, races=races)
        if isinstance(decision, Won):
            world.acknowledge("won", number, body, mark)
            return
        world.acknowledge("saw", number, decision.body)
        marks, number = marks_of(decision.body), number + 1


race = functools.partial(append, races=True)


def chain(
    world: World,
    arbiter: Arbiter,
    ids: Ids,
    mark: str,
    *,
    times: int = 1,
    readable: bool = False,
) -> None:
    """Append marks, each on top of a version that may be decided and not finished yet."""
    assert isinstance(arbiter, SupportsChains)
    number = 1
    marks: tuple[str, ...] = ()
    for turn in range(times):
        mine = mark if times == 1 else f"{mark}{turn}"
        while True:
            token = ids.token()
            body = encode((*marks, mine), token)
            decision = _decide_stubbornly(arbiter, name_of(number), body, token, chains=True)
            if isinstance(decision, Won):
                world.acknowledge("won", number, body, mine)
                if readable:
                    _note_if_unreadable(world, number)
                marks, number = (*marks, mine), number + 1
                break
            marks, number = marks_of(decision.body), number + 1


def line_up(world: World, arbiter: Arbiter, ids: Ids, mark: str) -> None:
    """Append one mark; after a loss, stand in line and build on the newest decision."""
    assert isinstance(arbiter, SupportsChains)
    assert isinstance(arbiter, SupportsTurns)
    number, marks = 1, tuple[str, ...]()
    turn: EndsTurn | None = None
    while True:
        token = ids.token()
        body = encode((*marks, mark), token)
        decided = None if turn is None else turn.end
        decision = arbiter.decide_next(name_of(number), body, token, decided)
        if isinstance(decision, Won):
            world.acknowledge("won", number, body, mark)
            return
        newest = decision.body
        if turn is None:
            try:
                turn = arbiter.take_turn("list")
            except GreenletExit:
                world.acknowledge("starved", number, mark)
                raise
            newest = arbiter.peek_newest("list") or newest
        marks = marks_of(newest)
        number = len(marks) + 1


def _note_if_unreadable(world: World, number: int) -> None:
    """Let a fresh reader look at what was acknowledged in this moment, and at the one before."""
    apply = world.state.copy().apply
    reader = inline(SimulatedStore(apply), SimulatedCommitStore(apply), CountedIds(99))
    try:
        for one in range(max(1, number - 1), number + 1):
            reader.read(name_of(one))
    except LOUD as error:
        world.acknowledge("unreadable", number, type(error).__name__)


def append_again(world: World, arbiter: Arbiter, ids: Ids, mark: str) -> None:
    """Append, and when the name was collected meanwhile, read it and rebuild."""
    number = 1
    marks: tuple[str, ...] = ()
    while True:
        token = ids.token()
        body = encode((*marks, mark), token)
        try:
            decision = _decide_stubbornly(arbiter, name_of(number), body, token)
        except CollectedError:
            found = arbiter.read(name_of(number))
            assert found is not None
        else:
            if isinstance(decision, Won):
                world.acknowledge("won", number, body, mark)
                return
            found = decision.body
            world.acknowledge("saw", number, found)
        marks, number = marks_of(found), number + 1


def log_append(world: World, arbiter: Arbiter, ids: Ids, mark: str) -> None:
    """Give the first free number to one body under one token, as a log entry is."""
    token = ids.token()
    body = f"{mark}|{token}".encode()
    number = 1
    while not isinstance(_decide_stubbornly(arbiter, name_of(number), body, token), Won):
        number += 1
    world.acknowledge("won", number, body, mark)


def build_at_once(world: World, arbiter: Arbiter, ids: Ids, mark: str) -> None:
    """Decide number 2 on a number 1 that may be unfinished, or not there."""
    token = ids.token()
    body = encode(("a", mark), token)
    for _ in range(2):
        try:
            decision = arbiter.decide(name_of(2), body, token)
        except ConflictError:
            continue
        if isinstance(decision, Won):
            world.acknowledge("won", 2, body, mark)
        return


def _decide_stubbornly(
    arbiter: Arbiter,
    name: Name,
    body: bytes,
    token: str,
    *,
    chains: bool = False,
    races: bool = False,
) -> Decision:
    decide = arbiter.decide
    if races:
        assert isinstance(arbiter, SupportsRaces)
        decide = arbiter.decide_racing
    if chains and isinstance(arbiter, SupportsChains):
        decide = arbiter.decide_next
    try:
        return decide(name, body, token)
    except CommitUnknownError as unknown:
        try:
            return decide(name, body, token)
        except (UnavailableError, PermissionDeniedError):
            # The repeat sent nothing; the first try stays unknown.
            raise unknown from None


def claim(
    world: World, arbiter: Arbiter, ids: Ids, mark: str, *, tokens_in_bodies: bool = True
) -> None:
    """Claim name 1 with a body that says nothing of the claimer but its token."""
    token = ids.token()
    body = encode(("epoch-7",), token if tokens_in_bodies else "")
    decision = arbiter.decide(name_of(1), body, token)
    world.acknowledge("won" if isinstance(decision, Won) else "lost", 1, mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One row of the table of scenarios."""

    name: str
    make: Maker
    actors: int = 2
    honest: bool = True
    faults: int = 0
    crashes: int = 0
    preemptions: int | None = None
    decisive: bool = True
    forgets: int = 0
    reader: bool = False
    collector: bool = False
    twins: bool = False
    copies_if_absent: bool = True
    programs: Sequence[Callable[[World, Arbiter, Ids, str], None]] = ()
    program: Callable[[World, Arbiter, Ids, str], None] = append
    check: Callable[[Maker], Callable[[World, State], str | None]] | None = None
    observer: Maker | None = None

    def scenario(self) -> Scenario:
        check = self.check or (tells_loudly if self.forgets else holds)
        return Scenario(name=self.name, build=self.build, check=check(self.observer or self.make))

    def build(self) -> World:
        world = World(
            honest=self.honest,
            decisive=self.decisive,
            faults=self.faults,
            crashes=self.crashes,
            preemptions=self.preemptions,
            objects=PINNED,
        )
        for index in range(self.actors):
            self._add_appender(world, index)
        if self.reader:
            arbiter = self.make(world.store(), world.commit_store(), CountedIds(90))
            world.add("reader", lambda: read_all(world, arbiter))
        if self.collector:
            keeper = recorded_with(0)(world.store(), world.commit_store(), CountedIds(91))
            world.add("collector", lambda: collect_first(keeper))
        for index in range(self.forgets):
            world.add(f"backup{index}", lambda: world.commit_store().forget("hf-table/list"))
        return world

    def _add_appender(self, world: World, index: int) -> None:
        # Twins are one writer started twice: the same tokens, the same mark.
        ids = CountedIds(1 if self.twins else index + 1)
        store = world.store()
        store.copies_if_absent = self.copies_if_absent
        arbiter = self.make(store, world.commit_store(), ids)
        mark = "abcdef"[0 if self.twins else index]
        program = self.programs[index] if self.programs else self.program
        world.add(mark, lambda: program(world, arbiter, ids, mark))

    def but(self, **changes: object) -> Setup:
        return replace(self, **changes)  # type: ignore[arg-type]


def read_all(world: World, arbiter: Arbiter) -> None:
    number = 1
    while (body := arbiter.read(name_of(number))) is not None:
        world.acknowledge("saw", number, body)
        number += 1


def collect_first(arbiter: Arbiter) -> None:
    """Drop the record of name 1 once its bytes are at the name."""
    assert isinstance(arbiter, RecordedDecisions)
    if arbiter.read(name_of(1)) is not None:
        arbiter.accept("list", 1)


def versions(make: Maker, state: State) -> list[bytes]:
    """Read the whole list as a fresh process would, after everybody else died."""
    arbiter = make(SimulatedStore(state.apply), SimulatedCommitStore(state.apply), CountedIds(99))
    found: list[bytes] = []
    while (body := arbiter.read(name_of(len(found) + 1))) is not None:
        found.append(body)
    return found


def holds(make: Maker) -> Callable[[World, State], str | None]:
    """Return the check of a world in which nothing forgets."""

    def check(world: World, state: State) -> str | None:
        problem = _plain_view(world, state) or _stopped(world)
        if problem:
            return problem
        try:
            found = versions(make, state)
        except LOUD as error:
            return f"unreadable: {error}"
        return _compare(world, found) or _guessed(world, found)

    return check


def tells_loudly(make: Maker) -> Callable[[World, State], str | None]:
    """Return the check of a world whose commit store forgets: loss must never be silent."""

    def check(world: World, state: State) -> str | None:
        if state.honest:
            problem = _plain_view(world, state)
            if problem:
                return problem
        if any(isinstance(actor.error, LOUD) for actor in world.actors):
            return None
        try:
            found = versions(make, state)
        except LOUD:
            return None
        return _compare(world, found)

    return check


def _plain_view(world: World, state: State) -> str | None:
    """What a stock reader sees of acknowledged names, and of those before them."""
    for kind, number, *rest in world.acknowledged:
        if kind != "won":
            continue
        if state.objects.get(f"list/{number}") != rest[0]:
            return f"LOST: version {number}, acknowledged to {rest[1]}, is not in the store"
        for before in range(1, int(str(number))):
            if f"list/{before}" not in state.objects:
                return f"HOLE: version {number} is acknowledged, version {before} is not there"
    return None


def in_order(make: Maker, most_unfinished: int) -> Callable[[World, State], str | None]:
    """Return the check of a chain: copied in order, and never far behind the decisions."""
    rest = holds(make)

    def check(world: World, state: State) -> str | None:
        there = [number for number in range(1, 9) if f"list/{number}" in state.objects]
        if there != list(range(1, len(there) + 1)):
            return f"HOLE: {there} are there"
        decided = sum(1 for _, key in state.records if key.series == "hf-table/list")
        if decided - len(there) > most_unfinished:
            return f"TAIL: {decided} are decided, {len(there)} are there"
        return rest(world, state)

    return check


def upon_each_other(make: Maker) -> Callable[[World, State], str | None]:
    """Return the check of a chain whose commit store forgets: nothing goes upon another version.

    Stricter than `tells_loudly`, which is content if a reader finds out later: a plain reader
    never does.
    """
    rest = tells_loudly(make)

    def check(world: World, state: State) -> str | None:
        for number in range(2, 9):
            body, before = (state.objects.get(f"list/{n}") for n in (number, number - 1))
            if body and before and marks_of(body)[:-1] != marks_of(before):
                return f"MISLED: version {number} is not upon version {number - 1}"
        unread = [facts for facts in world.acknowledged if facts[0] == "unreadable"]
        return f"UNREADABLE: {unread}" if unread else rest(world, state)

    return check


def in_turn(make: Maker) -> Callable[[World, State], str | None]:
    """Return the check of those who stand in line: nothing is lost, and nobody waits for ever."""
    rest = holds(make)

    def check(world: World, state: State) -> str | None:
        starved = [facts[2] for facts in world.acknowledged if facts[0] == "starved"]
        return f"STARVED: {starved}" if starved else rest(world, state)

    return check


def _stopped(world: World) -> str | None:
    for actor in world.actors:
        if actor.error and not isinstance(actor.error, HONEST_ANSWERS):
            return f"STOPPED: {actor.name}: {actor.error}"
    return None


def _guessed(world: World, found: list[bytes]) -> str | None:
    """An actor that was told "unavailable, nothing was decided" must not be in the list."""
    names = [actor.name for actor in world.actors]
    for actor in world.actors:
        # A twin's mark may be there by the other twin.
        listed = bool(found) and actor.name in marks_of(found[-1]) and names.count(actor.name) == 1
        if listed and isinstance(actor.error, UNDECIDED):
            return f"GUESSED: {actor.name} was told that nothing was decided"
    return None


def _compare(world: World, found: list[bytes]) -> str | None:
    for kind, number, body, *_ in world.acknowledged:
        if kind in {"unreadable", "starved"}:
            continue
        if len(found) < int(str(number)) or found[int(str(number)) - 1] != body:
            return f"CHANGED: version {number} is not what somebody was shown ({kind})"
    before: tuple[str, ...] = ()
    for body in found:
        marks = marks_of(body)
        if marks[:-1] != before:
            return f"BROKEN CHAIN: {marks} after {before}"
        before = marks
    if len(set(before)) != len(before):
        return f"DOUBLED: {before}"
    return None


def log_holds(make: Maker) -> Callable[[World, State], str | None]:
    """Return the check of a log: every acknowledged entry is at its number."""

    def check(world: World, state: State) -> str | None:
        problem = _plain_view(world, state) or _stopped(world)
        if problem:
            return problem
        try:
            found = versions(make, state)
        except LOUD as error:
            return f"unreadable: {error}"
        for _, number, body, *_ in world.acknowledged:
            if found[int(str(number)) - 1 : int(str(number))] != [body]:
                return f"CHANGED: entry {number}"
        return None

    return check


def one_owner(_make: Maker) -> Callable[[World, State], str | None]:
    """Return the check for byte-identical claims: one owner at most."""

    def check(world: World, _state: State) -> str | None:
        owners = [facts[2] for facts in world.acknowledged if facts[0] == "won"]
        return f"TWO OWNERS: {owners}" if len(owners) > 1 else None

    return check
