"""`CommitStoreSuite`: shows whether a commit store keeps its promises. Subclass it for pytest.

    class TestMyStore(CommitStoreSuite):
        def make_store(self) -> CommitStore:
            return connect_commit_store("mydb://127.0.0.1/test")

        def url(self) -> str:
            return "mydb://127.0.0.1/test"

Each test works in series of its own, so the server may be shared and need not be empty. A
failed history prints the calls and the seed. Raise `histories` for a long run.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from holdfast._clock import SystemClock
from holdfast._ids import TOKEN_PATTERN, RandomIds
from holdfast.arbiter._commit_store import (
    MAX_SERIES_CHARS,
    MAX_VALUE_BYTES,
    CommitStore,
    Key,
    Replacement,
    StoredEntry,
    SupportsReplaceMany,
    SupportsSetUp,
)
from holdfast.arbiter.stores._registry import connect_commit_store
from holdfast.errors import (
    CollectedError,
    InvalidInputError,
    StaleHandleError,
    UnavailableError,
)
from holdfast.testing._commit_store_races import (
    LosingProxy,
    child,
    decide,
    go,
    record_histories,
    run_together,
    through,
)
from holdfast.testing._linearizable import check_linearizable

R = TypeVar("R")
TOP = 2**63 - 1


class CommitStoreSuite:
    """Tests that every commit store passes.

    Attributes:
        histories: how many short concurrent histories are checked.
        seed: what they are made from.
    """

    histories: int = 500
    seed: int = 1

    def make_store(self) -> CommitStore:
        """Return a new client of one and the same server, which is set up already."""
        raise NotImplementedError

    def restart(self) -> None:
        """Kill the server and start it again; tests that need it are skipped without."""
        raise unittest.SkipTest("restart() is not given")

    def url(self) -> str:
        """Return the URL with credentials; tests with more processes are skipped without."""
        raise unittest.SkipTest("url() is not given")

    # One client.

    def test_first_value_wins(self) -> None:
        with self._store() as store:
            key = Key(self._series(), 7)
            assert store.get(key) is None, "a new key has a value"
            assert store.put_if_absent(key, b"first") is None
            assert store.put_if_absent(key, b"second") == b"first"
            assert store.put_if_absent(key, b"first") == b"first", "its own value is a loss too"
            assert store.get(key) == b"first"

    def test_values_come_back_exactly(self) -> None:
        values = [b"", bytes(range(256)), b"\0", b"'\"\\%s%%?:x\n", b"\xff" * MAX_VALUE_BYTES]
        with self._store() as store:
            series = self._series()
            for number, value in enumerate(values):
                assert store.put_if_absent(Key(series, number), value) is None
                assert store.get(Key(series, number)) == value
                assert store.put_if_absent(Key(series, number), b"other") == value
            assert [entry.value for entry in store.scan(series)] == values

    def test_series_are_exact(self) -> None:
        base = self._series()
        names = [base, base.upper(), f"{base} ", f" {base}", f"{base}  ", f"{base}%", f"{base}_"]
        names += [f"{base}'", f'{base}"', f"{base}\\", f"{base}}}", f"{{{base}", f"}}{base}"]
        names += [base[:-1], base.ljust(MAX_SERIES_CHARS, "x"), base.ljust(399, "x")]
        with self._store() as store:
            for name in names:
                assert store.put_if_absent(Key(name, 0), name.encode()) is None, repr(name)
            for name in names:
                assert store.get(Key(name, 0)) == name.encode(), repr(name)
                assert [e.value for e in store.scan(name)] == [name.encode()], repr(name)

    def test_other_characters_are_refused_or_exact(self) -> None:
        base = self._series()
        names = [f"{base}\u00e9", f"{base}e\u0301", f"{base}E\u0301", f"{base}\u212b", f"{base}\n"]
        with self._store() as store:
            kept = []
            for name in names:
                with contextlib.suppress(InvalidInputError):
                    assert store.put_if_absent(Key(name, 0), name.encode()) is None, repr(name)
                    kept.append(name)
            for name in kept:
                assert store.get(Key(name, 0)) == name.encode(), repr(name)

    def test_numbers_are_exact(self) -> None:
        numbers = [0, 1, 9, 10, 2**31, 2**32, 2**53, 2**53 + 1, 2**53 + 2, TOP - 1, TOP]
        with self._store() as store:
            series = self._series()
            for number in reversed(numbers):
                assert store.put_if_absent(Key(series, number), b"%d" % number) is None
            entries = store.scan(series)
            assert [(e.number, e.value) for e in entries] == [(n, b"%d" % n) for n in numbers]
            assert [e.number for e in store.scan(series, after=2**53)] == numbers[7:]
            assert store.scan(series, after=TOP) == []

    def test_bad_input_is_refused(self) -> None:
        good = self._series()
        keys = [Key("", 0), Key("x" * 401, 0), Key("a\0b", 0), Key(good, -1), Key(good, 2**63)]
        with self._store() as store:
            for key in keys:
                with _raises(InvalidInputError):
                    store.put_if_absent(key, b"x")
                with _raises(InvalidInputError):
                    store.get(key)
            with _raises(InvalidInputError):
                store.put_if_absent(Key(good, 0), b"x" * (MAX_VALUE_BYTES + 1))
            with _raises(InvalidInputError):
                store.scan(good, limit=0)

    def test_compare_and_set(self) -> None:
        with self._store() as store:
            key = Key(self._series(), 0)
            assert not store.compare_and_set(key, b"", b"x"), "there is nothing to replace"
            assert store.get(key) is None
            store.put_if_absent(key, b"a")
            assert store.get(key) == b"a"
            assert not store.compare_and_set(key, b"A", b"x")
            assert not store.compare_and_set(key, b"a ", b"x")
            assert store.compare_and_set(key, b"a", b"b")
            assert store.compare_and_set(key, b"b", b"b"), "an equal value replaces as well"
            assert store.compare_and_set(key, b"b", b"")
            assert store.get(key) == b""
            assert store.put_if_absent(key, b"x") == b""

    def test_replace_many(self) -> None:
        with self._store() as store:
            if not isinstance(store, SupportsReplaceMany):
                raise unittest.SkipTest("the store has no replace_many()")
            series = self._series()
            values = [b"0", b"", bytes(range(256)), b"\xff" * 65_536]
            for number, value in enumerate(values):
                store.put_if_absent(Key(series, number), value)
            changes = [Replacement(n, value, b"new %d" % n) for n, value in enumerate(values)]
            assert store.replace_many(series, []) == 0
            assert store.replace_many(series, changes) == len(values)
            new = [change.value for change in changes]
            assert [entry.value for entry in store.scan(series)] == new
            assert store.replace_many(series, changes) == 0, "none of them is there any more"
            mixed = [
                Replacement(0, b"new 0", b"newer"),
                Replacement(1, b"no", b"late"),
                Replacement(3, b"new 3", b""),
                Replacement(9, b"", b"late"),
            ]
            assert store.replace_many(series, mixed) == 2, "two of four fit"
            assert [e.value for e in store.scan(series)] == [b"newer", b"new 1", b"new 2", b""]
            store.collect(series, 0)
            late = [Replacement(0, b"newer", b"late"), Replacement(2, b"new 2", b"2")]
            assert store.replace_many(series, late) == 1, "a collected record is gone"
            assert [entry.value for entry in store.scan(series)] == [b"new 1", b"2", b""]
            for bad in (("", 0), (series, -1), (series, 2**63)):
                with _raises(InvalidInputError):
                    store.replace_many(bad[0], [Replacement(bad[1], b"x", b"y")])
            with _raises(InvalidInputError):
                large = b"x" * (MAX_VALUE_BYTES + 1)
                store.replace_many(series, [Replacement(1, b"x", large)])

    def test_scan(self) -> None:
        with self._store() as store:
            series = self._series()
            assert store.scan(series) == []
            for number in (5, 3, 100, 20):
                store.put_if_absent(Key(series, number), b"%d" % number)
            assert self._numbers(store.scan(series)) == [3, 5, 20, 100]
            assert self._numbers(store.scan(series, newest_first=True)) == [100, 20, 5, 3]
            assert self._numbers(store.scan(series, after=3, limit=2)) == [5, 20]
            assert self._numbers(store.scan(series, after=5, newest_first=True)) == [100, 20]
            assert self._numbers(store.scan(series, limit=1, newest_first=True)) == [100]
            assert self._numbers(store.scan(series, after=-9, limit=9)) == [3, 5, 20, 100]

    # Collection.

    def test_collect_raises_the_boundary_and_removes(self) -> None:
        with self._store() as store:
            series, other = self._series(), self._series()
            for number in range(6):
                store.put_if_absent(Key(series, number), b"x")
            store.put_if_absent(Key(other, 0), b"kept")
            assert store.boundary(series) == -1
            assert store.collect(series, -1) == 0
            assert store.boundary(series) == -1
            assert store.collect(series, 3) == 4
            assert store.boundary(series) == 3
            assert self._numbers(store.scan(series)) == [4, 5]
            assert store.collect(series, 1) == 0, "a lower boundary changes nothing"
            assert store.boundary(series) == 3, "the boundary went down"
            assert store.collect(series, 3) == 0
            assert store.collect(other, 0) == 1
            assert store.boundary(series) == 3
            assert store.collect(series, TOP) == 2
            assert store.boundary(series) == TOP

    def test_collected_numbers_stay_decided(self) -> None:
        with self._store() as store, self._store() as stalled:
            series = self._series()
            assert stalled.get(Key(series, 2)) is None
            store.put_if_absent(Key(series, 2), b"winner")
            assert store.collect(series, 2) == 1
            for number in (0, 2):
                with _raises(CollectedError):
                    stalled.put_if_absent(Key(series, number), b"late")
                assert store.get(Key(series, number)) is None
                assert not store.compare_and_set(Key(series, number), b"winner", b"late")
            assert stalled.put_if_absent(Key(series, 3), b"next") is None

    def test_collect_against_a_racing_put(self) -> None:
        with self._store() as decider, self._store() as collector:
            for _ in range(60):
                self._race_with_collect(decider, collector)

    def _race_with_collect(self, decider: CommitStore, collector: CommitStore) -> None:
        key = Key(self._series(), 1)
        decider.put_if_absent(Key(key.series, 0), b"x")

        def act(place: int) -> int | None:
            with contextlib.suppress(UnavailableError):
                if place:
                    return collector.collect(key.series, 1)
                try:
                    return int(decider.put_if_absent(key, b"late") is None)
                except CollectedError:
                    return 0
            return None

        stored, removed = run_together(2, act)
        if removed is None:
            collector.collect(key.series, 1)
        assert collector.boundary(key.series) == 1
        assert collector.scan(key.series) == [], "a record below the boundary came back"
        if stored is not None and removed is not None:
            assert removed == 1 + stored, "what was stored was not what was removed"
        with _raises(CollectedError):
            decider.put_if_absent(key, b"later")

    # Retirement.

    def test_a_retired_scope_refuses_every_verb(self) -> None:
        with self._store() as store, self._store() as stale:
            scope = RandomIds().token()
            series, other = f"{scope}/versions", f"{scope}x/versions"
            for name in (series, other):
                stale.put_if_absent(Key(name, 0), b"kept")
            stale.put_if_absent(Key(f"{scope}/log", 7), b"used")
            stale.collect(f"{scope}/log", 7)
            store.retire(scope)
            store.retire(scope)
            for call in self._verbs(stale, series) + self._verbs(stale, f"{scope}/never used"):
                with _raises(StaleHandleError):
                    call()
            assert stale.get(Key(series, 0), retired=True) == b"kept"
            assert stale.get(Key(series, 1), retired=True) is None, "a refused put was stored"
            assert stale.boundary(series, retired=True) == -1
            assert stale.boundary(f"{scope}/log", retired=True) == 7
            assert stale.get(Key(other, 0)) == b"kept", "another scope was retired, too"
            assert stale.put_if_absent(Key(other, 1), b"next") is None
            assert stale.get(Key(other, 0), retired=True) == b"kept"
            for bad in ("", "a/b", "x" * 101, "a\0"):
                with _raises(InvalidInputError):
                    store.retire(bad)

    @staticmethod
    def _verbs(store: CommitStore, series: str) -> list[Callable[[], object]]:
        many: list[Callable[[], object]] = []
        if isinstance(store, SupportsReplaceMany):
            both = [Replacement(0, b"kept", b"late"), Replacement(1, b"no", b"late")]
            many = [partial(store.replace_many, series, both[:1])]
            many += [partial(store.replace_many, series, both)]
        return [
            *many,
            lambda: store.put_if_absent(Key(series, 1), b"late"),
            lambda: store.put_if_absent(Key(series, 0), b"late"),
            lambda: store.get(Key(series, 0)),
            lambda: store.get(Key(series, 1)),
            lambda: store.compare_and_set(Key(series, 0), b"kept", b"late"),
            lambda: store.compare_and_set(Key(series, 1), b"no", b"late"),
            lambda: store.scan(series),
            lambda: store.scan(series, after=9),
            lambda: store.scan(series, limit=1, newest_first=True),
            lambda: store.boundary(series),
            lambda: store.collect(series, 0),
            lambda: store.collect(series, -1),
        ]

    def test_retire_against_a_racing_put(self) -> None:
        with self._store() as decider, self._store() as creator:
            for _ in range(40):
                self._race_with_retire(decider, creator)

    def _race_with_retire(self, decider: CommitStore, creator: CommitStore) -> None:
        key = Key(self._series(), 1)
        scope = key.series.partition("/")[0]

        def act(place: int) -> bytes | None:
            with contextlib.suppress(UnavailableError, StaleHandleError):
                if place:
                    creator.retire(scope)
                    return creator.get(key, retired=True) or b"nothing"
                decider.put_if_absent(key, b"late")
                return b"late"
            return None

        stored, seen = run_together(2, act)
        if seen == b"nothing":
            assert decider.get(key, retired=True) is None, "a put landed after the scope retired"
            assert stored is None, "a put was acknowledged after the scope retired"

    # Many clients.

    def test_one_of_many_threads_wins(self) -> None:
        with self._stores(16) as stores:
            for _ in range(10):
                key = Key(self._series(), 0)
                winners = run_together(16, partial(_decide_at, stores, key))
                assert len(set(winners)) == 1, f"more than one winner: {sorted(set(winners))}"
                assert stores[0].get(key) == winners[0]

    def test_one_of_many_compare_and_sets_wins(self) -> None:
        with self._stores(8) as stores:
            for _ in range(10):
                key = Key(self._series(), 0)
                stores[0].put_if_absent(key, b"start")
                won = run_together(8, partial(_swap_at, stores, key))
                assert won.count(True) <= 1, "a value was replaced twice"
                assert None in won or won.count(True) == 1, "nobody replaced the value"

    def test_one_of_many_processes_wins(self) -> None:
        url, series = self.url(), self._series()
        with ExitStack() as stack:
            processes = [
                stack.enter_context(
                    child("race", url=url, series=series, keys=20, value=f"process {place}")
                )
                for place in range(3)
            ]
            answers = go(processes)
        for number, winners in enumerate(zip(*answers, strict=True)):
            assert len(set(winners)) == 1, f"number {number} has more than one winner: {winners}"

    def test_histories_are_linearizable(self) -> None:
        series = [self._series() for _ in range(self.histories)]
        with self._stores(4) as stores:
            histories = record_histories(stores, series, self.seed)
        for history in histories:
            problem = check_linearizable(history)
            assert problem is None, f"seed {self.seed}: {problem}"
        # A store that never answers would pass every check above.
        answered = [o.returned is not None for h in histories for o in h.operations]
        assert answered.count(True) >= 0.9 * len(answered), "too many calls without an answer"

    # Failures.

    def test_a_lost_answer_is_unavailable_and_not_sent_again(self) -> None:
        address = urlsplit(self.url())
        if address.hostname is None or address.port is None:
            raise unittest.SkipTest("the store is not reached by TCP")
        key = Key(self._series(), 1)
        with closing(LosingProxy(address.hostname, address.port)) as proxy:
            lossy = connect_commit_store(through(self.url(), proxy.port))
            with closing(lossy), self._store() as store:
                lossy.put_if_absent(Key(key.series, 0), b"warm")
                proxy.lose_next_answer()
                with _raises(UnavailableError):
                    lossy.put_if_absent(key, b"mine")
                assert _eventually(lambda: store.get(key)) == b"mine", "the put was not applied"
                assert lossy.put_if_absent(key, b"again") == b"mine", "the client did not recover"

    def test_restart_keeps_everything(self) -> None:
        with self._store() as store:
            series = self._series()
            for number in range(20):
                store.put_if_absent(Key(series, number), b"%d" % number)
            store.compare_and_set(Key(series, 19), b"19", b"new")
            store.collect(series, 9)
            gone = self._series()
            store.retire(gone.partition("/")[0])
            identity = store.identity()
            self.restart()
            entries = _eventually(lambda: store.scan(series))
            assert [e.value for e in entries] == [b"%d" % n for n in range(10, 19)] + [b"new"]
            assert store.boundary(series) == 9
            with _raises(StaleHandleError):
                store.put_if_absent(Key(gone, 0), b"late")
            with self._store() as other:
                assert other.identity() == identity

    # Handles.

    def test_identity_is_one_and_the_same(self) -> None:
        with self._stores(3) as stores:
            identities = {store.identity() for store in stores}
            assert len(identities) == 1, "clients of one store see different identities"
            assert len(identities.pop()) >= 16, "an identity must be random"

    def test_set_up_by_many_at_once(self) -> None:
        with self._stores(8) as stores:

            def set_up(place: int) -> str:
                store = stores[place]
                if not isinstance(store, SupportsSetUp):
                    raise unittest.SkipTest("the store has no set_up()")
                return store.set_up()

            assert set(run_together(8, set_up)) == {stores[0].identity()}

    def test_handles_do_not_pickle(self) -> None:
        with self._store() as store:
            for send in (pickle.dumps, copy.copy, copy.deepcopy):
                with _raises(TypeError):
                    send(store)

    def test_no_secret_in_texts(self) -> None:
        parts = urlsplit(self.url())
        secrets = {parts.password, unquote(parts.password or "")} - {None, ""}
        with self._store() as store:
            for text in (repr(store), str(store), store.url):
                assert not any(str(secret) in text for secret in secrets), "a password is shown"
            assert not TOKEN_PATTERN.search(store.url.encode()), "an identity is no address"

    def test_fork(self) -> None:
        with child("fork", url=self.url(), series=self._series()) as process:
            assert go([process]) == [["before", "child", "parent"]]

    def test_closing_twice_is_fine(self) -> None:
        store = self.make_store()
        store.get(Key(self._series(), 0))
        store.close()
        store.close()

    # Helpers.

    def _store(self) -> AbstractContextManager[CommitStore]:
        return closing(self.make_store())

    @contextlib.contextmanager
    def _stores(self, count: int) -> Iterator[Sequence[CommitStore]]:
        with ExitStack() as stack:
            yield [stack.enter_context(self._store()) for _ in range(count)]

    def _series(self) -> str:
        return f"{RandomIds().token()}/suite"

    @staticmethod
    def _numbers(entries: Sequence[StoredEntry]) -> list[int]:
        return [entry.number for entry in entries]


@contextlib.contextmanager
def _raises(error: type[Exception]) -> Iterator[None]:
    try:
        yield
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


def _decide_at(stores: Sequence[CommitStore], key: Key, place: int) -> bytes:
    return decide(stores[place], key, b"%d" % place)


def _swap_at(stores: Sequence[CommitStore], key: Key, place: int) -> bool | None:
    try:
        return stores[place].compare_and_set(key, b"start", b"%d" % place)
    except UnavailableError:
        return None


def _eventually(call: Callable[[], R]) -> R:
    """Ask again for a while: the server may be on its way back."""
    clock = SystemClock()
    for _ in range(300):
        with contextlib.suppress(UnavailableError):
            return call()
        clock.sleep(0.1)
    return call()
