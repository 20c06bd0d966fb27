"""Changes in Spark: each once, through kills, replays and upkeep, and as Python reads them."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import holdfast
from changes.model import SCHEMA, Busy, Model, rows_of
from holdfast.arbiter import SupportsSetUp, connect_commit_store
from holdfast.changes import change_schema
from holdfast.errors import InvalidInputError
from holdfast.formats import version_name
from holdfast.spark._changes import NOT_BEGUN, ChangeStreamReader
from holdfast.spark._types import spark_schema
from holdfast.testing import FaultyS3Process
from spark.test_drivers import kill_group, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ORDER = {"delete": 0, "update_preimage": 1, "update_postimage": 2, "insert": 3}
MINUTES = 4
WORK = 5
KILLS = 1


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return change rows as a consumer must apply them."""
    return sorted(
        rows,
        key=lambda row: (
            row["_commit_version"],
            -1 if row["_log_position"] is None else row["_log_position"],
            row["k"],
            ORDER[row["_change_type"]],
        ),
    )


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(in_order(rows), schema=holdfast.changes.change_schema(SCHEMA))


class Feed:
    """A stream of a table's changes whose batches a test keeps, each by its number."""

    def __init__(self, spark: SparkSession, table: holdfast.Table, folder: Path) -> None:
        self.spark = spark
        self.table = table
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[dict[str, Any]]] = {}
        self.storage: dict[str, str] = {}

    def run(self, fault: int | None = None, **options: Any) -> StreamingQuery:
        """Emit all there is now; fail in the batch of this number, once it was kept."""

        def keep(frame: DataFrame, number: int) -> None:
            self.batches[number] = [row.asDict(recursive=True) for row in frame.collect()]
            if number == fault:
                raise RuntimeError("killed after the batch")

        reader = self.spark.readStream.format("holdfast").option("readChangeFeed", "true")
        reader = reader.options(**self.storage, **options)
        writer = reader.load(self.table.uri).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def model(self, *, keyed: bool) -> Model:
        model = Model(keyed=keyed)
        for number in sorted(self.batches):
            model.apply(as_table(self.batches[number]))
        return model

    def forget_commit(self, batch: int) -> None:
        """Make Spark repeat a batch: as if its driver had died right after it."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[holdfast.Table]:
    made = holdfast.create_table(tmp_path / "t.lance", SCHEMA, primary_key=["k"])
    yield made
    made.close()


def row(k: int, v: int) -> dict[str, Any]:
    return {"k": k, "v": v, "tags": None}


def told(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter((one["_change_type"], one["k"], one["v"]) for one in rows)


@pytest.mark.requirement("S4")
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_a_stream_tells_each_change_once_through_replays(
    spark: SparkSession, tmp_path: Path, keyed: bool
) -> None:
    busy = Busy(tmp_path, 5 if keyed else 6, keyed=keyed)
    busy.left_out = {"vacuum"}  # here it would not wait for readers
    feed = Feed(spark, busy.table, tmp_path)
    for limits in ({}, {"maxEntriesPerTrigger": 8, "maxFilesPerTrigger": 8}):
        for _ in range(10):
            busy.work()
        feed.run(**limits)
        assert feed.model(keyed=keyed).rows == rows_of(busy.table.to_table())
        last = max(feed.batches)
        before = in_order(feed.batches.pop(last))
        feed.forget_commit(last)
        for _ in range(3):
            busy.work()  # what comes meanwhile is not in the repeated batch
        with pytest.raises(Exception, match="killed after the batch"):
            feed.run(fault=last)
        assert in_order(feed.batches[last]) == before
    feed.run()
    assert feed.model(keyed=keyed).rows == rows_of(busy.table.to_table())
    busy.close_all()


@pytest.mark.requirement("S4")
def test_a_killed_query_resumes_with_the_same_changes(spark: SparkSession, tmp_path: Path) -> None:
    busy = Busy(tmp_path, 3, keyed=True)
    busy.left_out = {"vacuum"}
    sink, checkpoint = str(tmp_path / "sink.lance"), str(tmp_path / "checkpoint")
    for round_ in range(KILLS):
        driver = start("changes", "local[2]", busy.table.uri, sink, checkpoint)
        try:
            known = version_of(sink)
            deadline = time.monotonic() + 60 * MINUTES
            for number in itertools.count():
                if version_of(sink) > known + 1 or time.monotonic() > deadline:
                    break
                if number < WORK:
                    busy.put()
                    busy.work()
                time.sleep(0.1)
        finally:
            kill_group(driver)
        assert version_of(sink) > known, f"round {round_}: no batch in {MINUTES} minutes"
    reader = spark.readStream.format("holdfast").option("readChangeFeed", "true")
    writer = reader.load(busy.table.uri).writeStream.format("holdfast")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start(sink).awaitTermination()
    written = holdfast.open_table(sink).to_table().to_pylist()
    model = Model(keyed=True)
    model.apply(as_table(written))
    assert model.rows == rows_of(busy.table.to_table())
    busy.close_all()


def version_of(uri: str) -> int:
    try:
        return int(holdfast.open_table(uri).dataset().version)
    except holdfast.errors.NotFoundError:
        return 0


@pytest.mark.requirement("S4")
@pytest.mark.parametrize("conditions", ["honest", "ignoring"])
def test_changes_of_a_table_on_s3(
    spark: SparkSession,
    faulty_s3_process: Callable[..., FaultyS3Process],
    tmp_path: Path,
    conditions: str,
) -> None:
    server = faulty_s3_process(conditions=conditions)
    options: dict[str, Any] = {"storage_options": server.storage_options("lake")}
    if conditions == "ignoring":
        commits = f"sqlite:///{tmp_path}/commits.db?single_host=true"
        made = connect_commit_store(commits)
        assert isinstance(made, SupportsSetUp)
        made.set_up()
        made.close()
        options["commit_store"] = commits
    uri = server.url("lake", f"{conditions}.lance")
    table = holdfast.create_table(uri, SCHEMA, primary_key=["k"], **options)
    table.append([row(1, 1), row(2, 2)])
    feed = Feed(spark, table, tmp_path)
    feed.storage = {f"storage.{key}": text for key, text in options["storage_options"].items()}
    with table.claim_writer("unsharded") as writer:
        writer.put([row(1, 10), row(3, 3)])
        feed.run()
        writer.delete_keys([2])
        writer.flush()
        table.compact_lsm()
        writer.put([row(3, 30)])
        feed.run()
    assert told(feed.batches[1]) == Counter(
        [("delete", 2, 2), ("update_preimage", 3, 3), ("update_postimage", 3, 30)]
    )
    assert feed.model(keyed=True).rows == rows_of(table.to_table())
    table.close()


@pytest.mark.requirement("S4", "P1")
def test_a_checkpoint_of_a_table_made_anew_is_refused(
    spark: SparkSession, table: holdfast.Table, tmp_path: Path
) -> None:
    table.append([row(1, 1)])
    feed = Feed(spark, table, tmp_path)
    feed.run()
    shutil.rmtree(table.uri)
    feed.table = holdfast.create_table(table.uri, SCHEMA, primary_key=["k"])
    for number in range(4):
        feed.table.append([row(number, number)])
    with pytest.raises(Exception, match="of another table"):
        feed.run()
    assert set(feed.batches) == {0}


def test_a_batch_reads_the_changes_of_versions(spark: SparkSession, table: holdfast.Table) -> None:
    table.append([row(1, 1), row(2, 2)])
    table.dataset().delete("k = 2")
    with table.claim_writer("unsharded") as writer:
        writer.put([row(1, 5)])

    def read(**options: Any) -> list[dict[str, Any]]:
        reader = spark.read.format("holdfast").option("readChangeFeed", "true").options(**options)
        return [one.asDict() for one in reader.load(table.uri).collect()]

    everything = read(startingVersion=1)
    assert told(everything) == told(table.changes(0).to_table().to_pylist())
    assert told(read(startingVersion=3, freshness="base")) == Counter([("delete", 2, 2)])
    assert told(read(startingVersion=1, endingVersion=2)) == Counter(
        [("insert", 1, 1), ("insert", 2, 2)]
    )
    cursor = str(table.change_cursor(3))
    assert told(read(startingCursor=cursor)) == Counter(
        [("update_preimage", 1, 1), ("update_postimage", 1, 5)]
    )
    assert told(read(startingTimestamp="2020-01-01T00:00:00Z")) == told(everything)
    before = [one for one in everything if one["_log_position"] is None]
    end = max(one["_commit_timestamp"] for one in before).astimezone(UTC).isoformat()
    assert told(read(startingVersion=1, endingTimestamp=end, freshness="base")) == told(before)
    assert told(read(startingVersion=1, endingTimestamp="2999-01-01")) == told(everything)
    assert told(read(startingVersion=1, endingCursor=cursor)) == told(before)
    assert read(startingVersion="latest") == []
    narrow = spark.read.format("holdfast").option("readChangeFeed", "true")
    frame = narrow.option("startingVersion", "1").schema("_change_type string, v bigint")
    rows = frame.load(table.uri).collect()
    assert Counter((one[0], one[1]) for one in rows)["insert", 2] == 1
    assert frame.load(table.uri).columns == ["_change_type", "v"]


def test_a_stream_of_changes_begins_where_it_is_told(
    spark: SparkSession, table: holdfast.Table, tmp_path: Path
) -> None:
    table.append([row(1, 1)])
    feed = Feed(spark, table, tmp_path)
    feed.run(startingVersion="latest")
    table.append([row(2, 2)])
    with table.claim_writer("unsharded") as writer:
        writer.put([row(2, 3)])
        query = feed.run(startingVersion="latest")
        found = [one for rows in feed.batches.values() for one in rows]
        assert told(found) == Counter(
            [("insert", 2, 2), ("update_preimage", 2, 2), ("update_postimage", 2, 3)]
        )
        none = {one.shard_id: 0 for one in table.shard_states()}
        assert newest_of(query)["lag"] == {"versions": 0, "entries": none}


def newest_of(query: StreamingQuery, batch: int = -1) -> dict[str, Any]:
    """Return what Spark's progress says is newest, and of the batch."""
    told = query.recentProgress[batch]["sources"][0]["latestOffset"]
    found: dict[str, Any] = json.loads(told) if isinstance(told, str) else told
    return found


