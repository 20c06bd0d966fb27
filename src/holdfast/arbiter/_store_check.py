"""Look at a commit store from outside: its settings, what we may do, how fast, who wins races.

It writes into a scope of its own and collects what it wrote. Like the probe of an object store it
proves guilt, never innocence: one server asked for a second says nothing about a failover.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter._commit_store import CommitStore, Key, SupportsSetUp
from holdfast.errors import CollectedError, PermissionDeniedError, UnavailableError

_CLIENTS = 4
_ROUNDS = 20
_SAMPLES = 30
_BODY = b"x" * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """What was found.

    Attributes:
        store: its URL, without credentials.
        identity: its random id.
        problems: what makes it unfit to decide; empty when nothing was found.
        privileges: the verbs, and whether these credentials may use them.
        decide_ms: the median of a deciding put, in milliseconds; None where we may not.
        read_ms: the median of a read.
        races: how many names were raced for by several clients at the same time.
    """

    store: str
    identity: str
    problems: tuple[str, ...]
    privileges: dict[str, bool]
    decide_ms: float | None
    read_ms: float | None
    races: int


def check_store(
    connect: Callable[[], CommitStore], *, clock: Clock | None = None, ids: Ids | None = None
) -> StoreReport:
    """Ask a commit store for its settings, try every verb, take times, and race for names.

    Args:
        connect: returns a new client at each call.
        clock: takes the times.
        ids: makes the name of the scope that is written to.

    Raises:
        NotFoundError: the store was not set up.
        UnavailableError, PermissionDeniedError: it cannot be read at all.
    """
    clock, ids = clock or SystemClock(), ids or RandomIds()
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(connect())) for _ in range(_CLIENTS)]
        store, series = clients[0], f"{ids.token()}/check"
        identity = store.identity()
        problems = list(store.check()) if isinstance(store, SupportsSetUp) else []
        privileges = _try_verbs(store, f"{series}-verbs")
        decide_ms = read_ms = None
        races = 0
        if privileges["decide"]:
            decide_ms, read_ms = _take_times(store, f"{series}-times", clock)
            problems += _race(clients, f"{series}-races")
            races = _ROUNDS
        if privileges["collect"]:
            for name in ("verbs", "times", "races"):
                with suppress(UnavailableError):
                    store.collect(f"{series}-{name}", _SAMPLES)
        return StoreReport(
            store=store.url,
            identity=identity,
            problems=tuple(problems),
            privileges=privileges,
            decide_ms=decide_ms,
            read_ms=read_ms,
            races=races,
        )


def _try_verbs(store: CommitStore, series: str) -> dict[str, bool]:
    key = Key(series, 0)
    verbs: dict[str, Callable[[], object]] = {
        "read": lambda: (store.get(key), store.scan(series), store.boundary(series)),
        "decide": lambda: store.put_if_absent(key, b"a"),
        "finish": lambda: store.compare_and_set(key, b"a", b"b"),
        "collect": lambda: store.collect(series, 0),
    }
    return {name: _may(verb) for name, verb in verbs.items()}


def _may(verb: Callable[[], object]) -> bool:
    try:
        verb()
    except PermissionDeniedError:
        return False
    except CollectedError:
        pass  # it was heard, and refused for another reason
    return True


def _take_times(store: CommitStore, series: str, clock: Clock) -> tuple[float, float]:
    puts, gets = [], []
    for number in range(_SAMPLES):
        begun = clock.elapsed()
        store.put_if_absent(Key(series, number), _BODY)
        between = clock.elapsed()
        store.get(Key(series, number))
        puts.append(between - begun)
        gets.append(clock.elapsed() - between)
    return round(statistics.median(puts) * 1000, 3), round(statistics.median(gets) * 1000, 3)


def _race(clients: Sequence[CommitStore], series: str) -> list[str]:
    """Let clients race for names; return what a linearizable store would not have shown."""
    problems = []
    barrier = threading.Barrier(len(clients))

    def act(place: int, number: int) -> tuple[bytes | None, bytes | None]:
        """Return who won, as far as this client heard, and what it read afterwards."""
        barrier.wait(60)
        key, mine = Key(series, number), b"client %d" % place
        with suppress(UnavailableError):
            there = clients[place].put_if_absent(key, mine)
            return mine if there is None else there, clients[place].get(key)
        return None, None

    with ThreadPoolExecutor(len(clients), thread_name_prefix="holdfast-check") as threads:
        for number in range(_ROUNDS):
            heard = list(threads.map(act, range(len(clients)), [number] * len(clients)))
            winners = {answer for answer, _ in heard if answer is not None}
            read = {seen for answer, seen in heard if answer is not None}
            if len(winners) > 1:
                problems.append(f"{len(winners)} clients won one name: it cannot decide")
            elif winners and read != winners:
                problems.append("a client read another value than the one that had won")
            if problems:
                break
    return problems
