"""Rows in memory answer as a plain list of rows would."""

from __future__ import annotations

from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.formats._sstable import TOMBSTONE
from holdfast.memtable import IndexConfig, MemTable, Reading
from holdfast.memtable._filter import find_matching
from holdfast.memtable._parts import FAN

pytestmark = pytest.mark.requirement("W12")

VERSION = "2.1"
KINDS: dict[str, tuple[list[pa.Field], Any]] = {
    "int64": ([pa.field("k", pa.int64(), nullable=False)], st.integers(-3, 3)),
    "uint64": (
        [pa.field("k", pa.uint64(), nullable=False)],
        st.sampled_from([0, 1, 2**63, 2**64 - 1]),
    ),
    "utf8": ([pa.field("k", pa.string(), nullable=False)], st.text("ab\x00", max_size=2)),
    "binary": ([pa.field("k", pa.binary(), nullable=False)], st.binary(max_size=1)),
    "bool": ([pa.field("k", pa.bool_(), nullable=False)], st.booleans()),
    "composite": (
        [pa.field("k", pa.string(), nullable=False), pa.field("l", pa.int32(), nullable=False)],
        st.tuples(st.sampled_from(["", "a"]), st.integers(-1, 1)),
    ),
}


def schemas(kind: str) -> tuple[pa.Schema, pa.Schema, list[str]]:
    """Return the columns, the same with tombstones, and the key."""
    fields, _ = KINDS[kind]
    columns = pa.schema([*fields, pa.field("v", pa.int64())])
    stored = pa.schema([*columns, pa.field(TOMBSTONE, pa.bool_(), nullable=False)])
    return columns, stored, [field.name for field in fields]


def as_key(kind: str, key: Any) -> dict[str, Any]:
    return {"k": key[0], "l": key[1]} if kind == "composite" else {"k": key}


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_newest_rows_equal_a_dictionary(kind: str, data: st.DataObject) -> None:
    columns, stored, keys = schemas(kind)
    one = st.tuples(KINDS[kind][1], st.integers(0, 99), st.booleans())
    entries = data.draw(st.lists(st.lists(one, min_size=1, max_size=5), max_size=3 * FAN))
    cut = data.draw(st.integers(0, len(entries)))
    deferred = data.draw(st.sampled_from([0, 3, 1000]))
    tables = [MemTable(n, stored, keys, deferred_rows=deferred) for n in (1, 2)]
    model: dict[Any, int] = {}
    for position, entry in enumerate(entries):
        rows = [
            {**as_key(kind, key), "v": None if gone else v, TOMBSTONE: gone}
            for key, v, gone in entry
        ]
        table = tables[position >= cut]
        table.add(pa.Table.from_pylist(rows, schema=stored).to_batches(), position)
        for key, v, gone in entry:
            model.pop(key, None)
            if not gone:
                model[key] = v

    reading = Reading(columns, keys, (), VERSION, 10)
    found = reading.scan(tables, None, None, None).to_pylist()
    expected = [{**as_key(kind, key), "v": v} for key, v in model.items()]
    assert sorted(found, key=str) == sorted(expected, key=str)

    asked = data.draw(st.lists(KINDS[kind][1], max_size=4))
    wanted = pa.Table.from_pylist(
        [as_key(kind, key) for key in asked], schema=pa.schema(KINDS[kind][0])
    )
    rows = reading.lookup(tables, wanted, None).to_pylist()
    assert rows == [{**as_key(kind, key), "v": model[key]} for key in asked if key in model]

    half = tables[0].newest_rows().to_pylist()
    assert len({tuple(row[name] for name in keys) for row in half}) == len(half)


