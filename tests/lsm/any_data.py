"""Random columns, values and layouts: what users may hand in, and what it means.

`Column` is a column, or a field inside one, with an identity of its own: a model can follow it
when it is renamed. `meaning` turns a value into one that does not depend on names.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc, types

Rng = random.Random
_UIDS = itertools.count()
_JSON = ["{}", "[]", "null", "1", '{"a":[1,2.5,null,"x"]}', '""']
_TEXTS = ["", "a", "a\0b", "é", "\U0001f600", "'", "null", "x" * 40]


@dataclass
class Column:
    """A column, or a field inside one.

    Attributes:
        name: its name of today.
        kind: its type; for nested ones only the outermost is meant.
        nullable: whether it may be null.
        inside: the fields inside: of a struct, a list (one), a map (key and value).
        uid: who it is, under any name.
    """

    name: str
    kind: pa.DataType
    nullable: bool = True
    inside: list[Column] = field(default_factory=list)
    uid: int = field(default_factory=lambda: next(_UIDS))

    @property
    def type(self) -> pa.DataType:
        """Return the Arrow type as it is today."""
        parts = [part.field for part in self.inside]
        if types.is_struct(self.kind):
            return pa.struct(parts)
        if types.is_map(self.kind):
            return pa.map_(parts[0], parts[1])
        if types.is_large_list(self.kind):
            return pa.large_list(parts[0])
        if types.is_list(self.kind):
            return pa.list_(parts[0])
        return self.kind

    @property
    def field(self) -> pa.Field:
        """Return the Arrow field as it is today."""
        return pa.field(self.name, self.type, self.nullable)

    def copy(self) -> Column:
        """Return the same column, whose names do not change with this one."""
        inside = [part.copy() for part in self.inside]
        return Column(self.name, self.kind, self.nullable, inside, self.uid)


_LEAVES: list[pa.DataType] = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.decimal128(9, 2), pa.decimal128(38, 10), pa.decimal256(60, 3), pa.decimal128(5, -2),
    pa.string(), pa.large_string(), pa.binary(), pa.large_binary(),
    pa.binary(1), pa.binary(16), pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"),
    pa.timestamp("s"), pa.timestamp("us", tz="UTC"), pa.timestamp("ns", tz="+05:30"),
    pa.duration("ms"), pa.null(), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.uint16(), pa.large_string()), pa.dictionary(pa.int32(), pa.int64()),
    pa.list_(pa.float32(), 2), pa.list_(pa.float16(), 3), pa.list_(pa.decimal128(9, 2), 2),
    pa.list_(pa.int64(), 1), pa.list_(pa.list_(pa.float32(), 2), 2), pa.uuid(), pa.json_(),
    pa.bool8(), pa.fixed_shape_tensor(pa.float32(), [2, 2]),
]  # fmt: skip


def any_column(rng: Rng, name: str, depth: int = 3) -> Column:
    """Return a column of any type, nested up to a depth."""
    shape = rng.choice(["leaf"] * 4 + ["struct", "struct", "list", "large_list", "map"])
    nullable = rng.random() < 0.8
    if depth == 0 or shape == "leaf":
        kind = rng.choice(_LEAVES)
        return Column(name, kind, nullable or types.is_null(kind))
    if shape == "struct":
        count = rng.randint(1, 3)
        parts = [any_column(rng, f"f{at}", depth - 1) for at in range(count)]
        return Column(name, pa.struct([]), nullable, parts)
    item = any_column(rng, "value" if shape == "map" else "item", depth - 1)
    if shape == "map":
        key = Column("key", rng.choice([pa.string(), pa.int32()]), nullable=False)
        return Column(name, pa.map_(pa.string(), pa.null()), nullable, [key, item])
    kind = pa.list_(pa.null()) if shape == "list" else pa.large_list(pa.null())
    return Column(name, kind, nullable, [item])


def any_array(rng: Rng, column: Column, count: int) -> pa.Array:
    """Return random values of a column; under what is null lies anything."""
    missing = [column.nullable and rng.random() < 0.25 for _ in range(count)]
    mask = pa.array(missing, pa.bool_()) if any(missing) else None
    if types.is_struct(column.kind):
        parts = [any_array(rng, part, count) for part in column.inside]
        fields = [part.field for part in column.inside]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    if types.is_map(column.kind) or types.is_list(column.kind) or types.is_large_list(column.kind):
        return _any_lists(rng, column, count, mask)
    if types.is_null(column.kind):
        return pa.nulls(count)
    if column.kind == pa.json_():
        texts = [None if no else rng.choice(_JSON) for no in missing]
        return pa.ExtensionArray.from_storage(column.kind, pa.array(texts, pa.string()))
    return _any_leaves(rng, column.kind, missing)


def _any_lists(rng: Rng, column: Column, count: int, mask: pa.Array | None) -> pa.Array:
    lengths = [rng.choice([0, 1, 1, 2, 3]) for _ in range(count)]
    total = sum(lengths)
    width = np.int64 if types.is_large_list(column.kind) else np.int32
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(width)
    if types.is_map(column.kind):
        key, item = column.inside
        keys = pa.array(range(total)).cast(key.type)
        values = pa.StructArray.from_arrays(
            [keys, any_array(rng, item, total)], fields=[key.field, item.field]
        )
    else:
        values = any_array(rng, column.inside[0], total)
    bits = None
    if mask is not None:
        bits = pa.array([not one for one in mask.to_pylist()]).buffers()[1]
    return pa.Array.from_buffers(
        column.type, count, [bits, pa.py_buffer(offsets)], children=[values]
    )


def _any_leaves(rng: Rng, kind: pa.DataType, missing: Sequence[bool]) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _any_leaves(rng, kind.storage_type, missing))
    if types.is_dictionary(kind):
        values = _any_leaves(rng, kind.value_type, [False] * 5).unique()
        numbers = [None if no else rng.randrange(len(values)) for no in missing]
        return pa.DictionaryArray.from_arrays(pa.array(numbers, kind.index_type), values)
    if types.is_fixed_size_list(kind):
        flat = _any_leaves(rng, kind.value_type, [False] * (len(missing) * kind.list_size))
        return pa.FixedSizeListArray.from_arrays(
            flat, type=kind, mask=pa.array(missing, pa.bool_())
        )
    if types.is_boolean(kind):
        return pa.array([None if no else rng.random() < 0.5 for no in missing], kind)
    if types.is_temporal(kind):
        numbers = [None if no else rng.randint(0, 40_000) for no in missing]
        if types.is_date64(kind):
            numbers = [None if one is None else one * 86_400_000 for one in numbers]
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(numbers, width).view(kind)
    return pa.array([None if no else _value(rng, kind) for no in missing], kind)


def _value(rng: Rng, kind: pa.DataType) -> object:
    if types.is_integer(kind):
        return _whole(rng, kind)
    if types.is_floating(kind):
        value = rng.choice([0.0, -0.0, 1.5, math.nan, math.inf, -2.25])
        return np.float16(value) if types.is_float16(kind) else value
    if types.is_decimal(kind):
        return Decimal(rng.randint(-999, 999)).scaleb(-kind.scale)
    if types.is_fixed_size_binary(kind):
        return bytes(rng.randrange(256) for _ in range(kind.byte_width))
    text = rng.choice(_TEXTS)
    if types.is_string(kind) or types.is_large_string(kind):
        return text
    return text.encode() + rng.choice([b"", b"\xff\0"])


def _whole(rng: Rng, kind: pa.DataType) -> int:
    bits = int(kind.bit_width)
    signed = types.is_signed_integer(kind)
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1 if signed else bits)) - 1
    return rng.choice([low, high, 0, 1, rng.randint(low, high)])


# Layouts: the same values, otherwise in memory.


def sliced(_: Rng, table: pa.Table, make: Callable[[int], pa.Table]) -> pa.Table:
    """Return the rows between others, in the memory of all."""
    around = pa.concat_tables([make(3), table, make(2)]).combine_chunks()
    return around.slice(3, table.num_rows)


def chunked(rng: Rng, table: pa.Table, _: object) -> pa.Table:
    """Return the rows in several chunks, of which some are empty."""
    cut = rng.randint(0, table.num_rows)
    return pa.concat_tables([table.slice(0, cut), table.slice(0, 0), table.slice(cut)])


def through_ipc(_: Rng, table: pa.Table, __: object) -> pa.Table:
    """Return the rows as they come out of a stream: aligned to 8 bytes."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return ipc.open_stream(pa.BufferReader(sink.getvalue())).read_all()


