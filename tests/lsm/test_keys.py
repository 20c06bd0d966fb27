"""Keys at the ends of their types, in any order of columns, however they are marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import InvalidInputError
from holdfast.formats._keys import KEY_POSITION, PRIMARY_KEY, key_columns

pytestmark = pytest.mark.requirement("P5")


def ends(bits: int, *, signed: bool) -> list[int]:
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1 if signed else bits)) - 1
    return sorted({low, low + 1, 0, 1, high - 1, high})


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{f"int{n}": (getattr(pa, f"int{n}")(), ends(n, signed=True)) for n in (8, 16, 32, 64)},
    **{f"uint{n}": (getattr(pa, f"uint{n}")(), ends(n, signed=False)) for n in (8, 16, 32, 64)},
    "bool": (pa.bool_(), [False, True]),
    "text": (pa.string(), ["", "\x00", "a\x00b", "it's", "back\\slash", 'é`"', "\U0001f600", "%"]),
    "large text": (pa.large_string(), ["", "\x00", "'"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x00\x01", b"\xff", b"'"]),
    "large binary": (pa.large_binary(), [b"", b"\x00", b"\xff\xfe"]),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("indexed", [False, True], ids=["scan", "btree"])
def test_keys_at_the_ends_of_their_type(tmp_path: Path, kind: str, indexed: bool) -> None:
    arrow, keys = KEYS[kind]
    schema = pa.schema([pa.field("k", arrow), pa.field("v", pa.int64())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    table.append([{"k": key, "v": 0} for key in keys])
    if indexed:
        table.dataset().create_scalar_index("k", "BTREE", name="by_key")

    def check(newest: dict[Any, int]) -> None:
        assert {row["k"]: row["v"] for row in table.to_table().to_pylist()} == newest
        for key in keys:
            found = table.lookup([key]).to_pylist()
            assert found == ([{"k": key, "v": newest[key]}] if key in newest else [])
        assert table.lookup(keys)["k"].to_pylist() == [key for key in keys if key in newest]

    check(dict.fromkeys(keys, 0))
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": key, "v": 1} for key in keys])
        writer.delete_keys(keys[:1])
        newest = dict.fromkeys(keys[1:], 1)
        check(newest)
        assert writer.lookup(keys)["k"].to_pylist() == keys[1:]
    check(newest)
    table.compact_lsm()
    check(newest)
    assert lance.dataset(table.uri).count_rows() == len(newest)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (pa.uint64(), [-1]), (pa.uint64(), [1 << 64]), (pa.int64(), [1 << 63]), (pa.int8(), [128]),
        (pa.uint8(), pa.array([-1])), (pa.int64(), [1.5]), (pa.int64(), ["1"]),
        (pa.int64(), [None]), (pa.int64(), [float("nan")]), (pa.string(), [1]),
        (pa.string(), ["\ud800"]), (pa.string(), [b"\xff"]), (pa.binary(), [1]),
        (pa.bool_(), ["x"]), (pa.int64(), [[1]]), (pa.int64(), [{"x": 1}]), (pa.int64(), "text"),
        (pa.string(), pa.array([b"\xff"]).cast(pa.string(), safe=False)),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_key_is_refused_everywhere(
    tmp_path: Path, kind: pa.DataType, wrong: Any
) -> None:
    schema = pa.schema([pa.field("k", kind)])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    with pytest.raises(InvalidInputError):
        table.lookup(wrong)
    with table.claim_writer("unsharded") as writer:
        for call in (writer.lookup, writer.delete_keys):
            with pytest.raises(InvalidInputError):
                call(wrong)
        assert writer.wal_stats().entries == 0


def test_a_key_of_several_columns_keeps_its_order(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("tenant", pa.int64()), ("v", pa.string())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["tenant", "id"])
    assert key_columns(table.schema) == ("tenant", "id")
    row = {"tenant": 1, "id": 2, "v": "one, two"}
    other = {"tenant": 2, "id": 1, "v": "two, one"}
    table.append([row])
    with table.claim_writer("unsharded") as writer:
        writer.put([other])
        assert table.lookup([(1, 2)]).to_pylist() == [{"id": 2, "tenant": 1, "v": "one, two"}]
        assert table.lookup([(2, 1)], ["v"]).to_pylist() == [{"v": "two, one"}]
    table.compact_lsm()
    assert table.lookup([(2, 1), (1, 2)], ["v"]).to_pylist() == [
        {"v": "two, one"},
        {"v": "one, two"},
    ]
    holdfast.write_table([other], table.uri, mode="overwrite")
    assert key_columns(holdfast.open_table(table.uri).schema) == ("tenant", "id")


def test_a_key_that_contradicts_the_schema_is_refused(tmp_path: Path) -> None:
    marked = pa.field("a", pa.int64(), nullable=False, metadata={PRIMARY_KEY: b"true"})
    schema = pa.schema([marked, ("b", pa.int64())])
    with pytest.raises(InvalidInputError, match="another primary key"):
        holdfast.create_table(tmp_path / "t", schema, primary_key=["b"])
    with pytest.raises(InvalidInputError, match="twice"):
        holdfast.create_table(tmp_path / "t", schema, primary_key=["a", "a"])


@pytest.mark.parametrize(
    ("marks", "key"),
    [
        ([{KEY_POSITION: b"1"}, {}], ("a",)),
        ([{KEY_POSITION: b"2"}, {KEY_POSITION: b"1"}], ("b", "a")),
        ([{PRIMARY_KEY: b"false", KEY_POSITION: b"1"}, {}], ("a",)),
        ([{PRIMARY_KEY: b"On"}, {KEY_POSITION: b"+1"}], ("b", "a")),
        ([{KEY_POSITION: b"0"}, {KEY_POSITION: b"x"}], ("a",)),
        ([{PRIMARY_KEY: b"no"}, {KEY_POSITION: b"-1"}], ()),
    ],
    ids=str,
)
def test_a_key_is_read_as_lance_reads_it(
    tmp_path: Path, marks: list[dict[bytes, bytes]], key: tuple[str, ...]
) -> None:
    fields = [
        pa.field(name, pa.int64(), nullable=False, metadata=mark)
        for name, mark in zip("ab", marks, strict=True)
    ]
    dataset = lance.write_dataset(pa.schema(fields).empty_table(), tmp_path / "t")
    stock = [one.name() for one in dataset.lance_schema.fields() if one.is_unenforced_primary_key()]
    assert sorted(stock) == sorted(key)
    assert key_columns(dataset.schema) == key


def test_a_key_marked_by_its_position_alone_has_no_duplicates(tmp_path: Path) -> None:
    """As LanceDB marks it."""
    field = pa.field("k", pa.int64(), nullable=False, metadata={KEY_POSITION: b"1"})
    schema = pa.schema([field, pa.field("v", pa.int64())])
    lance.write_dataset(pa.table({"k": [1], "v": [1]}, schema=schema), tmp_path / "t")
    table = holdfast.adopt_table(tmp_path / "t")
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 1, "v": 2}, {"k": 1, "v": 3}])
        assert table.to_table().to_pylist() == [{"k": 1, "v": 3}]
    table.compact_lsm()
    assert lance.dataset(table.uri).to_table().to_pylist() == [{"k": 1, "v": 3}]


def test_a_key_inside_another_column_is_refused_by_writers(tmp_path: Path) -> None:
    inside = pa.field("x", pa.int64(), nullable=False, metadata={PRIMARY_KEY: b"true"})
    schema = pa.schema([pa.field("s", pa.struct([inside]), nullable=False)])
    lance.write_dataset(schema.empty_table(), tmp_path / "t")
    table = holdfast.adopt_table(tmp_path / "t")
    with pytest.raises(InvalidInputError, match="inside a column"):
        table.claim_writer("unsharded")


@pytest.mark.parametrize("name", ["a b", 'a"b', "a'b", "select", "é", "1", "a\\b"])
def test_columns_of_any_name(tmp_path: Path, name: str) -> None:
    schema = pa.schema([pa.field(name, pa.int64()), ("v", pa.int64())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=[name])
    table.append([{name: 1, "v": 1}, {name: 2, "v": 1}])
    wanted = [{name: 1, "v": 1}, {name: 2, "v": 2}, {name: 3, "v": 2}]

    def check() -> None:
        rows = sorted(table.to_table().to_pylist(), key=lambda one: int(one[name]))
        assert rows == wanted
        assert table.lookup([1, 2]).to_pylist() == wanted[:2]
        assert table.lookup([3], [name]).to_pylist() == [{name: 3}]
        assert table.count() == 3
        assert table.to_table(columns=[name], filter="v = 1").to_pylist() == [{name: 1}]

    with table.claim_writer("unsharded") as writer:
        writer.put([{name: 2, "v": 2}, {name: 3, "v": 2}])
        check()
    check()
    table.compact_lsm()
    check()


def test_a_column_with_a_backtick_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """Lance makes such a table, and finds the column by no name ever after."""
    rows = [{"a`b": 1, "v": 1}, {"a`b": 2, "v": 1}]
    lance.write_dataset(pa.Table.from_pylist(rows), tmp_path / "t")
    table = holdfast.adopt_table(tmp_path / "t")
    for call in (
        table.to_table,
        lambda: table.append(rows),
        lambda: table.claim_writer("unsharded"),
        lambda: holdfast.write_table(rows, tmp_path / "u", mode="create"),
    ):
        with pytest.raises(InvalidInputError, match="backtick"):
            call()
    assert table.to_table(columns=["v"]).num_rows == table.count() == 2
    change: Any = {"path": "`a``b`", "name": "ab"}
    table.dataset().alter_columns(change)
    assert table.to_table(columns=["ab"]).to_pylist() == [{"ab": 1}, {"ab": 2}]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8()], ids=str)
def test_a_fraction_is_no_whole_number(tmp_path: Path, kind: pa.DataType) -> None:
    """pyarrow cuts it off without a word."""
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("n", kind)])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    with pytest.raises(InvalidInputError, match="fractions"):
        table.append([{"k": 1, "n": 1.5}])
    with table.claim_writer("unsharded") as writer:
        with pytest.raises(InvalidInputError, match="fractions"):
            writer.put([{"k": 1, "n": 1.5}])
        writer.put([{"k": 1, "n": 2.0}])
    assert table.to_table().to_pylist() == [{"k": 1, "n": 2}]


def test_a_tuple_is_in_the_order_of_the_key_not_of_the_columns(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("tenant", pa.int64()), ("v", pa.string())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["tenant", "id"])
    rows = [{"id": 1, "tenant": 2, "v": "2-1"}, {"id": 2, "tenant": 1, "v": "1-2"}]
    with table.claim_writer("unsharded") as writer:
        writer.put(rows)
        assert writer.lookup([(2, 1)])["v"].to_pylist() == ["2-1"]
        assert table.lookup([(1, 2)])["v"].to_pylist() == ["1-2"]
        for wrong in ((2,), (2, 1, 5), 2):
            for lookup in (writer.lookup, table.lookup):
                with pytest.raises(InvalidInputError, match=r"several columns|tuple of 2"):
                    lookup([wrong])
    table.compact_lsm()
    assert table.lookup([(2, 1), [1, 2]])["v"].to_pylist() == ["2-1", "1-2"]
    with holdfast.open_table(table.uri).claim_writer("unsharded") as writer:
        writer.delete_keys([(2, 1)])
    assert table.to_table()["v"].to_pylist() == ["1-2"]


@pytest.mark.parametrize("keys", [[-1], [256], [2**70], [1.5], ["x"], [None]], ids=str)
def test_what_cannot_be_a_key_is_refused_by_name(tmp_path: Path, keys: list[Any]) -> None:
    table = holdfast.create_table(tmp_path / "t", pa.schema([("k", pa.uint8())]), primary_key=["k"])
    with table.claim_writer("unsharded") as writer:
        for call in (writer.lookup, writer.delete_keys, table.lookup):
            with pytest.raises(InvalidInputError):
                call(keys)
