"""What goes into a writer, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import (
    InvalidInputError,
)
from shard.levels import (
    PLAIN,
    counted,
    flushed_rows,
    newest,
    stock_rows,
    tables_of,
)
from shard.lsm import key_field
from shard.writing import rows


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [{"k": 1, "w": 2}],
        [{"v": "no key"}],
        [{"k": None, "v": "null key"}],
        pa.table({"k": ["text"]}),
        42,
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_refused(table: holdfast.Table, wrong: Any) -> None:
    with table.claim_writer("unsharded") as writer:
        with pytest.raises(InvalidInputError):
            writer.put(wrong)
        assert writer.wal_stats().entries == 0


def test_a_null_where_none_may_be_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([key_field("k", pa.int64()), pa.field("v", pa.int32(), nullable=False)])
    table = holdfast.create_table(tmp_path / "t", schema)
    with table.claim_writer("unsharded") as writer:
        with pytest.raises(InvalidInputError, match="nulls"):
            writer.put(pa.table({"k": [1], "v": pa.array([None], pa.int32())}))
        writer.put([{"k": 1, "v": 1}])
        writer.delete_keys([1])  # a tombstone has no value there
    assert stock_rows(table, writer.shard_id) == []


@pytest.mark.parametrize("wrong", [["text"], [None], pa.table({"v": ["x"]}), [{"v": 1}], 5])
def test_keys_that_are_none_are_refused(table: holdfast.Table, wrong: Any) -> None:
    with table.claim_writer("unsharded") as writer:
        with pytest.raises(InvalidInputError):
            writer.delete_keys(wrong)
        assert writer.wal_stats().entries == 0


def test_keys_come_in_many_forms(table: holdfast.Table) -> None:
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(*range(8)))
        writer.delete_keys([0])
        writer.delete_keys([{"k": 1, "v": "other columns do not matter"}])
        writer.delete_keys(pa.array([2], pa.int32()))
        writer.delete_keys(pa.table({"k": [3], "v": ["x"]}))
        writer.delete_keys(pa.record_batch({"k": [4]}))
        writer.delete_keys_nowait(np.array([5]).tolist()).result()
        assert newest(writer.to_table().to_pylist()) == {6: "x", 7: "x"}


def test_a_table_without_a_key_keeps_every_row(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", PLAIN)
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(1, 1))
        writer.put(rows(1))
        assert writer.to_table(filter="k = 1").num_rows == 3
        for call in (lambda: writer.delete_keys([1]), lambda: writer.lookup([1])):
            with pytest.raises(InvalidInputError, match="no primary key"):
                call()
    assert counted(flushed_rows(table, writer.shard_id)) == {(1, "x"): 3}


def test_columns_of_every_type_survive_log_memory_and_flush(tmp_path: Path) -> None:
    from shard.test_sstables import TYPES

    fields = [pa.field(name, kind) for name, (kind, _) in TYPES.items()]
    schema = pa.schema([key_field("key", pa.int64()), *fields])
    table = holdfast.create_table(tmp_path / "t", schema)
    row = {"key": 1, **{name: value for name, (_, value) in TYPES.items()}}
    batch = pa.Table.from_pylist([row, {"key": 2}], schema=schema)
    expected = batch.to_pylist()
    writer = table.claim_writer("unsharded")
    writer.put(batch)
    futures = [writer.put_nowait(batch), writer.put_nowait(batch.slice(1))]
    assert [future.result().rows for future in futures] == [2, 1]
    writer.delete_keys([3])
    assert writer.to_table().sort_by("key").to_pylist() == expected
    assert writer.lookup([1]).to_pylist() == expected[:1]
    writer.abort()
    with table.claim_writer("unsharded") as again:
        assert again.to_table().sort_by("key").to_pylist() == expected
        assert again.to_table().schema.types == schema.types
    found = sorted(stock_rows(table, writer.shard_id), key=lambda one: one["key"])
    assert found == expected


def test_columns_dropped_and_made_anew_are_not_mixed_up(tmp_path: Path) -> None:
    """The log knows columns by id: values of a column that was dropped do not come back."""
    schema = pa.schema(
        [key_field("k", pa.int64()), pa.field("a", pa.string()), pa.field("v", pa.string())]
    )
    table = holdfast.create_table(tmp_path / "t", schema)
    table.append([{"k": 0, "a": "base", "v": "base"}])
    writer = table.claim_writer("unsharded")
    writer.put([{"k": 1, "a": "old", "v": "one"}])
    writer.abort()
    table.dataset().drop_columns(["a"])
    table.dataset().add_columns(pa.field("a", pa.string()))
    with table.claim_writer("unsharded") as again:
        assert again.lookup([1]).to_pylist() == [{"k": 1, "v": "one", "a": None}]
        again.put([{"k": 2, "a": "new", "v": "two"}])
    found = {row["k"]: (row["v"], row["a"]) for row in stock_rows(table, again.shard_id)}
    assert found == {0: ("base", None), 1: ("one", None), 2: ("two", "new")}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.int32(), [1, -5]),
        (pa.string(), ["", "é"]),
        (pa.binary(), [b"\x00", b"\xff"]),
        (pa.bool_(), [True, False]),
    ],
    ids=str,
)
def test_every_type_of_key(tmp_path: Path, kind: pa.DataType, keys: list[Any]) -> None:
    schema = pa.schema([key_field("k", kind), pa.field("v", pa.string())])
    table = holdfast.create_table(tmp_path / "t", schema)
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": key, "v": "1"} for key in keys])
        writer.put([{"k": keys[0], "v": "2"}])
        writer.delete_keys(keys[1:])
        assert writer.to_table().to_pylist() == [{"k": keys[0], "v": "2"}]
        assert writer.lookup(keys).to_pylist() == [{"k": keys[0], "v": "2"}]
    assert stock_rows(table, writer.shard_id) == [{"k": keys[0], "v": "2"}]


def test_a_composite_key(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("a", pa.string()), pa.field("b", pa.int64()), pa.field("v", pa.int64())]
    )
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["a", "b"])
    with table.claim_writer("unsharded") as writer:
        writer.put([{"a": a, "b": b, "v": 1} for a in "xy" for b in (1, 2)])
        writer.put([{"a": "x", "b": 1, "v": 2}])
        writer.delete_keys([{"a": "y", "b": 2}])
        assert writer.lookup([{"b": 1, "a": "x"}]).to_pylist() == [{"a": "x", "b": 1, "v": 2}]
        with pytest.raises(InvalidInputError, match="several columns"):
            writer.lookup(["x"])
    found = {(row["a"], row["b"]): row["v"] for row in stock_rows(table, writer.shard_id)}
    assert found == {("x", 1): 2, ("x", 2): 1, ("y", 1): 1}


def test_maintained_indexes_are_searched_in_memory_and_flushed(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            key_field("k", pa.int64()),
            pa.field("text", pa.string()),
            pa.field("vec", pa.list_(pa.float32(), 2)),
        ]
    )
    table = holdfast.create_table(tmp_path / "t", schema)
    table.append([{"k": n, "text": "base words", "vec": [n, 1.0]} for n in range(300)])
    table.dataset().create_scalar_index("text", "INVERTED", name="words", stem=True)
    table.dataset().create_index("vec", "IVF_FLAT", name="near", num_partitions=1, metric="cosine")
    with table.claim_writer("unsharded") as writer:
        writer.put(
            [
                {"k": 1000, "text": "running", "vec": [0.0, 5.0]},
                {"k": 1001, "text": "sleep", "vec": [5.0, 0.0]},
            ]
        )
        assert writer.search("text", "run")["k"].to_pylist() == [1000]  # stemmed, as the index
        assert writer.nearest("vec", [0.0, 1.0], k=1)["k"].to_pylist() == [1000]  # by cosine
    (one,) = tables_of(table, writer.shard_id)
    from shard.lsm import sstables_of

    described = sstables_of(tmp_path / "t").open(writer.shard_id, one.path).describe_indices()
    assert {index.name for index in described} == {"words", "near"}