@pytest.mark.requirement("S4")
def test_sparks_progress_has_entries_files_bytes_and_the_lag_of_each_shard(
    spark: SparkSession, table: holdfast.Table, tmp_path: Path
) -> None:
    table.append([row(1, 1)])
    with table.claim_writer("unsharded") as writer:
        for number in range(4):
            writer.put([row(2, number)])
        (state,) = table.shard_states()
        entries = state.log_entries
        assert entries == 5, "a fence, and four entries"
        query = Feed(spark, table, tmp_path).run(startingVersion=1, maxEntriesPerTrigger=2)
    told = [newest_of(query, number) for number in range(len(query.recentProgress))]
    rows = [one["numInputRows"] for one in query.recentProgress]
    batches = [one["batch"] for one, count in zip(told, rows, strict=True) if count]
    assert sum(one["entries"] for one in batches) == entries
    assert sum(one["files"] for one in batches) == 1
    assert all(one["bytes"] > 0 for one in batches)
    lags = [one["lag"]["entries"][state.shard_id] for one in told]
    assert lags == sorted(lags, reverse=True) and lags[0] > 0 and lags[-1] == 0
    assert {one["log"][state.shard_id] for one in told} == {state.newest}
    assert sum(rows) == 1 + 1 + 2 * 3


def test_a_stream_of_changes_that_meets_new_columns_stops(
    spark: SparkSession, table: holdfast.Table, tmp_path: Path
) -> None:
    """It would drop their values without a word; started again, it reads them."""
    table.append([row(1, 1)])
    reader = spark.readStream.format("holdfast").option("readChangeFeed", "true")
    seen: list[dict[str, Any]] = []

    def start(**options: str) -> StreamingQuery:
        frame = reader.options(**options).load(table.uri)
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: seen.extend(one.asDict() for one in batch.collect())
        )
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    try:
        query.processAllAvailable()
        table.dataset().add_columns(pa.schema([pa.field("x", pa.int32())]))
        table.append([{**row(2, 2), "x": 7}])
        with pytest.raises(Exception, match="columns that came while this stream ran"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert [one["k"] for one in seen] == [1]
    query = start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert [(one["k"], one.get("x")) for one in seen] == [(1, None), (2, 7)]


@pytest.mark.requirement("S4")
def test_a_checkpoint_that_does_not_fit_is_refused(table: holdfast.Table) -> None:
    """Seen without Spark, whose checkpoints hold these offsets."""
    table.append([row(1, 1)])
    with table.claim_writer("unsharded") as writer:
        writer.put([row(2, 2)])
    schema = spark_schema(change_schema(table.schema))
    limit: Any = ReadAllAvailable()

    def reader(**options: str) -> ChangeStreamReader:
        return ChangeStreamReader(schema, {"path": table.uri, "readchangefeed": "true", **options})

    with pytest.raises(InvalidInputError, match="not one of a stream of changes"):
        reader().latestOffset({"version": 2, "files": 1}, limit)  # of a stream of rows
    end = reader().latestOffset(NOT_BEGUN, limit)
    with pytest.raises(InvalidInputError, match="follows with another freshness"):
        reader(freshness="base").latestOffset(end, limit)
    (shard,) = end["log"]
    other = {**end, "log": {shard: end["log"][shard] - 1}}
    with pytest.raises(InvalidInputError, match="the checkpoint does not fit the table"):
        reader().partitions(end, other)
    assert reader().partitions(NOT_BEGUN, end)


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append-only"])
def test_a_merge_of_the_log_does_not_end_a_stream_of_rows(
    spark: SparkSession, tmp_path: Path, keyed: bool
) -> None:
    key = ["k"] if keyed else []
    table = holdfast.create_table(tmp_path / "t.lance", SCHEMA, primary_key=key)
    table.append([row(1, 1)])
    feed = Feed(spark, table, tmp_path)
    with table.claim_writer("unsharded") as writer:
        for values in ([row(1, 2), row(2, 2)], [row(3, 3)]):
            run_rows(feed)
            writer.put(values)
            writer.flush()
            table.compact_lsm()
    run_rows(feed)
    found = Counter((one["k"], one["v"]) for rows in feed.batches.values() for one in rows)
    assert found == Counter([(1, 1), (1, 2), (2, 2), (3, 3)])
    table.dataset().delete("k = 3")
    with pytest.raises(Exception, match="is no append"):
        run_rows(feed)
    table.close()


def run_rows(feed: Feed) -> None:
    """Follow the rows of the base table, without `readChangeFeed`."""

    def keep(frame: DataFrame, number: int) -> None:
        feed.batches[number] = [one.asDict() for one in frame.collect()]

    writer = feed.spark.readStream.format("holdfast").load(feed.table.uri).writeStream
    writer = writer.foreachBatch(keep).option("checkpointLocation", str(feed.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readChangeFeed": "true"}, "begin somewhere"),
        ({"startingVersion": "1"}, "startingVersion needs readChangeFeed"),
        ({"endingVersion": "1"}, "endingVersion needs readChangeFeed"),
        ({"endingTimestamp": "2026-01-01"}, "endingTimestamp needs readChangeFeed"),
        (
            {
                "readChangeFeed": "true",
                "startingVersion": "1",
                "endingVersion": "2",
                "endingCursor": "{}",
            },
            "changes end at one place",
        ),
        ({"readChangeFeed": "yes"}, "true or false"),
        (
            {"readChangeFeed": "true", "startingVersion": "1", "filter": "k > 1"},
            "filter does not go with readChangeFeed",
        ),
        (
            {"readChangeFeed": "true", "startingVersion": "1", "startingTimestamp": "2026-01-01"},
            "keep one of",
        ),
        (
            {"readChangeFeed": "true", "startingVersion": "1", "freshness": "flushed"},
            "latest or base",
        ),
        ({"readChangeFeed": "true", "startingTimestamp": "soon"}, "is a time such as"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], message: str) -> None:
    from holdfast.spark._options import Use, parse

    with pytest.raises(holdfast.errors.InvalidInputError, match=message):
        parse({"path": "/t", **options}, Use.READ)


def test_changes_are_read_by_the_name_of_a_catalog_table(
    spark: SparkSession, tmp_path: Path, catalog_root: Path
) -> None:
    spark.sql(
        "CREATE TABLE lake.fed (k BIGINT NOT NULL, v BIGINT) TBLPROPERTIES ('primaryKey'='k')"
    )
    spark.sql("INSERT INTO lake.fed VALUES (1, 1), (2, 2)")
    spark.sql("DELETE FROM lake.fed WHERE k = 1")
    made = spark.read.option("startingVersion", "1").changes("lake.fed").collect()
    want = Counter({("insert", 1, 1): 1, ("insert", 2, 2): 1, ("delete", 1, 1): 1})
    assert Counter((row._change_type, row.k, row.v) for row in made) == want
    assert {row._commit_version for row in made if row._change_type == "insert"} == {2}
    told = (
        spark.read.option("startingVersion", "2").option("endingVersion", "2").changes("lake.fed")
    )
    assert Counter(row._change_type for row in told.collect()) == Counter(insert=2)
    behind = spark.read.option("startingVersion", "2").option("startingBoundInclusive", "false")
    assert [row._change_type for row in behind.changes("lake.fed").collect()] == ["delete"]
    since = spark.read.option("startingTimestamp", "2020-01-01")
    assert since.changes("lake.fed").count() == 3
    times = sorted({row._commit_timestamp for row in made})
    assert len(times) == 2
    for inclusive, count in (("true", 2), ("false", 0)):  # of the first of two versions with rows
        ended = spark.read.option("startingTimestamp", "2020-01-01")
        ended = ended.option("endingTimestamp", times[0].isoformat(" "))
        ended = ended.option("endingBoundInclusive", inclusive)
        assert ended.changes("lake.fed").count() == count
    later = spark.read.option("startingTimestamp", times[1].isoformat(" "))
    assert [row._change_type for row in later.changes("lake.fed").collect()] == ["delete"]
    later = later.option("startingBoundInclusive", "false")
    assert later.changes("lake.fed").count() == 0
    with holdfast.open_table(catalog_root / "fed.lance").claim_writer("unsharded") as service:
        service.put([{"k": 3, "v": 3}])  # in the log, in no version
    ended = spark.read.option("startingTimestamp", "2020-01-01")
    ended = ended.option("endingTimestamp", "2999-01-01")
    assert ended.changes("lake.fed").count() == 4
    want["insert", 3, 3] = 1
    net = spark.read.option("startingVersion", "1").option("deduplicationMode", "netChanges")
    with pytest.raises(Exception, match="net changes are not computed"):
        net.changes("lake.fed").collect()
    seen: list[Any] = []
    stream = spark.readStream.option("startingVersion", "1").changes("lake.fed")
    writer = stream.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert Counter((row._change_type, row.k, row.v) for row in seen) == want
    spark.sql("DROP TABLE lake.fed")


@pytest.mark.requirement("S4")
def test_a_stream_of_changes_begins_at_a_cursor_or_time_and_keeps_to_its_limits(
    spark: SparkSession, table: holdfast.Table, tmp_path: Path
) -> None:
    table.append([row(0, 0)])
    cursor = str(table.change_cursor())
    for number in range(1, 7):
        table.append([row(number, number)])

    def feed(name: str, **options: Any) -> list[set[int]]:
        (tmp_path / name).mkdir()
        made = Feed(spark, table, tmp_path / name)
        made.run(**options)
        return [{one["k"] for one in made.batches[number]} for number in sorted(made.batches)]

    assert feed("cursor", startingCursor=cursor, maxRowsPerTrigger="2") == [{1, 2}, {3, 4}, {5, 6}]
    assert feed("time", startingTimestamp="2020-01-01T00:00:00Z") == [set(range(7))]
    assert feed("version", startingVersion="3", maxFilesPerTrigger="4") == [{1, 2, 3, 4}, {5, 6}]
    assert set().union(*feed("begin", maxFilesPerTrigger="3")) == set(range(7))


@pytest.mark.requirement("S4")
def test_a_stream_of_changes_that_comes_too_late_says_what_to_do(
    spark: SparkSession, table: holdfast.Table, tmp_path: Path
) -> None:
    table.append([row(1, 1)])
    feed = Feed(spark, table, tmp_path)
    feed.run()
    for number in (2, 3):
        table.append([row(number, number)])
    Path(table.uri, version_name(3).path).unlink()
    with pytest.raises(Exception, match=r"collected before its changes were read.*new checkpoint"):
        feed.run()


def test_changes_from_before_a_renaming_have_the_values_of_the_column(
    spark: SparkSession, table: holdfast.Table, tmp_path: Path
) -> None:
    table.append([row(1, 1)])

    def follow() -> list[dict[str, Any]]:
        """Read in batches of one file with one checkpoint, and return what a run tells."""
        found: list[dict[str, Any]] = []
        reader = spark.readStream.format("holdfast").option("readChangeFeed", "true")
        query = (
            reader.option("maxFilesPerTrigger", "1")
            .load(table.uri)
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .foreachBatch(lambda frame, _: found.extend(one.asDict() for one in frame.collect()))
            .start()
        )
        assert query.awaitTermination(120)
        return found

    assert [(one["k"], one["v"]) for one in follow()] == [(1, 1)]
    table.append([row(2, 2)])
    stock: Any = lance.dataset(table.uri)  # Any: pylance is loosely typed
    stock.alter_columns({"path": "v", "name": "w"}, {"path": "k", "name": "key"})
    table.append([{"key": 3, "w": 3}])
    wanted = {(2, 2), (3, 3)}
    assert {(one["key"], one["w"]) for one in follow()} == wanted
    batch = spark.read.format("holdfast").option("readChangeFeed", "true")
    found = batch.option("startingVersion", "1").load(table.uri).collect()
    assert {(one["key"], one["w"]) for one in found} == {(1, 1), *wanted}
