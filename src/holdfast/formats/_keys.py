"""Primary keys as bytes: which types may be keys, one value per row, and what is hashed.

A key of one column is that column. A key of several is one binary value that sorts as the
columns do: per column 0x00 for null, else 0x01 and the value, numbers as 8 bytes from the
highest down with the sign turned over, text with its zero bytes escaped and two at its end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError
from holdfast.formats._bloom import Hashes, hash_numbers, hash_rows
from holdfast.formats._content import check_types, parts_of, widen_type
from holdfast.formats._ragged import (
    Ragged,
    as_array,
    fixed_bytes,
    join_parts,
    only,
    ragged_bytes,
    single_bytes,
    valid_rows,
)

PRIMARY_KEY = b"lance-schema:unenforced-primary-key"
"""The field metadata that marks a key column."""

KEY_POSITION = b"lance-schema:unenforced-primary-key:position"
"""The field metadata that gives a key column its place, from 1 on; it marks one by itself, too."""

_NO_KEY = "a key column holds single values, not lists, structs or maps"
_FLOAT_BITS = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_YES = {b"true", b"1", b"yes", b"on"}
_NUMBER = re.compile(rb"\+?[0-9]{1,10}")
_NUMBERS = (
    pa.types.is_integer,
    pa.types.is_boolean,
)
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def key_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of the primary key in their order; none for an append-only table.

    Those with a position come first, by it; then those without, as the schema has them.
    """
    marked = []
    for index, field in enumerate(schema):
        place = _key_place(field)
        if place is not None:
            marked.append((place == 0, place, index, field.name))
    return tuple(name for *_, name in sorted(marked))


def _key_place(field: pa.Field) -> int | None:
    """Return the position of a key column, 0 for one without; None for any other column."""
    metadata = field.metadata or {}
    place = metadata.get(KEY_POSITION, b"")
    if _NUMBER.fullmatch(place) and int(place) < 1 << 32:
        return int(place)
    return 0 if metadata.get(PRIMARY_KEY, b"").lower() in _YES else None