def off_by_four(_: Rng, table: pa.Table, __: object) -> pa.Table:
    """Return the rows where nothing is aligned."""
    table = table.combine_chunks()
    columns = [moved(whole(column), 4) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def shuffled_columns(rng: Rng, table: pa.Table, _: object) -> pa.Table:
    """Return the columns in another order."""
    names = list(table.column_names)
    rng.shuffle(names)
    return table.select(names)


def as_views(_: Rng, table: pa.Table, __: object) -> pa.Table:
    """Return text and bytes at the top as views."""
    views = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}
    for at, one in enumerate(table.schema):
        if one.type in views:
            kind = views[one.type]
            cast = pa.array(table.column(at).to_pylist(), kind)
            table = table.set_column(at, one.with_type(kind), cast)
    return table


def as_it_is(_: Rng, table: pa.Table, __: object) -> pa.Table:
    """Return the rows as they are."""
    return table


LAYOUTS = [as_it_is, sliced, chunked, through_ipc, off_by_four, shuffled_columns, as_views]


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    made = column.combine_chunks()
    return made if isinstance(made, pa.Array) else pa.concat_arrays(made.chunks)


def moved(array: pa.Array, by: int) -> pa.Array:
    """Return the same values at addresses that are off by some bytes."""
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, moved(array.storage, by))
    if isinstance(array, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(
            moved(array.indices, by), moved(array.dictionary, by), ordered=array.type.ordered
        )
    children, own = _children(array)
    buffers = [_moved_buffer(one, by) for one in array.buffers()[:own]]
    return pa.Array.from_buffers(
        array.type, len(array), buffers, offset=array.offset, children=children
    )


def _children(array: pa.Array) -> tuple[list[pa.Array] | None, int | None]:
    """Return the arrays inside, and how many of all buffers are the array's own."""
    kind = array.type
    if types.is_struct(kind):
        return [array.field(at) for at in range(kind.num_fields)], 1
    if types.is_map(kind):
        pairs = pa.StructArray.from_arrays(
            [array.keys, array.items], fields=[kind.key_field, kind.item_field]
        )
        return [pairs], 2
    if types.is_fixed_size_list(kind):
        return [array.values], 1
    if types.is_list(kind) or types.is_large_list(kind):
        return [array.values], 2
    return None, None


def _moved_buffer(buffer: pa.Buffer | None, by: int) -> pa.Buffer | None:
    if buffer is None:
        return None
    room = np.zeros(buffer.size + 128, np.uint8)
    start = -room.ctypes.data % 64 + by
    room[start : start + buffer.size] = np.frombuffer(buffer, np.uint8)
    return pa.py_buffer(room).slice(start, buffer.size)


# Meaning: values as a model keeps them.


def meaning(value: object, column: Column) -> Any:
    """Return a value whose nested fields go by identity; NaN and -0.0 are told apart."""
    if value is None:
        return None
    if types.is_struct(column.kind):
        assert isinstance(value, dict)
        return {part.uid: meaning(value[part.name], part) for part in column.inside}
    if types.is_map(column.kind):
        assert isinstance(value, list)
        return [(key, meaning(item, column.inside[1])) for key, item in value]
    if types.is_list(column.kind) or types.is_large_list(column.kind):
        assert isinstance(value, list)
        return [meaning(item, column.inside[0]) for item in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float | np.floating):
        return "nan" if math.isnan(value) else (float(value), math.copysign(1, value))
    if isinstance(value, np.ndarray):
        return [_plain(one) for one in value.ravel().tolist()]
    return value


def seen_as(known: Any, column: Column) -> Any:
    """Return what a kept value is today: without dropped fields, null for those added since."""
    if known is None:
        return None
    if types.is_struct(column.kind):
        return {part.uid: seen_as(known.get(part.uid), part) for part in column.inside}
    if types.is_map(column.kind):
        return [(key, seen_as(item, column.inside[1])) for key, item in known]
    if types.is_list(column.kind) or types.is_large_list(column.kind):
        return [seen_as(item, column.inside[0]) for item in known]
    return known


def paths(columns: Sequence[Column], prefix: str = "") -> Iterator[tuple[str, list[Column]]]:
    """Yield each struct with the path to it, as Lance spells it: its fields can be changed."""
    for column in columns:
        path = prefix + column.name
        if types.is_struct(column.kind):
            yield path + ".", column.inside
            yield from paths(column.inside, path + ".")
        elif types.is_map(column.kind):
            yield from paths(column.inside[1:], path + ".entries.")
        elif column.inside:
            yield from paths(column.inside, path + ".")
