"""Streams into the log: each batch is in each shard once, whatever is repeated, late or killed."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import lancedb
import pyarrow as pa
import pytest
from pyspark.sql import functions as f

import holdfast
import holdfast.spark
from holdfast.errors import FencedError, HoldfastError, InvalidInputError
from holdfast.formats._sharding import bucket
from holdfast.shard import Sharding
from holdfast.shard._prepare import read_newest_base
from holdfast.spark import _ingest, _ingest_rows
from holdfast.spark._ingest import Ingest
from holdfast.spark._ingest_frame import routing_of, shard_number
from holdfast.spark._ingest_run import Run
from holdfast.spark._ingest_upkeep import IngestUpkeep, interval_of, look_after
from holdfast.spark._ingest_work import WrittenEntries
from holdfast.spark._types import spark_schema
from holdfast.wal import ShardManifests, Slots, append_at, collect_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.requirement("S4")]

KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
PLAIN = pa.schema([("id", pa.int64()), ("v", pa.string())])


def keyed(uri: str, buckets: int = 2) -> holdfast.Table:
    table = holdfast.create_table(uri, KEYED, primary_key=["id"])
    table.prepare_writers(sharding=Sharding.bucket("id", buckets))
    return table


def plain(uri: str, buckets: int = 2) -> holdfast.Table:
    table = holdfast.create_table(uri, PLAIN)
    table.prepare_writers(sharding=Sharding.bucket("id", buckets))
    return table


def sink(uri: str, **more: Any) -> Ingest:
    """Return a new run of the query `q`."""
    made = holdfast.spark.ingest(uri, **{"app": "q", "upkeep": None, **more})
    assert isinstance(made, Ingest)
    return made


def rows_of(table: holdfast.Table) -> dict[int, str]:
    found = [(row["id"], row["v"]) for row in table.scan().read_all().to_pylist()]
    assert len(found) == len({key for key, _ in found}), "a key is there twice"
    return dict(found)


def ids_of(table: holdfast.Table) -> Counter[int]:
    return Counter(table.scan(columns=["id"]).read_all()["id"].to_pylist())


def frame(spark: SparkSession, ids: range, v: str = "x") -> Any:
    return spark.range(ids.start, ids.stop, ids.step, 2).select("id", f.lit(v).alias("v"))


def entries(table: holdfast.Table) -> list[tuple[int, int]]:
    """Return (entries with rows, rows) of each shard's log, from its first position on."""
    found = []
    for shard in table.shards():
        read = [one for one in table.tailer(shard).entries(after=0) if not one.fence]
        found.append((len(read), sum(one.rows for one in read)))
    return found


