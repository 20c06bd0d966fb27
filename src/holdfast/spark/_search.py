"""A search as a DataFrame: one version, one task, the best rows with their `_score`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from holdfast.index._search import SCORE, search
from holdfast.spark._options import Given
from holdfast.spark._place import Place
from holdfast.spark._types import batches_for_spark

_LIMIT = 100


@dataclass(frozen=True)
class SearchPart(InputPartition):
    """The one task of a search: Lance ranks over the whole table."""

    version: int


def is_search(given: Given) -> bool:
    """Tell whether a load is a search."""
    return given.get("searchColumn") is not None


def with_score(schema: pa.Schema, given: Given) -> pa.Schema:
    """Return the columns that a load has: those of a search have a score, too."""
    return schema.append(pa.field(SCORE, pa.float32())) if is_search(given) else schema


def read_search(
    place: Place, part: SearchPart, schema: StructType, given: Given
) -> Iterator[pa.RecordBatch]:
    """Yield what a search finds, best first; runs in a task.

    Raises:
        InvalidInputError: a malformed query, or no such column.
        NotFoundError: the version is not there any more.
    """
    found = search(
        place.plain(part.version),
        place.uri,
        given.get("searchColumn"),
        given.get("searchQuery"),
        limit=given.get("searchLimit") or _LIMIT,
        columns=[name for name in schema.fieldNames() if name != SCORE],
        filter=given.get("filter"),
    )
    yield from batches_for_spark(iter(found.select(schema.fieldNames()).to_batches()), schema)
