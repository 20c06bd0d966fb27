"""Spark reads what writers got acknowledged, in parts that are together one snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from read.lake import Lake, in_order, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path, shards=2)
    for start in range(0, 40, 10):  # four fragments
        lake.append([row(k, 0, "base") for k in range(start, start + 10)])
    lake.put([row(k, 1, "flushed") for k in range(0, 50, 3)])
    for shard in lake.shards:
        lake.flush(shard)
    lake.put([row(k, 2, "log") for k in range(0, 50, 7)])
    lake.delete([1, 3, 7])
    return lake


def rows(spark: SparkSession, lake: Lake, **options: Any) -> list[dict[str, Any]]:
    reader = spark.read.format("holdfast").option("fragmentsPerPartition", 1)
    for name, value in options.items():
        reader = reader.option(name, value)
    return [found.asDict() for found in reader.load(lake.table.uri).collect()]


@pytest.mark.requirement("C7", "W13")
def test_a_load_reads_the_newest_row_of_every_key(spark: SparkSession, lake: Lake) -> None:
    frame = spark.read.format("holdfast").option("fragmentsPerPartition", 1).load(lake.table.uri)
    assert frame.rdd.getNumPartitions() == 6  # four fragments, two shards
    assert in_order(rows(spark, lake)) == in_order(lake.wanted())
    flushed = rows(spark, lake, freshness="flushed")
    assert in_order(flushed) == in_order(lake.rows(freshness="flushed"))
    base = rows(spark, lake, freshness="base")
    assert in_order(base) == in_order(lake.rows(freshness="base"))
    wanted = [part for part in lake.wanted() if part["v"] > 0]
    assert in_order(rows(spark, lake, filter="v > 0")) == in_order(wanted)
    notes = rows(spark, lake, columns="note")
    assert sorted(part["note"] for part in notes) == sorted(p["note"] for p in lake.wanted())


def test_a_load_that_cannot_be_fresh_is_refused(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(Exception, match="an older version has no fresh rows"):
        rows(spark, lake, freshness="latest", versionAsOf=1)
    with pytest.raises(Exception, match="latest, flushed or base"):
        rows(spark, lake, freshness="newest")
    assert rows(spark, lake, versionAsOf=1) == []


def test_a_search_finds_what_is_newer_than_the_base_table(spark: SparkSession, lake: Lake) -> None:
    lake.table.create_index("note", "fts")
    search = {"searchColumn": "note", "searchQuery": "log OR base", "searchLimit": 20}
    for freshness in ("latest", "flushed", "base"):
        found = rows(spark, lake, freshness=freshness, **search)
        wanted = lake.table.search("note", "log OR base", limit=20, freshness=freshness)
        assert in_order(found) == in_order(wanted.to_pylist())
        assert ("log" in {part["note"] for part in found}) == (freshness == "latest")
