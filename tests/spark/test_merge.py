"""Merging by key: one version, every key once, whoever else writes meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import holdfast
import holdfast.spark
from holdfast import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_insert,
)
from holdfast.errors import InvalidInputError, RowConflictError
from holdfast.spark import _merge, _stage
from holdfast.spark._merge import StagedUpsert
from holdfast.spark._merge_join import JoinedMerge
from holdfast.spark._merge_source import group_fragments, packed_offsets, unpacked_offsets
from spark.task_functions import same_but_dies_once

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string()), ("v", pa.list_(pa.float32(), 2))])


def rows(ids: range, text: str) -> pa.Table:
    vectors = [[1.0, 2.0]] * len(ids)
    return pa.table({"id": list(ids), "s": [text] * len(ids), "v": vectors}).cast(SCHEMA)


@pytest.fixture
def t(spark: Any, uri: str) -> Iterator[holdfast.spark.SparkTable]:
    made = holdfast.create_table(uri, SCHEMA, commit_store="sqlite")
    for start in (0, 100, 200):
        made.append(rows(range(start, start + 100), "old"))
    made.close()
    opened = holdfast.spark.table(spark, uri)
    yield opened
    opened.close()


def source(spark: Any, start: int, end: int, text: str) -> Any:
    vector = "array(cast(3 as float), cast(4 as float)) v"
    return spark.range(start, end).selectExpr("id", f"'{text}' s", vector)


def texts(uri: str) -> Counter[str]:
    return Counter(lance.dataset(uri).to_table()["s"].to_pylist())


def test_upsert(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    done = t.merge_into(source(spark, 250, 350, "new"), on="id")
    assert (done.updated, done.inserted, done.deleted, done.rows) == (50, 50, 0, 100)
    assert (done.version, done.applied, done.tries, done.txn) == (5, True, 1, None)
    assert ids(t.uri) == Counter(range(350))
    assert texts(t.uri) == {"old": 250, "new": 100}
    assert [info.operation for info in t.history(1)] == ["Update"]
    assert lance.dataset(t.uri, version=4).count_rows() == 300
    assert not list(Path(t.uri, "_holdfast/temporary").glob("*"))


def test_a_whole_fragment_is_replaced(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    assert t.merge_into(source(spark, 100, 200, "new"), on=["id"]).updated == 100
    assert ids(t.uri) == Counter(range(300))


def test_delete_matched(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    gone = spark.range(290, 310)
    done = t.merge_into(gone, on="id", when_matched="delete", when_not_matched="ignore")
    assert (done.deleted, done.rows) == (10, 10)
    assert ids(t.uri) == Counter(range(290))


def test_insert_only(spark: Any, t: holdfast.spark.SparkTable) -> None:
    done = t.merge_into(source(spark, 290, 310, "new"), on="id", when_matched="ignore")
    assert (done.updated, done.inserted) == (0, 10)
    assert texts(t.uri) == {"old": 300, "new": 10}


def test_changes_with_deletes_among_them(
    spark: Any, t: holdfast.spark.SparkTable, ids: Any
) -> None:
    changes = source(spark, 290, 310, "new").selectExpr("*", "if(id % 2 = 0, 'D', null) op")
    done = t.merge_into(changes, on="id", delete_where="op = 'D'")
    assert (done.updated, done.inserted, done.deleted) == (5, 5, 5)
    assert ids(t.uri) == Counter([*range(290), *range(291, 310, 2)])


def test_a_transaction_is_applied_once(spark: Any, t: holdfast.spark.SparkTable) -> None:
    first = t.merge_into(source(spark, 0, 10, "new"), on="id", txn=("job", 1))
    again = t.merge_into(source(spark, 0, 10, "other"), on="id", txn=("job", 1))
    assert (first.applied, again.applied, again.rows) == (True, False, 0)
    assert again.version == first.version
    assert texts(t.uri) == {"old": 290, "new": 10}


def test_a_merge_that_changes_nothing(spark: Any, t: holdfast.spark.SparkTable) -> None:
    nothing = source(spark, 0, 5, "new").where("id < 0")
    done = t.merge_into(nothing, on="id")
    assert (done.version, done.rows) == (4, 0)
    done = t.merge_into(nothing, on="id", txn=("job", 1))
    assert (done.version, done.applied) == (5, True)
    assert not t.merge_into(source(spark, 0, 5, "new"), on="id", txn=("job", 1)).applied


def test_into_an_empty_table(spark: Any, tmp_path: Path, ids: Any) -> None:
    holdfast.create_table(str(tmp_path / "e.lance"), SCHEMA, primary_key=["id"]).close()
    t = holdfast.spark.table(spark, tmp_path / "e.lance")
    assert t.merge_into(source(spark, 0, 5, "new"), on="id").inserted == 5
    assert ids(t.uri) == Counter(range(5))


def test_two_key_columns(spark: Any, t: holdfast.spark.SparkTable) -> None:
    done = t.merge_into(source(spark, 0, 10, "old"), on=["id", "s"])
    assert (done.updated, done.inserted) == (10, 0)
    done = t.merge_into(source(spark, 0, 10, "new"), on=["id", "s"])
    assert (done.updated, done.inserted) == (0, 10)


@pytest.mark.requirement("C1")
def test_a_worker_that_is_killed_meanwhile(
    spark: Any, t: holdfast.spark.SparkTable, tmp_path: Path, ids: Any
) -> None:
    from pyspark.sql.functions import lit, udf

    marker = tmp_path / "killed"
    same = udf(same_but_dies_once, "bigint", useArrow=False)
    frame = source(spark, 290, 310, "new").withColumn("id", same("id", lit(str(marker))))
    assert t.merge_into(frame, on="id").rows == 20
    assert marker.exists()
    assert ids(t.uri) == Counter(range(310))
    assert t.status().version == 5


# What is refused changes nothing


@pytest.mark.parametrize(
    ("query", "options", "text"),
    [
        ("id, 's' s, {v} FROM range(3) UNION ALL SELECT 2, 'x', {v}", {}, r"more than once.*\[2\]"),
        ("cast(null as bigint) id, 's' s, {v}", {}, "without a key"),
        ("id, 's' s, array(cast(1 as float)) v FROM range(3)", {}, "2 elements"),
        ("id, 's' s FROM range(3)", {}, "lacks columns.*v"),
        ("id, 's' s, {v}, 1 extra FROM range(3)", {}, "drop them.*extra"),
        ("id, 5 s, {v} FROM range(3)", {}, "'s' is int"),
        ("id, 's' s, {v} FROM range(3)", {"on": "key"}, "lacks.*key"),
        ("id, 's' s, {v} FROM range(3)", {"on": []}, "key columns"),
        ("id, 's' s, {v} FROM range(3)", {"on": ["id", "id"]}, "twice"),
        ("id, 's' s, {v} FROM range(3)", {"when_matched": "upsert"}, "when_matched"),
        ("id, 's' s, {v} FROM range(3)", {"when_not_matched": "x"}, "when_not_matched"),
        (
            "id, 's' s, {v} FROM range(3)",
            {"when_matched": "ignore", "when_not_matched": "ignore"},
            "nothing",
        ),
        ("id, 's' s, {v} FROM range(3)", {"txn": ""}, "transaction id"),
        ("id, 's' s, {v} FROM range(3)", {"tries": 0}, "tries"),
    ],
)
def test_what_does_not_fit_is_refused(
    spark: Any, t: holdfast.spark.SparkTable, query: str, options: dict[str, Any], text: str
) -> None:
    vector = "array(cast(1 as float), cast(1 as float)) v"
    frame = spark.sql("SELECT " + query.replace("{v}", vector))
    with pytest.raises(InvalidInputError, match=text):
        t.merge_into(frame, **{"on": "id", **options})
    assert t.status().version == 4
    assert texts(t.uri) == {"old": 300}


def test_stable_row_ids_are_refused_before_anything_is_written(spark: Any, tmp_path: Path) -> None:
    uri = str(tmp_path / "stable")
    lance.write_dataset(rows(range(3), "old"), uri, enable_stable_row_ids=True)
    holdfast.adopt_table(uri).close()
    table = holdfast.spark.table(spark, uri)
    before = sorted(path for path in Path(uri).rglob("*") if path.is_file())
    frame = spark.sql("SELECT 1L id, 's' s, array(cast(1 as float), cast(1 as float)) v")
    with pytest.raises(InvalidInputError, match="stable row ids"):
        table.merge_into(frame, on="id")
    assert sorted(path for path in Path(uri).rglob("*") if path.is_file()) == before


def test_offsets_travel_packed() -> None:
    lots = [np.array([5, 1, 9]), np.array([1, 2**31 + 7])]
    assert unpacked_offsets(packed_offsets(lots)).tolist() == [1, 5, 9, 2**31 + 7]


def test_fragments_are_read_in_groups() -> None:
    assert group_fragments({0: 10, 1: 10, 2: 500_000, 3: 1, 4: 900_000, 5: 1}) == (
        (0, 1),
        (2,),
        (3,),
        (4,),
        (5,),
    )
    assert group_fragments({}) == ()


# Other writers meanwhile


@pytest.fixture(params=["small", "staged", "joined"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take each way that a merge can be computed; a table in memory is small enough for the first.

    Tasks are processes of their own, in which nothing is patched: many rows make a source large.
    """
    if request.param == "joined":
        monkeypatch.setattr(_merge, "_KEYS_IN_MEMORY", 1)
    return str(request.param)


