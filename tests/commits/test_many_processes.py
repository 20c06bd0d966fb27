"""Many processes write to one table: what was acknowledged is there, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
import s3_servers
import servers
from commits import table_worker
from commits.table_worker import Place, rows, set_up, spawned
from holdfast.errors import HoldfastError
from holdfast.testing import FaultyS3Process

WORKERS = 8
APPENDS = 10

pytestmark = pytest.mark.timeout(600)  # processes that start and all write concurrently


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPoolExecutor]:
    with spawned(WORKERS) as pool:
        yield pool


@pytest.fixture(scope="module")
def s3() -> Iterator[Callable[[str], FaultyS3Process]]:
    running: dict[str, FaultyS3Process] = {}

    def start(conditions: str) -> FaultyS3Process:
        if conditions not in running:
            running[conditions] = FaultyS3Process(conditions=conditions)
        return running[conditions]

    yield start
    for server in running.values():
        server.stop()


@pytest.fixture
def make_place(
    request: pytest.FixtureRequest, tmp_path: Path, s3: Callable[[str], FaultyS3Process]
) -> Callable[[str], Place]:
    """Make a place from `store + commit store`, starting the servers that it needs."""

    def object_store(name: str) -> tuple[str, dict[str, str]]:
        if name == "disk":
            return str(tmp_path / "t.lance"), {}
        if name in {"ignoring", "racy"}:
            faulty = s3(name)
            url = faulty.url("lake", f"{tmp_path.name}/t.lance")
            return url, dict(faulty.storage_options("lake"))
        server: s3_servers.S3Server = request.getfixturevalue(
            {"rclone": "rclone_s3", "ministack": "ministack"}[name]
        )
        return server.url(f"{tmp_path.name}/t.lance"), server.storage_options()

    def commit_store(name: str) -> str | None:
        if name == "condition":
            return None
        if name == "sqlite":
            return set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true")
        fixture = {"redis": "redis_server"}.get(name, name)
        database: servers.Server = request.getfixturevalue(fixture)
        return set_up(database.url)

    def make(name: str) -> Place:
        store, _, decides = name.partition(" + ")
        uri, options = object_store(store)
        return Place(uri=uri, options=options, commit_store=commit_store(decides))

    return make


def run(
    pool: ProcessPoolExecutor,
    place: Place,
    shares: Sequence[Sequence[int]],
    work: Callable[..., tuple[list[int], list[str]]] = table_worker.append_each,
) -> tuple[list[int], list[str]]:
    """Let each process append its share; return what was acknowledged, and the errors."""
    waiting = [pool.submit(work, place, share) for share in shares]
    done = [one.result(240) for one in waiting]
    acknowledged = sorted(number for numbers, _ in done for number in numbers)
    return acknowledged, [error for _, errors in done for error in errors]


@pytest.mark.requirement("C1", "C8")
@pytest.mark.parametrize(
    "where",
    [
        "ignoring + sqlite",
        "racy + postgres",
        "ignoring + redis",
        "ignoring + mariadb",
        "ministack + condition",
        "disk + condition",
        "disk + sqlite",
    ],
)
def test_all_appends_are_there(
    make_place: Callable[[str], Place], workers: ProcessPoolExecutor, where: str
) -> None:
    place = make_place(where)
    place.create()
    five = [[number] for number in range(5)]
    assert run(workers, place, five, table_worker.append_plain) == (list(range(5)), [])
    assert place.ids() == list(range(5))
    shares = batches(5, WORKERS, APPENDS)
    acknowledged, errors = run(workers, place, shares)
    assert errors == []
    assert acknowledged == list(range(5, 85))
    assert place.ids() == list(range(85))


@pytest.mark.requirement("C1", "C8")
def test_a_gateway_that_answers_oddly(
    make_place: Callable[[str], Place], workers: ProcessPoolExecutor
) -> None:
    """rclone answers some ranges wrongly, so Lance may fail: typed, and nothing lost."""
    place = make_place("rclone + mariadb")
    place.create()
    acknowledged, errors = run(workers, place, batches(0, WORKERS, 4))
    print(f"{len(acknowledged)} acknowledged, {len(errors)} errors: {errors[:3]}")
    found = place.ids()
    assert set(acknowledged) <= set(found)
    assert len(set(found)) == len(found)
    again, _ = run(workers, place, batches(0, WORKERS, 4))
    assert set(again) <= set(place.ids())
    assert len(place.ids()) == len(set(place.ids()))


@pytest.mark.requirement("C1", "C2", "C8", "C9")
@pytest.mark.parametrize("where", ["ignoring + sqlite", "racy + sqlite", "disk + condition"])
def test_stock_calls_through_the_namespace(
    make_place: Callable[[str], Place], workers: ProcessPoolExecutor, where: str
) -> None:
    place = make_place(where)
    root, _, _ = place.uri.rpartition("/")
    tables: Any = holdfast.Namespace(root, place.options, commit_store=place.commit_store)
    lance.write_dataset(rows(0), namespace_client=tables, table_id=["t"], mode="create")
    waiting = [
        workers.submit(table_worker.write_by_namespace, tables, "t", share)
        for share in batches(1, 5, 5)
    ]
    assert sorted(n for one in waiting for n in one.result(240)) == list(range(1, 26))
    assert place.ids() == list(range(26))
    assert place.open().append(rows(26)).applied


@pytest.mark.requirement("C1")
@pytest.mark.parametrize("where", ["disk + condition", "disk + sqlite", "ignoring + sqlite"])
def test_mixed_load(
    make_place: Callable[[str], Place], workers: ProcessPoolExecutor, where: str
) -> None:
    place = make_place(where)
    table = place.create(primary_key=["id"])
    table.append(pa.concat_tables([rows(*range(first, first + 20)) for first in (0, 20, 40)]))
    jobs = {
        "append": range(1000, 1006),
        "merge_insert": range(2000, 2006),
        "update": range(6),
        "delete": range(20, 26),
        "compact": range(3),
        "index": range(2),
    }
    waiting = {
        kind: workers.submit(table_worker.operate, place, kind, list(numbers))
        for kind, numbers in jobs.items()
    }
    done = {kind: one.result(240) for kind, one in waiting.items()}
    found = place.stock().to_table()
    text = dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))
    assert len(text) == found.num_rows, "a key is there twice"
    assert done["append"] == list(jobs["append"])
    for number in (*done["append"], *done["merge_insert"]):
        assert number in text
    for number in done["update"]:
        assert text[number] == "updated"
    for number in done["delete"]:
        assert number not in text
    kept = {*range(60), *jobs["append"], *jobs["merge_insert"]} - set(jobs["delete"])
    assert set(text) <= kept | set(jobs["delete"])
    assert set(range(60)) - set(jobs["delete"]) <= set(text)


def test_stock_loses_appends_where_holdfast_does_not(
    make_place: Callable[[str], Place], workers: ProcessPoolExecutor
) -> None:
    """Recorded, not asserted to a number: why one wants a commit store here."""
    place = make_place("ignoring + sqlite")
    lance.write_dataset(rows(0), place.uri, storage_options=place.options)
    waiting = [
        workers.submit(table_worker.write_with_stock, place, share) for share in batches(1, 5, 4)
    ]
    acknowledged = [n for one in waiting for n in one.result(240)]
    lost = set(acknowledged) - set(place.ids())
    print(f"stock pylance: {len(lost)} of {len(acknowledged)} acknowledged appends lost")


def batches(first: int, count: int, size: int) -> list[list[int]]:
    return [list(range(first + i * size, first + (i + 1) * size)) for i in range(count)]


def test_errors_travel(workers: ProcessPoolExecutor, tmp_path: Path) -> None:
    nowhere = Place(uri=str(tmp_path / "t.lance"))
    with pytest.raises(HoldfastError, match="create or adopt"):
        workers.submit(table_worker.append_each, nowhere, [1]).result(60)
