"""Fresh rows in Spark: a snapshot is taken when a read is planned; tasks read fragments or shards.

A task reads the object store alone. A part of the base table leaves out the keys that shards
have above it, so each such task reads these keys; a part above it is one shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from holdfast.errors import InvalidInputError
from holdfast.options import resolve
from holdfast.spark._options import SparkOptions
from holdfast.spark._place import Place
from holdfast.spark._types import batches_for_spark
from holdfast.storage import open_store

if TYPE_CHECKING:
    from holdfast.formats import SnapshotRecord
    from holdfast.read import SnapshotPart
    from holdfast.table import Table

_OLDER = ("versionAsOf", "timestampAsOf", "tag")


@dataclass(frozen=True)
class FreshPart(InputPartition):
    """What one task reads of a snapshot."""

    part: SnapshotPart


def fresh_record(table: Table, given: SparkOptions) -> SnapshotRecord | None:
    """Return the snapshot that a load asks for; None when the base table alone is meant.

    Raises:
        InvalidInputError: both fresh rows and an older version are asked for.
        Other errors: as for `Table.snapshot`.
    """
    freshness = given.get("freshness")
    older = [name for name in _OLDER if given.get(name) is not None]
    if older and freshness not in {None, "base"}:
        raise InvalidInputError(
            f"an older version has no fresh rows: leave out freshness or {older[0]}"
        )
    if older or freshness == "base":
        return None
    from holdfast.read import drop_empty_shards  # noqa: PLC0415 - workers do without

    with table.snapshot(freshness=freshness or "latest") as snapshot:
        return drop_empty_shards(snapshot.record)


def parts_of(record: SnapshotRecord, groups: Sequence[Sequence[int]]) -> list[InputPartition]:
    """Return the parts above the base table, and one for each group of its fragments."""
    from holdfast.read import SnapshotPart, parts_above  # noqa: PLC0415 - only if needed

    above = parts_above(record)
    below = [SnapshotPart(record=record, fragments=tuple(group)) for group in groups]
    return [FreshPart(part) for part in (*above, *below)]


def read_fresh(
    place: Place, part: FreshPart, schema: StructType, condition: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, as Spark wants them.

    Raises:
        SnapshotExpiredError: files of the snapshot are gone: load again.
        InvalidInputError: a value has no place in Spark's type.
    """
    from holdfast.read import read_part  # noqa: PLC0415 - only if needed

    resolved = {key: resolve(key, value) for key, value in place.storage.items()}
    store = open_store(place.uri, place.storage)
    rows = read_part(
        part.part, store, place.uri, resolved, columns=schema.fieldNames(), filter=condition
    )
    yield from batches_for_spark(rows, schema)