class Stream:
    """A folder of JSON files, of which each is one batch, and a query from it into the log."""

    def __init__(self, spark: SparkSession, folder: Path, uri: str) -> None:
        self.spark = spark
        self.uri = uri
        self.source = folder / "events"
        self.source.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.files = 0

    def add(self, *rows: dict[str, Any]) -> None:
        fresh = self.source / f".{self.files}"
        fresh.write_text("\n".join(map(json.dumps, rows)))
        os.utime(fresh, (1_700_000_000 + self.files,) * 2)  # Spark's order
        fresh.rename(self.source / f"{self.files:06d}.json")
        self.files += 1

    def run(self, **more: Any) -> None:
        events = self.spark.readStream.schema("id long, v string, op string")
        frame = events.option("maxFilesPerTrigger", 1).json(str(self.source))
        if "deletes" not in more:
            frame = frame.drop("op")
        written = frame.writeStream.foreachBatch(
            holdfast.spark.ingest(self.uri, **{"upkeep": None, **more})
        )
        query = written.option("checkpointLocation", str(self.checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    def forget_commit(self, batch: int) -> None:
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, uri: str) -> Stream:
    return Stream(spark, tmp_path, uri)


@pytest.mark.requirement("C7")
def test_upserts_and_deletes_reach_every_fresh_reader(stream: Stream, uri: str) -> None:
    table = keyed(uri)
    stream.add(*({"id": n, "v": "a", "op": "U"} for n in range(10)))
    stream.add({"id": 3, "op": "D"}, {"id": 4, "v": "b", "op": "U"}, {"id": 77, "op": "D"})
    stream.run(deletes="op = 'D'")
    want = {n: "a" for n in range(10) if n != 3} | {4: "b"}
    assert rows_of(table) == want
    fresh = stream.spark.read.format("holdfast").load(uri).collect()
    assert {row.id: row.v for row in fresh} == want
    # One entry for each shard that has rows of a batch; more only for the fence of the claim.
    assert sum(count for count, _ in entries(table)) <= 4
    table.merge_log()
    assert {row["id"]: row["v"] for row in lance.dataset(uri).to_table().to_pylist()} == want
    opened = lancedb.connect(Path(uri).parent).open_table(Path(uri).stem)
    assert {row["id"]: row["v"] for row in opened.to_arrow().to_pylist()} == want


@pytest.mark.requirement("P3", "C8")
def test_a_batch_repeated_after_flush_merge_and_collection_is_known(
    stream: Stream, uri: str
) -> None:
    table = plain(uri)
    for first in (0, 10):
        stream.add(*({"id": n, "v": "a"} for n in range(first, first + 10)))
    stream.run()
    want = Counter(range(20))
    assert ids_of(table) == want
    stream.forget_commit(1)
    stream.run()  # while it is in the log
    assert ids_of(table) == want
    for shard in table.shards():
        table.flush_log(shard)
    stream.forget_commit(1)
    stream.run()  # after its flush
    assert ids_of(table) == want
    table.merge_log()
    for shard in table.shards():
        collect_log(table.core, shard, confirm=True)
    assert not any(count for count, _ in left(table)), "the entries are collected"
    stream.forget_commit(1)
    stream.run()  # after its merge and collection
    assert ids_of(table) == want
    stream.add({"id": 20, "v": "b"})
    stream.run()
    assert ids_of(table) == Counter(range(21))
    table.merge_log()
    assert Counter(lance.dataset(uri).to_table()["id"].to_pylist()) == Counter(range(21))


def left(table: holdfast.Table) -> Iterator[tuple[int, str]]:
    """Yield what is left of rows in the log's folders."""
    for shard in table.shards():
        for file in Path(table.uri, "_mem_wal", shard, "wal").iterdir():
            yield int(file.stat().st_size > 700), file.name  # a fence is smaller


@pytest.mark.mutant
def test_without_its_memory_a_repeated_batch_is_there_twice(
    stream: Stream, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = plain(uri)
    stream.add({"id": 1, "v": "a"})
    stream.run()
    stream.forget_commit(0)
    monkeypatch.setattr(Slots, "holds", lambda *_: False)
    stream.run()
    assert ids_of(table) == Counter({1: 2})


@pytest.mark.requirement("C7", "C8")
def test_a_worker_killed_behind_its_entry_writes_it_once(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = plain(uri, buckets=1)
    monkeypatch.setattr(_ingest, "SOURCE", "faulty")
    write = sink(uri)
    write(frame(spark, range(10)), 0)
    write(frame(spark, range(10, 20)), 1)
    assert ids_of(table) == Counter(range(20))
    assert entries(table) == [(2, 20)]


def test_another_run_locks_this_one_out(spark: SparkSession, uri: str) -> None:
    table = plain(uri)
    first, second = sink(uri), sink(uri)
    first(frame(spark, range(10)), 0)
    second(frame(spark, range(10)), 0)  # known
    second(frame(spark, range(10, 20)), 1)
    with pytest.raises(FencedError, match="another run of this query"):
        first(frame(spark, range(10, 20)), 1)
    assert ids_of(table) == Counter(range(20))
    first(frame(spark, range(10, 20)), 1)  # begun anew, it claims, and finds the batch
    assert ids_of(table) == Counter(range(20))
    with pytest.raises(FencedError):
        second(frame(spark, range(20, 30)), 2)


def test_a_writer_service_locks_a_query_out(spark: SparkSession, uri: str) -> None:
    table = plain(uri, buckets=1)
    write = sink(uri)
    write(frame(spark, range(3)), 0)
    with table.claim_writer("bucket-0") as writer:
        writer.put([{"id": 100, "v": "w"}])
        with pytest.raises(FencedError, match="A shard has one writer"):
            write(frame(spark, range(3, 6)), 1)
    assert ids_of(table) == Counter([0, 1, 2, 100])


def test_a_task_that_runs_twice_and_late_writes_once(spark: SparkSession, uri: str) -> None:
    table = plain(uri)
    write = sink(uri)
    write(frame(spark, range(10)), 0)
    _, run, _ = write._state.runs["q"]
    work = write._work(run, 1, run.targets(1, 1), Path("unused"))
    rows = pa.table({"id": pa.array(range(10, 20)), "v": pa.array(["x"] * 10)})
    numbers = pa.array(bucket(rows["id"].combine_chunks(), 2), pa.int32())
    batches = rows.append_column("__holdfast_shard", numbers).to_batches()
    first = _ingest_rows.write_entries(work, iter(batches))
    assert _ingest_rows.write_entries(work, iter(batches)) == first
    run.finish_batch(
        1, 1, {n: [WrittenEntries(*one) for one in some] for n, some in first["taken"].items()}
    )
    write(frame(spark, range(20, 30)), 2)
    assert _ingest_rows.write_entries(work, iter(batches)) == first  # late
    assert ids_of(table) == Counter(range(30))
    sink(uri)(frame(spark, range(20, 30)), 2)
    zombie = replace(work, batch=3, targets=run.targets(3, 1))
    answer = _ingest_rows.write_entries(zombie, iter(batches))
    assert answer["error"] == "FencedError", "a task of the run before"
    assert ids_of(table) == Counter(range(30))


def test_tasks_take_the_drivers_verdict_and_do_not_probe(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(uri, buckets=1)
    write = sink(uri)
    write(frame(spark, range(2)), 0)
    _, run, _ = write._state.runs["q"]
    work = write._work(run, 1, run.targets(1, 1), Path("unused"))
    monkeypatch.setattr("holdfast.arbiter._open.verdict_of", lambda *_: pytest.fail("it probes"))
    _ingest_rows._ARBITERS.clear()
    rows = pa.table({"id": [5], "v": ["x"], "__holdfast_shard": pa.array([0], pa.int32())})
    assert _ingest_rows.write_entries(work, iter(rows.to_batches()))["taken"]
    _ingest_rows._ARBITERS.clear()


def test_a_batch_too_large_for_an_entry_gets_through_with_the_setting_named(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = plain(uri, buckets=1)
    monkeypatch.setattr(_ingest, "MOST_BYTES", 1000)
    sink(uri)(frame(spark, range(5)), 0)
    large = frame(spark, range(5, 105))
    with pytest.raises(InvalidInputError, match=r"entries_per_batch=(\d+)") as told:
        sink(uri)(large, 1)
    assert ids_of(table) == Counter(range(5)), "nothing of it is written"
    parts = int(str(told.value.details["entries_per_batch"]))
    sink(uri, entries_per_batch=parts)(large, 1)
    assert ids_of(table) == Counter(range(105))
    for again in (1, parts, parts + 1):  # repeated, however it is divided then
        sink(uri, entries_per_batch=again)(large, 1)
    assert ids_of(table) == Counter(range(105))
    sink(uri)(frame(spark, range(105, 110)), 2)
    assert ids_of(table) == Counter(range(110))


def test_a_query_stopped_by_a_large_batch_goes_on_with_its_checkpoint(
    stream: Stream, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets of the batch are in the checkpoint: smaller triggers would not help."""
    table = plain(uri, buckets=1)
    monkeypatch.setattr(_ingest, "MOST_BYTES", 1000)
    for first, last in ((0, 5), (5, 105), (105, 110)):
        stream.add(*({"id": n, "v": "a"} for n in range(first, last)))
    for _ in range(2):
        with pytest.raises(Exception, match=r"entries_per_batch=\d+") as told:
            stream.run()
        assert ids_of(table) == Counter(range(5))
    named = re.search(r"entries_per_batch=(\d+)", str(told.value))
    assert named is not None
    stream.run(entries_per_batch=int(named[1]))
    assert ids_of(table) == Counter(range(110))
    stream.forget_commit(2)
    stream.add({"id": 110, "v": "a"})
    stream.run()  # the setting may go again
    assert ids_of(table) == Counter(range(111))


def test_a_batch_begun_in_parts_is_finished_in_the_same_parts(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = plain(uri, buckets=1)
    write = sink(uri, entries_per_batch=4)
    written: list[Any] = []

    def stops(*given: Any, **named: Any) -> Any:
        if len(written) == 2:
            raise HoldfastError("a fault of the test")
        written.append(append_at(*given, **named))
        return written[-1]

    write(frame(spark, range(2)), 0)
    _, run, _ = write._state.runs["q"]
    work = write._work(run, 1, run.targets(1, 4), Path("unused"))
    monkeypatch.setattr(_ingest_rows, "append_at", stops)
    rows = frame(spark, range(10, 90)).select(
        "id", "v", f.lit(0).alias("__holdfast_shard"),
        f.pmod(f.xxhash64("id", "v"), f.lit(4)).cast("int").alias("__holdfast_part"),
    ).toArrow()  # fmt: skip
    assert _ingest_rows.write_entries(work, iter(rows.to_batches()))["error"]
    monkeypatch.undo()
    assert 2 < sum(ids_of(table).values()) < 82, "half of it is there"
    with pytest.raises(InvalidInputError, match="entries_per_batch=4"):
        sink(uri)(frame(spark, range(10, 90)), 1)
    sink(uri, entries_per_batch=4)(frame(spark, range(10, 90)), 1)
    assert ids_of(table) == Counter([0, 1, *range(10, 90)])


def test_two_rows_of_one_key_need_an_order(spark: SparkSession, uri: str) -> None:
    table = keyed(uri)
    rows = [(n % 5, f"v{n}", n) for n in range(20)]
    events = spark.createDataFrame(rows, "id long, v string, ts long")
    with pytest.raises(InvalidInputError, match=r"order_by=\.\.\."):
        sink(uri)(events.drop("ts"), 0)
    with pytest.raises(InvalidInputError, match="nothing says which is the newest"):
        sink(uri, order_by="ts div 10")(events, 0)
    sink(uri, order_by=["ts div 10", "ts"], deletes="id = 4")(events, 0)
    assert rows_of(table) == {n: f"v{n + 15}" for n in range(4)}


def test_what_cannot_be_written_is_refused(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    table = keyed(uri)
    batch = frame(spark, range(3))
    for wrong, said in (
        ({"upkeep": "soon"}, "such as '1 minute'"),
        ({"upkeep": "0 seconds"}, "above zero"),
        ({"entries_per_batch": 0}, "1 to 64"),
        ({"deletes": " "}, "not empty"),
        ({"storage_options": {"no_such_option": "1"}}, "no_such_option"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            sink(uri, **wrong)
    with pytest.raises(TypeError):
        sink(uri, upkep="1 minute")
    with pytest.raises(InvalidInputError, match="give ingest an app"):
        sink(uri, app=None)(batch, 0)
    with pytest.raises(InvalidInputError, match="unexpected column 'extra'"):
        sink(uri)(batch.withColumn("extra", f.lit(1)), 0)
    with pytest.raises(InvalidInputError, match="cast it"):
        sink(uri)(batch.select("v", f.lit("x").alias("id")), 0)
    with pytest.raises(InvalidInputError, match="never null"):
        sink(uri)(batch.select("v", f.lit(None).cast("long").alias("id")), 0)
    with pytest.raises(InvalidInputError, match="leave shard out"):
        sink(uri, shard="bucket-1")(batch, 0)
    assert rows_of(table) == {}
    other = str(tmp_path / "other")
    holdfast.create_table(other, PLAIN)
    with pytest.raises(InvalidInputError, match="no primary key"):
        sink(other, deletes="id = 1")(batch, 0)
    by_hand = holdfast.create_table(tmp_path / "by-hand", PLAIN)
    by_hand.prepare_writers()
    with pytest.raises(InvalidInputError, match=r"shard=\.\.\."):
        sink(by_hand.uri)(batch, 0)
    sink(by_hand.uri, shard="unsharded")(batch, 0)
    assert ids_of(by_hand) == Counter(range(3))
    by_value = holdfast.create_table(tmp_path / "by-value", PLAIN)
    by_value.prepare_writers(sharding=Sharding.identity("v"))
    with pytest.raises(InvalidInputError, match="divided by value"):
        sink(by_value.uri)(batch, 0)


def test_a_table_that_was_never_prepared_gets_one_shard(spark: SparkSession, uri: str) -> None:
    table = holdfast.create_table(uri, PLAIN)
    sink(uri)(frame(spark, range(10)), 0)
    assert ids_of(table) == Counter(range(10))
    assert len(table.shards()) == 1


def test_a_function_travels_without_what_it_has_claimed(spark: SparkSession, uri: str) -> None:
    table = plain(uri, buckets=1)
    write = sink(uri)
    write(frame(spark, range(3)), 0)
    travelled = pickle.loads(pickle.dumps(write))
    assert travelled._state.runs == {}
    travelled(frame(spark, range(3, 6)), 1)
    assert ids_of(table) == Counter(range(6))
    assert "secret" not in repr(sink(uri, storage_options=None))


def test_spark_divides_rows_as_lance_does(spark: SparkSession, tmp_path: Path) -> None:
    day = dt.date(2026, 11, 17)
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "tiny": (pa.int8(), [None, 0, 1, -1, 127, -128]),
        "short": (pa.int16(), [None, 0, 300, -300]),
        "whole": (pa.int32(), [None, 0, 1, -1, 2**31 - 1, -(2**31)]),
        "long": (pa.int64(), [None, *range(-20, 20), 2**63 - 1, -(2**63), 2**32]),
        "text": (pa.string(), [None, *("äöü€"[:n] + "x" * m for n in range(5) for m in range(5))]),
        "large": (pa.large_string(), ["a", "ab", "abc", "abcd", "abcde"]),
        "yes": (pa.bool_(), [None, True, False]),
        "day": (pa.date32(), [None, day, dt.date(1900, 1, 1)]),
        "half": (pa.float32(), [None, 0.0, -0.0, 1.5, float("nan"), float("inf")]),
        "real": (pa.float64(), [None, 0.0, -0.0, 1.5, float("nan"), -float("inf")]),
    }
    for name, (kind, some) in values.items():
        schema = pa.schema([(name, kind)])
        table = holdfast.create_table(tmp_path / name, schema)
        table.prepare_writers(sharding=Sharding.bucket(name, 7))
        base = read_newest_base(table.versions)
        rows = spark.createDataFrame([(one,) for one in some], spark_schema(schema))
        found = rows.selectExpr(f"{shard_number(base, routing_of(base, None))} AS n").collect()
        assert [row.n for row in found] == bucket(pa.array(some, kind), 7).tolist(), name


def test_upkeep_flushes_and_merges_and_the_query_goes_on(spark: SparkSession, uri: str) -> None:
    table = keyed(uri)
    write = sink(uri)
    for batch in range(5):
        write(frame(spark, range(10), f"b{batch}"), batch)
        look_after(write._state.runs["q"][1])
    assert rows_of(table) == dict.fromkeys(range(10), "b4")
    assert max(len(ShardManifests(table.core, s).latest().sstables) for s in table.shards()) < 4  # type: ignore[union-attr]
    assert lance.dataset(uri).count_rows() == 10
    write(frame(spark, range(10, 20), "b5"), 5)
    assert len(rows_of(table)) == 20
    assert all(Path(uri, "_mem_wal", s, "wal").glob("*.arrow") for s in table.shards())


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time = 0.0

    def elapsed(self) -> float:
        return self.time


def test_upkeep_begins_when_it_is_time(spark: SparkSession, uri: str) -> None:
    table = plain(uri, buckets=1)
    run = Run(table, shard=None, app="q")
    clock: Any = Hands()
    upkeep = IngestUpkeep(run, timedelta(minutes=1), clock)
    sink(uri)(frame(spark, range(3)), 0)  # fences the run
    upkeep.tick()
    upkeep.join()
    assert table.shard_states()[0].flushed == 0
    clock.time = 61.0
    upkeep.tick()
    upkeep.join()
    upkeep.tick()  # a fenced run's upkeep is no failure: the query itself will learn it
    assert interval_of("2 Minutes") == timedelta(minutes=2)


def test_two_sinks_of_one_table_in_one_query_are_refused(
    spark: SparkSession, stream: Stream, uri: str
) -> None:
    table = plain(uri)
    stream.add({"id": 1, "v": "a"})
    first, second = (holdfast.spark.ingest(uri, upkeep=None) for _ in range(2))

    def both(frame: Any, batch: int) -> None:
        first(frame, batch)
        second(frame.selectExpr("id + 100 AS id", "v"), batch)

    def start() -> Any:
        events = spark.readStream.schema("id long, v string").json(str(stream.source))
        written = events.writeStream.foreachBatch(both)
        return written.option("checkpointLocation", str(stream.checkpoint)).start()

    for _ in range(2):  # also when the first one finds its rows there
        query = start()
        with pytest.raises(Exception, match="another ingest of this query"):
            query.awaitTermination(240)
    assert ids_of(table) == Counter([1])


def test_one_sink_after_another_may_write_in_one_run(
    stream: Stream, uri: str, spark: SparkSession
) -> None:
    table = plain(uri)
    for n in range(3):
        stream.add({"id": n, "v": "a"})

    def anew(frame: Any, batch: int) -> None:
        holdfast.spark.ingest(uri, upkeep=None)(frame, batch)

    events = spark.readStream.schema("id long, v string").option("maxFilesPerTrigger", 1)
    written = events.json(str(stream.source)).writeStream.foreachBatch(anew)
    query = written.option("checkpointLocation", str(stream.checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    assert ids_of(table) == Counter(range(3))


def test_a_shard_whose_rows_came_to_two_tasks_is_an_error(tmp_path: Path) -> None:
    """The second finds its place taken under its own ids: its rows are lost, and it is done."""
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps([{"taken": {"0": [[5, 0, True]]}}, {"taken": {"1": []}}]))
    assert _ingest._read_taken(answer) == {0: [WrittenEntries(5, 0, True)], 1: []}
    answer.write_text(json.dumps([{"taken": {"0": [[5, 0, True]]}}] * 2))
    with pytest.raises(HoldfastError, match="rows of one shard to two tasks"):
        _ingest._read_taken(answer)