def test_codes_that_collide_do_not_mix_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash only says where to look: with one code for all, answers stay the same."""
    from holdfast.memtable import _parts

    monkeypatch.setattr(
        _parts.KeyCodes, "of", lambda _, columns: np.zeros(len(columns[0]), np.int64)
    )
    columns, stored, keys = schemas("utf8")
    table = MemTable(1, stored, keys)
    for position, names in enumerate((["a", "b"], ["b", "c"], ["a", "a"])):
        rows = [{"k": name, "v": position, TOMBSTONE: False} for name in names]
        table.add(pa.Table.from_pylist(rows, schema=stored).to_batches(), position)
    found = Reading(columns, keys, (), VERSION, 10).scan([table], None, None, None).to_pylist()
    assert {row["k"]: row["v"] for row in found} == {"a": 2, "b": 1, "c": 1}
    assert len(found) == 3


def test_a_slice_does_not_keep_its_whole_table_in_memory() -> None:
    _, stored, keys = schemas("int64")
    whole = pa.table(
        {"k": np.arange(100_000), "v": np.arange(100_000), TOMBSTONE: np.zeros(100_000, bool)},
        schema=stored,
    )
    table = MemTable(1, stored, keys)
    table.add(whole.slice(5, 3).to_batches(), 1)
    (batch,) = table.snapshot().rows.to_batches()
    assert batch.get_total_buffer_size() < 10_000


def test_a_snapshot_does_not_change() -> None:
    _, stored, keys = schemas("int64")
    table = MemTable(1, stored, keys)

    def add(v: int) -> None:
        rows = [{"k": 1, "v": v, TOMBSTONE: False}]
        table.add(pa.Table.from_pylist(rows, schema=stored).to_batches(), v)

    add(1)
    before = table.snapshot()
    for v in range(2, 30):
        add(v)
    assert before.rows.filter(pa.array(before.live())).to_pylist()[0]["v"] == 1


FILTERS = [
    "n > 1",
    "n = NULL",
    "n IS NULL",
    "NOT (n > 1)",
    "s LIKE 'a%'",
    "s NOT LIKE '%b'",
    "s LIKE 'A%'",
    "lower(s) LIKE 'a_'",
    "cast(s as int) = 12",
    "cast(n as string) = '2'",
    "n IN (1, 3) OR s = ''",
    "n BETWEEN 1 AND 2 AND f < 0.5",
    "d > date '2020-01-02'",
    "f != f",
    "st.x = 1",
    "`odd name` = 'q'",
    "array_has(tags, 'x')",
    "true",
    "n / 0 > 1",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_filters_mean_what_they_mean_on_a_table(tmp_path: Any, condition: str) -> None:
    rows = pa.table(
        {
            "n": pa.array([1, 2, None, 3], pa.int64()),
            "s": ["ab", "12", None, "Ax"],
            "f": [0.25, float("nan"), None, 1.0],
            "d": pa.array([18262, 18263, None, 18264], pa.date32()),
            "st": [{"x": 1}, {"x": 2}, None, {"x": None}],
            "odd name": ["q", "r", None, "q"],
            "tags": [["x"], [], None, ["y", "x"]],
        }
    )
    dataset = lance.write_dataset(rows, str(tmp_path / "t"))
    try:
        expected = dataset.to_table(filter=condition, with_row_id=True)["_rowid"].to_pylist()
    except Exception:  # noqa: BLE001 - then ours must refuse it, too
        with pytest.raises(InvalidInputError):
            find_matching(rows, condition, VERSION)
        return
    assert find_matching(rows, condition, VERSION).tolist() == sorted(expected)


@pytest.mark.parametrize("condition", ["", "n >", "nothing = 1", "n = 'a' +", "; drop table t"])
def test_a_filter_that_is_none_is_refused(condition: str) -> None:
    with pytest.raises(InvalidInputError):
        find_matching(pa.table({"n": [1]}), condition, VERSION)


TEXT = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("s", pa.string()),
        pa.field("vec", pa.list_(pa.float32(), 3)),
    ]
)
STORED = pa.schema([*TEXT, pa.field(TOMBSTONE, pa.bool_(), nullable=False)])
words = st.lists(st.sampled_from(["apple", "pear", "plum"]), max_size=4).map(" ".join)
vectors = st.lists(st.integers(-4, 4).map(float), min_size=3, max_size=3)


def filled(entries: list[list[tuple[int, Any, Any]]]) -> tuple[MemTable, dict[int, Any]]:
    table = MemTable(1, STORED, ["k"])
    model: dict[int, Any] = {}
    for position, entry in enumerate(entries):
        rows = [{"k": k, "s": s, "vec": v, TOMBSTONE: s is None} for k, s, v in entry]
        table.add(pa.Table.from_pylist(rows, schema=STORED).to_batches(), position)
        for k, s, v in entry:
            model.pop(k, None)
            if s is not None:
                model[k] = (s, v)
    return table, model


one_text = st.tuples(st.integers(0, 9), st.none() | words, st.none() | vectors)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(one_text, min_size=1, max_size=4), min_size=1, max_size=6),
    st.lists(st.lists(one_text, min_size=1, max_size=4), max_size=4),
    st.sampled_from(["apple", "plum", "apple pear", "cherry"]),
)
def test_text_matches_equal_brute_force(
    entries: list[list[tuple[int, Any, Any]]],
    later: list[list[tuple[int, Any, Any]]],
    query: str,
) -> None:
    table, model = filled(entries)
    reading = Reading(TEXT, ["k"], (IndexConfig(column="s", kind="text"),), VERSION, 3)

    def found() -> set[int]:
        rows = reading.search([table], "s", query, columns=None, limit=None)
        scores = rows["_score"].to_pylist()
        assert scores == sorted(scores, reverse=True)
        return set(rows["k"].to_pylist())

    def expected() -> set[int]:
        return {k for k, (s, _) in model.items() if set(query.split()) & set(s.split())}

    assert found() == expected()
    for number, entry in enumerate(later):
        rows = [{"k": k, "s": s, "vec": v, TOMBSTONE: s is None} for k, s, v in entry]
        table.add(pa.Table.from_pylist(rows, schema=STORED).to_batches(), 100 + number)
        for k, s, v in entry:
            model.pop(k, None)
            if s is not None:
                model[k] = (s, v)
        assert found() == expected()


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(one_text, min_size=1, max_size=4), min_size=1, max_size=6),
    vectors.filter(any),
    st.integers(1, 5),
)
def test_nearest_vectors_equal_brute_force(
    metric: str, entries: list[list[tuple[int, Any, Any]]], query: list[float], k: int
) -> None:
    table, model = filled(entries)
    reading = Reading(TEXT, ["k"], (), VERSION, 10)
    found = reading.nearest(
        [table], "vec", query, k=k, metric=metric, condition=None, columns=["k"]
    )

    def distance(vector: list[float]) -> float:
        a, b = np.array(vector), np.array(query)
        if metric == "l2":
            return float(((a - b) ** 2).sum())
        if metric == "dot":
            return float(1 - a @ b)
        length = np.linalg.norm(a) * np.linalg.norm(b)
        return float("nan") if length == 0 else float(1 - a @ b / length)

    measured = {key: distance(vec) for key, (_, vec) in model.items() if vec is not None}
    expected = sorted(value for value in measured.values() if value == value)  # noqa: PLR0124
    assert found["_distance"].to_pylist() == pytest.approx(expected[:k], abs=1e-5)
    for row in found.to_pylist():
        assert measured[row["k"]] == pytest.approx(row["_distance"], abs=1e-5)


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_distances_are_those_of_lance(tmp_path: Any, metric: str) -> None:
    random = np.random.default_rng(3)
    vectors_ = random.random((50, 3)).astype("float32").tolist()
    table, _ = filled([[(n, "w", vec) for n, vec in enumerate(vectors_)]])
    rows = table.snapshot().rows.select(["k", "vec"])
    dataset = lance.write_dataset(rows, str(tmp_path / "t"))
    query = np.array([0.2, 0.3, 0.9], "float32")
    stock = dataset.to_table(
        columns=["k", "_distance"],
        nearest={"column": "vec", "q": query, "k": 5, "metric": metric},
    )
    reading = Reading(TEXT, ["k"], (), VERSION, 10)
    ours = reading.nearest([table], "vec", query, k=5, metric=metric, condition=None, columns=["k"])
    assert ours["k"].to_pylist() == stock["k"].to_pylist()
    assert ours["_distance"].to_pylist() == pytest.approx(stock["_distance"].to_pylist(), abs=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    table, _ = filled([[(1, "apple", [1.0, 2.0, 3.0])]])
    reading = Reading(TEXT, ["k"], (), VERSION, 10)

    def nearest(column: str, query: list[float], **more: Any) -> None:
        wanted: dict[str, Any] = {"k": 1, "metric": None, "condition": None, "columns": None}
        reading.nearest([table], column, query, **{**wanted, **more})

    with pytest.raises(InvalidInputError, match="vectors"):
        nearest("s", [1.0])
    with pytest.raises(InvalidInputError, match="vector of 3"):
        nearest("vec", [1.0])
    with pytest.raises(InvalidInputError, match="metric"):
        nearest("vec", [1.0, 2.0, 3.0], metric="manhattan")
    with pytest.raises(InvalidInputError, match="k is"):
        nearest("vec", [1.0, 2.0, 3.0], k=0)
    with pytest.raises(InvalidInputError, match="text"):
        reading.search([table], "vec", "x", columns=None, limit=None)
    with pytest.raises(InvalidInputError, match="columns"):
        reading.scan([table], None, ["nothing"], None)
    with pytest.raises(InvalidInputError, match="limit"):
        reading.scan([table], None, None, -1)
    with pytest.raises(InvalidInputError, match="kind"):
        IndexConfig(column="s", kind="bitmap")
