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
    reader = _open(data, schema)
    problems = differences(reader.schema, schema)
    if problems:
        raise InvalidInputError(
            "the data does not fit the table: " + "; ".join(problems),
            columns=", ".join(reader.schema.names)[:200],
        )
    return reader


def differences(given: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Return in words what keeps data of one schema out of a table of another."""
    found = [f"unexpected column {n!r}" for n in given.names if n not in wanted.names]
    for field in wanted:
        if field.name not in given.names:
            if not field.nullable:
                found.append(f"missing column {field.name!r} ({field.type}, not null)")
        elif given.field(field.name).type != field.type:
            kind = given.field(field.name).type
            found.append(f"column {field.name!r} is {kind}, the table has {field.type}")
    if len(set(given.names)) != len(given.names):
        found.append("two columns have the same name")
    return found


def _open(data: Data, schema: pa.Schema) -> pa.RecordBatchReader:
    try:
        if isinstance(data, list):
            return pa.Table.from_pylist(data, schema=schema).to_reader()
        if isinstance(data, pa.RecordBatch):
            return pa.Table.from_batches([data]).to_reader()
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(f"the data cannot be read as Arrow: {error}"[:300]) from error
    raise InvalidInputError(
        "data is an Arrow table, batch or stream (pyarrow, polars, duckdb, pandas), or a list "
        "of rows as dicts",
        given=type(data).__name__,
    )
