"""Columns paired by Lance's ids, at every depth: rows of a log or an SSTable in today's columns.

A name says little about a column: it may have been renamed, two may have traded names, or one
was dropped and another one made under its name. Its id says it all, for a column, for a field of
a struct, for what is in a list or a map. So:

| a field of the table                     | gets                                            |
|------------------------------------------|-------------------------------------------------|
| has its id in the rows, under any name   | the values, cast if the type is another one     |
| has its id nowhere in the rows           | null; a key or a field without nulls: an error  |
| has no counterpart in the table          | is left out                                     |

Rows whose fields have no ids, from a foreign writer, are paired by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyarrow import types

from holdfast.errors import CorruptError
from holdfast.formats._content import parts_of, rebuild_type
from holdfast.formats._manifest import SINCE_KEY, read_since

FIELD_ID = b"lance:field_id"
"""The metadata of a field that holds its id."""


class LanceField(Protocol):
    """A column of a Lance schema, as `lance.LanceDataset.lance_schema` gives it."""

    def id(self) -> int:
        """Return its id."""
        ...

    def name(self) -> str:
        """Return its name."""
        ...

    def children(self) -> Sequence[LanceField]:
        """Return the columns inside it."""
        ...


@dataclass(frozen=True, slots=True)
class Field:
    """A column, or a field inside one.

    Attributes:
        id: what Lance knows it by; None in rows without ids.
        field: its name, type and whether it has nulls.
        inside: the fields directly inside it, as `parts_of` its type gives them.
        since: the version that added it, if that is known.
    """

    id: int | None
    field: pa.Field
    inside: tuple[Field, ...] = ()
    since: int | None = None

    @property
    def name(self) -> str:
        """Return its name."""
        return str(self.field.name)

    def is_same(self, other: Field) -> bool:
        """Tell whether both are one field: the id of one that is gone may be another's since."""
        return self.id == other.id and self.since == other.since

    def is_like(self, other: Field) -> bool:
        """Tell whether values of the one are values of the other, at every depth."""
        return (
            self.is_same(other)
            and self.name == other.name
            and self.field.type == other.field.type
            and all(one.is_like(two) for one, two in zip(self.inside, other.inside, strict=True))
        )


def lance_fields(schema: pa.Schema, fields: Sequence[LanceField]) -> list[Field]:
    """Return the columns of a Lance dataset.

    Args:
        schema: its columns.
        fields: the same as `lance_schema` gives them.
    """
    known = {one.name(): one for one in fields}
    return [_of_lance(column, known[column.name], _since(column)) for column in schema]


def _of_lance(field: pa.Field, known: LanceField, since: Mapping[int, int]) -> Field:
    children = list(known.children())
    if types.is_map(field.type):  # Lance has the pairs as a field of their own
        children = list(children[0].children())
    parts = parts_of(field.type)
    if not children or not parts:  # a vector is one value to Lance
        whole = tuple(_of_arrow(part, since) for part in parts)
        return Field(known.id(), field, whole, since.get(known.id()))
    if not types.is_struct(field.type):
        inside = zip(parts, children, strict=True)
    else:
        by_name = {one.name(): one for one in children}
        inside = zip(parts, (by_name[part.name] for part in parts), strict=True)
    made = tuple(_of_lance(part, child, since) for part, child in inside)
    return Field(known.id(), field, made, since.get(known.id()))


def arrow_field(field: pa.Field) -> Field:
    """Return a column whose ids, if it has any, are in its metadata."""
    return _of_arrow(field, _since(field))


def _of_arrow(field: pa.Field, since: Mapping[int, int]) -> Field:
    mark = (field.metadata or {}).get(FIELD_ID)
    number = None if mark is None else int(mark)
    inside = tuple(_of_arrow(part, since) for part in parts_of(field.type))
    return Field(number, field, inside, None if number is None else since.get(number))


def _since(column: pa.Field) -> dict[int, int]:
    return read_since((column.metadata or {}).get(SINCE_KEY.encode()))