def add_key(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Return the schema that a new table gets: checked, with wide dictionaries and its key.

    Raises:
        InvalidInputError: no columns, a type that Lance cannot keep, or no such key.
    """
    if not isinstance(schema, pa.Schema) or not schema.names:
        raise InvalidInputError("a table needs a pyarrow schema with at least one column")
    if isinstance(primary_key, str):
        raise InvalidInputError("a primary key is a list of column names", key=primary_key)
    check_types(schema)
    wide = [field.with_type(widen_type(field.type)) for field in schema]
    return mark_key(pa.schema(wide, schema.metadata), list(primary_key))


def mark_key(schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """Return a schema whose primary key are these columns, in this order; they are never null.

    Raises:
        InvalidInputError: a column is not there, named twice or of lists or structs, or the schema
            marks others.
    """
    if len(set(keys)) != len(keys):
        raise InvalidInputError("the primary key names a column twice", key=", ".join(keys))
    if keys and not set(key_columns(schema)) <= set(keys):
        raise InvalidInputError(
            "the schema marks another primary key than the one that is given",
            key=", ".join(keys),
            marked=", ".join(key_columns(schema)),
        )
    for place, name in enumerate(keys, 1):
        if name not in schema.names:
            raise InvalidInputError("the primary key names a column that is not there", key=name)
        index = schema.get_field_index(name)
        field = schema.field(index)
        _refuse_nested(field)
        metadata = {k: v for k, v in (field.metadata or {}).items() if k != KEY_POSITION}
        metadata[PRIMARY_KEY] = b"true"
        if len(keys) > 1:
            metadata[KEY_POSITION] = b"%d" % place
        schema = schema.set(index, field.with_nullable(nullable=False).with_metadata(metadata))
    return schema


def _refuse_nested(field: pa.Field) -> None:
    kind = field.type
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_nested(kind):
        raise InvalidInputError(_NO_KEY, column=field.name, type=str(field.type))


def check_key_types(schema: pa.Schema, keys: Sequence[str]) -> None:
    """Refuse key columns that Lance's log cannot hold.

    Raises:
        InvalidInputError: a key column is no integer, boolean, text or binary, or is a field
            inside another column.
    """
    for field in schema:
        if any(_marks_inside(part) for part in parts_of(field.type)):
            raise InvalidInputError(
                "a field inside a column is marked as key: write this table by append instead",
                column=field.name,
            )
    for name in keys:
        kind = schema.field(name).type
        if not any(fits(kind) for fits in (*_NUMBERS, *_TEXTS)):
            raise InvalidInputError(
                "a key column is an integer, a boolean, text or binary: write this table by "
                "append instead",
                column=name,
                type=str(kind),
            )


def _marks_inside(field: pa.Field) -> bool:
    inside = any(_marks_inside(part) for part in parts_of(field.type))
    return _key_place(field) is not None or inside


def key_values(columns: Sequence[pa.Array]) -> pa.Array:
    """Return one value per row that is equal where the key is, null or unequal for null keys.

    Of a column whose type a log can hold it is the column itself; several become binary values
    that sort as the columns do.

    Raises:
        InvalidInputError: a column holds lists, structs or maps.
    """
    plain = [_equal_when_same(column) for column in columns]
    if len(plain) == 1:
        return plain[0]
    parts: list[Ragged] = []
    for column in map(_as_sortable, plain):
        valid = valid_rows(column)
        parts.append(single_bytes(valid))
        parts.extend(_sortable(column))
    return as_array(join_parts(parts))


def _equal_when_same(column: pa.Array) -> pa.Array:
    """Return a column whose equal values have equal bits: of floats, -0.0 is 0.0 and NaN is NaN."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _equal_when_same(column.storage)
    if pa.types.is_dictionary(kind):
        return _equal_when_same(column.dictionary_decode())
    if pa.types.is_nested(kind):
        raise InvalidInputError(_NO_KEY, type=str(kind))
    if not pa.types.is_floating(kind):
        return column
    numbers = column.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    numbers[np.isnan(numbers)] = np.nan
    bits = pa.array(numbers.view(f"u{numbers.itemsize}"), _FLOAT_BITS[kind.bit_width])
    return pc.if_else(column.is_null(), pa.scalar(None, bits.type), bits)


def _as_sortable(column: pa.Array) -> pa.Array:
    """Return a column of a type that several columns of a key are joined from."""
    kind = column.type
    if pa.types.is_temporal(kind):
        return column.cast(pa.int32() if kind.bit_width < 64 else pa.int64())  # noqa: PLR2004 - bits
    if pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    return column


def newest_per_key(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the numbers of the rows that are the last with their key, in ascending order."""
    codes = key_values(columns).dictionary_encode(null_encoding="encode").indices
    numbers = codes.to_numpy()
    last = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    last[numbers] = np.arange(len(numbers))  # of several, the last one stays
    return pa.array(np.sort(last))


def _sortable(column: pa.Array) -> list[Ragged]:
    valid = valid_rows(column)
    kind = column.type
    if pa.types.is_boolean(kind):
        return [fixed_bytes(_numbers(column).astype(np.uint8), valid)]
    if pa.types.is_unsigned_integer(kind):
        return [fixed_bytes(_numbers(column).astype(">u8"), valid)]
    if pa.types.is_integer(kind):
        turned = _numbers(column).astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
        return [fixed_bytes(turned.astype(">u8"), valid)]
    text = _escape_zeros(ragged_bytes(column))
    end = Ragged(np.zeros(2 * len(valid), np.uint8), np.full(len(valid), 2, np.int64))
    return [text, only(end, valid)]


def _escape_zeros(rows: Ragged) -> Ragged:
    """Write every zero byte as 00 FF."""
    zeros = np.flatnonzero(rows.flat == 0)
    if not len(zeros):
        return rows
    owner = np.repeat(np.arange(len(rows.lengths)), rows.lengths)[zeros]
    more = np.bincount(owner, minlength=len(rows.lengths))
    return Ragged(np.insert(rows.flat, zeros + 1, 0xFF), rows.lengths + more)


def key_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """Return the hash of each key, as the bloom filter takes it."""
    only_one = columns[0] if len(columns) == 1 else None
    if only_one is not None and pa.types.is_int64(only_one.type) and not only_one.null_count:
        return hash_numbers(np.ascontiguousarray(only_one.to_numpy()))
    return hash_rows(hashed_bytes(columns))


def hashed_bytes(columns: Sequence[pa.Array]) -> Ragged:
    """Return what the bloom filter hashes of each row."""
    parts: list[Ragged] = []
    for column in columns:
        valid = valid_rows(column)
        parts.append(single_bytes(~valid))
        parts.extend(_hash_parts(column))
    return join_parts(parts)


def _hash_parts(column: pa.Array) -> list[Ragged]:
    """Return a value's own bytes: of four types; of others Lance hashes only that it is there."""
    valid = valid_rows(column)
    kind = column.type
    if pa.types.is_int32(kind) or pa.types.is_int64(kind):
        return [fixed_bytes(_numbers(column), valid)]
    if pa.types.is_string(kind):
        end = single_bytes(np.full(len(valid), 0xFF, np.uint8))
        return [ragged_bytes(column), only(end, valid)]
    if pa.types.is_binary(kind):
        rows = ragged_bytes(column)
        return [fixed_bytes(rows.lengths.astype("<u8"), valid), rows]
    return []


def _numbers(column: pa.Array) -> np.ndarray:
    filled = pc.fill_null(column, False if pa.types.is_boolean(column.type) else 0)
    numbers: np.ndarray = filled.to_numpy(zero_copy_only=False)
    return numbers
