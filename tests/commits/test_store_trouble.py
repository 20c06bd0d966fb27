"""Appends while clocks jump and the commit store forgets, or goes away and comes back."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

import holdfast
import servers
from commits.table_worker import Place, rows, set_up
from holdfast.arbiter import (
    Arbiter,
    ConditionalPut,
    RecordedDecisions,
    RetryPolicy,
    Verdict,
    connect_commit_store,
)
from holdfast.core import TableCore
from holdfast.errors import (
    CommitStoreRegressedError,
    CommitUnknownError,
    ForeignVersionError,
    HoldfastError,
    NotFoundError,
    PinMismatchError,
    UnavailableError,
)
from holdfast.formats import VERSIONS_SERIES
from holdfast.storage import open_store
from holdfast.table import Table
from holdfast.upkeep import FindingKind, doctor

HOUR = 3600.0
CALLS = 8
"""More than an append sends to the commit store."""

BRIEF = RetryPolicy(attempts=2, first_wait=timedelta(0), longest_wait=timedelta(0))
FORGOT = (CommitStoreRegressedError, ForeignVersionError, CommitUnknownError)
NOT_ANSWERED = (UnavailableError, CommitUnknownError)
LONG = 120.0


# --- clocks -----------------------------------------------------------------------------------


class Jumping:
    """Clocks that are wrong by `ahead` seconds, and more so at every look if they `jump`."""

    def __init__(self, ahead: float, *, jump: float = 0.0) -> None:
        self._ahead = ahead
        self._jump = jump

    def now(self) -> float:
        self._ahead, self._jump = self._ahead + self._jump, -self._jump
        return time.time() + self._ahead

    elapsed = now

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.05))


def with_clock(place: Place, clock: Jumping) -> Table:
    store, pin = open_store(place.uri), place.open().pin
    assert pin is not None
    arbiter: Arbiter = ConditionalPut(store, Verdict.ENFORCED, pin=pin, clock=clock)
    if place.commit_store is not None:
        commit_store = connect_commit_store(place.commit_store)
        arbiter = RecordedDecisions(store, commit_store, pin, clock=clock)
    return Table(TableCore(store, arbiter, place.uri, clock=clock))


@pytest.mark.requirement("C1", "C8")
@pytest.mark.parametrize("how", ["conditional put", "commit store"])
def test_clocks_that_are_wrong_and_jump(tmp_path: Path, how: str) -> None:
    url = set_up(f"sqlite:///{tmp_path}/decisions.db") if how == "commit store" else None
    place = Place(uri=str(tmp_path / "t.lance"), commit_store=url)
    place.create()
    clocks = [Jumping(HOUR), Jumping(-HOUR), Jumping(0, jump=2 * HOUR), Jumping(0, jump=-2 * HOUR)]
    writers = [with_clock(place, clock) for clock in clocks]

    def append(writer: int, number: int) -> bool:
        return writers[writer].append(rows(number), txn=("job", number)).applied

    # In turns: each builds on what one with another time of day wrote.
    for number in range(1, 9):
        assert append(number % 4, number)
        assert not append((number + 1) % 4, number)
    # All concurrently: one app per writer, and the same two transactions from everybody.
    with ThreadPoolExecutor(4) as pool:
        alone = [pool.submit(writers[n].append, rows(100 + n), txn=(f"w{n}", 1)) for n in range(4)]
        same = [pool.submit(append, n, 9) for n in range(4)]
        assert all(each.result(LONG).applied for each in alone)
        assert [each.result(LONG) for each in same].count(True) == 1
    assert place.ids() == [*range(1, 10), 100, 101, 102, 103]
    versions = [info.version for info in writers[0].history()]
    assert versions == sorted(versions, reverse=True)


# --- records that vanish ----------------------------------------------------------------------


class Forgetful:
    """A commit store that loses its newest record of versions before its n-th call."""

    def __init__(self, inner: Any, forget: Callable[[], None]) -> None:
        self._inner = inner
        self._forget = forget
        self.calls_left = -1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name in {"identity", "close"}:
            return found

        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls_left -= 1
            if self.calls_left == 0:
                self._forget()
            return found(*args, **kwargs)

        return called


def forget_in_sqlite(url: str, series: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30) as connection:
        connection.execute(
            "DELETE FROM holdfast_records WHERE series = :series AND number = "
            "(SELECT max(number) FROM holdfast_records WHERE series = :series)",
            {"series": series},
        )
    connection.close()


def forget_in_redis(url: str, series: str) -> None:
    with redis.Redis.from_url(url, protocol=2) as client:
        newest: Any = client.zrevrange(f"holdfast:{{s:{series}}}:index", 0, 0)
        if newest:
            client.hdel(f"holdfast:{{s:{series}}}:records", *newest)
            client.zrem(f"holdfast:{{s:{series}}}:index", *newest)


@pytest.fixture(params=["sqlite", "redis"])
def forgetful(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Place, Table, Forgetful, Callable[[], None]]:
    """A table, one that loses records during its calls, and what loses one immediately."""
    if request.param == "redis":
        url, lose = request.getfixturevalue("redis_server").url, forget_in_redis
    else:
        url, lose = f"sqlite:///{tmp_path}/decisions.db", forget_in_sqlite
    place = Place(uri=str(tmp_path / "t.lance"), commit_store=set_up(url))
    pin = place.create().pin
    assert pin is not None
    series = f"{pin.table_id}/{VERSIONS_SERIES}"
    commit_store: Any = Forgetful(connect_commit_store(url), lambda: lose(url, series))
    store = open_store(place.uri)
    arbiter = RecordedDecisions(store, commit_store, pin, retry=BRIEF)
    table = Table(TableCore(store, arbiter, place.uri))
    return place, table, commit_store, lambda: lose(url, series)


def accept(place: Place) -> None:
    """Do what troubleshooting tells an operator to do once all writers have stopped."""
    newest = place.stock().version
    holdfast.adopt_table(place.uri, commit_store=place.commit_store, accept=newest)


@pytest.mark.requirement("C1", "C5", "C8")
def test_a_record_that_vanishes_at_any_call_of_an_append(
    forgetful: tuple[Place, Table, Forgetful, Callable[[], None]],
) -> None:
    place, table, commit_store, _ = forgetful
    assert table.pin is not None
    series = f"{table.pin.table_id}/{VERSIONS_SERIES}"
    raised = set()
    for call in range(1, CALLS):
        before = place.ids()
        table.append(rows(10 * call), txn=("job", 10 * call))
        result = None
        commit_store.calls_left = call
        try:
            result = table.append(rows(10 * call + 1), txn=("job", 10 * call + 1))
        except FORGOT as error:
            raised.add(type(error))
        fired, commit_store.calls_left = commit_store.calls_left <= 0, -1
        applied = result is not None and result.applied
        if result is not None:  # nothing is acknowledged that the commit store no longer knows
            assert commit_store.scan(series, newest_first=True)[0].number == result.version
        now = [*before, 10 * call, 10 * call + 1]
        assert place.ids() in ([now] if applied else [now, now[:-1]])
        accept(place)
        again = place.open().append(rows(10 * call + 1), txn=("job", 10 * call + 1))
        assert not (applied and again.applied)
        assert place.ids() == now
        table.append(rows(10 * call + 2), txn=("job", 10 * call + 2))  # and it goes on
    assert not fired  # every call of an append was struck
    assert CommitStoreRegressedError in raised


@pytest.mark.requirement("C5")
def test_nobody_builds_on_a_forgotten_version(
    forgetful: tuple[Place, Table, Forgetful, Callable[[], None]],
) -> None:
    place, table, _, forget = forgetful
    for number in (1, 2, 3):
        table.append(rows(number), txn=("job", number))
    forget()
    versions = {path: path.read_bytes() for path in Path(place.uri, "_versions").iterdir()}
    for writer in (place.open(), place.open(), table):
        with pytest.raises(FORGOT):
            writer.append(rows(4), txn=("job", 4))
    now = {path: path.read_bytes() for path in Path(place.uri, "_versions").iterdir()}
    assert {path: now[path] for path in versions} == versions
    assert place.ids() == [1, 2, 3]
    accept(place)
    assert place.open().append(rows(4), txn=("job", 4)).applied
    assert place.ids() == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def evicting() -> Iterator[servers.Server]:
    """A server of our own: others' tables would not survive what we do to it."""
    with servers.running("redis") as server:
        yield server


