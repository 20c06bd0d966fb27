"""What is written can be read again: every value is looked at before anything is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

import holdfast
from holdfast.cli import main
from holdfast.cli._output import Exit
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.formats._content import Content
from holdfast.shard import Sharding, ShardWriterConfig

pytestmark = pytest.mark.requirement("P5")


def bad_text() -> pa.Array:
    """Return text that is no UTF-8."""
    return pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )


def bad_index() -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([5], pa.int32()), pa.array(["a"]), safe=False)


STRICT = pa.struct([pa.field("x", pa.int64(), nullable=False)])


def null_inside() -> pa.Array:
    return pa.StructArray.from_arrays([pa.array([None], pa.int64())], fields=list(STRICT))


def inside_list(values: pa.Array, item: pa.Field) -> pa.Array:
    kind = pa.list_(item)
    return pa.Array.from_buffers(
        kind, 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0")], children=[values]
    )


def inside_map(values: pa.Array, item: pa.Field) -> pa.Array:
    pairs = pa.StructArray.from_arrays(
        [pa.array(["a"]), values], fields=[pa.field("key", pa.string(), nullable=False), item]
    )
    kind = pa.map_(pa.string(), item)
    return pa.Array.from_buffers(
        kind, 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0")], children=[pairs]
    )


def json_text(text: str) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array([text]))


BAD: dict[str, Callable[[], pa.Array]] = {
    "text": bad_text,
    "text in a struct": lambda: pa.StructArray.from_arrays([bad_text()], ["t"]),
    "text in a list": lambda: inside_list(bad_text(), pa.field("item", pa.string())),
    "text in a map": lambda: inside_map(bad_text(), pa.field("value", pa.string())),
    "index": bad_index,
    "index in a list": lambda: inside_list(bad_index(), pa.field("item", bad_index().type)),
    "null in a struct": null_inside,
    "null in a struct in a list": lambda: inside_list(null_inside(), pa.field("item", STRICT)),
    "null in a list": lambda: inside_list(
        pa.array([None], pa.int64()), pa.field("item", pa.int64(), nullable=False)
    ),
    "null in a map": lambda: inside_map(
        pa.array([None], pa.int64()), pa.field("value", pa.int64(), nullable=False)
    ),
    "json": lambda: json_text("{"),
    "json with a name twice": lambda: json_text('{"a": 1, "a": 2}'),
    "json too deep": lambda: json_text("[" * 100_000 + "]" * 100_000),
    "json that only some read": lambda: json_text("NaN"),
    "json in a list": lambda: inside_list(json_text("nul"), pa.field("item", pa.json_())),
    "json in a map": lambda: inside_map(json_text("'a'"), pa.field("value", pa.json_())),
    "json below a null": lambda: pa.StructArray.from_arrays(
        [json_text("{")], ["j"], mask=pa.array([True])
    ),
    "digits": lambda: pa.array([Decimal("123.45")]).view(pa.decimal128(2, 1)),
}


@pytest.mark.parametrize("what", BAD)
def test_a_value_that_is_none_is_refused_on_every_way_in(tmp_path: Path, what: str) -> None:
    column = BAD[what]()
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", column.type)])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    bad = pa.Table.from_arrays([pa.array([1]), column], schema=table.schema)
    with pytest.raises(InvalidInputError):
        table.append(bad)
    with pytest.raises(InvalidInputError):
        holdfast.write_table(bad, table.uri, mode="overwrite")
    with pytest.raises(InvalidInputError):
        holdfast.write_table(bad, tmp_path / "other", mode="create")
    assert table.dataset().count_rows() == 0
    with table.claim_writer("unsharded") as writer:
        for call in (writer.put, writer.put_nowait):
            with pytest.raises(InvalidInputError):
                call(bad)
        with pytest.raises(InvalidInputError):
            writer.put(bad.to_batches()[0])
        assert writer.wal_stats().entries == 0
        writer.put([{"k": 2, "v": None}])
        writer.delete_keys([3])
    table.compact_lsm()
    assert table.to_table().to_pylist() == [{"k": 2, "v": None}]


def test_ingest_checks_values_too(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    bad = pa.Table.from_arrays([pa.array([1]), bad_text()], schema=table.schema)
    with ipc.new_stream(str(tmp_path / "bad.arrow"), bad.schema) as stream:
        stream.write_table(bad)
    assert main(["ingest", table.uri, str(tmp_path / "bad.arrow")]) == Exit.USAGE
    table.prepare_writers(sharding=Sharding.bucket("k", 2))
    with pytest.raises(InvalidInputError):
        table.router().split(bad)
    assert table.count() == 0


WIDE: dict[str, tuple[pa.DataType, Any]] = {
    "decimal128": (pa.decimal128(20, 2), Decimal("12345.67")),
    "decimal256": (pa.decimal256(60, 3), Decimal("1.234")),
    "list": (pa.list_(pa.decimal128(10, 2)), [Decimal("1.50"), None]),
    "vector": (pa.list_(pa.decimal128(10, 2), 2), [Decimal("1.50"), Decimal("2.25")]),
    "struct": (pa.struct([("d", pa.decimal256(50, 1))]), {"d": Decimal("0.5")}),
    "map": (pa.map_(pa.string(), pa.decimal128(5, 1)), [("a", Decimal("0.5"))]),
    "fixed": (pa.binary(16), b"0123456789abcdef"),
    "int64": (pa.int64(), -1),
    "time": (pa.timestamp("us", tz="UTC"), None),
}


@pytest.mark.parametrize("nullable", [True, False], ids=["nullable", "full"])
@pytest.mark.parametrize("enable_memtable", [True, False], ids=["memtable", "log only"])
def test_wide_types_at_every_number_of_rows(
    tmp_path: Path, nullable: bool, enable_memtable: bool
) -> None:
    """Arrow's format aligns to 8 bytes; whether 16 is met depends on how much lies before."""
    fields = [pa.field(name, kind) for name, (kind, _) in WIDE.items()]
    schema = pa.schema([pa.field("k", pa.int64()), *fields])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    wanted: list[dict[str, Any]] = []
    config = ShardWriterConfig(enable_memtable=enable_memtable)
    writer = table.claim_writer("unsharded", config=config)
    for count in range(1, 65):
        rows = [
            {
                "k": len(wanted) + at,
                **{n: None if nullable and at % 3 == 1 else v for n, (_, v) in WIDE.items()},
            }
            for at in range(count)
        ]
        wanted += rows
        writer.put(pa.Table.from_pylist(rows, schema=table.schema))
        if count % 16 == 1:  # every log from one entry on
            assert table.count() == len(wanted)
    writer.close(flush=False)

    def check() -> None:
        assert table.to_table().sort_by("k").to_pylist() == wanted

    check()
    with table.claim_writer("unsharded") as again:
        assert again.to_table().sort_by("k").to_pylist() == wanted
    check()
    table.compact_lsm()
    check()


