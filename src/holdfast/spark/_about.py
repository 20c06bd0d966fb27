"""Tables about a table: `lake.ev.history`, `.files`, `.shards` and `.indexes`.

Their rows are computed when a query is planned, on the driver, and reach the tasks in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.arbiter import open_arbiter
from holdfast.core import TableCore
from holdfast.errors import UnsupportedError
from holdfast.spark._options import Use, parse
from holdfast.spark._place import Place
from holdfast.spark._read import take_hints
from holdfast.spark._types import batches_for_spark, spark_schema
from holdfast.storage import open_store
from holdfast.wal import ShardManifests

OPTION = "secretAbout"
Row = dict[str, Any]  # Any: one value per column


def _history(place: Place) -> list[Row]:
    with place.open_table() as table:
        return [
            {
                "version": one.version,
                "time": one.time,
                "operation": one.operation,
                "txns": list(one.txns),
                "rows": one.rows,
                "fragments": one.fragments,
                "decided_by": one.decided_by,
                "foreign": one.foreign,
            }
            for one in table.history()
        ]


def _files(place: Place) -> list[Row]:
    with place.open_table() as table:
        return [
            {
                "fragment": fragment.fragment_id,
                "path": file.path,
                "rows": fragment.physical_rows,
                "deleted": fragment.num_deletions,
                "bytes": file.file_size_bytes,
            }
            for fragment in table.dataset().get_fragments()
            for file in fragment.metadata.files
        ]


def _shards(place: Place) -> list[Row]:
    store = open_store(place.uri, place.storage)
    arbiter = open_arbiter(place.uri, place.storage, commit_store=place.commit_store)
    core = TableCore(store, arbiter, place.uri, place.storage)
    try:
        manifests = [ShardManifests(core, shard).latest() for shard in core.shard_ids()]
    finally:
        arbiter.close()
    return [
        {
            "shard": one.shard_id,
            "epoch": one.writer_epoch,
            "flushed_position": one.replay_after,
            "generations": [table.generation for table in one.sstables],
        }
        for one in manifests
        if one is not None
    ]


def _indexes(place: Place) -> list[Row]:
    with place.open_table() as table:
        return [
            {
                "name": one.name,
                "kind": one.kind,
                "columns": list(one.columns),
                "rows": one.rows,
                "covered": one.covered,
                "uncovered": one.uncovered,
            }
            for one in table.indexes()
        ]


def _columns(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


_NUMBER, _TEXT, _TEXTS = pa.int64(), pa.string(), pa.list_(pa.string())


@dataclass(frozen=True)
class _About:
    columns: pa.Schema
    rows: Callable[[Place], list[Row]]


ABOUT: Mapping[str, _About] = {
    "files": _About(
        _columns(fragment=_NUMBER, path=_TEXT, rows=_NUMBER, deleted=_NUMBER, bytes=_NUMBER), _files
    ),
    "history": _About(
        _columns(
            version=_NUMBER,
            time=pa.timestamp("us", "UTC"),
            operation=_TEXT,
            txns=_TEXTS,
            rows=_NUMBER,
            fragments=_NUMBER,
            decided_by=_TEXT,
            foreign=pa.bool_(),
        ),
        _history,
    ),
    "indexes": _About(
        _columns(
            name=_TEXT,
            kind=_TEXT,
            columns=_TEXTS,
            rows=_NUMBER,
            covered=_NUMBER,
            uncovered=_NUMBER,
        ),
        _indexes,
    ),
    "shards": _About(
        _columns(
            shard=_TEXT, epoch=_NUMBER, flushed_position=_NUMBER, generations=pa.list_(_NUMBER)
        ),
        _shards,
    ),
}
"""Name -> its columns, and what computes its rows."""


def about_schema(what: str) -> StructType:
    """Return the columns of one of these tables."""
    return spark_schema(ABOUT[what].columns)


@dataclass(frozen=True)
class AboutPart(InputPartition):
    """All rows of such a table."""

    rows: pa.Table


class AboutSource(DataSource):
    """One of these tables; named by an option that users never give."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and does the read."""
        return AboutReader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ANN401, ARG002, FBT001 - Spark's
        """Refuse: such a table is made of another one.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("a table about a table is read only")


class AboutReader(DataSourceReader):
    """Computes the rows on the driver."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        _, told = take_hints(options)
        rest = {key: text for key, text in told.items() if key.lower() != OPTION.lower()}
        self._what = next(told[key] for key in told if key not in rest)
        self._schema = schema
        self._place = Place.of(parse(rest, Use.READ))

    def partitions(self) -> Sequence[InputPartition]:
        """Compute the rows."""
        about = ABOUT[self._what]
        rows = pa.Table.from_pylist(about.rows(self._place), schema=about.columns)
        return [AboutPart(rows.select(self._schema.fieldNames()))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield them."""
        rows = partition.rows if isinstance(partition, AboutPart) else pa.table({})
        return batches_for_spark(iter(rows.to_batches()), self._schema)
