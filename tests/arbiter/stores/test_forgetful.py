"""Every commit store stays small; and one that loses what it acknowledged is noticed.

Lost is the newest record of a series, as after a failover to a replica that lagged behind, a
restored backup, or a time to live that somebody switched on later: taken out of the server with
its own client.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
import s3_servers
import servers
from arbiter.stores.sizes import check_stays_small
from commits.table_worker import set_up
from holdfast.arbiter import CommitStore, Key, connect_commit_store
from holdfast.arbiter._shedding import EVERY, LEAST, MOST
from holdfast.arbiter.stores._sql import SqlCommitStore
from holdfast.arbiter.stores.dynamodb import DynamoCommitStore, _item
from holdfast.arbiter.stores.redis import RedisCommitStore, _pad
from holdfast.errors import CommitStoreRegressedError, CommitUnknownError, UnavailableError
from holdfast.formats import RecordState, decode_record

pytestmark = [pytest.mark.requirement("C5", "P1", "P2"), pytest.mark.timeout(600)]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
STORES = ["sqlite", "postgres", "mariadb", "redis_server", "ministack"]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return set_up(f"sqlite:///{tmp_path}/commits.db")
    server: Any = request.getfixturevalue(request.param)
    if isinstance(server, servers.Server):
        return set_up(server.url)
    return set_up(s3_servers.dynamodb_url(server))


@pytest.fixture
def place(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where a table is that this store decides for."""
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", url)
    where = str(tmp_path / f"t-{uuid.uuid4().hex[:8]}")
    holdfast.create_table(where, SCHEMA, primary_key=["id"], commit_store=url).close()
    return where


def row(number: int, size: int = 1) -> list[dict[str, Any]]:
    return [{"id": number, "text": random.Random(number).randbytes(size).hex()}]  # not compressed


@contextlib.contextmanager
def connected(url: str) -> Iterator[CommitStore]:
    with contextlib.closing(connect_commit_store(url)) as store:
        yield store


def series_of(place: str) -> list[str]:
    """Return the series of versions, of the one shard's manifests, and of its log."""
    with contextlib.closing(holdfast.open_table(place)) as table:
        pin = table.pin
    assert pin is not None
    shards = {path.name for path in Path(place, "_mem_wal").glob("*-*")}
    names = ["versions", *(f"{kind}/{shard}" for shard in shards for kind in ("shard", "log"))]
    return [f"{pin.table_id}/{name}" for name in names]


def forget_newest(store: CommitStore, series: str) -> int:
    """Take the newest record of a series out of the server."""
    number = store.scan(series, limit=1, newest_first=True)[0].number
    if isinstance(store, SqlCommitStore):
        with store._use() as connection:
            names = store._key(Key(series, number))
            statement = """DELETE FROM holdfast_records
                WHERE series = %(series)s AND number = %(number)s"""
            assert store._run(connection, statement, names) == 1
    elif isinstance(store, RedisCommitStore):
        prefix = f"holdfast:{{s:{series}}}"
        assert store._client.hdel(f"{prefix}:records", _pad(number)) == 1
        store._client.zrem(f"{prefix}:index", _pad(number))
    elif isinstance(store, DynamoCommitStore):
        store._call("DeleteItem", TableName=store._table, Key=_item(series, number))
    else:
        forget: Any = store
        with forget._use() as connection:
            connection.execute(
                "DELETE FROM holdfast_records WHERE series = ? AND number = ?", (series, number)
            )
    return number


def test_a_commit_store_stays_small(url: str) -> None:
    check_stays_small(url)


# With logs and shard manifests; the two SQL servers take as long again for the same verbs.
@pytest.mark.parametrize("url", ["sqlite", "redis_server", "ministack"], indirect=True)
def test_only_the_newest_records_keep_their_bodies(place: str, url: str) -> None:
    rounds = MOST + 2 * EVERY
    with (
        contextlib.closing(holdfast.open_table(place)) as table,
        table.claim_writer("unsharded") as writer,
    ):
        for number in range(rounds):
            writer.put(row(number, 3000 if number % 2 else 1))
            if number % 3:
                writer.flush()  # a shard manifest that grows
        for number in range(rounds):
            table.append(row(1000 + number))
    with connected(url) as store:
        for series in series_of(place):
            entries = store.scan(series)
            inline = [decode_record(entry.value).state is RecordState.INLINE for entry in entries]
            assert not any(inline[:-MOST]), series
            assert all(inline[-LEAST:]), series
            assert len(entries) > MOST, series


def uses(place: str) -> Iterator[Callable[[], object]]:
    yield lambda: holdfast.open_table(place).scan().read_all()
    yield lambda: holdfast.open_table(place).append(row(99))
    yield lambda: holdfast.open_table(place).dataset()


def test_a_lost_version_is_noticed_by_writers_and_readers(place: str, url: str) -> None:
    with contextlib.closing(holdfast.open_table(place)) as table:
        for number in range(3):
            table.append(row(number))
        with connected(url) as store:
            forget_newest(store, series_of(place)[0])
        with pytest.raises(CommitStoreRegressedError):
            table.append(row(98))
    for use in uses(place):
        with pytest.raises(CommitStoreRegressedError):
            use()


def test_a_lost_log_entry_is_noticed(place: str, url: str) -> None:
    with contextlib.closing(holdfast.open_table(place)) as table:
        writer = table.claim_writer("unsharded")
        for number in range(3):
            writer.put(row(number))
        with connected(url) as store:
            (log,) = [name for name in series_of(place) if "/log/" in name]
            forget_newest(store, log)
        with pytest.raises(CommitStoreRegressedError):
            writer.put(row(4))
        writer.abort()
    with pytest.raises(CommitStoreRegressedError):
        holdfast.open_table(place).claim_writer("unsharded")
    with pytest.raises(CommitStoreRegressedError):
        holdfast.open_table(place).scan().read_all()


@pytest.mark.parametrize(
    ("code", "applied"),
    [
        ("ProvisionedThroughputExceededException", False),
        ("ThrottlingException", False),
        ("InternalServerError", True),
    ],
)
def test_a_throttled_dynamodb_loses_and_doubles_nothing(
    ministack: s3_servers.S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    applied: bool,
) -> None:
    url = set_up(s3_servers.dynamodb_url(ministack))
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", url)
    table = holdfast.create_table(tmp_path / "t", SCHEMA, commit_store=url)
    real, dice = DynamoCommitStore._call, random.Random(7)

    def call(self: DynamoCommitStore, operation: str, **arguments: object) -> Any:
        if dice.random() > 0.2:
            return real(self, operation, **arguments)
        if applied:
            real(self, operation, **arguments)
        raise self._meaning({"Error": {"Code": code, "Message": "slow down"}})

    monkeypatch.setattr(DynamoCommitStore, "_call", call)
    done = []
    for number in range(10):
        with contextlib.suppress(UnavailableError, CommitUnknownError):
            table.append(row(number), txn=f"{number}")
            done.append(number)
    monkeypatch.setattr(DynamoCommitStore, "_call", real)
    for number in range(10):
        table.append(row(number), txn=f"{number}")
    assert sorted(table.scan().read_all()["id"].to_pylist()) == list(range(10))
    assert done, "nothing got through at all"
    table.close()
