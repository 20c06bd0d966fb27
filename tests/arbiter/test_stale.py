"""A table removed and made anew while somebody still has it open: nothing of the old comes in."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import Key, RecordedDecisions, connect_commit_store
from holdfast.errors import CommitUnknownError, HoldfastError, StaleHandleError
from holdfast.formats import encode_record, make_record, version_name
from holdfast.testing import FaultyS3

pytestmark = pytest.mark.requirement("P1", "P2")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
SHARD = "11111111-2222-4333-8444-555555555555"


class Lake:
    """A place for a table, and how to empty it past Holdfast."""

    def __init__(self, uri: str, commit_store: str, s3: FaultyS3 | None = None) -> None:
        self.uri = uri
        self.commit_store = commit_store
        self._s3 = s3
        self.options = {} if s3 is None else dict(s3.storage_options())

    def make(self, *numbers: int) -> holdfast.Table:
        table = holdfast.create_table(
            self.uri,
            SCHEMA,
            primary_key=["id"],
            commit_store=self.commit_store,
            storage_options=self.options,
        )
        for number in numbers:
            table.append([{"id": number}])
        return table

    def remove(self, table: holdfast.Table) -> None:
        store = table.core.store
        store.delete([info.path for info in store.list()])
        if self._s3 is None:
            shutil.rmtree(self.uri)

    def stock(self) -> lance.LanceDataset:
        return lance.dataset(self.uri, storage_options=self.options or None)

    def ids(self) -> list[int]:
        table = holdfast.open_table(self.uri, self.options)
        found = sorted(table.to_table()["id"].to_pylist())
        assert sorted(self.stock().to_table()["id"].to_pylist()) == found
        return found


@pytest.fixture(params=["embedded", "sqlite", "postgres", "redis", "ignoring s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    url = f"sqlite:///{tmp_path}/decisions.db?single_host=true"
    s3: FaultyS3 | None = None
    if request.param == "embedded":
        url = "sqlite"
    elif request.param in {"postgres", "redis"}:
        server = {"postgres": "postgres", "redis": "redis_server"}[request.param]
        url = request.getfixturevalue(server).url
        monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", url)
    elif request.param == "ignoring s3":
        s3 = request.getfixturevalue("faulty_s3")(conditions="ignoring")
    if url != "sqlite":
        store: Any = connect_commit_store(url)
        store.set_up()
        store.close()
    uri = str(tmp_path / "t.lance") if s3 is None else s3.url("bucket", "t.lance")
    return Lake(uri, url, s3)


STALE: dict[str, Callable[[holdfast.Table], object]] = {
    "read": lambda table: table.to_table(),
    "count": lambda table: table.count(),
    "dataset": lambda table: table.dataset(),
    "append": lambda table: table.append([{"id": 66}]),
    "fragments": lambda table: table.append([{"id": 66}], txn=("app", 66)),
    "claim": lambda table: table.claim_writer(SHARD),
    "applied": lambda table: table.applied([("app", 1)]),
    "old version": lambda table: table.dataset(2),
    "vacuum": lambda table: table.vacuum(confirm=True),
}


@pytest.mark.parametrize("fewer", [True, False], ids=["fewer versions", "more versions"])
def test_a_stale_handle_is_told_and_changes_nothing(lake: Lake, fewer: bool) -> None:
    stale = lake.make(1, 2, 3)
    shard = stale.claim_writer(SHARD)
    lake.remove(stale)
    made = lake.make(*([10] if fewer else [10, 11, 12, 13, 14]))
    before = lake.stock().version
    for call in STALE.values():
        with pytest.raises(StaleHandleError, match="open"):
            call(stale)
    with pytest.raises(StaleHandleError):
        shard.put(pa.record_batch({"id": [67]}, schema=SCHEMA))
    assert lake.stock().version == before
    made.append([{"id": 20}])
    assert lake.ids() == ([10, 20] if fewer else [10, 11, 12, 13, 14, 20])


def test_a_handle_of_a_table_that_was_removed(lake: Lake) -> None:
    stale = lake.make(1, 2)
    lake.remove(stale)
    with pytest.raises((StaleHandleError, CommitUnknownError)):
        stale.append([{"id": 66}])
    lake.make(10)
    assert lake.ids() == [10]


def test_a_handle_of_a_table_that_was_released(lake: Lake) -> None:
    stale = lake.make(1)
    holdfast.release_table(lake.uri, lake.options)
    with pytest.raises(StaleHandleError):
        stale.append([{"id": 66}])
    again = holdfast.adopt_table(
        lake.uri, commit_store=lake.commit_store, storage_options=lake.options
    )
    with pytest.raises(StaleHandleError):
        stale.append([{"id": 66}])
    again.append([{"id": 2}])
    assert lake.ids() == [1, 2]


class Stalled:
    """A commit store whose caller stalls between an answer and what it does next."""

    def __init__(self, inner: Any, verb: str, meanwhile: Callable[[], None]) -> None:
        self._inner = inner
        self._verb = verb
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name != self._verb or self._meanwhile is None:
            return call

        def stalled(*args: Any, **kwargs: Any) -> Any:
            answer = call(*args, **kwargs)
            meanwhile, self._meanwhile = self._meanwhile, None
            if meanwhile is not None:
                meanwhile()
            return answer

        return stalled


def _stall(lake: Lake, stale: holdfast.Table, verb: str) -> None:
    def made_anew() -> None:
        lake.remove(stale)
        lake.make(10)

    arbiter = stale.core.arbiter
    assert isinstance(arbiter, RecordedDecisions)
    arbiter._commit_store = Stalled(arbiter._commit_store, verb, made_anew)


def test_a_writer_that_stalls_after_it_decided_copies_nothing(lake: Lake) -> None:
    stale = lake.make(1, 2, 3)
    _stall(lake, stale, "put_if_absent")
    with pytest.raises(CommitUnknownError):
        stale.append([{"id": 66}])
    assert lake.ids() == [10]
    assert lake.stock().version == 2


def test_a_reader_that_stalls_before_it_finishes_copies_nothing(lake: Lake) -> None:
    stale = lake.make(1, 2)
    _leave_unfinished(stale)
    _stall(lake, stale, "get")
    with pytest.raises(HoldfastError):
        stale.to_table()
    assert lake.ids() == [10]
    assert lake.stock().version == 2


def _leave_unfinished(table: holdfast.Table) -> None:
    """Decide the next version as a writer does that dies before the copy."""
    newest = table.dataset().version
    arbiter = table.core.arbiter
    assert isinstance(arbiter, RecordedDecisions)
    body = table.core.store.get(version_name(newest).path)
    token = "hf-" + "5" * 32
    name = version_name(newest + 1)
    record = make_record(name.path, body + token.encode(), token, after=None, inline=True)
    key = Key(f"{arbiter.pin.table_id}/versions", newest + 1)
    arbiter._commit_store.put_if_absent(key, encode_record(record))


@pytest.mark.parametrize("at", [2, 4], ids=["over a decided version", "ahead of the versions"])
def test_a_late_copy_is_put_right_by_whoever_meets_it(lake: Lake, at: int) -> None:
    if lake.commit_store == "sqlite":
        pytest.skip("an embedded commit store goes with its table, and what it knew")
    stale = lake.make(1, 2, 3)
    late = stale.core.store.get(version_name(at).path)  # what a stale handle had in its hands
    lake.remove(stale)
    made = lake.make(10)
    made.core.store.put(version_name(at).path, late)
    fresh = holdfast.open_table(lake.uri, lake.options)
    assert fresh.to_table()["id"].to_pylist() == [10]
    for number in (11, 12, 13):
        fresh.append([{"id": number}])
    assert lake.ids() == [10, 11, 12, 13]
