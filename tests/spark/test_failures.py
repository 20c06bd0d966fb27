"""What goes wrong in a Spark job: its rows are in the table once, or not at all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pytest

import holdfast
import holdfast.spark
import servers
from commits.table_worker import set_up
from holdfast.testing import FaultyS3Process
from holdfast.testing._s3_faults import Fault
from spark.faulty_source import await_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ids = Callable[..., Counter[int]]


def save(
    spark: SparkSession, uri: str, fault: str, numbers: range = range(100), tasks: int = 4
) -> None:
    frame = spark.range(numbers.start, numbers.stop, numPartitions=tasks)
    frame.write.format("faulty").mode("append").option("fault", fault).save(uri)


@pytest.mark.requirement("C1", "C7")
@pytest.mark.parametrize("fault", ["raise-in-stream", "raise-after-write", "kill-worker"])
def test_a_task_that_fails_once_is_tried_again(
    spark: SparkSession, uri: str, ids: Ids, fault: str
) -> None:
    save(spark, uri, fault)
    assert ids(uri) == Counter(range(100))


@pytest.mark.requirement("C1", "C7")
def test_a_task_that_always_fails_leaves_the_table_as_it_was(
    spark: SparkSession, uri: str, ids: Ids
) -> None:
    save(spark, uri, "")
    with pytest.raises(Exception, match="after the files were written"):
        save(spark, uri, "raise-always", range(100, 200), tasks=2)
    assert ids(uri) == Counter(range(100))


@pytest.mark.requirement("C8")
def test_abort_after_a_commit_deletes_nothing(spark: SparkSession, uri: str, ids: Ids) -> None:
    with pytest.raises(Exception, match="after the commit"):
        save(spark, uri, "raise-after-commit")
    assert ids(uri) == Counter(range(100))


@pytest.mark.mutant
def test_an_abort_that_deletes_would_damage_the_table(
    spark: SparkSession, uri: str, ids: Ids
) -> None:
    with pytest.raises(Exception, match="after the commit"):
        save(spark, uri, "raise-after-commit, delete")
    assert lance.dataset(uri).count_rows() == 100
    with pytest.raises((OSError, ValueError), match=r"[Nn]ot found"):
        ids(uri)


@pytest.mark.requirement("C7")
def test_a_cancelled_job_leaves_the_table_as_it_was(
    spark: SparkSession, uri: str, ids: Ids, tmp_path: Path
) -> None:
    save(spark, uri, "")
    failures: list[Exception] = []

    def work() -> None:
        holdfast.spark.activate(spark)
        spark.sparkContext.setJobGroup("doomed", "a job to cancel", interruptOnCancel=True)
        try:
            save(spark, uri, f"hold-tasks:{tmp_path}", range(100, 200))
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    await_file(tmp_path / "held")
    spark.sparkContext.cancelJobGroup("doomed")
    thread.join(240)
    (tmp_path / "go").touch()
    assert len(failures) == 1
    assert ids(uri) == Counter(range(100))


# On object stores.


def options_for(server: FaultyS3Process) -> dict[str, str]:
    return {f"storage.{key}": value for key, value in server.storage_options("lake").items()}


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("kind", ["drop_after", "status_after"])
def test_a_commit_whose_answer_is_lost_is_applied_once(
    spark: SparkSession,
    ids: Ids,
    faulty_s3_process: Callable[..., FaultyS3Process],
    kind: Any,
) -> None:
    server = faulty_s3_process()
    uri = server.url("lake", f"{kind}.lance")
    writer = spark.range(0, 10).write.format("holdfast").mode("append")
    writer.options(**options_for(server)).save(uri)
    # The decision is made and the answer lost, again and again; reading it back fails too.
    for method in ("PUT", "GET"):
        fault = Fault(kind=kind, method=method, path_regex="_versions/.*manifest$", times=4)
        server.control.add_fault(fault)
    writer = spark.range(10, 20).write.format("holdfast").mode("append")
    writer.options(**options_for(server)).save(uri)
    assert sum(server.control.fired().values()) >= 4
    server.control.clear_faults()
    found = ids(uri, storage_options=server.storage_options("lake"))
    assert found == Counter(range(20))


@pytest.fixture(scope="module")
def commit_store() -> Iterator[str]:
    with servers.running("redis") as server:
        yield set_up(server.url)


@pytest.mark.requirement("C1", "C6", "C7")
@pytest.mark.parametrize("conditions", ["ignoring", "racy"])
def test_jobs_append_at_once_on_a_store_that_cannot_decide(
    spark: SparkSession,
    ids: Ids,
    commit_store: str,
    faulty_s3_process: Callable[..., FaultyS3Process],
    conditions: str,
) -> None:
    server = faulty_s3_process(conditions=conditions)
    uri = server.url("lake", f"{conditions}.lance")
    failures: list[BaseException] = []

    def append(number: int) -> None:
        try:
            holdfast.spark.activate(spark)
            for step in range(2):
                begin = number * 20 + step * 10
                frame = spark.range(begin, begin + 10, numPartitions=2)
                writer = frame.write.format("holdfast").mode("append")
                writer.options(commitStoreUrl=commit_store, **options_for(server)).save(uri)
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=append, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(error) for error in failures] == []
    found = ids(uri, storage_options=server.storage_options("lake"))
    assert found == Counter(range(80))


@pytest.mark.requirement("C3")
def test_a_store_that_cannot_decide_is_refused_without_a_commit_store(
    spark: SparkSession, faulty_s3_process: Callable[..., FaultyS3Process]
) -> None:
    server = faulty_s3_process(conditions="ignoring")
    uri = server.url("lake", "t.lance")
    with pytest.raises(Exception, match="UnsafeStoreError"):
        spark.range(1).write.format("holdfast").mode("append").options(**options_for(server)).save(
            uri
        )
    with pytest.raises(ValueError, match=r"not found|Not found"):
        lance.dataset(uri, storage_options=server.storage_options("lake"))
