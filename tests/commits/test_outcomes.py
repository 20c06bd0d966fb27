"""What an append says when a store says nothing: applied, or an error to repeat it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
import servers
from commits.table_worker import Place, rows, set_up
from holdfast.arbiter import RecordedDecisions, RetryPolicy, connect_commit_store
from holdfast.core import TableCore
from holdfast.errors import CommitUnknownError, HoldfastError, UnavailableError
from holdfast.storage import open_store
from holdfast.table import Table
from holdfast.testing import Fault, FaultyS3

REQUESTS = 15
"""More than an append sends to the object store."""

BRIEF = RetryPolicy(attempts=2, first_wait=timedelta(0), longest_wait=timedelta(0))
QUICK = {"client_max_retries": "0", "client_retry_timeout": "1"}
NOT_ANSWERED = (UnavailableError, CommitUnknownError)


@pytest.fixture(scope="module", params=["ignoring", "honest"])
def s3(request: pytest.FixtureRequest) -> Iterator[FaultyS3]:
    with FaultyS3(conditions=request.param) as server:
        yield server


@pytest.fixture(scope="module")
def lossy(s3: FaultyS3, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Table]:
    """A table whose clients do not hide a lost answer by repeating the request."""
    folder = tmp_path_factory.mktemp("outcomes")
    url = set_up(f"sqlite:///{folder}/decisions.db?single_host=true")
    place = Place(
        uri=s3.url("lake", f"{folder.name}/t.lance"),
        commit_store=url if str(s3.conditions) == "ignoring" else None,
        options={**s3.storage_options("lake"), **QUICK},
    )
    return place, place.create()


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "status_after"])
def test_an_answer_lost_at_every_request(
    s3: FaultyS3, lossy: tuple[Place, Table], kind: Any
) -> None:
    place, table = lossy
    raised = 0
    for nth in range(1, REQUESTS):
        before = place.ids()
        number = max(before, default=0) + 1
        s3.faults.add(Fault(kind=kind, nth=nth, times=2))
        applied = None
        try:
            applied = table.append(rows(number), txn=("job", number)).applied
        except NOT_ANSWERED:
            raised += 1
        finally:
            s3.faults.clear()
        assert applied in {True, None}
        assert place.ids() in ([*before, number], before)
        again = table.append(rows(number), txn=("job", number))
        assert not (applied and again.applied)
        assert place.ids() == [*before, number]
    assert raised >= 1


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("path", ["data/", "_transactions/", r"\.manifest$", ""])
def test_a_store_that_is_down(s3: FaultyS3, lossy: tuple[Place, Table], path: str) -> None:
    place, table = lossy
    before = place.ids()
    number = max(before, default=0) + 1
    s3.faults.add(Fault(kind="drop_before", path_regex=path, times=None))
    try:
        with pytest.raises(NOT_ANSWERED):
            table.append(rows(number), txn=("down", number))
    finally:
        s3.faults.clear()
    table.append(rows(number), txn=("down", number))
    assert place.ids() == [*before, number]


class Unreliable:
    """A commit store whose n-th call goes wrong: not sent, or sent and not answered."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls = 0
        self.fails: Callable[[int], bool] = ().__contains__
        self.sends = False
        self.error: Exception = UnavailableError("no answer")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name in {"identity", "close"}:
            return found

        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if not self.fails(self.calls):
                return found(*args, **kwargs)
            if self.sends:
                found(*args, **kwargs)
            raise self.error

        return called


@pytest.fixture
def unreliable(tmp_path: Path) -> tuple[Place, Table, Unreliable]:
    url = set_up(f"sqlite:///{tmp_path}/decisions.db")
    place = Place(uri=str(tmp_path / "t.lance"), commit_store=url)
    pin = place.create().pin
    assert pin is not None
    store = open_store(place.uri)
    commit_store: Any = Unreliable(connect_commit_store(url))
    arbiter = RecordedDecisions(store, commit_store, pin, retry=BRIEF)
    return place, Table(TableCore(store, arbiter, place.uri)), commit_store


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("sends", [False, True], ids=["not sent", "not answered"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("strange", [False, True], ids=["typed", "untyped"])
def test_the_commit_store_fails_at_every_call(
    unreliable: tuple[Place, Table, Unreliable], sends: bool, lasting: bool, strange: bool
) -> None:
    place, table, commit_store = unreliable
    if strange:
        commit_store.error = RuntimeError("a driver's own error")
    commit_store.sends = sends
    table.append(rows(0))
    needed, commit_store.calls = commit_store.calls, 0
    table.append(rows(1))
    needed = commit_store.calls
    assert needed >= 4
    outcomes: set[object] = set()
    for nth in range(1, needed + 2):
        number = nth + 1
        commit_store.calls = 0
        last = needed + 9 if lasting else nth
        commit_store.fails = range(nth, last + 1).__contains__
        try:
            outcomes.add(table.append(rows(number), txn=("job", number)).applied)
        except NOT_ANSWERED as error:
            outcomes.add(type(error))
        commit_store.fails = ().__contains__
        assert place.open().append(rows(number), txn=("job", number)).applied in {True, False}
        assert place.ids() == list(range(number + 1))
    assert outcomes - {True} or not lasting


@pytest.mark.requirement("C8")
def test_a_commit_store_that_stops_and_comes_back(tmp_path: Path) -> None:
    with servers.running("postgres") as postgres:
        place = Place(uri=str(tmp_path / "t.lance"), commit_store=set_up(postgres.url))
        table = place.create()
        table.append(rows(1), txn=("job", 1))
        postgres.kill()
        with pytest.raises(NOT_ANSWERED):
            table.append(rows(2), txn=("job", 2))
        assert place.ids() == [1]  # stock readers need no commit store
        with pytest.raises(HoldfastError):
            place.open()
        postgres.restart()
        assert table.append(rows(2), txn=("job", 2)).applied
        assert holdfast.open_table(place.uri, commit_store=postgres.url).append(rows(3)).applied
    assert place.ids() == [1, 2, 3]
