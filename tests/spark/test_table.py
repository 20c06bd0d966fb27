"""The verbs of a table on Spark."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
import holdfast.spark
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.spark._table import UpsertBatch

SCHEMA = pa.schema([("id", pa.int64()), ("a,b", pa.string())])


@pytest.fixture
def t(spark: Any, uri: str) -> Iterator[holdfast.spark.SparkTable]:
    holdfast.create_table(uri, SCHEMA, commit_store="sqlite").close()
    opened = holdfast.spark.table(spark, uri)
    yield opened
    opened.close()


def test_append_once(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    first = t.append(spark.range(100), txn=("job", 1))
    again = t.append(spark.range(100), txn=("job", 1))
    assert (first.rows, first.version, first.applied) == (100, 2, True)
    assert (again.rows, again.version, again.applied) == (0, 2, False)
    assert ids(t.uri) == Counter(range(100))
    assert t.applied([("job", 1), ("job", 2)]) == [True, False]
    with pytest.raises(InvalidInputError, match="no rows"):
        t.append(spark.range(0))
    with pytest.raises(InvalidInputError, match="does not fit"):
        t.append(spark.sql("SELECT 'x' id"))


def test_a_relative_path_means_the_folder_of_the_caller(
    spark: Any, t: holdfast.spark.SparkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(t.uri).parent)  # Spark's Java was started somewhere else
    relative = holdfast.spark.table(spark, Path(t.uri).name)
    relative.append(spark.range(10))
    assert relative.merge_into(spark.sql("SELECT 5L AS id, 'x' AS `a,b`"), on="id").updated == 1
    assert (relative.uri, relative.df().count()) == (t.uri, 10)


def test_reads_are_those_of_the_table_as_frames(spark: Any, tmp_path: Path) -> None:
    columns = [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("vec", pa.list_(pa.float32(), 2)),
    ]
    table = holdfast.create_table(tmp_path / "keyed.lance", pa.schema(columns), primary_key=["k"])
    words = ("storm at sea", "calm", "old storm")
    table.append([{"k": n, "text": word, "vec": [n, 0.0]} for n, word in enumerate(words)])
    table.create_index("text")
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 1, "text": "a new storm", "vec": [9.0, 0.0]}])
        t = holdfast.spark.table(spark, table.uri)

        def keys(frame: Any) -> list[int]:
            return [row["k"] for row in frame.select("k").collect()]

        assert sorted(keys(t.scan(["k"], "k > 0"))) == [1, 2]
        assert t.scan(limit=2).count() == 2
        assert (t.count(), t.count("text = 'calm'")) == (3, 0)
        assert t.count("text = 'calm'", freshness="base") == 1
        assert t.lookup([2, 7, 1], ["text"]).collect() == [("old storm",), ("a new storm",)]
        assert t.lookup([7]).count() == 0
        assert sorted(keys(t.search("text", "storm", columns=["k"]))) == [0, 1, 2]
        assert keys(t.nearest("vec", [9.0, 0.0], 2, metric="l2")) == [1, 2]
        with pytest.raises(InvalidInputError, match="limit"):
            t.scan(limit=-1)


def test_frames_and_views_see_one_version(spark: Any, t: holdfast.spark.SparkTable) -> None:
    t.append(spark.sql("SELECT id, 'x' AS `a,b` FROM range(10)"))
    before = t.df()
    view = t.snapshot_view("snapshot")
    t.append(spark.range(10, 20))
    assert (before.count(), t.df().count(), t.df(version=1).count()) == (10, 20, 0)
    assert spark.sql("SELECT count(*) FROM {t}", t=t.df()).first()[0] == 20
    assert (view.name, view.version) == ("snapshot", 2)
    assert spark.table("snapshot").count() == 10
    some = t.df(columns=["a,b"], filter="id < 2").collect()
    assert [row["a,b"] for row in some] == ["x", "x"]
    with pytest.raises(NotFoundError):
        t.df(version=99)


def test_compact(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    for start in range(0, 40, 10):
        t.table.append(pa.table({"id": range(start, start + 10), "a,b": ["x"] * 10}))
    t.table.dataset().create_scalar_index("id", "BTREE")
    heard: list[tuple[int, int]] = []
    done = t.compact(progress=lambda *told: heard.append(told))
    assert (done.applied, done.rows, done.txn) == (True, 40, None)
    assert done.fragments_removed > done.fragments_added
    assert done.version == lance.dataset(t.uri).version
    assert heard[-1][0] == heard[-1][1]
    assert ids(t.uri) == Counter(range(40))
    assert {info.foreign for info in t.history()} == {False}  # tasks commit nothing
    again = t.compact()
    assert (again.applied, again.version) == (False, done.version)
    with pytest.raises(InvalidInputError, match="target_rows"):
        t.compact(target_rows=0)


def test_vacuum_plans(spark: Any, t: holdfast.spark.SparkTable) -> None:
    assert not t.vacuum().applied
    assert t.vacuum(confirm=True).leftovers == ()


def test_verbs_work_in_any_thread(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    thread = threading.Thread(target=lambda: t.append(spark.range(5)))
    thread.start()
    thread.join()
    assert ids(t.uri) == Counter(range(5))


def test_a_table_stays_on_the_driver(t: holdfast.spark.SparkTable) -> None:
    with pytest.raises(TypeError, match=r"holdfast\.open_table"):
        pickle.dumps(t)
    assert isinstance(pickle.loads(pickle.dumps(t.upsert_batch(on="id"))), UpsertBatch)
    assert repr(t) == f"SparkTable({t.uri})"


@pytest.mark.requirement("C8")
def test_a_batch_that_spark_repeats_is_merged_once(
    spark: Any, t: holdfast.spark.SparkTable, tmp_path: Path, ids: Any
) -> None:
    given, checkpoint = str(tmp_path / "in"), tmp_path / "checkpoint"
    spark.sql("SELECT id, 'x' AS `a,b` FROM range(10)").coalesce(1).write.parquet(given)
    schema = "id bigint, `a,b` string"

    def run() -> None:
        stream = spark.readStream.schema(schema).parquet(given)
        query = (
            stream.writeStream.foreachBatch(t.upsert_batch(on="id"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(240)
        assert query.exception() is None

    run()
    version = t.status().version
    assert ids(t.uri) == Counter(range(10))
    assert t.history(1)[0].txns[0].startswith("spark-upsert-")
    for file in [*(checkpoint / "commits").glob("0"), *(checkpoint / "commits").glob(".0.crc")]:
        file.unlink()
    run()  # Spark does not know that it has committed, and does it again
    assert t.status().version == version


def test_a_batch_outside_a_stream_needs_an_app(
    spark: Any, t: holdfast.spark.SparkTable, ids: Any
) -> None:
    frame = spark.sql("SELECT id, 'x' AS `a,b` FROM range(3)")
    with pytest.raises(InvalidInputError, match="app"):
        t.upsert_batch(on="id")(frame, 0)
    upsert = t.upsert_batch(on="id", app="mine")
    upsert(frame, 0)
    upsert(frame, 0)
    assert t.applied([("mine", 0)]) == [True]
    assert t.status().version == 2
    assert ids(t.uri) == Counter(range(3))
