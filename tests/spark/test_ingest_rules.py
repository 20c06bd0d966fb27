"""Rules of streams into the log that need no Spark to be seen: what tasks and the driver refuse,
what upkeep survives, and what stock Lance reads at every stage."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner

import holdfast
import holdfast.spark
from commits.table_worker import set_up
from holdfast.errors import (
    CorruptError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    UnavailableError,
)
from holdfast.formats import bucket
from holdfast.shard import Sharding
from holdfast.spark import _ingest, _ingest_rows, _ingest_run, _ingest_upkeep
from holdfast.spark._ingest import Ingest
from holdfast.spark._ingest_run import Run
from holdfast.spark._ingest_upkeep import IngestUpkeep, look_after
from holdfast.spark._ingest_work import WrittenEntries
from shard.levels import KEYED, PLAIN, newest, tables_of
from shard.lsm import snapshot

pytestmark = [pytest.mark.requirement("S4")]


@pytest.fixture(autouse=True)
def _forget_tables() -> None:
    _ingest_rows._ARBITERS.clear()  # a worker's, which this process plays


@pytest.fixture
def plain(tmp_path: Path) -> holdfast.Table:
    table = holdfast.create_table(tmp_path / "plain.lance", PLAIN)
    table.prepare_writers(sharding=Sharding.bucket("k", 2))
    return table


@pytest.fixture
def keyed(tmp_path: Path) -> holdfast.Table:
    table = holdfast.create_table(tmp_path / "keyed.lance", KEYED, primary_key=["k"])
    table.prepare_writers(sharding=Sharding.unsharded())
    return table


class Driver:
    """What the driver of a query does, without Spark: claim, hand out places, take answers."""

    def __init__(self, table: holdfast.Table, **more: Any) -> None:
        made = holdfast.spark.ingest(table.uri, app="q", upkeep=None, **more)
        assert isinstance(made, Ingest)
        self.ingest = made
        self.run = Run(holdfast.open_table(table.uri), shard=None, app="q")

    def write(self, batch: int, rows: pa.Table, numbers: list[int] | None = None) -> Any:
        """Write a batch as one task; return its answer. `numbers` are the rows' shards."""
        targets = self.run.targets(batch, self.ingest.parts)
        work = self.ingest._work(self.run, batch, targets, Path("unused"))
        buckets = len(self.run.routing.shards)
        if numbers is None:
            column = rows["k"].combine_chunks()
            numbers = [0] * len(rows) if buckets == 1 else bucket(column, buckets).tolist()
        rows = rows.append_column("__holdfast_shard", pa.array(numbers, pa.int32()))
        answer = _ingest_rows.write_entries(work, iter(rows.to_batches()))
        if "error" not in answer:
            taken = answer["taken"]
            written = {n: [WrittenEntries(*one) for one in some] for n, some in taken.items()}
            self.run.finish_batch(batch, self.ingest.parts, written)
        return answer


def rows(*keys: int, v: str = "a") -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([v] * len(keys))})


def keys_of(table: holdfast.Table) -> Counter[int]:
    return Counter(table.scan(columns=["k"]).read_all()["k"].to_pylist())


def test_a_task_refuses_rows_of_another_shard(plain: holdfast.Table) -> None:
    """In the wrong shard an older row of the same key could win."""
    driver = Driver(plain)
    right = bucket(pa.array([1, 2, 3]), 2).tolist()
    answer = driver.write(0, rows(1, 2, 3), [1 - one for one in right])
    assert "in another way than Lance does" in answer["message"]
    assert keys_of(plain) == Counter()
    assert driver.write(0, rows(1, 2, 3), right)["taken"]
    assert keys_of(plain) == Counter([1, 2, 3])


def test_all_rows_of_a_task_are_looked_at_before_the_first_entry(keyed: holdfast.Table) -> None:
    """A task may have several shards: what is refused in one leaves nothing in the other."""
    table = holdfast.create_table(Path(keyed.uri).with_name("two"), KEYED, primary_key=["k"])
    table.prepare_writers(sharding=Sharding.bucket("k", 2))
    first, second = ([n for n in range(20) if bucket(pa.array([n]), 2)[0] == s] for s in (0, 1))
    answer = Driver(table).write(0, rows(*first, second[0], second[0]))
    assert answer["error"] == "InvalidInputError"
    assert keys_of(table) == Counter()


def test_what_cannot_be_ordered_is_refused(keyed: holdfast.Table) -> None:
    driver = Driver(keyed, order_by="s")
    events = rows(1, 1).append_column("__holdfast_order_0", pa.array([{"x": 1}, {"x": 2}]))
    answer = driver.write(0, events)
    assert "order_by cannot compare values of this type" in answer["message"]


def test_of_rows_of_one_key_a_null_in_the_order_is_the_oldest(keyed: holdfast.Table) -> None:
    events = rows(1, 1, 2, 2, 2).set_column(1, "v", pa.array(list("abcde")))
    order = pa.array([None, -1.0, 2.0, 3.0, None])
    assert Driver(keyed, order_by="s").write(0, events.append_column("__holdfast_order_0", order))[
        "taken"
    ]
    assert newest(keyed.scan().read_all().to_pylist()) == {1: "b", 2: "d"}


