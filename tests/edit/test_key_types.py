"""Keys of every type that holds single values: merged, looked up, and told as changes."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import InvalidInputError

DAY = dt.date(2026, 1, 1)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.float16(), [1.0, -2.0]),
    (pa.float64(), [0.5, math.nan]),
    (pa.decimal128(20, 3), [decimal.Decimal("1.001"), decimal.Decimal("-2.5")]),
    (pa.date32(), [DAY, DAY + dt.timedelta(1)]),
    (pa.time64("us"), [dt.time(1), dt.time(2)]),
    (pa.duration("s"), [dt.timedelta(1), dt.timedelta(2)]),
    (pa.timestamp("us", "UTC"), [NOON, NOON + dt.timedelta(1)]),
    (pa.string(), ["", "a\0b"]),
    (pa.binary(4), [b"abcd", b"\0\0\0\0"]),
    (pa.dictionary(pa.int32(), pa.string()), ["x", "y"]),
    (pa.uuid(), [uuid.UUID(int=1), uuid.UUID(int=2)]),
]
NESTED = [
    pa.list_(pa.int32()),
    pa.list_(pa.float32(), 2),
    pa.struct([("x", pa.int32())]),
    pa.map_(pa.string(), pa.int32()),
    pa.fixed_shape_tensor(pa.float32(), [2]),
]


def _name(value: object) -> str:
    return str(value) if isinstance(value, pa.DataType) else ""


@pytest.mark.parametrize("several", [False, True], ids=["alone", "first of two"])
@pytest.mark.parametrize(("kind", "values"), KINDS, ids=_name)
def test_rows_are_found_by_keys_of_any_type(
    tmp_path: Path, kind: pa.DataType, values: list[Any], several: bool
) -> None:
    key = ["k", "j"] if several else ["k"]
    schema = pa.schema([("k", kind), ("j", pa.int64()), ("n", pa.int64())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=key)

    def rows(count: int, n: int) -> pa.Table:
        keys = pa.array(values[:count], kind)
        return pa.table([keys, pa.array([7] * count), pa.array([n] * count)], schema=table.schema)

    table.append(rows(1, 0))
    result = table.merge_into(rows(2, 1))
    assert (result.updated, result.inserted) == (1, 1)
    assert table.merge_into(rows(1, 2), on="k").updated == 1
    with pytest.raises(InvalidInputError, match="more than once"):
        table.merge_into(pa.concat_tables([rows(1, 3), rows(1, 3)]))
    asked = [(value, 7) for value in values] if several else values
    assert table.lookup(asked[::-1])["n"].to_pylist() == [1, 2]
    assert table.lookup(rows(2, 0).select(key))["n"].to_pylist() == [2, 1]
    seen = table.changes(since=2).to_table()["_change_type"].to_pylist()
    assert sorted(seen) == ["insert", *["update_postimage"] * 2, *["update_preimage"] * 2]


def test_zero_has_one_key(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.float32()), ("n", pa.int64())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    table.append([{"k": -0.0, "n": 1}])
    assert table.lookup([0.0])["n"].to_pylist() == [1]
    assert table.merge_into([{"k": 0.0, "n": 2}]).updated == 1


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_a_key_holds_single_values(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("k", kind), ("n", pa.int64())])
    with pytest.raises(InvalidInputError, match="single values"):
        holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    table = holdfast.create_table(tmp_path / "t", schema)
    rows = pa.table([pa.nulls(1, kind), pa.array([1])], schema=schema)
    with pytest.raises(InvalidInputError, match=r"single values|without a key"):
        table.merge_into(rows, on="k")


@pytest.mark.parametrize(
    "name",
    [
        "_rowid",
        "_rowaddr",
        "_rowoffset",
        "_row_created_at_version",
        "_row_last_updated_at_version",
        "*",
        "a.b",
        "",
    ],
)
def test_a_name_that_lance_does_not_find_again_is_refused(tmp_path: Path, name: str) -> None:
    schema = pa.schema([("id", pa.int64()), (name, pa.int64())])
    with pytest.raises(InvalidInputError, match="its name"):
        holdfast.create_table(tmp_path / "t", schema)
    assert not (tmp_path / "t").exists()
    table = holdfast.create_table(tmp_path / "t", pa.schema([("id", pa.int64())]))
    with pytest.raises(InvalidInputError):
        table.writes.overwrite(pa.table([[1], [2]], schema=schema), None)
