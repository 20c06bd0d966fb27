from __future__ import annotations

import itertools
import json
import pickle
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import pytest

from holdfast.arbiter._commit_store import CommitStore, Key, StoredEntry, scope_of
from holdfast.errors import (
    CollectedError,
    InvalidInputError,
    StaleHandleError,
    UnavailableError,
)
from holdfast.testing._commit_store_races import record_histories
from holdfast.testing._commit_store_suite import CommitStoreSuite
from holdfast.testing._linearizable import (
    Counterexample,
    History,
    Operation,
    Result,
    State,
    Verb,
    apply,
    check_linearizable,
)

pytestmark = pytest.mark.requirement("C4")


def op(
    verb: Verb,
    when: tuple[int, int | None],
    number: int = 0,
    *,
    value: bytes = b"",
    expected: bytes = b"",
    result: Result = None,
    client: int = 0,
    series: str = "s",
) -> Operation:
    return Operation(
        client=client,
        verb=verb,
        series=series,
        number=number,
        value=value,
        expected=expected,
        invoked=when[0],
        returned=when[1],
        result=result,
    )


def put(when: tuple[int, int | None], value: bytes, result: Result = None, n: int = 0) -> Operation:
    return op("put_if_absent", when, n, value=value, result=result)


def get(when: tuple[int, int | None], result: Result, n: int = 0) -> Operation:
    return op("get", when, n, result=result)


def swap(when: tuple[int, int | None], old: bytes, new: bytes, result: Result) -> Operation:
    return op("compare_and_set", when, value=new, expected=old, result=result)


LINEARIZABLE: dict[str, list[Operation]] = {
    "nothing": [],
    "one after the other": [put((0, 1), b"a"), get((2, 3), b"a"), put((4, 5), b"b", b"a")],
    "a get that overlaps a put may see either": [put((0, 9), b"a"), get((1, 2), None)],
    "and also": [put((0, 9), b"a"), get((1, 2), b"a")],
    "the later call was first": [put((0, 9), b"a", b"b"), put((1, 8), b"b")],
    "an unknown put took effect late": [
        put((0, None), b"a"),
        get((1, 2), None),
        get((3, 4), b"a"),
    ],
    "an unknown put never took effect": [put((0, None), b"a"), put((1, 2), b"b")],
    "an unknown put lost": [put((0, None), b"a"), put((1, 2), b"b"), get((3, 4), b"b")],
    "an unknown swap": [put((0, 1), b"a"), swap((2, None), b"a", b"b", None), get((3, 4), b"b")],
    "swaps": [put((0, 1), b"a"), swap((2, 3), b"a", b"b", True), swap((4, 5), b"a", b"c", False)],
    "collected": [
        put((0, 1), b"a"),
        op("collect", (2, 3), 0, result=1),
        put((4, 5), b"b", "collected"),
        op("boundary", (6, 7), result=0),
        op("scan", (6, 7), -1, result=()),
    ],
    "a scan": [
        put((0, 1), b"a"),
        put((0, 1), b"b", n=1),
        op("scan", (2, 3), 0, result=((1, b"b"),)),
    ],
}
BROKEN: dict[str, list[Operation]] = {
    "two winners": [put((0, 9), b"a"), put((1, 8), b"b")],
    "a lost write": [put((0, 1), b"a"), get((2, 3), None)],
    "a stale get": [
        put((0, 1), b"a"),
        swap((2, 3), b"a", b"b", True),
        get((4, 5), b"a"),
    ],
    "seen and gone again": [put((0, 9), b"a"), get((1, 2), b"a"), get((3, 4), None)],
    "out of nowhere": [get((0, 1), b"x")],
    "before it was asked for": [get((0, 1), b"a"), put((2, 3), b"a")],
    "both swaps": [
        put((0, 1), b"a"),
        swap((2, 9), b"a", b"b", True),
        swap((2, 9), b"a", b"c", True),
    ],
    "decided again below the boundary": [
        put((0, 1), b"a"),
        op("collect", (2, 3), 0, result=1),
        put((4, 5), b"b"),
    ],
    "a boundary that went down": [
        op("collect", (0, 1), 5, result=0),
        op("collect", (2, 3), 3, result=0),
        op("boundary", (4, 5), result=3),
    ],
    "a torn scan": [
        put((0, 1), b"a"),
        put((2, 3), b"b", n=1),
        op("scan", (4, 5), -1, result=((1, b"b"),)),
    ],
    "a miscounted collection": [put((0, 1), b"a"), op("collect", (2, 3), 0, result=0)],
    "an unknown put seen before it began": [get((0, 1), b"a"), put((2, None), b"a")],
}


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_accepts(name: str) -> None:
    assert check_linearizable(LINEARIZABLE[name]) is None


