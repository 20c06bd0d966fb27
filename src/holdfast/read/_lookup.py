"""Rows by their keys: each level is asked in turn, newest first, until one knows the key.

A level that holds a tombstone of the key ends the search as a row does: nothing older counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commits import refuse_fractions
from holdfast.errors import InvalidInputError
from holdfast.formats import TOMBSTONE, check_values, key_values, quote_name, write_literals
from holdfast.read._lance import Dataset, translate_read_errors
from holdfast.read._levels import Columns, Level, combine_column
from holdfast.read._view import View

Keys: TypeAlias = "Sequence[object] | pa.Array | pa.ChunkedArray | pa.Table | pa.RecordBatch"
"""Keys to look up: values, tuples or dicts for a key of several columns, or Arrow."""

_AT_ONCE = 500
_PLACE = "holdfast.place"


def lookup(view: View, keys: Keys, columns: Sequence[str] | None) -> pa.Table:
    """Return the newest rows of these keys, in the order of the keys; missing ones are left out.

    Raises:
        InvalidInputError: keys that are none of this table, unknown columns, or a table
            without a primary key.
        NotFoundError: a file is gone: take another snapshot.
        UnavailableError: a store gave no answer.
    """
    schema = view.schema(columns)
    wanted = as_keys(keys, view.columns)
    names = [*schema.names, *(key for key in view.columns.keys if key not in schema.names)]
    tables: list[pa.Table] = []
    left = wanted
    with translate_read_errors(view.location):
        for level in view.levels:
            if not left.num_rows:
                break
            rows, left = _from_level(level, left, names)
            tables.append(rows)
        tables.extend(
            _from_base(view.base, left.slice(start, _AT_ONCE), names)
            for start in range(0, left.num_rows, _AT_ONCE)
        )
    parts = [_plain(part, names) for part in tables if part.num_rows]
    if not parts:
        return pa.Table.from_batches([], schema)
    rows = _in_order(pa.concat_tables(parts), wanted, view.columns.keys)
    return pa.Table.from_arrays([rows[name] for name in schema.names], schema=schema)


def as_keys(keys: Keys, columns: Columns) -> pa.Table:
    """Return keys as a table of the key columns, each key once.

    Raises:
        InvalidInputError: they are none of this table.
    """
    if not columns.keys:
        raise InvalidInputError("this table has no primary key: scan it with a filter")
    fields = [columns.schema.field(name) for name in columns.keys]
    schema = pa.schema([field.remove_metadata() for field in fields])
    try:
        table = _table_of(keys, schema)
    except (pa.ArrowException, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise InvalidInputError(
            "keys are values of the key columns; with several, tuples or dicts",
            key_columns=", ".join(columns.keys),
            reason=str(error)[:200],
        ) from error
    if any(column.null_count for column in table.columns):
        raise InvalidInputError("a key is never null", key_columns=", ".join(columns.keys))
    for batch in table.to_batches():
        check_values(batch)
    codes = key_values([combine_column(column) for column in table.columns]).dictionary_encode()
    first: dict[int, int] = {}
    for at, code in enumerate(codes.indices.to_pylist()):
        first.setdefault(code, at)
    return table.take(pa.array(sorted(first.values()), pa.int64()))


def _table_of(keys: Keys, schema: pa.Schema) -> pa.Table:
    if isinstance(keys, pa.RecordBatch):
        keys = pa.Table.from_batches([keys])
    if isinstance(keys, pa.Table):
        return keys.select(schema.names).cast(schema).combine_chunks()
    if isinstance(keys, pa.Array | pa.ChunkedArray) and len(schema) == 1:
        return pa.table([keys.cast(schema.field(0).type)], schema=schema).combine_chunks()
    if isinstance(keys, str | bytes | Mapping):
        raise TypeError("a list of keys is needed, not one key")
    rows = list(keys)
    columns = []
    for at, field in enumerate(schema):
        if len(schema) == 1:
            values = [row[field.name] if isinstance(row, Mapping) else row for row in rows]
        else:
            values = [
                row[field.name] if isinstance(row, Mapping) else _nth(row, at, len(schema))
                for row in rows
            ]
        refuse_fractions(values, field)
        columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=schema)


def _nth(row: object, at: int, count: int) -> object:
    if not isinstance(row, tuple | list) or len(row) != count:
        raise TypeError(f"a key of {count} columns is a tuple of {count} values, or a dict")
    return row[at]


def _from_level(level: Level, left: pa.Table, names: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows that a level has, and the keys that it knows nothing of."""
    places = level.find([combine_column(column) for column in left.columns])
    known = [at for at, place in enumerate(places) if place is not None]
    unknown = [at for at, place in enumerate(places) if place is None]
    if not known:
        return left.slice(0, 0), left
    rows = level.take([place for place in places if place is not None], names)
    if TOMBSTONE in rows.column_names:
        rows = rows.filter(pc.invert(pc.fill_null(rows[TOMBSTONE], False)))
        rows = rows.drop_columns([TOMBSTONE])
    return rows, left.take(pa.array(unknown, pa.int64()))


def _from_base(base: Dataset, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return base rows by their keys; an index on the key is used where there is one."""
    condition = _condition(keys)
    if condition is None:
        return _scan_base(base, keys, names)
    rows: pa.Table = base.to_table(columns=list(names), filter=condition)
    if len(keys.column_names) == 1:
        return rows
    there = key_values([combine_column(rows[name]) for name in keys.column_names])
    asked = key_values([combine_column(column) for column in keys.columns])
    return rows.filter(pc.is_in(there, asked))


def _condition(keys: pa.Table) -> str | None:
    """Return what base rows with these keys have in common; None if SQL cannot say it."""
    parts = []
    for name in keys.column_names:
        if write_literals(keys[name].slice(0, 1)) is None:
            return None
        values = write_literals(pc.unique(keys[name]))
        parts.append(f"{quote_name(name)} IN ({values})")
    return " AND ".join(parts)


def _scan_base(base: Dataset, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return base rows by keys that SQL cannot spell: each row is compared."""
    asked = key_values([combine_column(column) for column in keys.columns])
    kept = []
    for batch in base.scanner(columns=list(names)).to_reader():
        there = key_values([batch.column(name) for name in keys.column_names])
        kept.append(batch.filter(pc.is_in(there, asked)))
    return pa.Table.from_batches(kept, base.schema if not kept else None)


def _plain(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return rows without marks on their columns, so that levels can be joined."""
    schema = pa.schema([pa.field(name, rows.schema.field(name).type) for name in names])
    return pa.Table.from_arrays([rows[name] for name in names], schema=schema)


def _in_order(rows: pa.Table, wanted: pa.Table, keys: Sequence[str]) -> pa.Table:
    there = key_values([combine_column(rows[name]) for name in keys])
    asked = key_values([combine_column(wanted[name]) for name in keys])
    place = pc.index_in(there, asked)
    return rows.append_column(_PLACE, place).sort_by(_PLACE).drop_columns([_PLACE])
