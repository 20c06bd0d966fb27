"""Reading a table in Spark: one version, pinned when the read is planned, fragments per task.

A DataFrame sees one version from its first action on: the version is in every partition, and
with it, by default, one snapshot of the rows that are newer than it; see `_fresh`. A
filter comes as an option of the load only. `pushFilters` is left out on purpose: Spark
keeps what was pushed for one query and applies it to others on the same DataFrame.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.changes import change_schema
from holdfast.commits import translate_errors
from holdfast.errors import InvalidInputError, NotFoundError, UnsupportedError
from holdfast.options import suggestion
from holdfast.spark._fresh import FreshPart, fresh_record, parts_of, read_fresh
from holdfast.spark._options import SparkOptions, Use, parse
from holdfast.spark._place import Place
from holdfast.spark._search import SearchPart, columns_of, is_search, read_search, with_score
from holdfast.spark._types import batches_for_spark, check_readable, spark_schema, width_of

if TYPE_CHECKING:
    from holdfast.table import Table

ADDRESSES = {"_rowaddr", "_rowid"}
"""Columns that no table lists and every one has: Lance's address of a row, and its id."""

_PARTITION_BYTES = 64 * 2**20
_SMALL_BYTES = 4 * 2**20  # less than this is not worth a task of its own
_ROW_BYTES = 16  # what a row costs besides its values, as so many bytes of them
_BATCH_BYTES = 2 * 2**20  # larger ones cost more: each gets memory that is new to the process
_BATCH_ROWS = (256, 16 * 1024)
_KEPT_BATCHES = 64  # of first rows, before the first of them are chosen
SCAN = "secretScan"
"""What the catalog in Java says of a scan, see `ScanHints`; users never do."""


class ScanHints(NamedTuple):
    """What Spark lets the scan of one query know.

    Attributes:
        tasks: how many tasks run at once.
        limit: how many rows of a task are enough.
        by: the column in whose order they are the first; None if any rows are enough.
        descending: whether that order begins with the greatest.
        nulls_first: whether it begins with nulls.
    """

    tasks: int | None = None
    limit: int | None = None
    by: str | None = None
    descending: bool = False
    nulls_first: bool = True


def take_hints(options: Mapping[str, str]) -> tuple[ScanHints, dict[str, str]]:
    """Return what Java said of the scan, and the other options."""
    rest = {key: text for key, text in options.items() if key.lower() != SCAN.lower()}
    told = [json.loads(options[key]) for key in options if key not in rest]
    return ScanHints(**told[0]) if told else ScanHints(), rest


class Piece(NamedTuple):
    """One fragment of one version, and how many bytes of it are read; or a range of its rows."""

    version: int
    fragment: int
    size: int
    start: int = 0
    rows: int | None = None