@pytest.mark.parametrize("name", BROKEN)
def test_rejects(name: str) -> None:
    assert isinstance(check_linearizable(BROKEN[name]), Counterexample)


def test_true_is_not_one() -> None:
    assert check_linearizable([put((0, 1), b"a"), op("collect", (2, 3), 0, result=True)])


def test_series_and_keys_are_independent() -> None:
    fine = [put((0, 1), b"a"), put((2, 3), b"b", n=1), op("get", (4, 5), 0, series="t")]
    assert check_linearizable(fine) is None
    assert check_linearizable([*fine, *BROKEN["two winners"]]) is not None


def test_counterexample_is_the_shortest_part_and_reads_well() -> None:
    history = [put((0, 1000), b"a"), get((2000, 3000), None), get((4000, 5000), b"a")]
    problem = check_linearizable(history)
    assert problem is not None
    assert len(problem.operations) == 2
    assert str(problem).splitlines() == [
        "not linearizable, series 's':",
        "  client 0  [     0 ..      1 us]  put_if_absent(0, b'a') -> None",
        "  client 0  [     2 ..      3 us]  get(0) -> None",
        "the longest order that a map agrees with:",
        "  1. put_if_absent(0, b'a') -> None",
        "left over, and none of it can come next:",
        "  client 0: get(0) -> None",
    ]


def brute_force(operations: Sequence[Operation]) -> bool:
    """Try every order of every choice of unknown calls."""
    known = [o for o in operations if o.returned is not None]
    unknown = [o for o in operations if o.returned is None]
    return any(
        explains(order)
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
        for order in itertools.permutations([*known, *chosen])
    )


def explains(order: Sequence[Operation]) -> bool:
    state = State()
    for place, operation in enumerate(order):
        if any(o.returned is not None and o.returned < operation.invoked for o in order[place:]):
            return False
        state, answer = apply(state, operation)
        if operation.returned is not None and (
            answer != operation.result or type(answer) is not type(operation.result)
        ):
            return False
    return True


def random_history(choose: random.Random) -> list[Operation]:
    """Run calls at random moments between their times; then, often, falsify one answer."""
    verbs: list[Verb] = ["put_if_absent", "put_if_absent", "get", "compare_and_set"]
    if choose.random() < 0.5:
        verbs += ["collect", "scan", "boundary"]
    calls: list[tuple[int, int, int | None, int]] = []
    for client in range(choose.randint(2, 6)):
        start = choose.randrange(20)
        last = start + choose.randrange(12)
        unknown = choose.random() < 0.2
        calls.append((choose.randint(start, last), start, None if unknown else last, client))
    state, history = State(), []
    for _, start, end, client in sorted(calls, key=lambda c: c[0]):
        asked = op(
            choose.choice(verbs),
            (start, end),
            choose.randrange(2),
            value=b"%d" % client,
            expected=b"%d" % choose.randrange(3),
            client=client,
        )
        after, answer = apply(state, asked)
        if end is not None or choose.random() < 0.5:
            state = after
        if choose.random() < 0.15:
            answer = choose.choice([None, b"0", b"1", True, False, 0, 1, "collected", ()])
        history.append(
            op(asked.verb, (start, end), asked.number, value=asked.value,
               expected=asked.expected, client=client, result=answer)
        )  # fmt: skip
    return history


