"""Spark jobs whose files are written, stopped before they commit while vacuum runs three times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.spark
from holdfast.testing import FaultyS3
from shard.test_places import commit_store
from upkeep.test_late_verbs import BASE, Lake, check, make_lake

pytestmark = pytest.mark.requirement("P1", "C7", "C8")


@pytest.fixture(params=["honest", "ignoring"])
def lake(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    faulty_s3: Callable[..., FaultyS3],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lake]:
    decider = None if request.param == "honest" else commit_store(tmp_path)
    yield make_lake(faulty_s3(conditions=request.param), decider, monkeypatch)
    monkeypatch.undo()


def stop_before_the_transaction(lake: Lake) -> None:
    """Let the next transaction file, which a commit writes first, wait until vacuum ran.

    The server waits, since Spark commits in a process of its own.
    """
    put, waiting = lake.server.objects.put, [True]

    def stopped(bucket: str, key: str, *arguments: Any, **named: Any) -> Any:
        if waiting and "/_transactions/" in key:
            waiting.clear()
            lake.stops += 1
            lake.vacuum()
        return put(bucket, key, *arguments, **named)

    lake.patch.setattr(lake.server.objects, "put", stopped)


def run_late(lake: Lake, verb: Callable[[], object]) -> bool:
    stop_before_the_transaction(lake)
    try:
        verb()
    except Exception as error:
        if "StaleWork" not in str(error) and "ConflictError" not in str(type(error)):
            raise
        return False
    finally:
        lake.patch.undo()
        assert lake.stops == 1
    return True


def frame(spark: Any) -> Any:
    return spark.range(100, 104, numPartitions=2).selectExpr("id k", "'new' v")


NEW = dict.fromkeys(range(100, 104), "new")


def test_an_append(spark: Any, lake: Lake) -> None:
    options = {f"storage.{key}": value for key, value in lake.options.items()}
    writer = frame(spark).write.format("holdfast").mode("append").options(**options)
    done = run_late(lake, lambda: writer.save(lake.uri))
    check(lake, {**BASE, **NEW} if done else BASE)


@pytest.mark.parametrize("verb", ["merge_into", "compact_lsm"])
def test_verbs_of_a_spark_table(spark: Any, lake: Lake, verb: str) -> None:
    table = lake.open()
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 50, "v": "put"}])
    table.close()
    expected = {**BASE, 50: "put"}
    opened = holdfast.spark.table(spark, lake.uri, storage_options=lake.options)
    verbs: dict[str, Callable[[], object]] = {
        "merge_into": lambda: opened.merge_into(frame(spark), on="k"),
        "compact_lsm": opened.compact_lsm,
    }
    done = run_late(lake, verbs[verb])
    if not done:
        verbs[verb]()
    opened.close()
    check(lake, {**expected, **NEW} if verb == "merge_into" else expected)