def misaligned(array: pa.Array, by: int) -> pa.Array:
    """Return the same values one off in memory, as a view into foreign bytes has them."""
    moved: list[pa.Buffer | None] = []
    for one in array.buffers():
        if one is None:
            moved.append(None)
            continue
        room = np.zeros(one.size + 128, np.uint8)
        start = -room.ctypes.data % 64 + by
        room[start : start + one.size] = np.frombuffer(one, np.uint8)
        moved.append(pa.py_buffer(room).slice(start, one.size))
    return pa.Array.from_buffers(array.type, len(array), moved)


@pytest.mark.parametrize("by", [1, 4, 8])
@pytest.mark.parametrize(
    "kind", [pa.decimal128(9, 2), pa.decimal256(40, 2), pa.int64(), pa.float32(), pa.string()],
    ids=str,
)  # fmt: skip
def test_data_may_lie_anywhere_in_memory(tmp_path: Path, kind: pa.DataType, by: int) -> None:
    values = pa.array([1, 2, None]).cast(pa.float64()).cast(kind)
    data = pa.table({"k": pa.array([1, 2, 3]), "v": misaligned(values, by)})
    table = holdfast.create_table(tmp_path / "t", data.schema, primary_key=["k"])
    table.append(data)
    assert table.to_table().to_pylist() == data.to_pylist()
    with table.claim_writer("unsharded") as writer:
        writer.put(data)
        assert writer.to_table(filter="k > 1").num_rows == 2
    table.compact_lsm()
    assert table.to_table().to_pylist() == data.to_pylist()


