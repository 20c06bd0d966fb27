"""The sink form: `writeStream.format("holdfast").option("into", "log")`, with the jar."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import holdfast
from holdfast.errors import InvalidInputError
from holdfast.formats import bucket
from holdfast.shard import Sharding
from holdfast.spark._ingest_work import WORK
from holdfast.spark._sink import SinkDriver
from holdfast.spark._write import StreamWriter
from spark.test_ingest import Stream, entries, ids_of, keyed, plain, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.requirement("S4")]


class SinkStream(Stream):
    """A query from a folder of files into the log, by the sink."""

    def run(self, **more: Any) -> None:
        query = self.start(**more)
        query.awaitTermination()

    def start(self, table: str | None = None, **options: Any) -> StreamingQuery:
        events = self.spark.readStream.schema("id long, v string, op string")
        frame = events.option("maxFilesPerTrigger", 1).json(str(self.source))
        if "deletes" not in options:
            frame = frame.drop("op")
        writer = frame.writeStream.options(**{"into": "log", "upkeep": "none", **options})
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(availableNow=True)
        return writer.format("holdfast").start(self.uri) if table is None else writer.toTable(table)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, uri: str) -> SinkStream:
    return SinkStream(spark, tmp_path, uri)


@pytest.mark.requirement("C7")
def test_the_sink_writes_one_entry_for_each_shard_and_batch(stream: SinkStream, uri: str) -> None:
    table = keyed(uri)
    stream.add(*({"id": n, "v": "a", "op": "U"} for n in range(10)))
    stream.add({"id": 3, "op": "D"}, {"id": 4, "v": "b", "op": "U"}, {"id": 4, "op": "U"})
    stream.run(deletes="op = 'D'", orderBy="coalesce(v, ''), op")
    assert rows_of(table) == {n: "a" for n in range(10) if n != 3} | {4: "b"}
    assert sum(count for count, _ in entries(table)) <= 4


@pytest.mark.requirement("P3", "C8")
def test_the_sink_knows_a_batch_that_is_repeated(stream: SinkStream, uri: str) -> None:
    table = plain(uri)
    stream.add(*({"id": n, "v": "a"} for n in range(10)))
    stream.run()
    stream.forget_commit(0)
    stream.run()
    assert ids_of(table) == Counter(range(10))
    # The names are those of ingest: a query may change its form and go on.
    stream.forget_commit(0)
    Stream.run(stream)
    stream.add({"id": 10, "v": "b"})
    Stream.run(stream)
    stream.forget_commit(1)
    stream.run()
    assert ids_of(table) == Counter(range(11))


def test_a_sink_claims_once_for_a_run_and_locks_out_the_one_before(
    stream: SinkStream, uri: str
) -> None:
    table = plain(uri, buckets=1)
    for n in range(4):
        stream.add({"id": n, "v": "a"})
    stream.run()
    assert ids_of(table) == Counter(range(4))
    (state,) = table.shard_states()
    assert state.epoch == 1, "one claim for four batches"
    stream.forget_commit(3)
    stream.run()
    (state,) = table.shard_states()
    assert state.epoch == 2
    assert ids_of(table) == Counter(range(4))


def metrics_of(query: StreamingQuery) -> list[dict[str, int]]:
    """Return what Spark's progress says of the sink, batch by batch."""
    told = [one for one in query.recentProgress if one["numInputRows"]]
    return [{key: int(text) for key, text in one["sink"]["metrics"].items()} for one in told]


def test_sparks_progress_has_rows_entries_bytes_and_the_lag_of_each_shard(
    stream: SinkStream, uri: str, lake_table: holdfast.Table
) -> None:
    table = plain(uri)
    stream.add(*({"id": n, "v": "a"} for n in range(10)))
    stream.add({"id": 3, "v": "b"})
    query = stream.start()
    query.awaitTermination()
    first, second = metrics_of(query)
    sizes = {one.shard_id: one.log_bytes for one in table.shard_states()}
    assert (first["rows"], first["entries"]) == (10, 2)
    assert (second["rows"], second["entries"]) == (1, 1)
    fences = 2 * 700
    assert sum(sizes.values()) - fences < first["bytes"] + second["bytes"] < sum(sizes.values())
    lag = {one.shard_id: one.log_entries for one in table.shard_states()}
    assert {f"lag.{shard}": count for shard, count in lag.items()}.items() <= second.items()
    stream.forget_commit(1)
    query = stream.start()
    query.awaitTermination()
    (known,) = metrics_of(query)
    assert (known["rows"], known["entries"], known["bytes"]) == (0, 0, 0)
    # By name, where Spark knows another sink.
    stream.checkpoint = stream.checkpoint.with_name("other")
    query = stream.start("lake.logged")
    query.awaitTermination()
    assert [(one["rows"], one["entries"]) for one in metrics_of(query)] == [(10, 1), (1, 1)]


