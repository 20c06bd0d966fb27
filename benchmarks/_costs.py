"""What one commit costs a commit store: requests and stored bytes, for `./run bench decide`.

Single rows are appended to a table on an S3 server that ignores conditions, by one writer that
keeps its table open. Requests are counted where each driver sends them; what is stored is asked
of the server itself.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import sqlalchemy
from holdfast_etcd._gateway import Gateway
from redis import Redis

import holdfast
from _measuring import SCHEMA, markdown, one_row
from holdfast.arbiter import connect_commit_store
from holdfast.arbiter.stores.dynamodb import DynamoCommitStore
from holdfast.testing import FaultyS3Process

WARM_UP_COMMITS = 40  # beyond 16, bodies leave the commit store as they come
COMMITS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one commit costs, on average."""

    backend: str
    commit_store_requests: float | None
    object_requests: float
    record_bytes: float
    kept_bytes: float

    def cells(self) -> list[str]:
        asked = self.commit_store_requests
        return [
            self.backend,
            "none: a file" if asked is None else f"{asked:.2f}",
            *(f"{self.object_requests:.2f}", f"{self.record_bytes:,.0f}"),
            f"{self.kept_bytes:,.0f}",
        ]


HEADINGS = (
    *("per commit", "commit store requests", "S3 requests"),
    *("bytes of its record", "bytes the server keeps"),
)


def measure_costs(label: str, url: str) -> Cost:
    """Append to a fresh table and return the means; `url` is of a store that was set up."""
    decider = f"{url}?single_host=true" if url.startswith("sqlite") else url
    with FaultyS3Process(conditions="ignoring") as server, counted_requests(url) as requests:
        options = server.storage_options()
        place = server.url("costs", "table")
        table = holdfast.create_table(place, SCHEMA, storage_options=options, commit_store=decider)
        for number in range(WARM_UP_COMMITS):
            table.append(one_row(number))
        kept, asked = kept_bytes(url), next(requests)
        server.control.clear_requests()
        for number in range(COMMITS):
            table.append(one_row(number))
        asked = next(requests) - asked - 1
        sent = sum(total.requests for total in server.control.totals().values())
        assert table.pin is not None
        records = record_bytes(url, f"{table.pin.table_id}/versions")
        grown = kept_bytes(url) - kept
        table.close()
    return Cost(
        backend=label,
        commit_store_requests=None if url.startswith("sqlite") else asked / COMMITS,
        object_requests=sent / COMMITS,
        record_bytes=records,
        kept_bytes=grown / COMMITS,
    )


def cost_table(costs: list[Cost]) -> str:
    return markdown(HEADINGS, [cost.cells() for cost in costs])


def as_json(costs: list[Cost]) -> list[dict[str, object]]:
    return [{"part": "costs", **asdict(cost)} for cost in costs]


# --- requests, counted where a driver sends them ----------------------------------------------


@contextlib.contextmanager
def counted_requests(url: str) -> Iterator[Iterator[int]]:
    """Count what this process sends to a commit store; each look at the counter adds one."""
    counter = itertools.count()
    scheme = url.partition(":")[0]
    if scheme in {"postgresql", "mysql"}:
        with listening(lambda *_: next(counter)):
            yield counter
    elif scheme == "sqlite":
        yield counter
    else:
        owner, name = PLACES[scheme]
        with counting(owner, name, counter):
            yield counter


PLACES: dict[str, tuple[type, str]] = {
    "redis": (Redis, "execute_command"),
    "dynamodb": (DynamoCommitStore, "_call"),
    "etcd": (Gateway, "_send"),
}


@contextlib.contextmanager
def listening(count: Callable[..., object]) -> Iterator[None]:
    event = (sqlalchemy.Engine, "before_cursor_execute", count)
    sqlalchemy.event.listen(*event)
    try:
        yield
    finally:
        sqlalchemy.event.remove(*event)


@contextlib.contextmanager
def counting(owner: type, name: str, counter: Iterator[int]) -> Iterator[None]:
    send: Callable[..., Any] = getattr(owner, name)  # Any: each driver's own answer

    def counted(self: object, *arguments: object, **named: object) -> object:
        next(counter)
        return send(self, *arguments, **named)

    setattr(owner, name, counted)
    try:
        yield
    finally:
        setattr(owner, name, send)


# --- what is stored ---------------------------------------------------------------------------


def record_bytes(url: str, series: str) -> float:
    """Return the mean of key and value over a series, its newest ones with their bodies."""
    with contextlib.closing(connect_commit_store(url)) as store:
        entries = store.scan(series)
    return sum(len(series) + 8 + len(entry.value) for entry in entries) / len(entries)


def kept_bytes(url: str) -> int:
    """Return how much the server keeps, as far as it can tell."""
    return KEPT[url.partition(":")[0]](url)


def kept_by_sqlite(url: str) -> int:
    import sqlite3

    file = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return Path(file).stat().st_size


def kept_by_postgres(url: str) -> int:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM holdfast_records")
        row = connection.execute("SELECT pg_total_relation_size('holdfast_records')").fetchone()
    assert row is not None
    return int(row[0])


def kept_by_mariadb(url: str) -> int:
    import pymysql

    place = urlsplit(url)
    with pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=unquote(place.password or ""),
        database=place.path.strip("/"),
        autocommit=True,
    ) as connection:
        cursor = connection.cursor()
        cursor.execute("ANALYZE TABLE holdfast_records")
        cursor.execute(
            "SELECT data_length FROM information_schema.tables "
            "WHERE table_schema = database() AND table_name = 'holdfast_records'"
        )
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])


def kept_by_redis(url: str) -> int:
    with contextlib.closing(Redis.from_url(url, protocol=2)) as client:
        keys = client.keys("holdfast:*")
        assert isinstance(keys, list)
        return sum(client.memory_usage(key, samples=0) or 0 for key in keys)


def kept_by_dynamodb(url: str) -> int:
    """Return what AWS would bill: names and values of all attributes."""
    store = connect_commit_store(url)
    assert isinstance(store, DynamoCommitStore)
    total = 0
    more: dict[str, object] = {}
    with contextlib.closing(store):
        while True:
            answer = store._call("Scan", TableName=store._table, ConsistentRead=True, **more)
            for item in answer["Items"]:
                for name, typed in item.items():
                    (value,) = typed.values()
                    total += len(name) + len(value)
            if "LastEvaluatedKey" not in answer:
                return total
            more = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


def kept_by_etcd(url: str) -> int:
    """Return the size in use; etcd keeps replaced values until it is compacted."""
    from holdfast.arbiter import StoreUrl

    gateway = Gateway(StoreUrl.parse(url), plain=True)
    with contextlib.closing(gateway):
        return int(gateway.call("/v3/maintenance/status", {})["dbSizeInUse"])


KEPT: dict[str, Callable[[str], int]] = {
    "sqlite": kept_by_sqlite,
    "postgresql": kept_by_postgres,
    "mysql": kept_by_mariadb,
    "redis": kept_by_redis,
    "dynamodb": kept_by_dynamodb,
    "etcd": kept_by_etcd,
}