@dataclass(frozen=True)
class ReadPart(InputPartition):
    """What one task reads: fragments, each as one version shows it."""

    pieces: tuple[Piece, ...]


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns that a load without a schema of its own has.

    Raises:
        InvalidInputError: an option is wrong, or a column's type is unknown to Spark.
        NotFoundError: there is no such table, version or tag.
    """
    # Spark asks the same of batch and stream; each checks its own options later.
    given = parse_reading(options)
    with Place.of(given).open_table() as table:
        dataset = table.dataset(version_of(table, given))
        if given.get("readChangeFeed"):
            return spark_schema(change_schema(dataset.schema, given.get("columns")))
        return spark_schema(with_score(dataset.schema, given), columns_of(given))


def parse_reading(options: Mapping[str, str]) -> SparkOptions:
    """Read options that may be those of a batch or of a stream.

    Raises:
        InvalidInputError: they fit neither.
    """
    try:
        return parse(options, Use.READ)
    except InvalidInputError as error:
        with suppress(InvalidInputError):
            return parse(options, Use.SOURCE)
        raise error from None


def version_of(table: Table, given: SparkOptions) -> int:
    """Return the version that a load asks for, the newest if it asks for none.

    Raises:
        NotFoundError: there is no such version, time or tag.
    """
    if given.get("versionAsOf") is not None:
        version: int = given.get("versionAsOf")
        table.dataset(version)
        return version
    if given.get("timestampAsOf") is not None:
        return _version_at(table, given.get("timestampAsOf"))
    if given.get("tag") is not None:
        return _tagged_version(table, given.get("tag"))
    return int(table.dataset().version)


def _version_at(table: Table, text: str) -> int:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInputError(
            "option timestampAsOf is a time such as 2026-11-16T10:00:00Z", given=repr(text[:40])
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    versions = [info.version for info in table.history() if info.time <= moment]
    if not versions:
        raise NotFoundError("the table has no version as old as that", time=moment.isoformat())
    return max(versions)


def _tagged_version(table: Table, tag: str) -> int:
    tags: Mapping[str, Any] = table.dataset().tags.list()
    if tag not in tags:
        raise NotFoundError(f"the table has no tag {tag!r}{suggestion(tag, list(tags))}")
    return int(tags[tag]["version"])


@contextmanager
def refusals() -> Iterator[None]:
    """Let Spark hear of what is not supported: it takes a NotImplementedError for "no rows".

    Raises:
        InvalidInputError: instead.
    """
    try:
        yield
    except NotImplementedError as error:
        raise InvalidInputError(str(error)) from error


class BatchReader(DataSourceReader):
    """Plans a read on the driver and does it in the tasks."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._hints, told = take_hints(options)
        self._given = parse(told, Use.READ)
        self._place = Place.of(self._given)

    def partitions(self) -> Sequence[InputPartition]:
        """Pin the version and share its fragments out."""
        with refusals(), self._place.open_table() as table:
            record = fresh_record(table, self._given)
            version = version_of(table, self._given) if record is None else record.base_version
            dataset = table.dataset(version)
            columns = with_addresses(with_score(dataset.schema, self._given))
            check_readable(self._schema, columns)
            self._check_filter(dataset)
            if record is not None and record.shards:
                self._refuse_addresses(dataset)
            if is_search(self._given):
                return [SearchPart(version, record if record and record.shards else None)]
            pieces = _pieces(dataset, self._schema.fieldNames())
            per_part = self._given.get("fragmentsPerPartition")
            size = _task_bytes(pieces, self._hints.tasks)
            if record is not None and record.shards:
                parts = share_out(pieces, per_part, size)
                return parts_of(record, [fragments_of(part) for part in parts])
            if per_part is None and self._given.get("filter") is None:
                return _cut_up(dataset, pieces, size)
            return share_out(pieces, per_part, size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, SearchPart):
            return read_search(self._place, partition, self._schema, self._given)
        if isinstance(partition, FreshPart):
            return read_fresh(self._place, partition, self._schema, self._given.get("filter"))
        limit = self._hints.limit if self._hints.by is None else None
        rows = read_part(self._place, partition, self._schema, self._given.get("filter"), limit)
        return rows if self._hints.by is None else _first_rows(rows, self._hints)

    def _refuse_addresses(self, dataset: Any) -> None:  # noqa: ANN401 - untyped pylance
        asked = ADDRESSES & (set(self._schema.fieldNames()) - set(dataset.schema.names))
        if asked:
            raise UnsupportedError(
                "rows wait in the table's log, and have no address yet: merge them first, or read "
                "with freshness=base",
                columns=", ".join(sorted(asked)),
            )

    def _check_filter(self, dataset: Any) -> None:  # noqa: ANN401 - untyped pylance
        if self._given.get("filter") is not None:
            with translate_errors(self._place.uri):
                dataset.scanner(filter=self._given.get("filter"), limit=0).to_table()


def with_addresses(schema: pa.Schema) -> pa.Schema:
    """Return the columns that a load may name: those of the table, and where rows are."""
    for name in sorted(ADDRESSES - set(schema.names)):
        schema = schema.append(pa.field(name, pa.int64(), nullable=False))
    return schema


def _pieces(dataset: Any, names: Sequence[str]) -> list[Piece]:  # noqa: ANN401 - untyped pylance
    """Return the fragments, with how many bytes a read of these columns takes of each."""
    widths = {field.name: width_of(field.type) for field in dataset.schema}
    share = sum(widths.get(name, 0) for name in names) / max(1, sum(widths.values()))
    return [
        Piece(
            int(dataset.version),
            fragment.fragment_id,
            1 + int(_bytes_of(fragment) * share) + int(fragment.physical_rows) * _ROW_BYTES,
        )
        for fragment in dataset.get_fragments()
    ]


def _bytes_of(fragment: Any) -> int:  # noqa: ANN401 - untyped pylance
    return sum(int(file.file_size_bytes or 0) for file in fragment.metadata.files)


