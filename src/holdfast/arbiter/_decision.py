"""`decide`: the first body of a name wins for ever, and everyone learns who won.

An arbiter answers `Won` (our bytes have the name, durably) or `Lost` (with the bytes that
have it). It raises `CommitUnknownError` when neither could be shown; then nothing was
deleted and nothing advanced, and the same call with the same token finds out later.

The token must occur in the body and alone says "mine": two bodies may be equal by
accident, two tokens never are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

from holdfast._clock import Clock
from holdfast._ids import TOKEN_PATTERN, Ids
from holdfast.arbiter._commit_store import CommitStore
from holdfast.errors import InvalidInputError
from holdfast.events import EventKind, emit
from holdfast.formats import Name, Pin


@dataclass(frozen=True, slots=True)
class Won:
    """Our bytes have the name; durable, and for ever."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Another body has the name."""

    body: bytes


Decision = Won | Lost


class Arbiter(Protocol):
    """Decides names of one table."""

    @property
    def pin(self) -> Pin | None:
        """Return what ties the table to this arbiter; None before it is tied."""
        ...

    @property
    def refuses_old_names(self) -> bool:
        """Tell whether a name that was decided once is refused though its object is gone."""
        ...

    def decide(self, name: Name, body: bytes, token: str) -> Decision:
        """Give `name` to `body` unless it is taken. Safe to repeat with the same arguments.

        Raises:
            CommitUnknownError: the outcome could not be learnt; repeat the call.
            ConflictError: the name before this one in its series is not decided yet.
            UnsafeStoreError: the store cannot decide.
            CommitStoreRegressedError, ForeignVersionError: object store and commit store
                disagree; the bytes at the name were left alone.
            CollectedError: the name was decided long ago, and the caller slept since.
            InvalidInputError: the token is not in the body.
            PermissionDeniedError, UnavailableError: this call sent nothing that could
                decide; an earlier one that ended unknown stays unknown.
        """
        ...

    def read(self, name: Name) -> bytes | None:
        """Return the decided bytes, finishing what somebody left unfinished; None if undecided.

        Raises:
            UnavailableError: a store gave no answer.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: the bytes at the
                name are not what was decided.
        """
        ...

    def confirm_place(self, *, if_cheap: bool = False) -> None:
        """Return if this table is still the one in its place, where `decide` does not tell.

        Call it before and after a decision, and take the object back if it then raises. With
        `if_cheap` it returns without looking where a look costs a request.

        Raises:
            StaleHandleError: the table was removed, made anew or released.
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        ...

    def close(self) -> None:
        """Let go of connections; the arbiter is not used afterwards."""
        ...


@runtime_checkable
class SupportsVerdict(Protocol):
    """An arbiter that must know whether its object store may decide."""

    def require_verdict(self) -> None:
        """Return if the store may decide; finds out, if nobody did yet.

        Raises:
            UnsafeStoreError: it may not.
            PermissionDeniedError, NotFoundError: it cannot be written to at all.
        """
        ...


@runtime_checkable
class SupportsRetirement(Protocol):
    """An arbiter that can end a table's id."""

    def retire(self) -> None:
        """End this table's id: every handle of it is refused from now on."""
        ...


@runtime_checkable
class SupportsSeries(Arbiter, SupportsRetirement, Protocol):
    """An arbiter that keeps a record of each decision outside the object store, by series.

    Whoever asks for it may find decisions whose bytes are not at their names yet, and must raise
    a series' boundary before names of it are deleted.
    """

    @property
    def pin(self) -> Pin:
        """Return what ties the table to its commit store."""
        ...

    @property
    def commit_store(self) -> CommitStore:
        """Return the store of the records; to read from."""
        ...

    def newest(self, series: str) -> int | None:
        """Return the newest number that was decided in a series; None if there is none."""
        ...

    def accept(self, series: str, through: int) -> None:
        """Count what is at the names up to `through` as decided; none is decided again."""
        ...

    def read_finished(self, name: Name) -> bytes | None:
        """Return the decided bytes once they are at their name; None if undecided."""
        ...


@runtime_checkable
class SupportsChains(Protocol):
    """An arbiter that decides faster than the object store: the next name need not wait."""

    def decide_next(
        self, name: Name, body: bytes, token: str, decided: Callable[[], None] | None = None
    ) -> Decision:
        """Decide as `Arbiter.decide`; the name before may be decided and not at its name yet.

        `Won` means what it always does. The bytes of a `Lost` may not be at the name yet.
        `decided` is called when ours is decided and not at its name yet; it must not raise.

        Raises:
            HoldfastError: as for `decide`.
        """
        ...


@runtime_checkable
class SupportsRaces(Protocol):
    """An arbiter that can tell a loser the winner in the time of one request."""

    def decide_racing(self, name: Name, body: bytes, token: str) -> Decision:
        """Decide as `Arbiter.decide`; for who expects to lose. It may take one request more.

        Raises:
            HoldfastError: as for `decide`.
        """
        ...


class EndsTurn(Protocol):
    """A place in line."""

    def end(self) -> None:
        """Let the next one go on. Never raises, and may be repeated."""
        ...


@runtime_checkable
class SupportsTurns(Protocol):
    """An arbiter whose losers may stand in line; for speed and fairness, never for safety."""

    def take_turn(self, series: str) -> EndsTurn:
        """Wait until we are the first of those who lost, some seconds at most. Never raises."""
        ...

    def peek_newest(self, series: str) -> bytes | None:
        """Return the newest decided bytes of a series, as those of a `Lost`; None if not at hand.

        Raises:
            HoldfastError: the store did not tell.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a request without an answer is repeated, and how long we wait in between."""

    attempts: int = 6
    first_wait: timedelta = timedelta(milliseconds=50)
    longest_wait: timedelta = timedelta(seconds=2)


class Attempts:
    """Counts tries and waits between them, with jitter, as a `RetryPolicy` says."""

    def __init__(self, policy: RetryPolicy, clock: Clock, ids: Ids) -> None:
        self._policy = policy
        self._clock = clock
        self._ids = ids

    def of(self, name: str, step: str) -> Iterator[Attempt]:
        """Yield one `Attempt` per try; the caller leaves the loop when it has an answer."""
        wait = self._policy.first_wait.total_seconds()
        for number in range(1, self._policy.attempts + 1):
            attempt = Attempt(number)
            yield attempt
            emit(EventKind.RETRIED, name=name, step=step, attempt=number, reason=attempt.reason)
            if number < self._policy.attempts:
                self._clock.sleep(wait * (0.5 + self._ids.jitter() / 2))
                wait = min(wait * 2, self._policy.longest_wait.total_seconds())


class Attempt:
    """One try; `reason` says why it gave no answer."""

    __slots__ = ("number", "reason")

    def __init__(self, number: int) -> None:
        self.number = number
        self.reason = ""


def check_token(body: bytes, token: str) -> None:
    """Refuse a token that is malformed or does not occur in the body.

    Raises:
        InvalidInputError: either is the case.
    """
    if not TOKEN_PATTERN.fullmatch(token.encode()):
        raise InvalidInputError("a token is `hf-` and 32 hexadecimal digits", token=repr(token))
    if token.encode() not in body:
        raise InvalidInputError("the token must occur in the body that it marks", token=token)
