"""Indexes built by Spark: killed tasks, killed drivers, reruns that build nothing twice."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
import holdfast.spark
import holdfast.spark._index
from holdfast.arbiter import SupportsSetUp, connect_commit_store
from holdfast.errors import InvalidInputError
from holdfast.index._commit import TableCommits
from holdfast.index._finalize import Finalizer
from holdfast.testing import FaultyS3
from index.corpus import assert_equal_to_stock, make_table, rows, stock_copy
from spark.conftest import importable_by_workers
from spark.index_tasks import deaths, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = Path(__file__).with_name("index_driver.py")
BUILT_ONCE = ["0", "1", "2"]


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdfast.spark._index, "_TASK", "spark.index_tasks:build_and_note")


def builds(uri: str) -> list[str]:
    return sorted(notes(uri).read_text().split())


def create(spark: SparkSession, uri: str, **more: Any) -> Any:
    table = holdfast.spark.table(spark, uri)
    return table.create_index("text", "fts", tasks=3, with_position=True, **more)


def check(uri: str, folder: Path) -> None:
    table = holdfast.open_table(uri)
    (info,) = table.indexes()
    assert (info.partitions, info.uncovered, len(info.segments)) == (3, 0, 1)
    assert_equal_to_stock(table.dataset(), stock_copy(table, folder, with_position=True))
    assert table.index_builds() == []


@pytest.mark.requirement("F1", "F11", "C7")
def test_create_refresh_and_search(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    make_table(uri, fragments=4)
    seen: list[tuple[str, int, int]] = []
    result = create(spark, uri, progress=lambda p: seen.append((p.stage.value, p.done, p.total)))
    assert (result.applied, result.partitions, result.reused) == (True, 3, 0)
    assert [stage for stage, done, total in seen if done == total][-3:] == [
        "copy",
        "commit",
        "clean",
    ]
    assert ("build", 3, 3) in seen
    check(uri, tmp_path)
    assert not create(spark, uri).applied
    holdfast.open_table(uri).append(rows(1000, 40))
    refreshed = holdfast.spark.table(spark, uri).refresh_index("text_idx")
    assert (refreshed.applied, refreshed.partitions, refreshed.uncovered) == (True, 4, 0)

    reader = spark.read.format("holdfast").option("searchColumn", "text")
    found = reader.option("searchQuery", "storm AND harbour").option("searchLimit", "7").load(uri)
    expected = holdfast.open_table(uri).search("text", "storm AND harbour", limit=7)
    assert [row["_score"] for row in found.collect()] == expected["_score"].to_pylist()
    assert found.columns == ["id", "text", "title", "_score"]
    narrow = reader.option("searchQuery", "storm").option("columns", "id").option("filter", "id<9")
    assert {row.id for row in narrow.load(uri).collect()} <= set(range(9))
    assert narrow.load(uri).columns == ["id", "_score"]  # whatever columns are asked for
    assert all(row["_score"] > 0 for row in narrow.load(uri).collect())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"searchColumn": "text"}, "come together"),
        ({"searchLimit": "5"}, "for a search"),
        ({"searchColumn": "text", "searchQuery": "a", "searchLimit": "0"}, "from 1 on"),
    ],
)
def test_wrong_search_options(
    spark: SparkSession, uri: str, options: dict[str, str], says: str
) -> None:
    make_table(uri, fragments=1)
    with pytest.raises(Exception, match=says):
        spark.read.format("holdfast").options(**options).load(uri).collect()


def test_a_wrong_call_starts_no_job(spark: SparkSession, uri: str) -> None:
    make_table(uri, fragments=1)
    table: Any = holdfast.spark.table(spark, uri)
    with pytest.raises(InvalidInputError, match="did you mean"):
        table.create_index("text", "fts", with_positions=True)
    with pytest.raises(InvalidInputError, match="kind is one of fts, btree"):
        table.create_index("text", "hash")


@pytest.mark.requirement("F12", "C7")
@pytest.mark.parametrize(
    ("where", "built"), [("built", ["0", "0", "1", "2"]), ("decided", BUILT_ONCE)]
)
@pytest.mark.usefixtures("noting")
def test_a_task_dies(
    spark: SparkSession, uri: str, tmp_path: Path, where: str, built: list[str]
) -> None:
    make_table(uri, fragments=3)
    deaths(uri).write_text(where)
    assert create(spark, uri).applied
    assert not deaths(uri).exists()
    # Of the attempts that Spark repeats, those count that had not finished.
    found = builds(uri)
    assert found.count("0") == built.count("0")
    assert set(found) == set(BUILT_ONCE)
    check(uri, tmp_path)
    files = Path(uri, "_indices").rglob("*.lance")
    (info,) = holdfast.open_table(uri).indexes()
    assert {path.parent.name for path in files} == set(info.segments)


POINTS: dict[str, tuple[type, str, int]] = {
    "before the plan": (Finalizer, "_freeze", 1),
    "amid the copies": (Finalizer, "_copy_one", 5),
    "before the commit": (TableCommits, "commit", 1),
}


class DriverDies(BaseException):
    pass


@pytest.mark.requirement("F12")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.usefixtures("noting")
def test_a_driver_that_stops_is_resumed_without_building_again(
    spark: SparkSession, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    make_table(uri, fragments=3)
    owner, method, number = POINTS[point]
    original, calls = getattr(owner, method), itertools.count(1)

    def dying(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:  # one step, as several threads copy
            raise DriverDies
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, dying)
        with pytest.raises(DriverDies):
            create(spark, uri)
    assert holdfast.open_table(uri).indexes() == []
    (info,) = holdfast.open_table(uri).index_builds()
    assert (info.tasks, info.finished) == (3, 3)
    result = create(spark, uri)
    assert (result.applied, result.reused, result.build_id) == (True, 3, info.build_id)
    assert builds(uri) == BUILT_ONCE
    check(uri, tmp_path)


@pytest.mark.requirement("F12")
@pytest.mark.usefixtures("noting")
def test_a_killed_driver_is_resumed_by_another(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    make_table(uri, fragments=3)
    driver = subprocess.Popen(
        [sys.executable, str(DRIVER), uri, "amid the copies"],
        env={**os.environ, "PYTHONPATH": importable_by_workers()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = driver.communicate(timeout=280)
    finally:
        kill_group(driver.pid)
    assert driver.returncode == -signal.SIGKILL, said[-3000:]
    result = create(spark, uri)
    assert (result.applied, result.reused) == (True, 3)
    assert builds(uri) == BUILT_ONCE
    check(uri, tmp_path)


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.requirement("C6", "F12")
def test_on_a_store_that_ignores_conditions(
    spark: SparkSession, faulty_s3: Callable[..., FaultyS3], tmp_path: Path
) -> None:
    server = faulty_s3(conditions="ignoring")
    commit_store = f"sqlite:///{tmp_path}/decisions.db?single_host=true"
    store = connect_commit_store(commit_store)
    assert isinstance(store, SupportsSetUp)
    store.set_up()
    store.close()
    uri = server.url("holdfast", "t")
    plain = make_table(
        uri, fragments=3, storage_options=server.storage_options(), commit_store=commit_store
    )
    table = holdfast.spark.table(spark, uri, server.storage_options())
    result = table.create_index("text", "fts", tasks=3, with_position=True)
    assert (result.applied, result.partitions) == (True, 3)
    assert_equal_to_stock(plain.dataset(), stock_copy(plain, tmp_path, with_position=True))