@pytest.mark.requirement("C5")
@pytest.mark.parametrize("lost", ["records", "index", "everything"])
def test_redis_that_evicts_whole_keys(evicting: servers.Server, tmp_path: Path, lost: str) -> None:
    place = Place(uri=str(tmp_path / "t.lance"), commit_store=set_up(evicting.url))
    table = place.create()
    pin = table.pin
    assert pin is not None
    for number in (1, 2, 3):
        table.append(rows(number), txn=("job", number))
    with redis.Redis.from_url(evicting.url, protocol=2) as client:
        if lost == "everything":
            client.flushall()
        else:
            client.delete(f"holdfast:{{s:{pin.table_id}/{VERSIONS_SERIES}}}:{lost}")
    with pytest.raises((CommitStoreRegressedError, NotFoundError)):
        place.open().append(rows(4), txn=("job", 4))
    assert place.ids() == [1, 2, 3]
    if lost == "everything":  # set up anew, it is another store: nobody decides with both
        set_up(evicting.url)
        with pytest.raises(PinMismatchError):
            place.open()
    else:
        found = doctor(place.uri, commit_store=place.commit_store).findings
        assert FindingKind.REGRESSED in {finding.kind for finding in found}
        accept(place)
        assert doctor(place.uri, commit_store=place.commit_store).healthy
        assert place.open().append(rows(4), txn=("job", 4)).applied


