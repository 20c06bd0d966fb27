"""Rows as users give them and as logs hold them, fitted to the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from holdfast.commits import (
    ArrowStream,
    Data,
    as_reader,
    check_stream,
    differences,
    read_any,
    refuse_fractions,
    translate_errors,
)
from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats import MAX_ENTRY_BYTES, TOMBSTONE, Field, arrow_field, counterpart, fit_array
from holdfast.shard._base import Base

Keys: TypeAlias = "ArrowStream | pa.RecordBatch | pa.Array | Sequence[Any]"
"""Keys: Arrow data with the key columns, dicts, tuples, or values of a key of one column."""


class InputRows(NamedTuple):
    """Rows that somebody wants to write, checked.

    Attributes:
        batch: the rows in the table's columns, without the tombstone.
        deleted: whether they delete their keys.
        size: how many bytes they have.
    """

    batch: pa.RecordBatch
    deleted: bool
    size: int

    def to_stored(self, base: Base) -> pa.RecordBatch:
        """Return the rows as they are stored."""
        return stored_batch([self], base.storage_schema)


def rows_of(data: Data, base: Base) -> InputRows:
    """Return data as one batch of rows of the table.

    Raises:
        InvalidInputError: no rows, columns that do not fit, a null where none may be, or more
            rows than one log entry can hold.
    """
    if not isinstance(data, pa.RecordBatch) or not data.schema.equals(base.schema):
        data = _fit_rows(data, base)
    return _check_size(base.content.check(data), deleted=False)


def _fit_rows(data: Data, base: Base) -> pa.RecordBatch:
    table = _table_of(data, base)
    columns = [
        _one(table[field.name])
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in base.schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=base.schema)


def _table_of(data: Data, base: Base) -> pa.Table:
    if isinstance(data, pa.RecordBatch | pa.Table) and _has_types(data.schema, base.schema):
        return data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    with translate_errors("data"):
        return as_reader(data, base.schema).read_all()


def _has_types(given: pa.Schema, wanted: pa.Schema) -> bool:
    """Tell whether data fits and is of the table's own types."""
    return not differences(given, wanted) and all(
        given.field(name).type == wanted.field(name).type for name in given.names
    )


