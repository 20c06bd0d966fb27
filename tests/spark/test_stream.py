"""Streams: each batch is in the table once, and each row of a followed table is emitted once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.formats import version_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Ids = Callable[..., Counter[int]]
SCHEMA = pa.schema([("id", pa.int64())])


class Pipe:
    """A followed table, a stream out of it, and the table that the stream writes to."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.source = holdfast.create_table(folder / "source.lance", SCHEMA)
        self.sink = str(folder / "sink.lance")
        self.checkpoint = folder / "checkpoint"

    def add(self, numbers: range) -> None:
        self.source.append([{"id": n} for n in numbers])

    def run(self, fault: str | None = None, **options: Any) -> StreamingQuery:
        """Emit all there is now, in as many batches as the options make of it."""
        frame = self.spark.readStream.format("holdfast").options(**options).load(self.source.uri)
        writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint))
        if fault is None:
            writer = writer.format("holdfast")
        else:
            writer = writer.format("faulty").option("fault", fault)
        query = writer.trigger(availableNow=True).start(self.sink)
        query.awaitTermination()
        return query

    def forget_commit(self, batch: int) -> None:
        """Make Spark repeat a batch: as if its driver had died right after the sink's commit."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@pytest.fixture
def pipe(spark: SparkSession, tmp_path: Path) -> Pipe:
    return Pipe(spark, tmp_path)


@pytest.mark.requirement("C7", "C8")
def test_a_replayed_batch_is_applied_once(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    pipe.run()
    pipe.add(range(10, 20))
    pipe.run()
    version = lance.dataset(pipe.sink).version
    pipe.forget_commit(1)
    pipe.run()
    assert ids(pipe.sink) == Counter(range(20))
    assert lance.dataset(pipe.sink).version == version
    pipe.add(range(20, 30))
    pipe.run()
    assert ids(pipe.sink) == Counter(range(30))


@pytest.mark.mutant
def test_without_its_txn_a_replayed_batch_is_there_twice(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    pipe.run(fault="no-txn")
    pipe.forget_commit(0)
    pipe.run(fault="no-txn")
    assert ids(pipe.sink) == Counter(range(10)) + Counter(range(10))


@pytest.mark.requirement("C8")
def test_a_crash_after_the_commit_repeats_nothing(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    with pytest.raises(Exception, match="after the commit"):
        pipe.run(fault="raise-after-commit")
    assert ids(pipe.sink) == Counter(range(10))  # Spark called abort, and it left the files
    pipe.add(range(10, 20))
    pipe.run()
    assert ids(pipe.sink) == Counter(range(20))


@pytest.mark.requirement("C8")
def test_two_drivers_on_one_checkpoint_commit_a_batch_once(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    pipe.run()
    pipe.add(range(10, 20))
    other = pipe.checkpoint.parent / "other"
    shutil.copytree(pipe.checkpoint, other)
    pipe.run()
    pipe.checkpoint = other  # the driver that was thought dead has the batch planned too
    pipe.run()
    assert ids(pipe.sink) == Counter(range(20))


@pytest.mark.requirement("C7")
def test_a_failed_task_of_a_stream_is_tried_again(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    pipe.run(fault="raise-after-write")
    assert ids(pipe.sink) == Counter(range(10))


def test_complete_mode_replaces_the_rows_with_each_batch(
    pipe: Pipe, spark: SparkSession, tmp_path: Path
) -> None:
    for numbers in (range(4), range(4, 10)):
        pipe.add(numbers)
        frame = spark.readStream.format("holdfast").load(pipe.source.uri)
        counted = frame.selectExpr("id % 2 as id").groupBy("id").count()
        writer = counted.writeStream.format("holdfast").outputMode("complete")
        writer = writer.option("checkpointLocation", str(tmp_path / "complete"))
        writer.trigger(availableNow=True).start(pipe.sink).awaitTermination()
    rows = lance.dataset(pipe.sink).to_table().to_pylist()
    assert sorted((row["id"], row["count"]) for row in rows) == [(0, 5), (1, 5)]


def rows_of_batches(query: StreamingQuery) -> list[int]:
    """Return how many rows each batch had; a query that idles for seconds reports none at all."""
    rows = (int(progress["numInputRows"]) for progress in query.recentProgress)
    return [count for count in rows if count]


def test_a_stream_emits_a_few_files_at_a_time_and_resumes(pipe: Pipe, ids: Ids) -> None:
    for begin in range(0, 30, 10):
        pipe.add(range(begin, begin + 10))
    assert rows_of_batches(pipe.run(maxFilesPerTrigger=2)) == [20, 10]
    pipe.add(range(30, 40))
    pipe.add(range(40, 50))
    assert rows_of_batches(pipe.run(maxFilesPerTrigger=1)) == [10, 10]
    assert ids(pipe.sink) == Counter(range(50))


def test_a_first_batch_that_is_repeated_begins_where_it_began(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    with pytest.raises(Exception, match="after the files"):
        pipe.run(fault="raise-always")
    pipe.add(range(10, 20))  # a first offset asked for anew would begin behind these
    pipe.run()
    assert ids(pipe.sink) == Counter(range(20))


def test_compactions_indexes_and_new_columns_emit_nothing(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    pipe.add(range(10, 20))
    pipe.run()
    pipe.source.dataset().optimize.compact_files()
    pipe.source.dataset().create_scalar_index("id", "BTREE")
    pipe.source.dataset().add_columns(pa.schema([pa.field("x", pa.int32())]))
    pipe.add(range(20, 30))
    pipe.run(columns="id")  # the sink has no such column
    assert ids(pipe.sink) == Counter(range(30))


def test_a_running_stream_that_meets_new_columns_stops(pipe: Pipe, ids: Ids) -> None:
    """It would drop their values without a word; started again, it reads them."""
    pipe.add(range(10))
    frame = pipe.spark.readStream.format("holdfast").load(pipe.source.uri)
    writer = frame.writeStream.format("holdfast")
    query = writer.option("checkpointLocation", str(pipe.checkpoint)).start(pipe.sink)
    try:
        query.processAllAvailable()
        pipe.source.dataset().add_columns(pa.schema([pa.field("x", pa.int32())]))
        pipe.source.append([{"id": 10, "x": 7}])
        with pytest.raises(Exception, match="columns that came while this stream ran"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert ids(pipe.sink) == Counter(range(10))
    holdfast.open_table(pipe.sink).dataset().add_columns(pa.schema([pa.field("x", pa.int32())]))
    pipe.run()
    rows = lance.dataset(pipe.sink).to_table(filter="id >= 9").to_pylist()
    assert sorted((row["id"], row["x"]) for row in rows) == [(9, None), (10, 7)]


def test_a_stream_of_some_columns_passes_over_new_ones(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    pipe.run(columns="id")
    pipe.source.dataset().add_columns(pa.schema([pa.field("x", pa.int32())]))
    pipe.source.append([{"id": 10, "x": 7}])
    pipe.run(columns="id")
    assert ids(pipe.sink) == Counter(range(11))


def test_a_deletion_upstream_ends_the_stream_or_is_passed_over(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    pipe.run()
    pipe.source.dataset().delete("id < 5")
    pipe.add(range(10, 20))
    with pytest.raises(Exception, match=r"is no append \(Delete\).*skipChangeCommits=true"):
        pipe.run()
    assert ids(pipe.sink) == Counter(range(10))
    pipe.run(skipChangeCommits="true")
    assert ids(pipe.sink) == Counter(range(20))


def test_a_stream_begins_where_it_is_told(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    pipe.add(range(10, 20))
    pipe.run(startingVersion=3)
    assert ids(pipe.sink) == Counter(range(10, 20))
    pipe.checkpoint = pipe.checkpoint.parent / "latest"
    pipe.sink += "-latest"
    pipe.run(startingVersion="latest")
    pipe.add(range(20, 30))
    pipe.run(startingVersion="latest")
    assert ids(pipe.sink) == Counter(range(20, 30))


def test_versions_that_were_removed_are_missed_with_an_error(pipe: Pipe) -> None:
    pipe.add(range(10))
    pipe.run()
    pipe.add(range(10, 20))
    pipe.add(range(20, 30))
    Path(pipe.source.uri, version_name(3).path).unlink()
    with pytest.raises(Exception, match="a version that the stream has not read is gone"):
        pipe.run()


@pytest.mark.requirement("P1", "P2")
def test_a_checkpoint_of_a_table_that_was_made_anew_is_refused(pipe: Pipe, ids: Ids) -> None:
    pipe.add(range(10))
    pipe.run()
    shutil.rmtree(pipe.source.uri)
    pipe.source = holdfast.create_table(pipe.source.uri, SCHEMA)
    for number in range(4):  # more versions than the old one had
        pipe.add(range(100 + number, 101 + number))
    with pytest.raises(Exception, match="of another table"):
        pipe.run()
    assert ids(pipe.sink) == Counter(range(10))


@pytest.mark.requirement("P1", "P2")
@pytest.mark.parametrize("commit_store", [None, "sqlite"])
def test_a_table_made_anew_under_a_running_stream_is_noticed(
    tmp_path: Path, commit_store: str | None
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from holdfast.spark._follow import NOT_BEGUN, StreamReader
    from holdfast.spark._types import spark_schema

    uri = str(tmp_path / "t")
    table = holdfast.create_table(uri, SCHEMA, commit_store=commit_store)
    table.append([{"id": 1}])
    reader = StreamReader(spark_schema(SCHEMA), {"path": uri})
    end = reader.latestOffset(NOT_BEGUN, ReadAllAvailable())
    shutil.rmtree(uri)
    table = holdfast.create_table(uri, SCHEMA, commit_store=commit_store)
    for number in range(4):
        table.append([{"id": number}])
    for call in (
        lambda: reader.latestOffset(end, ReadAllAvailable()),
        lambda: reader.partitions(NOT_BEGUN, end),
    ):
        with pytest.raises((holdfast.errors.InvalidInputError, holdfast.errors.StaleHandleError)):
            call()