def test_agrees_with_brute_force_on_random_histories() -> None:
    verdicts = []
    for seed in range(1500):
        history = random_history(random.Random(seed))
        expected = brute_force(history)
        assert (check_linearizable(history) is None) == expected, f"seed {seed}: {history}"
        verdicts.append(expected)
    assert 200 < verdicts.count(True) < 1300, "the histories are too alike to show anything"


class MemoryStore:
    """A right commit store in memory: what the broken ones below are made from."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    url = "memory://"

    def identity(self) -> str:
        return "hf-" + "0" * 32

    def _key(self, key: Key) -> Key:
        if not 1 <= len(key.series) <= 400 or "\0" in key.series or not 0 <= key.number < 2**63:
            raise InvalidInputError("bad key")
        return key

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        if len(value) > 256 * 1024:
            raise InvalidInputError("too long")
        with self.shared.lock:
            self._refuse_retired(self._key(key).series)
            if key.number <= self.shared.boundaries.get(key.series, -1):
                raise CollectedError("collected")
            if key in self.shared.records:
                return self.shared.records[key]
            self.shared.records[key] = value
            return None

    def _refuse_retired(self, series: str) -> None:
        if scope_of(series) in self.shared.retired:
            raise StaleHandleError("open it again")

    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        with self.shared.lock:
            if not retired:
                self._refuse_retired(key.series)
            return self.shared.records.get(self._key(key))

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        with self.shared.lock:
            self._refuse_retired(key.series)
            if self.shared.records.get(key) != expected:
                return False
            self.shared.records[key] = value
            return True

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        if limit < 1:
            raise InvalidInputError("limit")
        with self.shared.lock:
            self._refuse_retired(series)
            found = sorted(
                (StoredEntry(k.number, v) for k, v in self.shared.records.items()
                 if k.series == series and k.number > after),
                key=lambda entry: entry.number,
                reverse=newest_first,
            )  # fmt: skip
        return found[:limit]

    def boundary(self, series: str, *, retired: bool = False) -> int:
        with self.shared.lock:
            if not retired:
                self._refuse_retired(series)
            return self.shared.boundaries.get(series, -1)

    def collect(self, series: str, through: int) -> int:
        with self.shared.lock:
            self.shared.boundaries[series] = max(self.boundary(series), through)
            old = [k for k in self.shared.records if k.series == series and k.number <= through]
            for key in old:
                del self.shared.records[key]
            return len(old)

    def retire(self, scope: str) -> None:
        if not 1 <= len(scope) <= 100 or "/" in scope or "\0" in scope:
            raise InvalidInputError("bad scope")
        with self.shared.lock:
            self.shared.retired.add(scope)

    def close(self) -> None:
        pass

    def __getstate__(self) -> NoReturn:
        raise TypeError("send the URL")


class Shared:
    """What all clients of one memory store see."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.records: dict[Key, bytes] = {}
        self.boundaries: dict[str, int] = {}
        self.retired: set[str] = set()


@pytest.mark.requirement("C4")
class TestMemory(CommitStoreSuite):
    """The suite accepts a store by another author."""

    shared = Shared()

    def make_store(self) -> CommitStore:
        return MemoryStore(self.shared)


class TwoWinners(MemoryStore):
    """Looks, and then writes."""

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        existing = self.get(key)
        if existing is None:
            threading.Event().wait(0.001)
            self.shared.records[key] = value
        return existing


class LosesWrites(MemoryStore):
    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        existing = super().put_if_absent(key, value)
        if value.endswith(b"1"):
            self.shared.records.pop(key, None)
        return existing


class StaleGet(MemoryStore):
    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.cache: dict[Key, bytes] = {}

    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        found = super().get(key, retired=retired)
        return found if found is None else self.cache.setdefault(key, found)


