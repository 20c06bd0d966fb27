"""Users' data as Arrow, checked against a table's schema before anything is written."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from holdfast.errors import InvalidInputError


@runtime_checkable
class ArrowStream(Protocol):
    """Anything that speaks Arrow's C stream interface: pyarrow, polars, duckdb, pandas."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""
        ...


Data: TypeAlias = "ArrowStream | pa.RecordBatch | list[dict[str, Any]]"
"""What may be written: an Arrow stream, a batch, or a list of rows as dicts."""


def as_reader(data: Data, schema: pa.Schema) -> pa.RecordBatchReader:
    """Return `data` as a stream of batches that fit `schema`.

    Raises:
        InvalidInputError: it is no data, or its columns do not fit; the difference is said.
    """
    reader = read_any(data, schema)
    problems = differences(reader.schema, schema)
    if problems:
        raise InvalidInputError(
            "the data does not fit the table: " + "; ".join(problems),
            columns=", ".join(reader.schema.names)[:200],
        )
    return reader


def differences(given: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Return in words what keeps data of one schema out of a table of another."""
    if len(set(given.names)) != len(given.names):
        return ["two columns have the same name"]
    found = [f"unexpected column {n!r}" for n in given.names if n not in wanted.names]
    for field in wanted:
        if field.name not in given.names:
            if not field.nullable:
                found.append(f"missing column {field.name!r} ({field.type}, not null)")
        elif given.field(field.name).type != field.type:
            kind = given.field(field.name).type
            found.append(f"column {field.name!r} is {kind}, the table has {field.type}")
    return found


def _from_rows(rows: list[dict[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """Return rows as a table; pyarrow would drop what the schema does not name."""
    names = set(schema.names) if schema else {key for row in rows for key in row}
    extra = sorted({str(key) for row in rows for key in row if key not in names})
    if extra:
        raise InvalidInputError(
            "the data does not fit the table: "
            + "; ".join(f"unexpected column {name!r}" for name in extra[:10])
        )
    return pa.Table.from_pylist(rows, schema=schema)


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
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"the data cannot be read as Arrow: {error}"[:300]) from error
    raise InvalidInputError(
        "data is an Arrow table, batch or stream (pyarrow, polars, duckdb, pandas), or a list "
        "of rows as dicts",
        given=type(data).__name__,
    )