def test_the_sink_divides_a_batch_into_as_many_entries_as_it_is_told(
    stream: SinkStream, uri: str
) -> None:
    table = plain(uri, buckets=1)
    stream.add(*({"id": n, "v": "a"} for n in range(100)))
    stream.run(entriesPerBatch="4")
    assert entries(table) == [(4, 100)]
    stream.forget_commit(0)
    stream.run()
    assert ids_of(table) == Counter(range(100))


def test_errors_of_the_sink_name_what_to_do(stream: SinkStream, uri: str) -> None:
    table = keyed(uri)
    stream.add({"id": 1, "v": "a"}, {"id": 1, "v": "b"})
    with pytest.raises(Exception, match=r"nothing says which is the newest"):
        stream.run()
    assert rows_of(table) == {}
    with pytest.raises(Exception, match="mergeSchema does not go with into=log"):
        stream.run(mergeSchema="true")
    with pytest.raises(Exception, match="such as '1 minute'"):
        stream.run(upkeep="soon")
    stream.run(orderBy="v")  # the batch gets through with what the error named
    assert rows_of(table) == {1: "b"}


def test_a_sink_takes_updates_of_an_aggregation_and_no_whole_results(
    stream: SinkStream, uri: str, spark: SparkSession
) -> None:
    table = keyed(uri)
    stream.add(*({"id": n % 2, "v": "a"} for n in range(5)))
    events = spark.readStream.schema("id long, v string").json(str(stream.source))
    counts = events.groupBy("id").count().selectExpr("id", "cast(count AS string) AS v")

    def start(mode: str) -> StreamingQuery:
        writer = counts.writeStream.format("holdfast").outputMode(mode)
        writer = writer.option("into", "log").option("checkpointLocation", str(stream.checkpoint))
        return writer.trigger(availableNow=True).start(uri)

    with pytest.raises(Exception, match="use outputMode append or update"):
        start("complete").awaitTermination()
    start("update").awaitTermination()
    assert rows_of(table) == {0: "3", 1: "2"}
    stream.add({"id": 1, "v": "a"})
    start("update").awaitTermination()
    assert rows_of(table) == {0: "3", 1: "3"}


def test_without_the_jar_the_sink_form_is_refused_by_name(uri: str) -> None:
    plain(uri)
    with pytest.raises(InvalidInputError, match=r"foreachBatch\(holdfast\.spark\.ingest"):
        StreamWriter(StructType(), {"path": uri, "into": "log"}, overwrite=False)
    with pytest.raises(InvalidInputError, match="deletes needs into=log"):
        StreamWriter(StructType(), {"path": uri, "deletes": "true"}, overwrite=False)


def test_the_driver_of_a_sink_ends_with_what_it_opened(uri: str) -> None:
    plain(uri)
    driver = SinkDriver({"path": uri, "into": "log", "upkeep": "none"})
    columns = StructType().add("id", "long").add("v", "string").jsonValue()
    limit: Any = None
    question = {"verb": "plan", "query": "q", "run": "r", "batch": 0, "columns": columns}
    plan = driver.latestOffset(question, limit)
    assert plan["partitions"] == 2
    assert WORK in plan
    assert driver.latestOffset({"verb": "fail"}, limit) == {}
    told = driver.latestOffset({**question, "columns": {"type": "struct", "fields": []}}, limit)
    assert "error" in told or WORK in told
    folder = driver._folder
    assert folder is not None and folder.exists()
    driver.stop()
    assert not folder.exists()


