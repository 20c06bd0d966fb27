"""Generations into the base table by Spark: the same rows as without it, once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import holdfast.spark
from holdfast.errors import NotFoundError
from holdfast.spark._compact_lsm import SparkBase
from lsm.tables import (
    add_generation,
    make_table,
    manifests_of,
    merged_of,
    new_shard,
    pending_of,
    rows_of,
)

pytestmark = pytest.mark.requirement("W13")

DEAD = {"v": None, "_tombstone": True}


def test_tasks_merge_generations_and_fragments(spark: Any, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(40)])
    table.append([{"k": n, "v": "base"} for n in range(40, 80)])
    shards, chosen, expected = [new_shard(), new_shard()], random.Random(3), rows_of(table)
    for number in range(3):
        for place, shard in enumerate(shards):
            keys = chosen.sample(range(place, 100, 2), 20)
            dead = set(keys[:5])
            add_generation(
                table,
                shard,
                [{"k": k, **DEAD} if k in dead else {"k": k, "v": f"{number}"} for k in keys],
            )
            expected |= dict.fromkeys(keys, f"{number}")
            expected = {k: v for k, v in expected.items() if k not in dead}
    before = int(table.dataset().version)
    done = holdfast.spark.table(spark, table.uri).compact_lsm()
    assert rows_of(table) == expected
    assert merged_of(table) == dict.fromkeys(shards, 3)
    assert [pending_of(table, shard) for shard in shards] == [[], []]
    assert (done.applied, done.version) == (True, before + 2)
    assert holdfast.spark.table(spark, table.uri).compact_lsm().applied is False


@pytest.mark.requirement("P1")
def test_writes_by_spark_merge_what_waits_in_the_log_first(spark: Any, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(4)])
    by_spark = holdfast.spark.table(spark, table.uri)
    changes = spark.createDataFrame([(1, "direct")], "k long, v string")
    more = spark.createDataFrame([(9, "added")], "k long, v string")
    with table.claim_writer(new_shard()) as log:
        log.put([{"k": 1, "v": "log"}])
        assert by_spark.merge_into(changes, on="k").updated == 1
        log.delete_keys([9])
        more.write.format("holdfast").mode("append").save(table.uri)
        log.put([{"k": 2, "v": "log"}])
        assert by_spark.merge_into(changes, on="k", over_log=True).updated == 1
    table.merge_log()
    expected = {0: "base", 1: "direct", 2: "log", 3: "base", 9: "added"}
    assert rows_of(table) == expected
    with table.claim_writer(new_shard()) as log:
        log.put([{"k": 1, "v": "superseded"}])
        more.write.format("holdfast").mode("overwrite").save(table.uri)
        log.put([{"k": 5, "v": "behind"}])
    table.merge_log()
    assert rows_of(table) == {5: "behind", 9: "added"}


def test_what_tasks_computed_too_late_changes_nothing(spark: Any, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(4)])
    shard = new_shard()
    add_generation(table, shard, [{"k": 1, "v": "log"}])
    current = manifests_of(table, shard).latest()
    assert current is not None
    waiting = SparkBase(spark, table, {}, None).begin(shard, current.sstables)
    assert waiting is not None
    same = table.dataset(over_log=True).merge_insert("k").when_matched_update_all()
    same.execute([{"k": 1, "v": "base2"}])
    assert waiting.commit() is None
    table.compact_lsm()
    version = int(table.dataset().version)
    assert rows_of(table)[1] == "log"
    assert SparkBase(spark, table, {}, None).begin(shard, current.sstables) is None
    assert int(table.dataset().version) == version
    with pytest.raises(NotFoundError):
        holdfast.spark.table(spark, table.uri).compact_lsm(shards=[new_shard()])
