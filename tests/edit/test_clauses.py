"""Clauses of a merge: conditions, several of a kind, some columns, rows that the source lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from holdfast.errors import InvalidInputError

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("n", pa.int32()),
        pa.field("s", pa.string()),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("d", pa.dictionary(pa.int32(), pa.string())),
    ]
)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    made = holdfast.create_table(
        tmp_path / "t.lance", SCHEMA, primary_key=["k"], commit_store="sqlite"
    )
    for start in (0, 5):
        made.append(
            [{"k": k, "n": k, "s": "old", "v": [k, k], "d": "x"} for k in range(start, start + 5)]
        )
    yield made
    made.close()


def content(table: Any) -> dict[int, Any]:
    found = lance.dataset(table.uri).to_table().to_pylist()
    assert len({row["k"] for row in found}) == len(found), "a key is there twice"
    return {row["k"]: (row["n"], row["s"], row["d"]) for row in found}


def source(*rows: tuple[int, int, str | None]) -> pa.Table:
    made = [{"id": k, "amount": n, "op": op} for k, n, op in rows]
    return pa.Table.from_pylist(made).rename_columns({"id": "k"})


def test_the_first_clause_whose_condition_is_true_counts(table: Any) -> None:
    done = table.merge_into(
        source(
            (1, 10, "D"), (2, 20, "add"), (3, 30, None), (4, 40, "D"), (50, 5, "add"), (51, 5, "D")
        ),
        clauses=[
            when_matched_delete(where="source.op = 'D' AND target.n > 1"),
            when_matched_update({"n": "target.n + source.amount"}, where="source.op = 'add'"),
            when_matched_update({"s": "'other'", "d": "concat(target.s, '!')"}),
            when_not_matched_insert({"n": "source.amount", "s": "'in'"}, where="source.op != 'D'"),
        ],
    )  # fmt: skip
    assert (done.updated, done.deleted, done.inserted) == (3, 1, 1)
    found = content(table)
    assert found[1] == (1, "other", "old!")
    assert found[2] == (22, "old", "x")
    assert found[3] == (3, "other", "old!")
    assert found[50] == (5, "in", None)
    assert (4 in found, 51 in found) == (False, False)
    row = lance.dataset(table.uri).to_table(filter="k = 2").to_pylist()[0]
    assert row["v"] == [2.0, 2.0]


def test_whole_rows_under_a_condition(table: Any) -> None:
    rows = [{"k": k, "n": 100, "s": "new", "v": [0, 0], "d": "y", "at": k} for k in (1, 2, 77)]
    done = table.merge_into(
        rows,
        clauses=[when_matched_update(where="source.at > 1"), when_not_matched_insert()],
    )
    assert (done.updated, done.inserted) == (1, 1)
    found = content(table)
    assert (found[1], found[2], found[77]) == (
        (1, "old", "x"),
        (100, "new", "y"),
        (100, "new", "y"),
    )


def test_rows_that_the_source_lacks(table: Any) -> None:
    done = table.merge_into(
        source((1, 0, None), (2, 0, None)),
        clauses=[
            when_matched_update({"s": "'here'"}),
            when_not_matched_by_source_delete(where="target.k >= 8"),
            when_not_matched_by_source_update({"s": "'gone'", "n": "target.n * 2"}),
        ],
    )
    assert (done.updated, done.deleted) == (8, 2)
    found = content(table)
    assert {k: found[k][:2] for k in (0, 1, 2, 7)} == {
        0: (0, "gone"), 1: (1, "here"), 2: (2, "here"), 7: (14, "gone"),
    }  # fmt: skip
    assert sorted(found) == list(range(8))


def test_only_what_the_source_has_stays(table: Any) -> None:
    clauses = [when_not_matched_by_source_delete()]
    assert table.merge_into(source((1, 0, None)), clauses=clauses).deleted == 9
    assert list(content(table)) == [1]


def test_a_condition_that_names_no_column_of_the_table(tmp_path: Path) -> None:
    """Nothing is read of rows that no clause looks at."""
    schema = pa.schema([pa.field("key", pa.int64()), pa.field("qty", pa.int64())])
    table = holdfast.create_table(tmp_path / "t", schema, commit_store="sqlite")
    table.append([{"key": 1, "qty": 1}, {"key": 2, "qty": 2}])
    rows = [{"key": 1, "qty": 5, "op": "D"}, {"key": 2, "qty": 5, "op": "U"}]
    done = table.merge_into(rows, on="key", delete_where="op = 'D'")
    assert (done.updated, done.deleted) == (1, 1)
    done = table.merge_into(
        [{"key": 2, "z": 1}], on="key", clauses=[when_matched_delete(where="1 = 1")]
    )
    assert done.deleted == 1


REFUSED: list[tuple[Any, str]] = [
    (lambda: [when_matched_update({"k": "5"})], "key does not change"),
    (lambda: [when_not_matched_insert({"k": "5"})], "key does not change"),
    (lambda: [when_matched_update({"z": "5"})], "lacks.*z"),
    (lambda: [when_matched_update()], "lacks columns.*d, n, s, v"),
    (lambda: [when_matched_update({"n": "nope.x"})], "source.x and target.x"),
    (lambda: [when_matched_delete(where="amount > 1")], "source.x and target.x"),
    (lambda: [when_matched_update({"n": "source.op"})], "do not fit its column"),
    (lambda: [when_matched_delete(where=" ")], "condition of a clause"),
    (lambda: [when_matched_update({"n": 5})], "given as text"),  # type: ignore[dict-item]
    (lambda: [when_matched_update({})], "one at least"),
    (lambda: ["delete"], "clauses are what"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_no_clause_is_refused(table: Any, number: int) -> None:
    make, text = REFUSED[number]
    with pytest.raises(InvalidInputError, match=text):
        table.merge_into(source((1, 1, "x"), (77, 1, "x")), clauses=make())
    assert table.status().version == 3


def test_both_ways_to_say_it_are_refused(table: Any) -> None:
    with pytest.raises(InvalidInputError, match="not both"):
        table.merge_into(
            source((1, 1, "x")), clauses=[when_matched_delete()], when_matched="delete"
        )


def test_a_missing_value_of_a_column_that_is_never_null_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    table = holdfast.create_table(tmp_path / "t", schema, commit_store="sqlite")
    table.append([{"k": 1, "n": 1}])
    with pytest.raises(InvalidInputError, match="n"):
        table.merge_into(
            [{"k": 2, "m": 1}], on="k", clauses=[when_not_matched_insert({"k": "source.k"})]
        )