def _task_bytes(pieces: Iterable[Piece], tasks: int | None) -> int:
    """Return how much one task reads: little enough that all that run at once have some."""
    if tasks is None:
        return _PARTITION_BYTES
    fair = -(-sum(piece.size for piece in pieces) // tasks)
    return min(_PARTITION_BYTES, max(_SMALL_BYTES, fair))


def _cut_up(dataset: Any, pieces: Sequence[Piece], size: int) -> list[InputPartition]:  # noqa: ANN401 - untyped pylance
    """Return tasks of one size: whole fragments, and ranges of the rows of those between two.

    Only without a filter: with one, Lance counts the rows that meet it.
    """
    total = sum(piece.size for piece in pieces)
    count = max(1, -(-total // size))
    tasks: list[list[Piece]] = [[] for _ in range(count)]
    begun = 0
    for piece in pieces:
        end = begun + piece.size
        first, last = begun * count // total, (end - 1) * count // total
        if first == last:
            tasks[first].append(piece)
        else:
            rows = int(dataset.get_fragment(piece.fragment).count_rows())
            inner = [total * number // count - begun for number in range(first + 1, last + 1)]
            cuts = [0, *(rows * place // piece.size for place in inner), rows]
            for task, (start, until) in enumerate(itertools.pairwise(cuts), first):
                if start < until:
                    tasks[task].append(piece._replace(start=start, rows=until - start))
        begun = end
    return [ReadPart(tuple(task)) for task in tasks if task]


def share_out(
    pieces: Iterable[Piece], per_part: int | None, size: int = _PARTITION_BYTES
) -> list[InputPartition]:
    """Return which task reads what: so many fragments each, or what makes a good size."""
    parts: list[InputPartition] = []
    group: list[Piece] = []
    for piece in pieces:
        group.append(piece)
        full = sum(p.size for p in group) >= size
        if len(group) == per_part or (per_part is None and full):
            parts.append(ReadPart(tuple(group)))
            group = []
    return [*parts, ReadPart(tuple(group))] if group else parts


def fragments_of(part: InputPartition) -> list[int]:
    """Return the fragments that a task reads."""
    return [piece.fragment for piece in part.pieces] if isinstance(part, ReadPart) else []


def read_part(
    place: Place,
    part: InputPartition,
    schema: StructType,
    condition: str | None,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some fragments, as Spark wants them; runs in a task.

    With a limit, at most so many of each version. A column that came after a fragment's
    version is null in it.

    Raises:
        NotFoundError: a version, or one of its files, is not there any more.
        InvalidInputError: a value has no place in Spark's type.
    """
    pieces = part.pieces if isinstance(part, ReadPart) else ()  # Spark makes one of its own of none
    for (version, start, rows, _), group in itertools.groupby(pieces, key=_together):
        dataset = place.plain(version)
        there = set(dataset.schema.names)
        asked = ADDRESSES & (set(schema.fieldNames()) - there)
        fragments: list[Any] = [dataset.get_fragment(piece.fragment) for piece in group]
        names = [name for name in schema.fieldNames() if name in there]
        most = limit if rows is None else rows if limit is None else min(rows, limit)
        with translate_errors(place.uri):
            scanner = dataset.scanner(
                columns=names,
                with_row_id="_rowid" in asked,
                with_row_address="_rowaddr" in asked,
                filter=condition,
                fragments=fragments,
                batch_size=_batch_rows(dataset.schema, names),
                limit=most,
                offset=start or None,
            )
            yield from batches_for_spark(scanner.to_batches(), schema)


def _first_rows(batches: Iterator[pa.RecordBatch], hints: ScanHints) -> Iterator[pa.RecordBatch]:
    """Yield the first rows in the order of one column, as Spark sorts: NaN is the greatest."""
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        kept.append(batch.take(_first_of(batch.column(hints.by), hints)))
        if len(kept) == _KEPT_BATCHES:
            whole = pa.Table.from_batches(kept).combine_chunks().to_batches()[0]
            kept = [whole.take(_first_of(whole.column(hints.by), hints))]
    yield from kept


def _first_of(values: pa.Array, hints: ScanHints) -> pa.Array:
    """Return where the first values are; those that are alike come in any order."""
    at_ends = {"null": pc.is_null(values)}
    if pa.types.is_floating(values.type):
        at_ends["nan"] = pc.fill_null(pc.is_nan(values), False)
    odd = functools.reduce(pc.or_, at_ends.values())
    keys = {name: mask.cast(pa.int8()) for name, mask in at_ends.items()}
    plain = pc.index(odd, False).as_py()  # where a value is that can stand for those that are odd
    if plain >= 0:
        keys["value"] = pc.if_else(odd, values[plain], values)
    way = "descending" if hints.descending else "ascending"
    order = {**dict.fromkeys(keys, way), "null": "descending" if hints.nulls_first else "ascending"}
    count = min(hints.limit or 0, len(values))
    return pc.select_k_unstable(pa.table(keys), k=count, sort_keys=list(order.items()))


def _batch_rows(schema: pa.Schema, names: Sequence[str]) -> int:
    """Return how many rows of these columns make a batch of a good size."""
    width = sum(width_of(schema.field(name).type) for name in names)
    least, most = _BATCH_ROWS
    return max(least, min(most, _BATCH_BYTES // max(1, width)))


def _together(piece: Piece) -> tuple[int, int, int | None, int | None]:
    """Return what whole fragments of a version share, and no two ranges of rows do."""
    if piece.rows is None:
        return (piece.version, 0, None, None)
    return (piece.version, piece.start, piece.rows, piece.fragment)
