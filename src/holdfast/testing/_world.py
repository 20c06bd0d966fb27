"""`World`: production code as greenlets over simulated stores, moved one request at a time.

Each actor is an ordinary function. When it calls a store, it parks; the explorer then picks
a `Choice`: which actor moves and what becomes of its request. Actors see only what stores
answer and the ids and clock of the world, so a schedule (a sequence of choices) replays to
the same state, always.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from holdfast.errors import MissingExtraError

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ImportError as error:
    raise MissingExtraError(
        "the simulated world needs a package that is not installed: "
        "pip install 'holdfast[testing]'",
        package="greenlet",
    ) from error

from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.testing._simulated import (
    OBJECTS,
    Request,
    SimulatedCommitStore,
    SimulatedStore,
    State,
)


class Outcome(StrEnum):
    """What becomes of a parked request."""

    OK = "ok"
    LOST_ANSWER = "lost-answer"
    """Applied, but the caller sees no answer."""
    LOST_REQUEST = "lost-request"
    """Not applied, and the caller sees no answer."""
    LATE = "late"
    """The caller sees no answer; the request lands some time later, or never."""
    DOUBLED = "doubled"
    """Applied, then repeated by the client library: the caller is told "already exists"."""
    REFUSED = "refused"
    """Not applied; the caller is told "already exists" (HTTP 409)."""
    DENIED = "denied"
    """Not applied; the store refuses the credentials, as when they expire."""
    CRASH = "crash"
    """The actor dies; its request in flight may still land."""
    LANDS = "lands"
    """A late request reaches its store."""


FAULTS = (
    Outcome.LOST_ANSWER,
    Outcome.LOST_REQUEST,
    Outcome.LATE,
    Outcome.DOUBLED,
    Outcome.REFUSED,
    Outcome.DENIED,
)
GHOST = -1


class Choice(NamedTuple):
    """One move: an actor (or the n-th ghost, counted down from -1) and an outcome."""

    actor: int
    outcome: Outcome

    def __str__(self) -> str:
        """Return `actor:outcome`, which `parse_schedule` reads back."""
        return f"{self.actor}:{self.outcome.value}"


Schedule = tuple[Choice, ...]


def parse_schedule(text: str) -> Schedule:
    """Return the schedule that `" ".join(map(str, schedule))` printed."""
    parts = (word.rpartition(":") for word in text.split())
    return tuple(Choice(int(actor), Outcome(outcome)) for actor, _, outcome in parts)


class Actor:
    """One process of the world."""

    __slots__ = ("alive", "error", "function", "history", "name", "request", "task")

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self.name = name
        self.function = function
        self.alive = True
        self.history = 0  # a hash of everything the actor has been told: its whole state
        self.request: Request | None = None
        self.task: greenlet | None = None
        self.error: HoldfastError | None = None


class World:
    """Actors, stores, requests under way, and how much may still go wrong."""

    def __init__(
        self,
        *,
        honest: bool = True,
        decisive: bool = True,
        faults: int = 0,
        crashes: int = 0,
        preemptions: int | None = None,
        fault_kinds: Sequence[Outcome] = FAULTS,
        page: int | None = None,
        objects: Mapping[str, bytes] | None = None,
    ) -> None:
        self.state = State(honest=honest, decisive=decisive)
        for path, body in (objects or {}).items():  # what is there before anybody moves
            self.state.apply(Request(OBJECTS, "put", (path, body)))
        self.actors: list[Actor] = []
        self.ghosts: list[Request] = []
        self.acknowledged: list[tuple[object, ...]] = []
        self._faults = faults
        self._crashes = crashes
        self._preemptions = preemptions
        self._kinds = tuple(fault_kinds)
        self._page = page  # how many names a page of a listing has; None for all of them
        self._last: int | None = None
        self._by_task: dict[greenlet, Actor] = {}
        self._hub = getcurrent()

    def store(self) -> SimulatedStore:
        """Return a port to the object store for the actors."""
        return SimulatedStore(self._park, page=self._page)

    def commit_store(self, name: str = "store") -> SimulatedCommitStore:
        """Return a port to a commit store for the actors."""
        return SimulatedCommitStore(self._park, name)

    def add(self, name: str, function: Callable[[], None]) -> None:
        """Add an actor; it runs up to its first request."""
        actor = Actor(name, function)
        self.actors.append(actor)
        actor.task = greenlet(self._run)
        self._by_task[actor.task] = actor
        self._advance(actor, actor)

    def acknowledge(self, *facts: object) -> None:
        """Let an actor say what it was promised; part of the state that checks see."""
        self.acknowledged.append(facts)

    def choices(self) -> list[Choice]:
        """Return every move that is possible now; the plainest one first."""
        running = self._last is not None and self._is_running(self.actors[self._last])
        choices = []
        for index, actor in enumerate(self.actors):
            if not self._is_running(actor):
                continue
            if self._preemptions == 0 and running and index != self._last:
                continue
            choices.append(Choice(index, Outcome.OK))
            if self._faults:
                choices.extend(Choice(index, kind) for kind in self._possible(actor.request))
            if self._crashes:
                choices.append(Choice(index, Outcome.CRASH))
        choices.extend(Choice(GHOST - n, Outcome.LANDS) for n in range(len(self.ghosts)))
        return choices

    def step(self, choice: Choice) -> None:
        """Make one move."""
        if choice.actor <= GHOST:
            self._apply_quietly(self.ghosts.pop(GHOST - choice.actor))
            return
        actor = self.actors[choice.actor]
        answer = self._tell(actor, choice)
        if actor.alive:
            self._advance(actor, answer)

    def close(self) -> None:
        """Let go of the actors; otherwise they wait for the garbage collector."""
        for actor in self.actors:
            actor.alive = False
            actor.task = None
        self._by_task.clear()

    def peek(self, choice: Choice) -> int:
        """Return the `key` that a move would lead to, without making it.

        Possible because an actor's code only depends on what it was told: its next request
        need not be known to tell two states apart.
        """
        saved = self.state, self.ghosts, self._faults, self._crashes, self._preemptions, self._last
        self.state, self.ghosts = self.state.copy(), list(self.ghosts)
        if choice.actor <= GHOST:
            self._apply_quietly(self.ghosts.pop(GHOST - choice.actor))
            key = self.key()
        else:
            actor = self.actors[choice.actor]
            mine = actor.history, actor.alive, actor.request
            self._tell(actor, choice)
            key = self.key()
            actor.history, actor.alive, actor.request = mine
        self.state, self.ghosts, self._faults, self._crashes, self._preemptions, self._last = saved
        return key

    def key(self) -> int:
        """Return a hash of everything that can matter from here on."""
        return hash(
            (
                self.state.digest,
                tuple((a.history, a.alive) for a in self.actors),
                tuple(sorted(map(hash, self.ghosts))),
                self._faults,
                self._crashes,
                self._preemptions,
                None if self._preemptions is None else self._last,
            )
        )

    def describe(self, choice: Choice) -> str:
        """Return one line of a trace, for a move that is about to be made."""
        if choice.actor <= GHOST:
            request: Request | None = self.ghosts[GHOST - choice.actor]
            who = "late"
        else:
            request, who = self.actors[choice.actor].request, self.actors[choice.actor].name
        return f"{who:>9}  {request!s:<60} {choice.outcome.value}"

    def _run(self, actor: Actor) -> None:
        try:
            actor.function()
        except HoldfastError as error:
            actor.error = error

    def _park(self, request: Request) -> object:
        actor = self._by_task[getcurrent()]
        if not actor.alive:
            raise GreenletExit
        actor.request = request
        answer = self._hub.switch()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _tell(self, actor: Actor, choice: Choice) -> object:
        """Settle an actor's request and return the answer, without letting the actor go on."""
        self._count_preemption(choice.actor)
        request = actor.request
        assert request is not None
        if choice.outcome is Outcome.CRASH:
            self._crash(actor, request)
            return None
        answer = self._answer(choice.outcome, request)
        told = type(answer).__name__ if isinstance(answer, Exception) else _hashable(answer)
        actor.history = hash((actor.history, told))
        return answer

    def _advance(self, actor: Actor, value: object) -> None:
        actor.request = None
        assert actor.task is not None
        actor.task.switch(value)

    def _is_running(self, actor: Actor) -> bool:
        return actor.alive and actor.request is not None

    def _possible(self, request: Request | None) -> Sequence[Outcome]:
        assert request is not None
        if not request.changes:
            silent = (Outcome.LOST_REQUEST, Outcome.DENIED)
            return [kind for kind in self._kinds if kind in silent]
        if request.conditional:
            return self._kinds
        doubled = request.target != OBJECTS and request.verb == "put_if_absent"
        return [
            kind
            for kind in self._kinds
            if kind is not Outcome.REFUSED and (doubled or kind is not Outcome.DOUBLED)
        ]

    def _answer(self, outcome: Outcome, request: Request) -> object:
        if outcome is Outcome.OK:
            return self._apply(request)
        self._faults -= 1
        if outcome is Outcome.DENIED:
            return PermissionDeniedError("these credentials are refused")
        if outcome is Outcome.REFUSED:
            return AlreadyExistsError("something may have this name")
        if outcome is Outcome.LATE:
            self.ghosts.append(request)
        if outcome in {Outcome.LOST_ANSWER, Outcome.DOUBLED}:
            self._apply_quietly(request)
        if outcome is Outcome.DOUBLED:
            if request.target == OBJECTS:
                return AlreadyExistsError("something may have this name")
            return self._apply(request)
        return UnavailableError("no answer")

    def _apply(self, request: Request) -> object:
        try:
            return self.state.apply(request)
        except HoldfastError as error:
            return error

    def _crash(self, actor: Actor, request: Request) -> None:
        self._crashes -= 1
        actor.alive = False
        actor.request = None
        if request.changes and Outcome.LATE in self._kinds:
            self.ghosts.append(request)

    def _apply_quietly(self, request: Request) -> None:
        try:
            self.state.apply(request)
        except HoldfastError:
            return

    def _count_preemption(self, index: int) -> None:
        if self._preemptions is None:
            return
        if (
            self._last is not None
            and self._last != index
            and self._is_running(self.actors[self._last])
        ):
            self._preemptions -= 1
        self._last = index


def _hashable(answer: object) -> object:
    return tuple(answer) if isinstance(answer, list) else answer