def large(frame: Any, way: str) -> Any:
    """Return a source of more than a task sends in its answer, unless it is to be small."""
    wide = f"repeat('x', {_stage.FEW_BYTES})"
    return frame if way == "small" else frame.selectExpr("id", f"concat(s, {wide}) s", "v")


def interrupted(monkeypatch: pytest.MonkeyPatch, *calls: Any) -> None:
    """Let one call happen each time a merge was computed."""
    real, left = _merge.SparkMerge.compute, list(calls)

    def compute(self: Any, base: Any) -> Any:
        made = real(self, base)
        if left:
            left.pop(0)()
        return made

    monkeypatch.setattr(_merge.SparkMerge, "compute", compute)


def starts(uri: str) -> Counter[str]:
    return Counter(text.rstrip("x") for text in lance.dataset(uri).to_table()["s"].to_pylist())


@pytest.mark.requirement("C1")
@pytest.mark.requirement("S3")
def test_two_merges_that_insert_the_same_keys(
    spark: Any, t: holdfast.spark.SparkTable, ids: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    other = holdfast.open_table(t.uri)
    interrupted(monkeypatch, lambda: other.merge_into(rows(range(300, 310), "first"), on="id"))
    done = t.merge_into(large(source(spark, 305, 315, "second"), way), on="id")
    assert (done.tries, done.updated, done.inserted) == (2, 5, 5)
    assert ids(t.uri) == Counter(range(315))
    assert starts(t.uri) == {"old": 300, "first": 5, "second": 10}
    assert not list(Path(t.uri, "_holdfast/temporary").glob("*"))


@pytest.mark.requirement("S3")
def test_merges_of_other_keys_of_the_same_fragments(
    spark: Any, t: holdfast.spark.SparkTable, ids: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def others() -> None:
        t.table.merge_into(rows([5, 295, 400], "first"), on="id")  # type: ignore[arg-type]
        t.table.delete("id = 6")

    interrupted(monkeypatch, others)
    done = t.merge_into(large(source(spark, 290, 295, "second"), way), on="id")
    assert done.tries == 1
    assert ids(t.uri) == Counter([*range(6), *range(7, 300), 400])
    assert starts(t.uri) == {"old": 292, "first": 3, "second": 5}


def test_a_key_that_the_table_has_twice(spark: Any, t: holdfast.spark.SparkTable, way: str) -> None:
    """Each of its rows is replaced, by a row of its own."""
    t.table.append(rows(range(5), "old"))
    done = t.merge_into(large(source(spark, 4, 6, "new"), way), on="id")
    assert (done.updated, done.inserted) == (3, 0)
    assert starts(t.uri) == {"old": 302, "new": 3}


def test_a_source_that_differs_each_time_doubles_no_key(
    spark: Any, t: holdfast.spark.SparkTable, ids: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Of a source with random keys those count that were taken first, also after a conflict."""
    frame = spark.range(20).selectExpr(
        "300 + id * 1000 + cast(rand() * 900 as bigint) id",
        "'new' s",
        "array(cast(3 as float), cast(4 as float)) v",
    )
    interrupted(monkeypatch, t.compact, lambda: t.table.append(rows(range(1), "app")))
    done = t.merge_into(large(frame, way), on="id")
    assert done.inserted == 20
    found = ids(t.uri)
    assert sum(found.values()) == 320 + (1 if done.tries > 1 else 0)
    assert {key: count for key, count in found.items() if count > 1 and key >= 300} == {}


def test_clauses_in_sparks_sql(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    changes = spark.range(295, 305).selectExpr("id", "if(id % 2 = 0, 'D', 'U') op", "id * 2 n")
    done = t.merge_into(
        changes,
        on="id",
        clauses=[
            when_matched_delete(where="source.op = 'D'"),
            when_matched_update({"s": "concat(target.s, '-', cast(source.n as string))"}),
            when_not_matched_insert({"s": "upper(source.op)"}, where="source.op = 'U'"),
        ],
    )
    assert (done.updated, done.deleted, done.inserted) == (3, 2, 2)
    assert ids(t.uri) == Counter([*range(296), 297, 299, 301, 303])
    found = lance.dataset(t.uri).to_table(filter="id >= 295").to_pylist()
    assert {row["id"]: (row["s"], row["v"]) for row in found} == {
        295: ("old-590", [1.0, 2.0]),
        297: ("old-594", [1.0, 2.0]),
        299: ("old-598", [1.0, 2.0]),
        301: ("U", None),
        303: ("U", None),
    }


def test_rows_that_the_source_lacks(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    done = t.merge_into(
        source(spark, 0, 10, "new"),
        on="id",
        clauses=[
            when_matched_update(where="target.id < 5"),
            when_not_matched_by_source_delete(where="target.id >= 250"),
        ],
    )
    assert (done.updated, done.deleted) == (5, 50)
    assert ids(t.uri) == Counter(range(250))
    assert texts(t.uri) == {"old": 245, "new": 5}


def test_update_delete_replace_restore(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    assert t.update("id < 10", {"s": "'new'"}, txn=("u", 1)).updated == 10
    assert not t.update("id < 10", {"s": "'x'"}, txn=("u", 1)).applied
    assert t.delete("s = 'new'").deleted == 10
    done = t.replace_where(source(spark, 290, 295, "day"), "id >= 290", txn=("r", 1))
    assert (done.deleted, done.inserted) == (10, 5)
    assert not t.replace_where(source(spark, 290, 291, "x"), "id >= 290", txn=("r", 1)).applied
    with pytest.raises(InvalidInputError, match="do not meet the condition"):
        t.replace_where(source(spark, 280, 295, "x"), "id >= 290")
    assert ids(t.uri) == Counter(range(10, 295))
    assert t.restore(4, txn=("undo", 1)).applied
    assert texts(t.uri) == {"old": 300}


def test_each_way_is_taken(
    spark: Any, t: holdfast.spark.SparkTable, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    ways: list[str] = []
    real = _merge.SparkMerge._choose_change

    def chosen(self: Any, base: Any) -> Any:
        made = real(self, base)
        ways.append(type(made).__name__)
        return made

    monkeypatch.setattr(_merge.SparkMerge, "_choose_change", chosen)
    t.merge_into(large(source(spark, 0, 5, "new"), way), on="id")
    kinds = {"small": "DataMerge", "staged": StagedUpsert.__name__, "joined": JoinedMerge.__name__}
    assert ways == [kinds[way]]


def test_appends_of_other_keys_do_not_make_it_begin_anew(
    spark: Any, t: holdfast.spark.SparkTable, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others() -> None:
        t.table.append(rows(range(900, 910), "app"))
        t.table.dataset().create_scalar_index("id", "BTREE")

    interrupted(monkeypatch, others)
    done = t.merge_into(source(spark, 290, 310, "new"), on="id")
    assert done.tries == 1
    assert ids(t.uri) == Counter([*range(310), *range(900, 910)])


def test_an_append_of_the_same_key_makes_it_begin_anew(
    spark: Any, t: holdfast.spark.SparkTable, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, lambda: t.table.append(rows(range(305, 306), "app")))
    done = t.merge_into(source(spark, 290, 310, "new"), on="id")
    assert (done.tries, done.updated, done.inserted) == (2, 11, 9)
    assert ids(t.uri) == Counter(range(310))


def test_a_compaction_makes_it_begin_anew(
    spark: Any, t: holdfast.spark.SparkTable, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row addresses are others afterwards."""
    interrupted(monkeypatch, t.compact)
    done = t.merge_into(source(spark, 290, 310, "new"), on="id")
    assert (done.tries, done.updated) == (2, 10)
    assert ids(t.uri) == Counter(range(310))


def test_it_gives_up_in_the_end(
    spark: Any, t: holdfast.spark.SparkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = [lambda: t.table.append(rows(range(305, 306), "app"))] * 2
    interrupted(monkeypatch, *again)
    with pytest.raises(RowConflictError, match="about the same rows"):
        t.merge_into(source(spark, 290, 310, "new"), on="id", tries=2)
    assert texts(t.uri) == {"old": 300, "app": 2}


@pytest.mark.requirement("C1")
def test_merges_and_appends_at_once(spark: Any, t: holdfast.spark.SparkTable, ids: Any) -> None:
    failures: list[BaseException] = []

    def merge(number: int) -> None:
        try:
            t.merge_into(source(spark, 400, 450, f"m{number}"), on="id", tries=20)
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=merge, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for number in range(5):
        t.table.append(rows(range(1000 + number, 1001 + number), "app"))
    for thread in threads:
        thread.join()
    assert [str(error) for error in failures] == []
    assert ids(t.uri) == Counter([*range(300), *range(400, 450), *range(1000, 1005)])
    assert {info.foreign for info in t.history()} == {False}