def words(first: int, count: int, index: pa.DataType) -> pa.Array:
    values = pa.array([f"word {n}" for n in range(first, first + count)])
    return pa.DictionaryArray.from_arrays(pa.array(range(count), index), values)


@pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int16()], ids=str)
def test_a_dictionary_never_runs_out_of_indices(tmp_path: Path, index: pa.DataType) -> None:
    """pandas makes a category of few values one with 8 bits."""
    schema = pa.schema([("k", pa.int64()), ("d", pa.dictionary(index, pa.string()))])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    lot = 100
    wanted = {k: f"word {k}" for k in range(4 * lot)}

    def data(first: int) -> pa.Table:
        ids = pa.array(range(first, first + lot))
        return pa.table({"k": ids, "d": words(first, lot, index)})

    def check() -> None:
        rows = table.to_table().to_pylist()
        assert {row["k"]: row["d"] for row in rows} == wanted

    table.append(data(0))
    writer = table.claim_writer("unsharded")
    futures = [writer.put_nowait(data(lot * n)) for n in (1, 2)]  # one entry, perhaps
    for future in futures:
        future.result()
    writer.put(data(3 * lot))
    check()
    writer.abort()
    with table.claim_writer("unsharded"):
        check()
    check()
    table.compact_lsm()
    check()
    table.dataset().optimize.compact_files()
    check()


def test_a_dictionary_that_lance_made_is_not_overrun(tmp_path: Path) -> None:
    first = pa.table({"k": pa.array(range(100)), "d": words(0, 100, pa.int8())})
    lance.write_dataset(first, tmp_path / "t")
    table = holdfast.adopt_table(tmp_path / "t")
    more = pa.Table.from_batches(
        [
            pa.record_batch({"k": pa.array(range(100)), "d": words(start, 100, pa.int8())})
            for start in (100, 200)
        ]
    )
    with pytest.raises(InvalidInputError, match="more values than the indices"):
        table.append(more)
    table.append(more.slice(0, 100))
    assert table.count() == 200
    with pytest.raises(InvalidInputError, match="counts few values"):
        table.claim_writer("unsharded")


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("z", pa.int32())]), 2),
        pa.list_(pa.string(), 2),
        pa.list_(pa.int64(), 0),
        pa.struct([]),
        pa.list_(pa.struct([])),
        pa.json_(pa.string_view()),
    ],
    ids=str,
)
def test_a_type_that_lance_cannot_read_again_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", kind)])
    with pytest.raises(InvalidInputError, match="cannot read such a column"):
        holdfast.create_table(tmp_path / "t", schema)


def test_a_panic_ends_flush_and_close_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no `Exception`: a thread that dies of it would be waited for for ever."""

    class PanicException(BaseException):
        pass

    PanicException.__module__ = "pyo3_runtime"

    def panic(*_: object, **__: object) -> None:
        raise PanicException("not aligned")

    schema = pa.schema([("k", pa.int64())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    writer = table.claim_writer("unsharded")
    writer.put([{"k": 1}])
    monkeypatch.setattr(lance, "write_dataset", panic)
    for call in (writer.flush, table.count, writer.close):
        with pytest.raises(HoldfastError, match="not aligned"):
            call()
    monkeypatch.undo()
    assert table.count() == 1
    monkeypatch.setattr("holdfast.commits._writes.write_fragments", panic)
    with pytest.raises(HoldfastError, match="not aligned"):
        table.append([{"k": 2}])


def cut(kind: str) -> pa.Array:
    """Return values that lie in the middle of others."""
    flags = pa.array([{"b": n % 3 == 0} if n % 4 else None for n in range(60)])
    inside = pa.StructArray.from_arrays([flags], ["inside"])
    square = pa.list_(pa.list_(pa.float32(), 2), 2)
    numbers = pa.array([[[n, 1], [2, n]] for n in range(60)], square)
    made = {
        "booleans": flags.slice(27),
        "structs": inside.slice(3),
        "structs in lists": pa.ListArray.from_arrays(
            pa.array(range(31), pa.int32()), inside.slice(9)
        ),
        "vectors of vectors": numbers.slice(7),
        "sliced vectors": pa.FixedSizeListArray.from_arrays(numbers.values.slice(4), 2),
    }
    return made[kind]


@pytest.mark.parametrize(
    "kind",
    ["booleans", "structs", "structs in lists", "vectors of vectors", "sliced vectors"],
)
def test_slices_are_what_they_show(tmp_path: Path, kind: str) -> None:
    """Lance stops at some slices, and Arrow's filter gives other values out of some."""
    values = cut(kind)
    data = pa.table({"k": pa.array(range(len(values))), "v": values})
    wanted = data.to_pylist()
    table = holdfast.create_table(tmp_path / "t", data.schema, primary_key=["k"])
    table.append(data)
    assert table.to_table().to_pylist() == wanted
    with table.claim_writer("unsharded") as writer:
        writer.put(data)
        writer.put(wanted[1::3])  # replaces rows: a flush filters the ones before
        assert writer.to_table().sort_by("k").to_pylist() == wanted
    assert table.to_table().sort_by("k").to_pylist() == wanted
    table.compact_lsm()
    assert table.to_table().sort_by("k").to_pylist() == wanted