def test_a_column_that_spark_hashes_in_another_way_is_refused(tmp_path: Path) -> None:
    for name, kind in (("unsigned", pa.uint32()), ("moment", pa.timestamp("us"))):
        table = holdfast.create_table(tmp_path / name, pa.schema([("k", kind)]))
        table.prepare_writers(sharding=Sharding.bucket("k", 2))
        with pytest.raises(InvalidInputError, match="cannot divide rows by a column of this type"):
            Run(table, shard=None, app="q")
        assert all(state.epoch == 0 for state in table.shard_states())


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("decider", ["store", "commit store"])
def test_a_task_writes_nothing_into_a_table_that_was_made_anew(
    tmp_path: Path, decider: str
) -> None:
    commit_store = None
    if decider == "commit store":
        commit_store = set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true")

    def make() -> holdfast.Table:
        made = holdfast.create_table(tmp_path / "t.lance", PLAIN, commit_store=commit_store)
        made.prepare_writers(sharding=Sharding.unsharded())
        return made

    driver = Driver(make())
    assert driver.write(0, rows(1))["taken"]
    for forgets in (False, True):  # a worker that knew the table, and one that opens it now
        shutil.rmtree(tmp_path / "t.lance")
        table = make()
        if forgets:
            _ingest_rows._ARBITERS.clear()
        answer = driver.write(1, rows(2))
        assert answer["error"] in {"StaleHandleError", "PinMismatchError"}
        assert keys_of(table) == Counter()


def test_a_missing_answer_is_said(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="another machine than the driver's Python"):
        _ingest._read_taken(tmp_path / "none.json")


def test_a_run_notices_that_nobody_could_read_its_log(
    plain: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ingest_run, "_BATCHES_UNCHECKED", 2)
    driver = Driver(plain)
    driver.write(0, rows(1))
    holdfast.write_table(pa.table({"k": [1], "other": ["x"]}), plain.uri, mode="overwrite")
    with pytest.raises(FencedError, match="overwritten with other columns"):
        driver.run.targets(1, 1)


def test_upkeep_tells_what_the_next_round_would_meet_and_waits_for_the_rest(
    plain: holdfast.Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Driver(plain).run
    clock: Any = type("Hands", (), {"time": 0.0, "elapsed": lambda self: self.time})()
    upkeep = IngestUpkeep(run, timedelta(minutes=1), clock)

    def round_with(error: Exception) -> None:
        def fails(_: Run) -> None:
            raise error

        monkeypatch.setattr(_ingest_upkeep, "look_after", fails)
        clock.time += 61.0
        upkeep.tick()
        upkeep.join()

    with caplog.at_level(logging.INFO, "holdfast"):
        round_with(UnavailableError("a fault of the test"))
        round_with(FencedError("a fault of the test"))
        upkeep.tick()
    assert "upkeep waits for its next round" in caplog.text
    assert "upkeep stops: another run owns a shard" in caplog.text
    round_with(CorruptError("a fault of the test"))
    with pytest.raises(CorruptError, match="a fault of the test"):
        upkeep.tick()
    upkeep.tick()  # told once


def test_upkeep_of_entries_by_stock_does_not_lock_its_own_run_out(keyed: holdfast.Table) -> None:
    (shard,) = Driver(keyed).run.epochs
    writer = lance.dataset(keyed.uri).mem_wal_writer(shard)
    writer.put(pa.Table.from_pylist([{"k": 100, "v": "stock"}], schema=KEYED))
    driver = Driver(keyed)  # locks stock out before it has flushed
    driver.write(0, rows(1))
    look_after(driver.run)
    assert driver.write(1, rows(2))["taken"], "the run still owns its shard"
    assert keys_of(keyed) == Counter([1, 2, 100])


def stock_base(table: holdfast.Table) -> dict[int, str]:
    """Return the base as pylance reads it; LanceDB must see the same."""
    found = lance.dataset(table.uri).to_table().to_pylist()
    path = Path(table.uri)
    opened = lancedb.connect(path.parent).open_table(path.stem)
    assert newest(opened.to_arrow().to_pylist()) == newest(found)
    return newest(found)


@pytest.mark.requirement("L6")
def test_stock_reads_what_a_stream_wrote_at_every_stage(keyed: holdfast.Table) -> None:
    """Replayed from the log, from generations, from the base; with a large entry among them."""
    driver = Driver(keyed, deletes="false", entries_per_batch=1)
    (shard,) = driver.run.epochs
    large = 100_001  # one more than stock's MemTable has room for
    driver.write(0, rows(*range(large)))
    driver.write(1, rows(1, v="b"))
    marked = rows(2).append_column("__holdfast_deleted", pa.array([True]))
    driver.write(2, marked)
    want = {**dict.fromkeys(range(large), "a"), 1: "b"}
    del want[2]
    assert newest(keyed.scan().read_all().to_pylist()) == want
    assert stock_base(keyed) == {}  # in the log: stock's base is whole, and behind
    replayed = lance.dataset(keyed.uri).mem_wal_writer(shard)  # with its default settings
    assert newest(replayed.lsm_scanner().to_table().to_pylist()) == want
    replayed.close()
    keyed.flush_log(shard, idle=timedelta(0))
    assert newest(keyed.scan().read_all().to_pylist()) == want
    flushed = snapshot(shard, tables_of(keyed, shard))
    found = LsmScanner.from_snapshots(lance.dataset(keyed.uri), [flushed]).to_table()
    assert newest(found.to_pylist()) == want
    keyed.merge_log()
    assert stock_base(keyed) == want
    again = Driver(keyed)
    again.write(3, rows(5, v="c"))
    assert newest(keyed.scan().read_all().to_pylist()) == {**want, 5: "c"}
    assert stock_base(keyed) == want
    keyed.merge_log()
    assert stock_base(keyed) == {**want, 5: "c"}
