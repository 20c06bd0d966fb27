"""A search as a DataFrame: one snapshot, one task, the best rows with their `_score`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from holdfast.errors import NotFoundError
from holdfast.options import resolve
from holdfast.read import SCORE, search_base
from holdfast.spark._options import SparkOptions
from holdfast.spark._place import Place
from holdfast.spark._types import batches_for_spark
from holdfast.storage import open_store

if TYPE_CHECKING:
    from holdfast.formats import SnapshotRecord

_LIMIT = 100


@dataclass(frozen=True)
class SearchPart(InputPartition):
    """The one task of a search: rows are ranked over the whole table.

    Attributes:
        version: the version of the base table.
        record: the snapshot, if rows that are newer than the base table are searched, too.
    """

    version: int
    record: SnapshotRecord | None = None


def is_search(given: SparkOptions) -> bool:
    """Tell whether a load is a search."""
    return given.get("searchColumn") is not None


def with_score(schema: pa.Schema, given: SparkOptions) -> pa.Schema:
    """Return the columns that a load has: those of a search have a score, too."""
    return schema.append(pa.field(SCORE, pa.float32())) if is_search(given) else schema


def columns_of(given: SparkOptions) -> tuple[str, ...] | None:
    """Return the columns that a load asks for, None for all; a search always has its score."""
    asked: tuple[str, ...] | None = given.get("columns")
    if asked is None or not is_search(given) or SCORE in asked:
        return asked
    return (*asked, SCORE)


def read_search(
    place: Place, part: SearchPart, schema: StructType, given: SparkOptions
) -> Iterator[pa.RecordBatch]:
    """Yield what a search finds, best first; runs in a task.

    Raises:
        InvalidInputError: a malformed query, or no such column.
        NotFoundError: the version is not there any more.
        SnapshotExpiredError: files of the snapshot are gone: load again.
    """
    columns = [name for name in schema.fieldNames() if name != SCORE]
    matches = (
        _search_base(place, part.version, columns, given)
        if part.record is None
        else _search_all(place, part.record, columns, given)
    )
    yield from batches_for_spark(iter(matches.select(schema.fieldNames()).to_batches()), schema)


def _search_base(place: Place, version: int, columns: list[str], given: SparkOptions) -> pa.Table:
    return search_base(
        place.plain(version),
        place.uri,
        given.get("searchColumn"),
        given.get("searchQuery"),
        limit=given.get("searchLimit") or _LIMIT,
        columns=columns,
        filter=given.get("filter"),
    )


def _search_all(
    place: Place, record: SnapshotRecord, columns: list[str], given: SparkOptions
) -> pa.Table:
    from holdfast.read import expired_error, open_view, search_view  # noqa: PLC0415 - only here

    resolved = {key: resolve(key, value) for key, value in place.storage.items()}
    column = given.get("searchColumn")
    try:
        return search_view(
            open_view(record, open_store(place.uri, place.storage), place.uri, resolved),
            column,
            given.get("searchQuery"),
            given.get("searchLimit") or _LIMIT,
            columns=columns,
            filter=given.get("filter"),
        )
    except NotFoundError as error:
        raise expired_error() from error