# --- a store that goes away -------------------------------------------------------------------


@pytest.fixture(params=["postgres", "redis"])
def mortal(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with servers.running(request.param) as server:
        yield server


@pytest.mark.requirement("C1", "C8")
def test_threads_append_while_the_commit_store_dies_and_comes_back(
    mortal: servers.Server, tmp_path: Path
) -> None:
    place = Place(uri=str(tmp_path / "t.lance"), commit_store=set_up(mortal.url))
    place.create()
    killed, struck, came_back = (threading.Event() for _ in range(3))
    acknowledged: list[int] = []
    errors: list[HoldfastError] = []

    def append(table: Table, number: int) -> None:
        """Repeat under the same transaction until the answer is yes."""
        for _ in range(10):
            try:
                table.append(rows(number), txn=f"once {number}")
            except HoldfastError as error:
                errors.append(error)
                struck.set()
                assert came_back.wait(LONG)
            else:
                acknowledged.append(number)
                return
        raise AssertionError(f"never acknowledged: {errors[-1]}")

    def write(writer: int) -> None:
        table = place.open() if writer % 2 else shared
        for number in range(writer * 100, writer * 100 + 3):
            append(table, number)
        begun.wait(LONG)
        for number in range(writer * 100 + 3, writer * 100 + 5):
            append(table, number)
        assert killed.wait(LONG)  # however quick we were
        append(table, writer * 100 + 5)

    shared = place.open()
    begun = threading.Barrier(5)  # with us, who then kill the server under the second half
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(write, writer) for writer in range(4)]
        begun.wait(LONG)
        mortal.kill()
        killed.set()
        assert struck.wait(LONG)
        assert set(acknowledged) <= set(place.ids())
        mortal.restart()
        came_back.set()
        for each in running:
            each.result(LONG)
    everything = sorted(w * 100 + n for w in range(4) for n in range(6))
    assert sorted(acknowledged) == everything
    assert place.ids() == everything
    assert {type(error) for error in errors} <= set(NOT_ANSWERED)
