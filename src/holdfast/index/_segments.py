"""What a table says of its indexes: names, columns, segments, and how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lance
from lance.schema import LanceSchema

from holdfast.errors import InvalidInputError
from holdfast.formats import marker_name
from holdfast.index._marker import LanceMarkers, Marker
from holdfast.storage import ObjectStore

FULL_TEXT = "Inverted"
"""How Lance calls the kind of a full-text index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A committed piece of an index."""

    id: str
    fragments: tuple[int, ...]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """An index as the table shows it."""

    name: str
    kind: str
    columns: tuple[str, ...]
    segments: tuple[Segment, ...]
    rows: int

    @property
    def fragments(self) -> set[int]:
        """Return what its segments cover."""
        return {fragment for segment in self.segments for fragment in segment.fragments}


def descriptions_of(table: lance.LanceDataset) -> list[Description]:
    """Return the indexes of a table."""
    return [
        Description(
            name=str(index.name),
            kind=str(index.index_type),
            columns=tuple(str(name) for name in index.field_names),
            segments=tuple(
                Segment(
                    id=str(one.uuid),
                    fragments=tuple(sorted(int(f) for f in one.fragment_ids)),
                    version=int(one.dataset_version_at_last_update),
                )
                for one in index.segments
            ),
            rows=int(index.num_rows_indexed),
        )
        for index in table.describe_indices()
    ]


def description_of(table: lance.LanceDataset, name: str) -> Description | None:
    """Return the index of a name, or None."""
    return next(
        (description for description in descriptions_of(table) if description.name == name), None
    )


def segments_of(table: lance.LanceDataset, name: str) -> tuple[Segment, ...]:
    """Return the segments of an index; none when there is no such index."""
    description = description_of(table, name)
    return () if description is None else description.segments


def marker_of(store: ObjectStore, segment: str) -> Marker:
    """Return what a committed segment says of itself.

    Raises:
        NotFoundError: it says nothing, as indexes of old did.
        CorruptError: its marker cannot be read.
    """
    return LanceMarkers().decode(store.get(marker_name(segment).path))


def properties_of(store: ObjectStore, segment: str) -> Mapping[str, str]:
    """Return how a committed segment was made; errors as for `marker_of`."""
    return marker_of(store, segment).properties


def field_of(schema: LanceSchema, column: str) -> Any:  # noqa: ANN401 - ships no types
    """Return a column as Lance knows it.

    Raises:
        InvalidInputError: there is no such column.
    """
    fields, deepest = list(schema.fields()), None
    for name in column.split("."):
        deepest = next((field for field in fields if field.name() == name), None)
        if deepest is None:
            raise InvalidInputError("there is no such column", column=column)
        fields = list(deepest.children())
    assert deepest is not None  # noqa: S101 - split() gives at least one name
    return deepest


def ids_of(field: Any) -> set[int]:  # noqa: ANN401 - ships no types
    """Return the ids of a column and of what is nested in it: data files name some of them."""
    inner = (ids_of(child) for child in field.children())
    return {int(field.id())}.union(*inner)


def live_fragments(table: lance.LanceDataset) -> dict[int, int]:
    """Return the fragments of a table with their number of rows."""
    return {int(f.fragment_id): int(f.metadata.physical_rows) for f in table.get_fragments()}
