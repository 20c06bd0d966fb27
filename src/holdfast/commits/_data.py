"""Users' data as Arrow, checked against a table's schema before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.formats import Content, check_values, parts_of, rebuild_type


@runtime_checkable
class ArrowStream(Protocol):
    """Anything that speaks Arrow's C stream interface: pyarrow, polars, duckdb, pandas."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""
        ...


Data: TypeAlias = "ArrowStream | pa.RecordBatch | list[dict[str, Any]]"
"""What may be written: an Arrow stream, a batch, or a list of rows as dicts."""


def as_reader(
    data: Data, schema: pa.Schema, renewed: Callable[[], pa.Schema] | None = None
) -> pa.RecordBatchReader:
    """Return `data` as a stream of batches in the table's own types, every value checked.

    What is checked is told while the stream is read; see `Content.check`. `renewed` returns the
    table's columns as they are now; it is asked when the data does not fit `schema`.

    Raises:
        InvalidInputError: it is no data, or its columns do not fit; the difference is said.
    """
    try:
        reader = read_any(data, schema)
    except InvalidInputError:
        if renewed is None or not isinstance(data, list):
            raise
        return as_reader(data, renewed())
    problems = differences(reader.schema, schema)
    if problems and renewed is not None:
        return as_reader(data if isinstance(data, list) else reader, renewed())
    if problems:
        raise InvalidInputError(
            "the data does not fit the table: " + "; ".join(problems),
            columns=", ".join(reader.schema.names)[:200],
        )
    return check_stream(reader, pa.schema([schema.field(name) for name in reader.schema.names]))


def check_stream(reader: pa.RecordBatchReader, schema: pa.Schema) -> pa.RecordBatchReader:
    """Return a stream in the types of `schema`, every value checked as it is read.

    Args:
        reader: the stream, whose columns fit.
        schema: the same columns as the table has them.

    Raises:
        InvalidInputError: a column has a type that Lance cannot read again.
    """
    content = Content(schema)
    if reader.schema.types == schema.types:
        labelled = (pa.RecordBatch.from_arrays(one.columns, schema=schema) for one in reader)
        return content.check_batches(labelled)
    return content.check_batches(_cast(batch, schema) for batch in reader)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    check_values(batch)  # a cast takes them on trust
    columns = [
        column if column.type == field.type else _cast_column(column, field)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast_column(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidInputError(
            "a column's values do not fit the table's type",
            column=field.name,
            type=str(field.type),
            reason=str(error)[:200],
        ) from error


def differences(given: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Return in words what keeps data of one schema out of a table of another."""
    if len(set(given.names)) != len(given.names):
        return ["two columns have the same name"]
    texts = [f"unexpected column {n!r}" for n in given.names if n not in wanted.names]
    for field in wanted:
        if field.name not in given.names:
            if not field.nullable:
                texts.append(f"missing column {field.name!r} ({field.type}, not null)")
        elif not _fits(given.field(field.name).type, field.type):
            kind = given.field(field.name).type
            texts.append(f"column {field.name!r} is {kind}, the table has {field.type}")
    return texts


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether values are of a type, but for how they lie in memory."""
    if given == wanted:
        return True
    if pa.types.is_dictionary(given) and pa.types.is_dictionary(wanted):
        return _fits(given.value_type, wanted.value_type) and given.ordered == wanted.ordered
    if pa.types.is_string_view(given) or pa.types.is_binary_view(given):
        plain = pa.string() if pa.types.is_string_view(given) else pa.binary()
        return bool(wanted == plain)
    ours, theirs = parts_of(wanted), parts_of(given)
    if given.id != wanted.id or not ours or len(ours) != len(theirs):
        return False
    if pa.types.is_fixed_size_list(given) and given.list_size != wanted.list_size:
        return False
    named = pa.types.is_struct(given)  # what is in lists and maps is called this or that
    return all(
        (not named or one.name == two.name)
        and one.nullable == two.nullable
        and _fits(one.type, two.type)
        for one, two in zip(theirs, ours, strict=True)
    )


def _from_rows(rows: list[dict[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """Return rows as a table; pyarrow would drop what the schema does not name."""
    names = set(schema.names) if schema else {key for row in rows for key in row}
    extra = sorted({str(key) for row in rows for key in row if key not in names})
    if extra:
        raise InvalidInputError(
            "the data does not fit the table: "
            + "; ".join(f"unexpected column {name!r}" for name in extra[:10])
        )
    for field in schema or ():
        refuse_fractions((row.get(field.name) for row in rows), field)
    if schema is None or not any(_has_extensions_inside(field.type) for field in schema):
        return pa.Table.from_pylist(rows, schema=schema)
    # Arrow makes no extension types inside of others out of Python's values.
    plain = pa.schema([field.with_type(_storage_type(field.type)) for field in schema])
    table = pa.Table.from_pylist(rows, schema=plain)
    columns = [column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _has_extensions_inside(kind: pa.DataType) -> bool:
    return any(
        isinstance(part.type, pa.BaseExtensionType) or _has_extensions_inside(part.type)
        for part in parts_of(kind)
    )


def _storage_type(kind: pa.DataType, *, inside: bool = False) -> pa.DataType:
    """Return a type with what lies under the extension types inside of it."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type if inside else kind
    if not _has_extensions_inside(kind):
        return kind
    parts = [part.with_type(_storage_type(part.type, inside=True)) for part in parts_of(kind)]
    return rebuild_type(kind, parts)


def refuse_fractions(values: Iterable[object], field: pa.Field) -> None:
    """Refuse numbers with a fraction for a column of whole ones: pyarrow would cut it off.

    Raises:
        InvalidInputError: there is one.
    """
    if not pa.types.is_integer(field.type):
        return
    for value in values:
        if isinstance(value, float) and not value.is_integer():
            raise InvalidInputError(
                "a column of whole numbers takes no fractions", column=field.name, value=value
            )


def read_any(data: Data, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
    """Return `data` as a stream of batches; rows as dicts take their types from `schema`.

    Raises:
        InvalidInputError: it is no data.
    """
    try:
        if isinstance(data, list):
            return _from_rows(data, schema).to_reader()
        if isinstance(data, pa.RecordBatch):
            return pa.Table.from_batches([data]).to_reader()
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
    except InvalidInputError:
        raise
    except (pa.ArrowException, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InvalidInputError(f"the data cannot be read as Arrow: {error}"[:300]) from error
    raise InvalidInputError(
        "data is an Arrow table, batch or stream (pyarrow, polars, duckdb, pandas), or a list "
        "of rows as dicts",
        given=type(data).__name__,
    )
