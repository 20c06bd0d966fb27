"""Batch writes: what a frame becomes in a table, and what is refused before anything is written."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest

import holdfast
import holdfast.spark
from holdfast.arbiter import create_arbiter
from holdfast.formats import version_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Ids = Callable[..., Counter[int]]


def save(frame: DataFrame, uri: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("holdfast").mode(mode).options(**options).save(uri)


@pytest.mark.requirement("C7")
def test_appends_create_the_table_and_add_to_it(spark: SparkSession, uri: str, ids: Ids) -> None:
    save(spark.range(0, 100, numPartitions=3), uri)
    save(spark.range(100, 150), uri)
    assert ids(uri) == Counter(range(150))
    assert holdfast.open_table(uri).history()[0].operation == "Append"


@pytest.mark.parametrize("commit_store", [None, "sqlite"])
@pytest.mark.parametrize("staged", [False, True])
def test_a_table_whose_creator_came_half_way_is_created(
    spark: SparkSession, uri: str, ids: Ids, commit_store: str | None, staged: bool
) -> None:
    """Another job ties the table to its arbiter, and has not decided its first version yet."""
    create_arbiter(uri, commit_store=commit_store).close()
    if staged:
        manifest = Path(uri, f"{version_name(1).path}-58a340b0-0277-4b59-9079-4f07e234bd95")
        manifest.parent.mkdir()
        manifest.write_bytes(b"of another job")
    save(spark.range(3), uri, **({"commitStoreUrl": commit_store} if commit_store else {}))
    assert ids(uri) == Counter(range(3))


def test_a_table_that_lost_its_versions_is_not_made_anew(spark: SparkSession, uri: str) -> None:
    save(spark.range(3), uri)
    shutil.rmtree(Path(uri, "_versions"))
    with pytest.raises(Exception, match="NotFoundError"):
        save(spark.range(3), uri)
    assert not Path(uri, "_versions").exists()


@pytest.mark.requirement("C8")
def test_a_job_repeated_under_its_txn_is_applied_once(
    spark: SparkSession, uri: str, ids: Ids
) -> None:
    for _ in range(2):
        save(spark.range(10), uri, txnAppId="job", txnVersion=7)
    save(spark.range(20, 30), uri, txnAppId="job", txnVersion=6)  # in any order
    save(spark.range(10, 20), uri, txnAppId="job", txnVersion=8)
    save(spark.range(0), uri, txnAppId="job", txnVersion=9)  # no rows, and no gap
    assert ids(uri) == Counter(range(30))
    numbers = [("job", number) for number in range(5, 11)]
    assert holdfast.open_table(uri).applied(numbers) == [False, *[True] * 4, False]


def test_without_a_txn_a_repeated_job_is_a_new_job(spark: SparkSession, uri: str, ids: Ids) -> None:
    for _ in range(2):
        save(spark.range(3), uri)
    assert ids(uri) == Counter({0: 2, 1: 2, 2: 2})


def test_an_overwrite_replaces_the_rows_and_keeps_columns_and_key(
    spark: SparkSession, uri: str, ids: Ids
) -> None:
    frame = spark.range(10).selectExpr("id", "cast(id as string) as word")
    save(frame, uri, primaryKey="id")
    save(frame.where("id < 3").select("id"), uri, mode="overwrite")
    assert ids(uri) == Counter(range(3))
    schema = lance.dataset(uri).schema
    assert schema.names == ["id", "word"]
    assert not schema.field("id").nullable
    assert (schema.field("id").metadata or {}).keys() == {b"lance-schema:unenforced-primary-key"}
    assert lance.dataset(uri).to_table()["word"].null_count == 3


def test_an_overwrite_of_the_schema_has_to_be_asked_for(
    spark: SparkSession, uri: str, ids: Ids
) -> None:
    save(spark.range(10), uri)
    other = spark.range(5).selectExpr("id", "id * 2 as twice")
    with pytest.raises(Exception, match="unexpected column 'twice'"):
        save(other, uri, mode="overwrite")
    assert ids(uri) == Counter(range(10))
    save(other, uri, mode="overwrite", overwriteSchema="true")
    assert lance.dataset(uri).schema.names == ["id", "twice"]


def test_an_overwrite_under_a_txn_that_was_applied_changes_nothing(
    spark: SparkSession, uri: str, ids: Ids
) -> None:
    save(spark.range(5), uri, mode="overwrite", txnAppId="o", txnVersion=1)
    save(spark.range(5, 9), uri)
    save(spark.range(5), uri, mode="overwrite", txnAppId="o", txnVersion=1)
    assert ids(uri) == Counter(range(9))


def test_empty_frames_make_a_table_but_no_version(spark: SparkSession, uri: str) -> None:
    save(spark.range(0), uri)
    assert lance.dataset(uri).version == 1
    save(spark.range(0), uri)
    assert (lance.dataset(uri).version, lance.dataset(uri).count_rows()) == (1, 0)
    save(spark.range(5), uri)
    save(spark.range(0), uri, mode="overwrite")
    assert lance.dataset(uri).count_rows() == 0


def test_partitions_without_rows_write_no_file(spark: SparkSession, uri: str, ids: Ids) -> None:
    save(spark.range(0, 100, numPartitions=4).where("id >= 90"), uri)
    assert ids(uri) == Counter(range(90, 100))
    assert len(list(Path(uri, "data").iterdir())) == 1


def test_columns_are_added_only_when_asked(spark: SparkSession, uri: str, ids: Ids) -> None:
    save(spark.range(5), uri)
    wider = spark.range(5, 8).selectExpr("id", "cast(id as string) as word")
    with pytest.raises(Exception, match=r"unexpected column 'word'.*mergeSchema"):
        save(wider, uri)
    save(wider, uri, mergeSchema="true")
    save(spark.range(8, 9), uri)  # fewer columns fit
    assert ids(uri) == Counter(range(9))
    words = lance.dataset(uri).to_table().sort_by("id")["word"].to_pylist()
    assert words == [None] * 5 + ["5", "6", "7", None]


def test_vectors_get_their_length(spark: SparkSession, uri: str) -> None:
    frame = spark.range(4).selectExpr("id", "array(cast(id as float), 1f) as Emb")
    save(frame, uri, vectorColumns="Emb:2")
    assert lance.dataset(uri).schema.field("Emb").type == pa.list_(pa.float32(), 2)
    size: dict[str, Any] = {"emb.arrow.fixed-size-list.size": 2}
    save(frame, uri, **size)
    with pytest.raises(Exception, match="no vector of this length"):
        save(frame, uri, vectorColumns="Emb:3")
    with pytest.raises(Exception, match="every array must have 2 elements"):
        save(frame.selectExpr("id", "array(1f) as Emb"), uri)
    assert lance.dataset(uri).count_rows() == 8


def test_vectors_stay_vectors_on_the_way_to_another_table(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    frame = spark.range(4).selectExpr("id", "array(cast(id as float), 1f) as v")
    save(frame, uri, vectorColumns="v:2")
    copy = str(tmp_path / "copy.lance")
    save(spark.read.format("holdfast").load(uri), copy)
    assert lance.dataset(copy).schema.field("v").type == pa.list_(pa.float32(), 2)


def test_files_are_as_large_as_asked(spark: SparkSession, uri: str) -> None:
    save(spark.range(0, 100, numPartitions=1), uri, maxRowsPerFile=30)
    assert [f.count_rows() for f in lance.dataset(uri).get_fragments()] == [30, 30, 30, 10]


def test_a_null_in_the_key_is_refused(spark: SparkSession, uri: str) -> None:
    save(spark.range(3), uri, primaryKey="id")
    with pytest.raises(Exception, match="column 'id' may not be null"):
        save(spark.sql("select cast(null as bigint) as id"), uri)
    assert lance.dataset(uri).count_rows() == 3


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("select 'x' as id", "column 'id' is string, the table has bigint: cast it"),
        ("select 1L as ID", "unexpected column 'ID'"),
        ("select 1L as id, 2 as extra", "unexpected column 'extra'"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(
    spark: SparkSession, uri: str, frame: str, said: str
) -> None:
    save(spark.range(3), uri)
    with pytest.raises(Exception, match=said):
        save(spark.sql(frame), uri)
    assert lance.dataset(uri).version == 2


def test_numbers_that_widen_fit(spark: SparkSession, uri: str, ids: Ids) -> None:
    save(spark.range(3), uri)
    save(spark.sql("select 7 as id"), uri)
    assert ids(uri) == Counter([0, 1, 2, 7])


def test_a_plain_lance_table_is_not_written_to(spark: SparkSession, uri: str) -> None:
    lance.write_dataset(pa.table({"id": [1]}), uri)
    with pytest.raises(Exception, match="adopt it with adopt_table"):
        save(spark.range(1), uri)
    assert lance.dataset(uri).count_rows() == 1


@pytest.mark.requirement("C7")
def test_threads_write_at_once_after_activating_the_session(
    spark: SparkSession, uri: str, ids: Ids
) -> None:
    save(spark.range(0), uri, commitStoreUrl="sqlite")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            holdfast.spark.activate(spark)
            for step in range(2):
                begin = number * 20 + step * 10
                save(spark.range(begin, begin + 10), uri, txnAppId=f"w{number}", txnVersion=step)
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(error) for error in failures] == []
    assert ids(uri) == Counter(range(80))


def test_other_modes_are_refused_by_spark(spark: SparkSession, uri: str) -> None:
    frame: Any = spark.range(1)
    with pytest.raises(Exception, match="SAVE_MODE"):
        frame.write.format("holdfast").save(uri)
