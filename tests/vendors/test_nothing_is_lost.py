"""Tables on Tencent COS and Alibaba OSS, on a bucket whose conditions are ignored.

The store is a fake that Lance's and our own real client talk to; see `FakeCloud`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import holdfast
import servers
from commits import table_worker
from commits.table_worker import Place, rows, set_up, spawned
from holdfast.cli import main
from holdfast.errors import FencedError, UnsafeStoreError
from holdfast.shard import ShardWriterConfig
from holdfast.testing import FakeCloud
from holdfast.upkeep import doctor

WORKERS = 5
APPENDS = 10
JOB = Path(__file__).with_name("spark_job.py")

pytestmark = [pytest.mark.requirement("C1", "C2", "C6"), pytest.mark.timeout(600)]


def make_place(
    vendor: str, cloud: FakeCloud, database: servers.Server, name: str = "events"
) -> Place:
    cloud.enable_versioning("lake")
    return Place(
        uri=f"{vendor}://lake/{vendor}-{name}",
        options=cloud.storage_options(vendor),
        commit_store=set_up(database.url),
    )


def shown(place: Place) -> Counter[int]:
    """Return how often every id is in the table, by stock pylance."""
    dataset = lance.dataset(place.uri, storage_options=place.options)
    return Counter(dataset.to_table(columns=["id"])["id"].to_pylist())


def by_log(table: holdfast.Table) -> list[int]:
    """Write through the log: puts, a takeover, flushes, merges, vacuum; return what is there."""
    config = ShardWriterConfig(max_memtable_rows=8)
    first = table.claim_writer("unsharded", config=config)
    for key in range(500, 520):
        first.put(rows(key))
    first.flush()
    second = table.claim_writer("unsharded", config=config)
    with pytest.raises(FencedError):
        first.put(rows(99_999))
    first.abort()
    table.compact_lsm()
    for key in range(520, 530):
        second.put(rows(key))
    second.delete_keys([510])
    table.vacuum(confirm=True)
    second.close()
    table.compact_lsm()
    table.vacuum(confirm=True)
    return [key for key in range(500, 530) if key != 510]


def test_nothing_is_lost_on_cos(
    fake_cloud: FakeCloud, postgres: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place("cos", fake_cloud, postgres)
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", str(place.commit_store))
    table = place.create(primary_key=["id"])
    with spawned(WORKERS) as pool:
        work: list[Future[tuple[list[int], list[str]]]] = [
            pool.submit(
                table_worker.append_each,
                place,
                range(worker * APPENDS, (worker + 1) * APPENDS),
            )
            for worker in range(WORKERS)
        ]
        logged = by_log(table)
        done = [each.result() for each in work]
    assert [errors for _, errors in done] == [[]] * WORKERS
    expected = {number for numbers, _ in done for number in numbers} | set(logged)
    assert len(expected) == WORKERS * APPENDS + len(logged)
    assert shown(place) == dict.fromkeys(expected, 1)

    table.create_index("text", tasks=2)
    assert table.search("text", "505")["id"].to_pylist() == [505]

    on_oss = make_place("oss", fake_cloud, postgres, name="of-spark")
    on_oss.create().close()
    expected |= set(range(1000, 1100))
    assert run_spark(place, on_oss) == [len(expected), 100]
    assert shown(place) == dict.fromkeys(expected, 1)
    assert shown(on_oss) == dict.fromkeys(range(1000, 1100), 1)
    table.vacuum(confirm=True)
    assert shown(place) == dict.fromkeys(expected, 1)
    assert doctor(place.uri, place.options).findings == ()
    table.close()


def test_nothing_is_lost_on_oss(fake_cloud: FakeCloud, postgres: servers.Server) -> None:
    place = make_place("oss", fake_cloud, postgres)
    table = place.create(primary_key=["id"])
    logged = by_log(table)
    with spawned(2) as pool:
        work = [
            pool.submit(table_worker.append_each, place, range(w * 5, w * 5 + 5)) for w in (0, 1)
        ]
        assert [each.result()[1] for each in work] == [[], []]
    table.create_index("text", tasks=2)
    expected = {*logged, *range(10)}
    assert shown(place) == dict.fromkeys(expected, 1)
    assert table.search("text", "505")["id"].to_pylist() == [505]
    table.close()


def run_spark(*places: Place) -> list[int]:
    """Append the same rows to each table, twice under one txn; return how many rows each has."""
    options = [{f"storage.{key}": value for key, value in p.options.items()} for p in places]
    ended = subprocess.run(
        [sys.executable, str(JOB), *(place.uri for place in places)],
        input=json.dumps(options),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return list(json.loads(ended.stdout.splitlines()[-1])["counts"])


@pytest.mark.parametrize("vendor", ["cos", "oss"])
def test_by_the_command_line(
    fake_cloud: FakeCloud,
    postgres: servers.Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vendor: str,
) -> None:
    place = make_place(vendor, fake_cloud, postgres, name="by-hand")
    monkeypatch.setenv("COMMITS", str(place.commit_store))
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", str(place.commit_store))
    words = [word for pair in place.options.items() for word in ("-o", "=".join(pair))]
    columns = ["id:int64", "text:string", "--key", "id"]
    assert main(["create", place.uri, *columns, *words]) != 0, "its condition was trusted"
    assert main(["create", place.uri, *columns, *words, "--commit-store", "env:COMMITS"]) == 0
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"id": n, "text": f"row {n}"}) + "\n" for n in range(20)))
    assert main(["ingest", place.uri, str(file), *words]) == 0
    assert main(["index", "create", place.uri, "text", *words]) == 0
    for verb in ("maintain", "status", "history", "doctor"):
        assert main([verb, place.uri, *words]) == 0, verb
    assert main(["vacuum", place.uri, *words, "--confirm"]) == 0
    with closing(holdfast.open_table(place.uri, storage_options=place.options)) as table:
        assert sorted(table.scan().read_all()["id"].to_pylist()) == list(range(20))


def test_stock_loses_rows_where_holdfast_does_not(fake_cloud: FakeCloud) -> None:
    """Lance trusts OSS's condition; on a bucket that was ever versioned it is ignored."""
    fake_cloud.enable_versioning("lake")
    options = fake_cloud.storage_options("oss")
    place = Place(uri="oss://lake/stock", options=options)
    lance.write_dataset(rows(-1), place.uri, storage_options=options)
    with spawned(WORKERS) as pool:
        for start in range(0, 500, 50):  # processes that happen to take turns lose nothing
            work = [
                pool.submit(table_worker.write_with_stock, place, range(first, first + 10))
                for first in range(start, start + 10 * WORKERS, 10)
            ]
            acknowledged = {number for each in work for number in each.result()}
            if acknowledged - set(shown(place)):
                return
    pytest.fail("stock appends were not lost: is the fake honest?")