def with_ids(field: Field) -> pa.Field:
    """Return a field with the ids in its metadata, and in that of the fields inside it."""
    kind = field.field.type
    if any(part.id is not None for part in field.inside):
        kind = rebuild_type(kind, [with_ids(part) for part in field.inside])
    if field.id is None:
        return field.field.with_type(kind)
    metadata = {**(field.field.metadata or {}), FIELD_ID: str(field.id).encode()}
    return field.field.with_type(kind).with_metadata(metadata)


def counterpart(ours: Field, theirs: Sequence[Field]) -> int | None:
    """Return which of their fields one of ours is: by its id, or by its name where none has ids."""
    for at, field in enumerate(theirs):
        same = field.name == ours.name if field.id is None else field.is_same(ours)
        if same:
            return at
    return None


def fit_array(array: pa.Array, theirs: Field, ours: Field, path: str = "") -> pa.Array:
    """Return values of a field in the type that the table has for it.

    Raises:
        CorruptError: they do not fit, or lack a field that has no nulls.
    """
    path = path or ours.name
    wanted = ours.field.type
    if theirs.is_like(ours) and array.type == wanted:
        return array
    if not ours.inside or not _same_kind(array.type, wanted):
        return _cast(array, wanted, path)
    if types.is_struct(wanted):
        return _fit_struct(array, theirs, ours, path)
    return _fit_list(array, theirs, ours, path)


def fit_column(column: pa.ChunkedArray, theirs: Field, ours: Field) -> pa.ChunkedArray:
    """Return a column in the type that the table has for it; as for `fit_array`."""
    chunks = [fit_array(chunk, theirs, ours) for chunk in column.chunks]
    return pa.chunked_array(chunks, ours.field.type)


def _fit_struct(array: pa.StructArray, theirs: Field, ours: Field, path: str) -> pa.Array:
    parts = []
    for part in ours.inside:
        at = counterpart(part, theirs.inside)
        if at is not None:
            fitted = fit_array(array.field(at), theirs.inside[at], part, f"{path}.{part.name}")
        elif not part.field.nullable and len(array) > array.null_count:
            raise CorruptError("rows lack a field that has no nulls", column=f"{path}.{part.name}")
        else:
            fitted = pa.nulls(len(array), part.field.type)
        parts.append(fitted)
    missing = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(
        parts, fields=[part.field for part in ours.inside], mask=missing
    )


def _fit_list(array: pa.Array, theirs: Field, ours: Field, path: str) -> pa.Array:
    """Return lists or maps around what is in them, fitted; where each begins stays as it is."""
    if types.is_map(array.type):
        pairs = zip((array.keys, array.items), theirs.inside, ours.inside, strict=True)
        fitted = [fit_array(one, old, new, f"{path}.{new.name}") for one, old, new in pairs]
        values = pa.StructArray.from_arrays(fitted, fields=[one.field for one in ours.inside])
    else:
        values = fit_array(array.values, theirs.inside[0], ours.inside[0], path)
    own = 1 if types.is_fixed_size_list(array.type) else 2  # the offsets of lists lie beside
    return pa.Array.from_buffers(
        ours.field.type,
        len(array),
        array.buffers()[:own],
        offset=array.offset,
        children=[values],
    )


def _same_kind(one: pa.DataType, other: pa.DataType) -> bool:
    """Tell whether two nested types differ in what is inside them only."""
    if types.is_fixed_size_list(one) and types.is_fixed_size_list(other):
        return bool(one.list_size == other.list_size)
    return bool(one.id == other.id)


def _cast(array: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    if array.type == wanted:
        return array
    try:
        return array.cast(wanted)
    except (pa.ArrowException, NotImplementedError) as error:
        raise CorruptError(
            "a column of the log or of an SSTable does not have the table's type",
            column=path,
            type=str(array.type),
            wanted=str(wanted),
        ) from error
