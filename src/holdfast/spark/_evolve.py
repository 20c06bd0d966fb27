"""Columns that change with what is written: new ones, new parts of structs, wider numbers.

A number becomes wider when every value has its place in the new type: byte, short, int, long;
float, double. Rows that are there have null in what is new. Lance rewrites a column that becomes
wider, and drops its indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from pyarrow import types
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from holdfast.commits import translate_errors
from holdfast.errors import InvalidInputError, UnsupportedError
from holdfast.formats import key_columns, quote_name
from holdfast.shard import read_entry_at
from holdfast.spark._types import spark_type, table_schema, widens

if TYPE_CHECKING:
    from holdfast.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """What a table's columns lack to hold a frame.

    Attributes:
        new: columns, and parts of structs in a struct of those alone.
        wider: columns with their new types, in Lance's words.
    """

    new: Sequence[pa.Field]
    wider: Sequence[Mapping[str, Any]]  # Any: a path, and a type

    def __bool__(self) -> bool:
        """Tell whether it changes anything."""
        return bool(self.new or self.wider)


def plan_evolution(
    frame: spark.StructType, schema: pa.Schema, sizes: Mapping[str, int]
) -> Evolution:
    """Return what a table lacks to hold a frame.

    Raises:
        InvalidInputError: a new column cannot be stored, or differs from another one only by
            capital letters.
    """
    missing = [field for field in frame.fields if field.name not in schema.names]
    names = {field.name.lower() for field in missing}
    _refuse_other_case(names, schema)
    new: list[pa.Field] = []
    if missing:
        fitting = {name: size for name, size in sizes.items() if name in names}
        new += list(table_schema(spark.StructType(missing), fitting))
    wider: list[Mapping[str, Any]] = []
    for field in frame.fields:
        if field.name in schema.names:
            stored = schema.field(field.name)
            lacking = _missing_parts(field, stored)
            new += [] if lacking is None else [lacking]
            wider += _wider(field, stored, (field.name,))
    return Evolution(new=new, wider=wider)


def _missing_parts(given: spark.StructField, stored: pa.Field) -> pa.Field | None:
    """Return the parts of a struct that the stored one lacks, in a struct of those alone."""
    if not isinstance(given.dataType, spark.StructType) or not types.is_struct(stored.type):
        return None
    there = {
        stored.type.field(at).name: stored.type.field(at) for at in range(stored.type.num_fields)
    }
    parts = [
        _missing_parts(part, there[part.name])
        if part.name in there
        else table_schema(spark.StructType([part]), {}).field(0)
        for part in given.dataType.fields
    ]
    new = [part for part in parts if part is not None]
    return pa.field(stored.name, pa.struct(new)) if new else None


def _wider(
    given: spark.StructField, stored: pa.Field, path: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    if isinstance(given.dataType, spark.StructType) and types.is_struct(stored.type):
        for part in given.dataType.fields:
            at = stored.type.get_field_index(part.name)
            if at >= 0:
                yield from _wider(part, stored.type.field(at), (*path, part.name))
    elif is_wider(stored, given.dataType):
        yield {"path": column_path(path), "data_type": to_arrow_type(given.dataType)}


def is_wider(stored: pa.Field, wanted: spark.DataType) -> bool:
    """Tell whether a type holds every number of a column, and more."""
    return not types.is_null(stored.type) and widens(spark_type(stored), wanted)


def column_path(names: Sequence[str]) -> str:
    """Return a column, or a part of one, as Lance names it."""
    return ".".join(quote_name(name) if not name.isidentifier() else name for name in names)


def evolve(table: Table, dataset: lance.LanceDataset, evolution: Evolution) -> None:
    """Change the columns of a table; one version for what is new, one for what is wider.

    Raises:
        InvalidInputError: a column of the key would change.
        UnsupportedError: the table has a log, whose rows have the columns that it began with.
        ConflictError: another writer was faster.
    """
    nested = [field for field in evolution.new if field.name in dataset.schema.names]
    if evolution.wider or nested:
        refuse_log(table, dataset)
    for one in evolution.wider:
        if one["path"] in {column_path([name]) for name in key_columns(dataset.schema)}:
            raise InvalidInputError(
                "a column of the primary key keeps its type: cast the frame's column",
                column=one["path"],
            )
    with translate_errors(table.uri):
        if evolution.new:
            dataset.add_columns(pa.schema(evolution.new))
            dataset = table.dataset()
        if evolution.wider:
            changes: Any = evolution.wider  # Lance's shape
            dataset.alter_columns(*changes)


def refuse_log(table: Table, dataset: lance.LanceDataset) -> None:
    """Refuse a table with a log.

    Raises:
        UnsupportedError: it has one.
    """
    if read_entry_at(table.versions.core, dataset) is not None:
        raise UnsupportedError(
            "this table has a log, and rows in it have the types that it began with: a column does "
            "not become wider, and a struct gets no new part",
            table=table.uri,
        )


def _refuse_other_case(names: set[str], schema: pa.Schema) -> None:
    """Spark takes `Id` and `id` for one name, and could not read a table with both."""
    same = [name for name in schema.names if name.lower() in names]
    if same:
        raise InvalidInputError(
            "a new column differs from one of the table's only by capital letters: rename it",
            column=same[0],
        )