@pytest.fixture
def lake_table(spark: SparkSession) -> Iterator[holdfast.Table]:
    spark.sql(
        "CREATE TABLE lake.logged (id BIGINT NOT NULL, v STRING) TBLPROPERTIES ('primaryKey'='id')"
    )
    path = spark.sql("DESCRIBE TABLE EXTENDED lake.logged").where("col_name = 'Location'")
    (place,) = (row.data_type for row in path.collect())
    yield holdfast.open_table(place)
    spark.sql("DROP TABLE lake.logged")


def test_to_table_writes_the_log_of_a_table_by_its_name(
    stream: SinkStream, lake_table: holdfast.Table
) -> None:
    table = lake_table
    table.prepare_writers(sharding=Sharding.bucket("id", 4))
    stream.add(*({"id": n, "v": "a", "op": "U"} for n in range(100)))
    stream.add({"id": 3, "op": "D"}, {"id": 4, "v": "b", "op": "U"}, {"id": 4, "op": "U"})
    more = {"deletes": "op = 'D'", "orderBy": "coalesce(v, ''), op"}
    stream.start("lake.logged", **more).awaitTermination()
    want = {n: "a" for n in range(100) if n != 3} | {4: "b"}
    assert rows_of(table) == want
    counts = entries(table)
    assert len(counts) == 4 and all(1 <= count <= 2 for count, _ in counts)
    stream.forget_commit(1)
    stream.start("lake.logged", **more).awaitTermination()  # known: nothing is written
    assert rows_of(table) == want
    assert entries(table) == counts
    stream.uri = table.uri
    stream.add({"id": 100, "v": "c", "op": "U"})
    stream.run(**more)  # the same query by the table's address
    stream.forget_commit(2)
    stream.start("lake.logged", **more).awaitTermination()
    assert rows_of(table) == want | {100: "c"}


def test_to_table_writes_a_table_of_one_shard(
    stream: SinkStream, lake_table: holdfast.Table
) -> None:
    stream.add(*({"id": n, "v": "a"} for n in range(10)))
    stream.start("lake.logged").awaitTermination()
    assert rows_of(lake_table) == dict.fromkeys(range(10), "a")


def test_the_catalogs_function_divides_rows_as_lance_does(spark: SparkSession) -> None:
    day = dt.date(2026, 11, 17)
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "tinyint": (pa.int8(), [None, 0, 1, -1, 127, -128]),
        "smallint": (pa.int16(), [None, 0, 300, -300]),
        "int": (pa.int32(), [None, 0, 1, -1, 2**31 - 1, -(2**31)]),
        "bigint": (pa.int64(), [None, *range(-20, 20), 2**63 - 1, -(2**63), 2**32]),
        "string": (
            pa.string(),
            [None, *("äöü€"[:n] + "x" * m for n in range(5) for m in range(5))],
        ),
        "boolean": (pa.bool_(), [None, True, False]),
        "date": (pa.date32(), [None, day, dt.date(1900, 1, 1)]),
        "float": (pa.float32(), [None, 0.0, -0.0, 1.5, float("nan"), float("inf")]),
        "double": (pa.float64(), [None, 0.0, -0.0, 1.5, float("nan"), -float("inf")]),
    }
    for name, (kind, some) in values.items():
        rows = spark.createDataFrame([(one,) for one in some], f"x {name}")
        found = [row.n for row in rows.selectExpr("lake.bucket(7, x) AS n").collect()]
        assert found == bucket(pa.array(some, kind), 7).tolist(), name


def test_to_table_refuses_a_column_that_would_be_hashed_in_another_way(
    stream: SinkStream, lake_table: holdfast.Table, spark: SparkSession
) -> None:
    lake_table.prepare_writers(sharding=Sharding.bucket("id", 2))
    stream.add({"id": 1, "v": "a"})
    frame = spark.readStream.schema("id int, v string").json(str(stream.source))
    writer = frame.writeStream.option("into", "log").option("upkeep", "none")
    query = writer.option("checkpointLocation", str(stream.checkpoint)).toTable("lake.logged")
    with pytest.raises(Exception, match="cast it to bigint"):
        query.awaitTermination(240)
    with pytest.raises(Exception, match="into=log is for writeStream"):
        spark.range(3).selectExpr("id", "'x' AS v").writeTo("lake.logged").option(
            "into", "log"
        ).append()
