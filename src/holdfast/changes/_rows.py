"""Change rows: the table's columns, and what tells of a change beside them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.options import suggestion

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
LOG_POSITION = "_log_position"
TIME = pa.timestamp("us", tz="UTC")
BESIDE = pa.schema(
    [
        (CHANGE_TYPE, pa.string()),
        (COMMIT_VERSION, pa.int64()),
        (COMMIT_TIMESTAMP, TIME),
        (LOG_POSITION, pa.int64()),
    ]
)
"""What a change row has beside the table's columns."""


def columns_of(table: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the table's columns that change rows have, any of which may be null.

    Raises:
        InvalidInputError: a column is not there or named twice, or has the name of one beside.
    """
    names = list(table.names if columns is None else columns)
    for name in names:
        if name in BESIDE.names:
            raise InvalidInputError(
                "a column of the table has a name that change rows need: leave it out with "
                "`columns`, or rename it",
                column=name,
            )
        if name not in table.names:
            raise InvalidInputError(
                f"the table has no column {name!r}{suggestion(name, table.names)}"
            )
    if len(set(names)) != len(names) or not names:
        raise InvalidInputError("columns are names of the table's columns, each once")
    return pa.schema(
        [table.field(name).with_nullable(nullable=True).remove_metadata() for name in names]
    )


def change_schema(table: pa.Schema, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the columns of change rows.

    Raises:
        InvalidInputError: as for `columns_of`.
    """
    return pa.schema([*columns_of(table, columns), *BESIDE])


def change_rows(
    rows: pa.Table,
    types: str | Sequence[str],
    *,
    version: int,
    time: datetime | pa.Array,
    positions: pa.Array | None = None,
) -> pa.Table:
    """Return rows with what is beside them."""
    count = rows.num_rows
    beside = [
        pa.repeat(pa.scalar(types), count)
        if isinstance(types, str)
        else pa.array(types, pa.string()),
        pa.repeat(pa.scalar(version, pa.int64()), count),
        time if isinstance(time, pa.Array) else pa.repeat(pa.scalar(time, TIME), count),
        pa.nulls(count, pa.int64()) if positions is None else positions,
    ]
    schema = pa.schema([*rows.schema, *BESIDE])
    return pa.Table.from_arrays([*rows.columns, *beside], schema=schema)