def test_a_lookup_knows_extension_types_and_nested_fields_without_nulls(tmp_path: Path) -> None:
    strict = pa.struct([pa.field("x", pa.list_(pa.field("item", pa.bool8(), nullable=False)))])
    schema = pa.schema([("k", pa.int64()), ("u", pa.uuid()), ("s", strict)])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    assert table.lookup([1]).num_rows == 0
    flags = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8()))
    lists = pa.Array.from_buffers(
        strict.field(0).type, 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0")],
        children=[flags],
    )  # fmt: skip
    structs = pa.StructArray.from_arrays(
        [lists], fields=[strict.field(0)], mask=pa.array([False, True])
    )
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None], pa.binary(16)))
    data = pa.Table.from_arrays([pa.array([1, 2]), ids, structs], schema=schema)
    with table.claim_writer("unsharded") as writer:
        assert writer.lookup([1]).num_rows == 0
        assert writer.to_table().num_rows == 0
        writer.put(data)
        assert table.lookup([2, 1]).to_pylist() == data.to_pylist()[::-1]
    table.compact_lsm()
    assert table.lookup([2, 1]).to_pylist() == data.to_pylist()[::-1]


@pytest.mark.parametrize("name", ["", "a.b", "a`b", "a\0b", "k"], ids=repr)
def test_a_name_that_lance_does_not_find_again_is_refused(tmp_path: Path, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), (name, pa.int64())])
    with pytest.raises(InvalidInputError):
        holdfast.create_table(tmp_path / "t", schema)
    assert not list(tmp_path.iterdir()), "something was written"
    holdfast.create_table(tmp_path / "t", pa.schema([("a b", pa.int64())]))


def test_slices_of_vectors_of_vectors_are_copied() -> None:
    """Arrow's filter gives other values out of them than there are."""
    values = cut("vectors of vectors")
    batch = pa.record_batch({"v": values})
    checked = Content(batch.schema).check(batch).column(0)
    every_other = [at % 2 == 0 for at in range(len(values))]
    assert checked.filter(pa.array(every_other)).to_pylist() == values.to_pylist()[::2]


def test_nulls_count_where_rows_are_there() -> None:
    """Below a null, or outside of a slice, lies what nobody reads."""
    item = pa.field("item", pa.int64(), nullable=False)
    offsets = pa.py_buffer(np.array([0, 1, 2], np.int32))
    for bits, inside, fine in ((1, [1, None], True), (2, [1, None], False), (3, [1, 2], True)):
        lists = pa.Array.from_buffers(
            pa.list_(item), 2, [pa.py_buffer(bytes([bits])), offsets], children=[pa.array(inside)]
        )
        batch = pa.record_batch([lists], schema=pa.schema([pa.field("v", lists.type)]))
        content = Content(batch.schema)
        if fine:
            content.check(batch)
        else:
            with pytest.raises(InvalidInputError, match="nulls that may have none"):
                content.check(batch)
        content.check(batch.slice(0, 1))