def tombstones_of(keys: Keys, base: Base) -> InputRows:
    """Return rows that delete keys.

    Raises:
        InvalidInputError: the table has no key, or these are no keys of it.
    """
    table = keys_of(keys, base)
    columns = [
        _one(table[field.name]) if field.name in base.keys else pa.nulls(table.num_rows, field.type)
        for field in base.schema
    ]
    fields = [base.storage_schema.field(field.name) for field in base.schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    return _check_size(batch, deleted=True)


def stored_batch(rows: Sequence[InputRows], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as one batch of stored columns, with their tombstones.

    Args:
        rows: what was given, in order.
        schema: the columns; their types are those of the table.
    """
    if len(rows) == 1:
        columns = rows[0].batch.columns
    else:
        # Into memory from the system's allocator, which gives it back: rows stay for long.
        pool = pa.system_memory_pool()
        parts = zip(*(one.batch.columns for one in rows), strict=True)
        columns = [pa.concat_arrays(part, memory_pool=pool) for part in parts]
    counts = [one.batch.num_rows for one in rows]
    deleted = np.repeat([one.deleted for one in rows], counts)
    return pa.RecordBatch.from_arrays([*columns, pa.array(deleted)], schema=schema)


def keys_of(keys: Keys, base: Base) -> pa.Table:
    """Return keys as a table of the key columns; other columns are left out.

    Raises:
        InvalidInputError: the table has no key, or these are no keys of it.
    """
    if not base.keys:
        raise InvalidInputError("this table has no primary key: its rows cannot be named")
    wanted = pa.schema([base.schema.field(name) for name in base.keys])
    try:
        table = _any_keys(keys, wanted)
    except (pa.ArrowException, LookupError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"these are no keys of the table: {error}"[:300]) from error
    table = table.select([name for name in table.column_names if name in wanted.names])
    problems = differences(table.schema, wanted)
    if problems:
        raise InvalidInputError("these are no keys of the table: " + "; ".join(problems))
    if any(table[name].null_count for name in wanted.names):
        raise InvalidInputError("a key is never null")
    return pa.Table.from_batches(
        check_stream(table.select(wanted.names).to_reader(), wanted), wanted
    )


def _any_keys(keys: Keys, wanted: pa.Schema) -> pa.Table:
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return pa.table([keys.cast(wanted.field(0).type)], names=wanted.names[:1])
    if hasattr(keys, "__arrow_c_stream__") or isinstance(keys, pa.RecordBatch):
        return read_any(keys).read_all()
    listed = list(keys)
    if len(wanted) == 1 and not any(isinstance(key, Mapping) for key in listed[:1]):
        refuse_fractions(listed, wanted.field(0))
        return pa.table([pa.array(listed, wanted.field(0).type)], names=wanted.names)
    rows = [_key_values(key, wanted.names) for key in listed]
    for field in wanted:
        refuse_fractions((row.get(field.name) for row in rows), field)
    return pa.Table.from_pylist(rows, schema=_nullable(wanted))


def _key_values(key: Any, names: Sequence[str]) -> dict[str, Any]:  # noqa: ANN401 - any value
    """Return a key as its values by name: it is a dict, a tuple in the key's order, or a value."""
    if isinstance(key, Mapping):
        return {name: key.get(name) for name in names}
    if len(names) == 1:
        return {names[0]: key}
    if not isinstance(key, tuple | list) or len(key) != len(names):
        raise InvalidInputError(
            "a key of several columns is a tuple of their values in the key's order, or a dict",
            key_columns=", ".join(names),
        )
    return dict(zip(names, key, strict=True))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([one.with_nullable(nullable=True) for one in schema])


def fit_entry(batch: pa.RecordBatch, base: Base) -> pa.RecordBatch:
    """Return the rows of a log entry in the table's columns of today.

    Columns, and fields inside them, are matched by id where the entry has ids: one that was
    dropped and made anew is another one. What is missing is null, what is too much is left out.

    Raises:
        CorruptError: a key column is missing, or a column has a type that does not fit.
    """
    if batch.schema.equals(base.log_schema, check_metadata=True):
        return relabel(batch, base.storage_schema)
    theirs = [arrow_field(field) for field in batch.schema if field.name != TOMBSTONE]
    columns = [_column(batch, theirs, ours, base) for ours in base.fields]
    return pa.RecordBatch.from_arrays([*columns, _tombstone(batch)], schema=base.storage_schema)


def _column(batch: pa.RecordBatch, theirs: Sequence[Field], ours: Field, base: Base) -> pa.Array:
    at = counterpart(ours, theirs)
    if at is not None:
        return fit_array(batch.column(theirs[at].name), theirs[at], ours)
    if ours.name in base.keys:
        raise CorruptError("a log entry lacks a column of the key", column=ours.name)
    return pa.nulls(batch.num_rows, ours.field.type)


def _tombstone(batch: pa.RecordBatch) -> pa.Array:
    if TOMBSTONE in batch.schema.names:
        return batch.column(TOMBSTONE)
    return pa.array(np.zeros(batch.num_rows, np.bool_))


def relabel(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the same columns under other fields."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return column.combine_chunks()


def _check_size(batch: pa.RecordBatch, *, deleted: bool) -> InputRows:
    if not batch.num_rows:
        raise InvalidInputError("there are no rows to write")
    size = int(batch.nbytes) + (batch.num_rows + 7) // 8  # with the tombstones
    if size > MAX_ENTRY_BYTES // 2:
        raise InvalidInputError(
            "these are too many bytes for one log entry: put fewer rows per call",
            size=size,
            limit=MAX_ENTRY_BYTES // 2,
        )
    return InputRows(batch, deleted, size)