@pytest.mark.requirement("C3")
@pytest.mark.parametrize("vendor", ["cos", "oss"])
def test_its_condition_is_refused_whatever_the_probe_says(
    fake_cloud: FakeCloud, tmp_path: Path, vendor: str
) -> None:
    """A bucket that was never versioned keeps the condition, until the day somebody enables it."""
    options = fake_cloud.storage_options(vendor)
    place = Place(uri=f"{vendor}://never-versioned/{vendor}", options=options)
    assert holdfast.probe(place.uri, options).verdict == "enforced"
    with pytest.raises(UnsafeStoreError, match="versioning") as refused:
        place.create()
    assert "commit_store=" in str(refused.value)
    decided = Place(
        uri=place.uri,
        options=options,
        commit_store=set_up(f"sqlite:///{tmp_path}/c.db?single_host=true"),
    )
    decided.create().close()
    holdfast.release_table(place.uri, options)
    with pytest.raises(UnsafeStoreError, match="versioning"):
        holdfast.adopt_table(place.uri, storage_options=options)


def test_stock_refuses_to_write_to_cos(fake_cloud: FakeCloud) -> None:
    options = fake_cloud.storage_options("cos")
    with pytest.raises(OSError, match="Default writes to Tencent COS are disabled"):
        lance.write_dataset(pa.table({"a": [1]}), "cos://lake/cos-stock", storage_options=options)
