"""Update, delete, replace, restore and merge from plain Python: one version each, applied once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import InvalidInputError, NotFoundError

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("n", pa.int32()),
        pa.field("s", pa.string()),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("at", pa.struct([pa.field("day", pa.int64()), pa.field("note", pa.string())])),
    ]
)


def rows(keys: Any, text: str, n: int = 0) -> pa.Table:
    made = [
        {"k": k, "n": n, "s": text, "v": [1.0, 2.0], "at": {"day": k % 7, "note": text}}
        for k in keys
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA)


@pytest.fixture(params=["conditional", "commit-store"])
def arbiter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def table(arbiter: str, tmp_path: Path) -> Any:
    store = "sqlite" if arbiter == "commit-store" else None
    made = holdfast.create_table(
        tmp_path / "t.lance", SCHEMA, primary_key=["k"], commit_store=store
    )
    for start in (0, 10, 20):
        made.append(rows(range(start, start + 10), "old"))
    yield made
    made.close()


def content(table: Any) -> dict[int, tuple[int, str]]:
    """Return the table as stock Lance reads it."""
    found = lance.dataset(table.uri).to_table(columns=["k", "n", "s"]).to_pylist()
    assert len({row["k"] for row in found}) == len(found), "a key is there twice"
    return {row["k"]: (row["n"], row["s"]) for row in found}


def texts(table: Any) -> Counter[str]:
    return Counter(text for _, text in content(table).values())


# Update, delete, replace, restore


@pytest.mark.requirement("S3")
def test_update(table: Any) -> None:
    done = table.update("k >= 8 AND k < 12", {"n": "n + k", "s": "'new'"}, txn=("job", 1))
    assert (done.version, done.updated, done.rows, done.applied, done.tries) == (5, 4, 4, True, 1)
    found = content(table)
    assert {k: found[k] for k in range(7, 13)} == {
        7: (0, "old"), 8: (8, "new"), 9: (9, "new"), 10: (10, "new"), 11: (11, "new"),
        12: (0, "old"),
    }  # fmt: skip
    again = table.update("true", {"n": "99"}, txn=("job", 1))
    assert (again.applied, again.rows, again.version) == (False, 0, 5)
    assert [info.operation for info in table.history(1)] == ["Update"]
    row = lance.dataset(table.uri).to_table(filter="k = 8").to_pylist()[0]
    assert (row["v"], row["at"]) == ([1.0, 2.0], {"day": 1, "note": "old"})


def test_update_of_all_rows_and_of_none(table: Any) -> None:
    assert table.update(None, {"s": "concat(s, '!')"}).updated == 30
    assert texts(table) == {"old!": 30}
    done = table.update("k > 99", {"s": "'x'"})
    assert (done.version, done.rows) == (5, 0)
    assert table.update("k > 99", {"s": "'x'"}, txn="nothing").version == 6
    assert not table.update(None, {"s": "'x'"}, txn="nothing").applied


def test_update_of_a_struct_column_by_its_fields(table: Any) -> None:
    table.update("at.day = 3", {"n": "cast(at.day + 1 as int)", "s": "at.note"})
    assert {n for n, _ in content(table).values()} == {0, 4}


@pytest.mark.requirement("S3")
def test_delete(table: Any) -> None:
    done = table.delete("k < 15", txn=("job", 1))
    assert (done.version, done.deleted, done.applied) == (5, 15, True)
    assert sorted(content(table)) == list(range(15, 30))
    assert [info.operation for info in table.history(1)] == ["Delete"]
    assert not table.delete("true", txn=("job", 1)).applied
    assert table.delete("true").deleted == 15
    assert content(table) == {}


def test_delete_of_rows_whose_condition_is_null_leaves_them(table: Any) -> None:
    table.update("k = 3", {"s": "NULL"})
    assert table.delete("s = 'old'").deleted == 29
    assert list(content(table)) == [3]


@pytest.mark.requirement("S3")
def test_replace_where(table: Any) -> None:
    new = rows([2, 3, 40], "new", n=7)
    done = table.replace_where(new, "k < 10 OR n = 7", txn=("day", 1))
    assert (done.version, done.deleted, done.inserted) == (5, 10, 3)
    assert texts(table) == {"old": 20, "new": 3}
    assert not table.replace_where(new, "k < 10 OR n = 7", txn=("day", 1)).applied
    assert table.replace_where([], "n = 7").deleted == 3
    with pytest.raises(InvalidInputError, match="do not meet the condition"):
        table.replace_where(rows([1, 50], "x"), "k < 10")
    assert texts(table) == {"old": 20}


@pytest.mark.requirement("S3")
def test_restore(table: Any) -> None:
    table.update(None, {"s": "'new'"}, txn=("job", 1))
    done = table.restore(4, txn=("undo", 1))
    assert (done.version, done.applied) == (6, True)
    assert texts(table) == {"old": 30}
    table.delete("true")
    again = table.restore(4, txn=("undo", 1))
    assert (again.applied, again.version) == (False, 7)
    assert content(table) == {}
    assert table.update(None, {"s": "'x'"}, txn=("job", 1)).applied  # taken back with its rows
    with pytest.raises(NotFoundError):
        table.restore(99)
    with pytest.raises(InvalidInputError):
        table.restore(0)


# Merge


@pytest.mark.requirement("S3")
def test_merge(table: Any) -> None:
    done = table.merge_into(rows(range(25, 35), "new"), txn=("job", 1))
    assert (done.updated, done.inserted, done.deleted, done.rows) == (5, 5, 0, 10)
    assert texts(table) == {"old": 25, "new": 10}
    again = table.merge_into(rows(range(9), "x"), txn=("job", 1))
    assert (again.applied, again.version) == (False, done.version)
    assert table.merge_into(rows([], "x")).version == done.version


def test_merge_of_dicts_with_deletes_among_them(table: Any) -> None:
    changes = [
        {"k": 1, "n": 5, "s": "new", "v": [0.0, 0.0], "at": None, "op": "U"},
        {"k": 2, "n": 5, "s": "new", "v": [0.0, 0.0], "at": None, "op": "D"},
        {"k": 77, "n": 5, "s": "new", "v": [0.0, 0.0], "at": None, "op": "D"},
        {"k": 78, "n": 5, "s": "new", "v": [0.0, 0.0], "at": None, "op": None},
    ]
    done = table.merge_into(changes, "k", delete_where="op = 'D'")
    assert (done.updated, done.inserted, done.deleted) == (1, 1, 1)
    found = content(table)
    assert (found[1], found[78], 2 in found, 77 in found) == ((5, "new"), (5, "new"), False, False)


def test_delete_or_insert_only(table: Any) -> None:
    gone = pa.table({"k": pa.array(range(25, 35), pa.int64())})
    done = table.merge_into(gone, when_matched="delete", when_not_matched="ignore")
    assert (done.deleted, done.rows) == (5, 5)
    done = table.merge_into(rows(range(20, 30), "new"), when_matched="ignore")
    assert (done.updated, done.inserted) == (0, 5)
    assert texts(table) == {"old": 25, "new": 5}


def test_a_key_that_the_table_has_twice_is_replaced_twice(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", SCHEMA, commit_store="sqlite")
    for _ in range(2):
        table.append(rows(range(3), "old"))
    assert table.merge_into(rows([1], "new"), on="k").updated == 2
    found = lance.dataset(table.uri).to_table()["s"].to_pylist()
    assert Counter(found) == {"old": 4, "new": 2}
    with pytest.raises(InvalidInputError, match="no primary key"):
        table.merge_into(rows([1], "new"))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["a", "b", "c", "d"]),
        (pa.large_string(), ["a", "b", "c", "d"]),
        (pa.binary(), [b"a", b"b", b"c", b"d"]),
        (pa.bool_(), [True, False]),
        (pa.uint64(), [0, 1, 2**64 - 1, 2**63]),
        (pa.int64(), [-(2**63), 0, 2**63 - 1, -1]),
        (pa.float64(), [0.0, 1.5, float("inf"), -1.0]),
        (pa.date32(), [1, 2, 3, 4]),
        (pa.timestamp("us", "UTC"), [1, 2, 3, 4]),
        (pa.decimal128(10, 2), None),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "c", "d"]),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_keys_of_many_types(tmp_path: Path, kind: Any, values: Any, several: bool) -> None:
    import decimal

    made = values or [decimal.Decimal(n) / 4 for n in range(4)]
    keys = pa.array(made, kind)
    data = pa.table({"k": keys, "l": pa.array(["x"] * len(keys)), "s": ["old"] * len(keys)})
    table = holdfast.create_table(tmp_path / "t", data.schema, commit_store="sqlite")
    table.append(data)
    on = ["k", "l"] if several else "k"
    half = data.slice(0, len(keys) // 2).set_column(2, "s", pa.array(["new"] * (len(keys) // 2)))
    done = table.merge_into(half, on=on)
    assert (done.updated, done.inserted) == (len(half), 0)
    found = Counter(lance.dataset(table.uri).to_table()["s"].to_pylist())
    assert found == {"old": len(keys) - len(half), "new": len(half)}


def test_zeros_are_one_key_and_so_is_nan(tmp_path: Path) -> None:
    data = pa.table({"k": pa.array([0.0, float("nan"), None]), "s": ["old"] * 3})
    table = holdfast.create_table(tmp_path / "t", data.schema, commit_store="sqlite")
    table.append(data)
    other = pa.table({"k": pa.array([-0.0, -float("nan")]), "s": ["new"] * 2})
    assert table.merge_into(other, on="k").updated == 2
    with pytest.raises(InvalidInputError, match="more than once"):
        table.merge_into(pa.table({"k": pa.array([0.0, -0.0]), "s": ["a", "b"]}), on="k")


@pytest.mark.parametrize("kind", [pa.float64(), pa.int64(), pa.string()])
def test_few_keys_beside_an_index(tmp_path: Path, kind: Any) -> None:
    """A BTREE is asked where it pays; of floats, keys are bits, which it does not know."""
    keys = pa.array(range(1000), pa.int64()).cast(kind)
    data = pa.table({"k": keys, "s": pa.array(["old"] * 1000)})
    table = holdfast.create_table(tmp_path / "t", data.schema, commit_store="sqlite")
    table.append(data)
    table.dataset().create_scalar_index("k", "BTREE")
    done = table.merge_into(data.slice(7, 1), on="k")
    assert (done.updated, done.inserted) == (1, 0)


# What is refused changes nothing


REFUSED: list[tuple[Any, str]] = [
    (lambda t: t.merge_into(rows([1, 2, 2], "x")), r"more than once.*\[2\]"),
    (lambda t: t.merge_into([{"k": None, "n": 1, "s": "", "v": [0, 0], "at": None}]), "null"),
    (lambda t: t.merge_into(pa.table({"k": [1]})), "lacks columns.*at, n, s, v"),
    (lambda t: t.merge_into(rows([1], "x").append_column("z", [[1]])), "drop them.*z"),
    (lambda t: t.merge_into(rows([1], "x"), on="z"), "lacks.*z"),
    (lambda t: t.merge_into(rows([1], "x"), on=[]), "key columns"),
    (lambda t: t.merge_into(rows([1], "x"), on=["k", "k"]), "twice"),
    (lambda t: t.merge_into(rows([1], "x"), when_matched="upsert"), "when_matched"),
    (lambda t: t.merge_into(rows([1], "x"), when_not_matched="x"), "when_not_matched"),
    (
        lambda t: t.merge_into(rows([1], "x"), when_matched="ignore", when_not_matched="ignore"),
        "nothing",
    ),
    (lambda t: t.merge_into(rows([1], "x"), delete_where="nope = 1"), "nope"),
    (lambda t: t.merge_into(rows([1], "x"), txn=""), "transaction id"),
    (lambda t: t.merge_into(rows([1], "x"), tries=0), "tries"),
    (lambda t: t.merge_into(7), "data is"),
    (lambda t: t.update("k = 1", {}), "set is"),
    (lambda t: t.update("k = 1", {"n": 5}), "given as text"),
    (lambda t: t.update("k = 1", {"z": "5"}), "lacks.*z"),
    (lambda t: t.update("k = 1", {"k": "5"}), "key does not change"),
    (lambda t: t.update("k = 1", {"n": "'word'"}), "do not fit its column"),
    (lambda t: t.update("k = 1", {"n": "99999999999"}), "do not fit its column"),
    (lambda t: t.update("nope = 1", {"n": "5"}), "nope"),
    (lambda t: t.update(" ", {"n": "5"}), "condition is SQL"),
    (lambda t: t.delete(""), "condition is SQL"),
    (lambda t: t.delete(None), "condition is SQL"),
    (lambda t: t.delete("k ="), "refused|understand|fit|read"),
    (lambda t: t.replace_where(rows([1], "x"), ""), "condition is SQL"),
]


@pytest.mark.parametrize("arbiter", ["commit-store"])
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_does_not_fit_is_refused(table: Any, number: int) -> None:
    call, text = REFUSED[number]
    with pytest.raises(InvalidInputError, match=text):
        call(table)
    assert table.status().version == 4
    assert texts(table) == {"old": 30}


_CUT = [
    "k < 5 adn n = 7",
    "k < 5; n = 7",
    "k < 5, n = 7",
    "k < 5 limit 1",
    "k < 5) and (n = 7",
    "k < 5) -- (",
]


@pytest.mark.parametrize("condition", _CUT)
def test_a_condition_counts_to_its_end_or_not_at_all(table: Any, condition: str) -> None:
    """Lance takes the first expression and drops the rest, which here is `k < 5`."""
    before = content(table)
    if condition != "k < 5) -- (":
        assert lance.dataset(table.uri).count_rows(condition) == 5, "Lance reads to the end now"
    with table.claim_writer("unsharded") as writer:
        writer.put(rows([1], "log"))
        reads: list[Callable[[], object]] = [
            lambda: table.count(condition),
            lambda: table.scan(filter=condition).read_all(),
            lambda: table.to_table(filter=condition, freshness="base"),
            lambda: table.nearest("v", [1.0, 2.0], filter=condition),
            lambda: writer.to_table(filter=condition),
        ]
        for read in reads:
            with pytest.raises(InvalidInputError):
                read()
    table.merge_log()
    before[1] = (0, "log")
    changes: list[Callable[[], object]] = [
        lambda: table.delete(condition),
        lambda: table.update(condition, {"n": "1"}),
        lambda: table.replace_where(rows([3], "new", 7), condition),
        lambda: table.merge_into(rows([3], "new", 7), delete_where=condition),
        lambda: table.merge_into(
            rows([3], "new", 7),
            clauses=[holdfast.when_matched_delete(where=condition.replace("k", "source.k"))],
        ),
        lambda: table.update("k = 3", {"n": condition.replace("k < 5", "n + 1")}),
    ]
    for change in changes:
        with pytest.raises(InvalidInputError):
            change()
    assert content(table) == before


def test_brackets_and_comments_inside_a_condition_are_read(table: Any) -> None:
    assert table.count("(k < 5) AND (s = 'old')") == 5
    assert table.count("k < 5 -- and no more)") == 5
    assert table.count("k < 5 /* ) */ AND s <> ')'") == 5
    assert table.delete("k IN (1, 2) OR s = 'it''s :)'").deleted == 2
    assert table.update("k = 3", {"n": "(n + 1) * 2"}).updated == 1
    assert content(table)[3] == (2, "old")


def test_arguments_of_other_types_are_refused(table: Any) -> None:
    wrong: Any = 5
    calls: list[Callable[[], object]] = [
        lambda: table.count(wrong),
        lambda: table.history("x"),
        lambda: table.merge_into(rows([1], "new"), wrong),
        lambda: table.delete("true", tries="x"),
        lambda: table.claim_writer(wrong),
        lambda: table.claim_writer(None),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError):
            call()


def test_stable_row_ids_and_blobs_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "stable")
    lance.write_dataset(rows(range(3), "old"), uri, enable_stable_row_ids=True)
    stable = holdfast.adopt_table(uri)
    with pytest.raises(InvalidInputError, match="stable row ids"):
        stable.update("true", {"s": "'x'"})
    with pytest.raises(InvalidInputError, match="stable row ids"):
        stable.merge_into(rows([1], "x"), on="k")
    assert stable.delete("k = 1").deleted == 1
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table(
        {"k": [1], "b": pa.array([b"x"], pa.large_binary())},
        schema=pa.schema([pa.field("k", pa.int64()), blob]),
    )
    blobs = holdfast.create_table(tmp_path / "blobs", data.schema, commit_store="sqlite")
    blobs.append(data)
    with pytest.raises(InvalidInputError, match="blobs"):
        blobs.update("true", {"k": "5"})
    assert blobs.delete("k = 1").deleted == 1