class LowersBoundary(MemoryStore):
    def collect(self, series: str, through: int) -> int:
        removed = super().collect(series, through)
        self.shared.boundaries[series] = through
        return removed


class ForgetsBoundary(MemoryStore):
    def collect(self, series: str, through: int) -> int:
        before = self.boundary(series)
        removed = super().collect(series, through)
        self.shared.boundaries[series] = before
        return removed


class DecidesForTheRetired(MemoryStore):
    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        try:
            return super().put_if_absent(key, value)
        except StaleHandleError:
            return self.shared.records.setdefault(key, value)


class ShowsTheRetired(MemoryStore):
    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        del retired
        return super().get(key, retired=True)


class NeverAnswers(MemoryStore):
    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        raise UnavailableError("no answer")


def histories_of(make: Callable[[Shared], CommitStore]) -> Iterable[History]:
    shared = Shared()
    stores = [make(shared) for _ in range(4)]
    return record_histories(stores, [f"series {n}" for n in range(60)], seed=1)


def test_histories_of_a_right_store_pass() -> None:
    assert all(check_linearizable(history) is None for history in histories_of(MemoryStore))


@pytest.mark.mutant
@pytest.mark.parametrize(
    "broken",
    [
        TwoWinners,
        LosesWrites,
        StaleGet,
        LowersBoundary,
        ForgetsBoundary,
        DecidesForTheRetired,
        ShowsTheRetired,
    ],
)
def test_histories_of_a_broken_store_are_caught(broken: Callable[[Shared], CommitStore]) -> None:
    problems = [check_linearizable(history) for history in histories_of(broken)]
    assert any(problems)


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (TwoWinners, "test_one_of_many_threads_wins"),
        (LosesWrites, "test_numbers_are_exact"),
        (StaleGet, "test_compare_and_set"),
        (LowersBoundary, "test_collect_raises_the_boundary_and_removes"),
        (ForgetsBoundary, "test_collected_numbers_stay_decided"),
        (DecidesForTheRetired, "test_a_retired_scope_refuses_every_verb"),
        (ShowsTheRetired, "test_a_retired_scope_refuses_every_verb"),
        (NeverAnswers, "test_histories_are_linearizable"),
    ],
)
def test_the_suite_catches_a_broken_store(broken: type[MemoryStore], test: str) -> None:
    class Suite(CommitStoreSuite):
        histories = 20
        shared = Shared()

        def make_store(self) -> CommitStore:
            return broken(self.shared)

    with pytest.raises(AssertionError):
        getattr(Suite(), test)()


def test_histories_of_several_processes_merge() -> None:
    one, two = History(), History()
    shared = Shared()
    one.watched(MemoryStore(shared), client=1).put_if_absent(Key("s", 0), b"\xff")
    two.watched(MemoryStore(shared), client=2).scan("s")
    two.watched(MemoryStore(shared), client=2).collect("s", 0)
    merged = History()
    merged.merge(pickle.loads(pickle.dumps(one.to_dicts())))
    merged.merge(two.to_dicts())
    assert merged.operations == (*one.operations, *two.operations)
    assert check_linearizable(merged) is None
    assert json.dumps([d["verb"] for d in merged.to_dicts()])


def test_unavailable_is_recorded_as_unknown() -> None:
    history = History()
    with pytest.raises(UnavailableError):
        history.watched(NeverAnswers(Shared()), client=1).put_if_absent(Key("s", 0), b"x")
    assert [o.returned for o in history.operations] == [None]


def test_collected_is_recorded_as_an_answer() -> None:
    history, shared = History(), Shared()
    store = history.watched(MemoryStore(shared), client=1)
    store.collect("s", 3)
    with pytest.raises(CollectedError):
        store.put_if_absent(Key("s", 3), b"x")
    assert [o.result for o in history.operations] == [0, "collected"]
