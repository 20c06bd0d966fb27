"""Batch reads: one version per DataFrame, chosen columns and rows, and no pushed filters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import ArrayType, FloatType, LongType, StructField, StructType

import holdfast
from holdfast.spark._read import SCAN, BatchReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark: SparkSession, uri: str, **options: Any) -> DataFrame:
    return spark.read.format("holdfast").options(**options).load(uri)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> holdfast.Table:
    """Return a table of 4 versions: empty, 5 rows, 10 rows, 15 rows; version 3 has a tag."""
    place = tmp_path_factory.mktemp("read") / "t.lance"
    schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("x", pa.float64())])
    table = holdfast.create_table(place, schema)
    for begin in (0, 5, 10):
        table.append([{"id": n, "word": f"w{n}", "x": n / 2} for n in range(begin, begin + 5)])
    table.dataset().tags.create("half", 3)
    return table


def test_a_frame_sees_one_version_and_a_new_load_the_newest(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", pa.schema([("id", pa.int64())]))
    table.append([{"id": 1}])
    frame = load(spark, table.uri)
    assert frame.count() == 1
    table.append([{"id": 2}])
    assert frame.count() == 1
    assert load(spark, table.uri).count() == 2


def test_older_versions_by_number_time_and_tag(spark: SparkSession, table: holdfast.Table) -> None:
    second = next(info for info in table.history() if info.version == 2)
    for options in (
        {"versionAsOf": 2},
        {"timestampAsOf": second.time.isoformat()},
        {"timestampAsOf": second.time.replace(tzinfo=None).isoformat()},
    ):
        assert load(spark, table.uri, **options).count() == 5
    assert load(spark, table.uri, tag="half").count() == 10


def test_columns_filter_and_schema_choose_what_is_read(
    spark: SparkSession, table: holdfast.Table
) -> None:
    frame = load(spark, table.uri, columns="x,id", filter="id < 3")
    assert frame.columns == ["x", "id"]
    assert sorted(row.id for row in frame.collect()) == [0, 1, 2]
    asked = spark.read.schema("word string, id bigint").format("holdfast").load(table.uri)
    assert asked.columns == ["word", "id"]
    assert asked.count() == 15


def test_fragments_are_shared_out_as_asked(spark: SparkSession, table: holdfast.Table) -> None:
    alone = load(spark, table.uri, fragmentsPerPartition=1)
    assert alone.rdd.getNumPartitions() == 3
    assert load(spark, table.uri).rdd.getNumPartitions() == 1
    assert alone.count() == 15


def test_filters_of_one_query_do_not_leak_into_another(
    spark: SparkSession, table: holdfast.Table
) -> None:
    """Spark keeps a pushed filter with the DataFrame, so there must be nothing to push to."""
    assert BatchReader.pushFilters is DataSourceReader.pushFilters
    for enabled in ("false", "true"):
        spark.conf.set(PUSHDOWN, enabled)
        try:
            frame = load(spark, table.uri)
            assert frame.where("id < 5").count() == 5
            assert frame.count() == 15
            assert frame.where("id < 5").union(frame.where("id < 10")).count() == 15
        finally:
            spark.conf.unset(PUSHDOWN)


def test_an_empty_table_is_an_empty_frame(spark: SparkSession, table: holdfast.Table) -> None:
    frame = load(spark, table.uri, versionAsOf=1)
    assert frame.columns == ["id", "word", "x"]
    assert frame.collect() == []


def test_sql_takes_a_frame_and_sees_the_newest_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", pa.schema([("id", pa.int64())]))
    for expected in (1, 2):
        table.append([{"id": expected}])
        counted = spark.sql("select count(*) as n from {t}", t=load(spark, table.uri)).collect()
        assert counted[0].n == expected


def test_a_temporary_view_stays_at_the_version_of_its_first_action(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The trap that troubleshooting begins with; when Spark changes this, so must the page."""
    table = holdfast.create_table(tmp_path / "t.lance", pa.schema([("id", pa.int64())]))
    table.append([{"id": 1}])
    spark.sql(f"create or replace temp view frozen using holdfast options (path '{table.uri}')")
    assert spark.sql("select * from frozen").count() == 1
    spark.sql("insert into frozen values (2)")
    assert spark.sql("select * from frozen").count() == 1
    assert table.dataset().count_rows() == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"colums": "id"}, "unknown option 'colums' .did you mean 'columns'"),
        ({"columns": "idd"}, "no column 'idd' .did you mean 'id'"),
        ({"filter": "nosuch < 1"}, "nosuch"),
        ({"versionAsOf": "99"}, "no such version"),
        ({"versionAsOf": "x"}, "whole number"),
        ({"timestampAsOf": "1999-01-01"}, "no version as old"),
        ({"timestampAsOf": "yesterday"}, "is a time such as"),
        ({"tag": "haf"}, "no tag 'haf' .did you mean 'half'"),
        ({"tag": "half", "versionAsOf": "1"}, "keep one of versionAsOf, tag"),
        ({"txnAppId": "x", "txnVersion": "1"}, "is for write"),
        ({"startingVersion": "1"}, "needs readChangeFeed=true; without it, it is for readStream"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, table: holdfast.Table, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        load(spark, table.uri, **options).collect()


def test_a_schema_that_asks_for_other_types_is_refused(
    spark: SparkSession, table: holdfast.Table
) -> None:
    for asked, said in (
        ("id int", "is bigint in the table"),
        ("nosuch int", "no column 'nosuch'"),
        ("id bigint not null", "may be null in the table"),
    ):
        with pytest.raises(Exception, match=said):
            spark.read.schema(asked).format("holdfast").load(table.uri).collect()


@pytest.mark.requirement("S1")
def test_a_large_fragment_is_read_by_several_tasks(
    uri: str, ids: Callable[..., Counter[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one with deleted rows, of which each task must skip its own."""
    table = holdfast.create_table(uri, pa.schema([("id", pa.int64())]))
    table.append([{"id": number} for number in range(10_000)])
    table.dataset().delete("id % 3 = 0")
    monkeypatch.setattr("holdfast.spark._read._PARTITION_BYTES", 5_000)
    reader = BatchReader(StructType([StructField("id", LongType())]), {"path": uri})
    parts = reader.partitions()
    assert len(parts) > 2
    found = Counter(
        number
        for part in parts
        for batch in reader.read(part)
        for number in batch["id"].to_pylist()
    )
    assert found == ids(uri)
    whole = BatchReader(
        StructType([StructField("id", LongType())]), {"path": uri, "filter": "id < 100"}
    )
    assert len(whole.partitions()) == 1


@pytest.mark.requirement("S1")
def test_tasks_share_the_bytes_of_the_columns_that_are_read(
    uri: str, ids: Callable[..., Counter[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fragments of the same size, one with deleted rows, one without any left."""
    kinds = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), 256))])
    table = holdfast.create_table(uri, kinds)
    for begin in range(0, 4000, 1000):
        table.append([{"id": begin + at, "v": [0.0] * 256} for at in range(1000)])
    table.dataset().delete("id % 3 = 0 AND id >= 1000 OR id BETWEEN 2000 AND 2999")
    monkeypatch.setattr("holdfast.spark._read._SMALL_BYTES", 1)
    narrow = StructType([StructField("id", LongType())])
    for tasks in (1, 2, 3, 5, 7, 64):
        reader = BatchReader(narrow, {"path": uri, SCAN: json.dumps({"tasks": tasks})})
        parts = reader.partitions()
        assert len(parts) <= tasks
        found = [
            [number for batch in reader.read(part) for number in batch["id"].to_pylist()]
            for part in parts
        ]
        assert Counter(number for some in found for number in some) == ids(uri)
        assert max(map(len, found)) <= 4000 // tasks + 2
    monkeypatch.setattr("holdfast.spark._read._PARTITION_BYTES", 400_000)
    vectors = StructType([StructField("v", ArrayType(FloatType()))])
    assert len(BatchReader(narrow, {"path": uri}).partitions()) == 1
    assert len(BatchReader(vectors, {"path": uri}).partitions()) > 5
