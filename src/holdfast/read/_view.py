"""`View`: the rows of one snapshot. Streams, counts, and keeps only keys in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.formats import SsTable, check_names, whole_sql
from holdfast.read._lance import Dataset, batch_rows, translate_read_errors
from holdfast.read._levels import Columns, Level, SstableFiles, log_level, sstable_level
from holdfast.read._newest import KeySet, find_newest
from holdfast.read._snapshot import ShardSnapshot, Snapshot

OpenSstable: TypeAlias = "Callable[[str, SsTable], tuple[Dataset, SstableFiles]]"
"""Opens an SSTable of a shard."""

_OPENERS = 8
T = TypeVar("T")
R = TypeVar("R")


class Overlay(NamedTuple):
    """What lies above the base table: levels, newest first, and all their keys."""

    levels: Sequence[Level]
    keys: KeySet | None


class View:
    """One snapshot, opened. Threads may share it.

    Args:
        snapshot: what to read.
        open_sstable: opens an SSTable.
        location: the table, for messages.
    """

    def __init__(self, snapshot: Snapshot, open_sstable: OpenSstable, location: str) -> None:
        self.snapshot = snapshot
        self.location = location
        self.base: Dataset = snapshot.base.dataset
        self._open_sstable = open_sstable
        self.columns = Columns.of(self.base)

    @functools.cached_property
    def levels(self) -> Sequence[Level]:
        """Return what is newer than the base, newest first inside each shard.

        Logs come before SSTables, and SSTables by their generation. A key lives in one shard,
        so the order between shards means nothing.
        """
        with translate_read_errors(self.location):
            logs = [self._log(shard) for shard in self.snapshot.shards]
            opened = _call_concurrently(self._sstable, self._sstables())
        return [level for level in (*logs, *opened) if level is not None]

    @functools.cached_property
    def overlay(self) -> Overlay:
        """Return the levels with the newest row of each key marked, and the set of keys."""
        levels = self.levels
        if not self.columns.keys or not levels:
            return Overlay(levels, None)
        with translate_read_errors(self.location):
            read = _call_concurrently(Level.keys, levels)
        masks, keys = find_newest([columns for columns, _ in read])
        for level, mask, (_, beside) in zip(levels, masks, read, strict=True):
            level.keep_newest(mask, beside)
        return Overlay(levels, keys)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the columns that come out.

        Raises:
            InvalidInputError: there is no such column, or it is named twice.
        """
        names = self.names(columns)
        check_names(names)
        with translate_read_errors(self.location):
            schema: pa.Schema = self.base.scanner(columns=names).projected_schema
        return schema

    def names(self, columns: Sequence[str] | None) -> list[str]:
        """Return which columns are wanted; all by default."""
        if columns is None:
            return list(self.columns.schema.names)
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise InvalidInputError("columns are a list of names", columns=repr(columns)[:200])
        names = list(columns)
        unknown = [name for name in names if name not in self.columns.schema.names]
        if unknown or len(set(names)) != len(names) or not names:
            raise InvalidInputError(
                "columns are names of the table's columns, each once",
                columns=", ".join(unknown or names)[:200],
                table_has=", ".join(self.columns.schema.names)[:300],
            )
        return names

    def batches(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's word
        limit: int | None = None,
        *,
        fragments: Sequence[object] | None = None,
        levels: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the newest row of every key that passes the filter; what is newest first.

        Args:
            columns: which columns; all by default.
            filter: an SQL expression; it sees the newest rows only.
            limit: at most so many rows.
            fragments: of the base table, only these; all by default.
            levels: whether rows above the base come, too.

        Raises:
            InvalidInputError: unknown columns, a filter that Lance does not understand.
            NotFoundError: a file is gone: take another snapshot.
            UnavailableError: a store gave no answer.
        """
        schema = self.schema(columns)
        wanted = None if filter is None else whole_sql(filter)
        rows = self._rows(schema, wanted, fragments, levels=levels)
        yield from _limit_rows(rows, limit)

    def count(self, filter: str | None = None) -> int:  # noqa: A002 - Lance's word
        """Return how many rows pass the filter.

        Raises:
            As for `batches`.
        """
        overlay = self.overlay
        wanted = None if filter is None else whole_sql(filter)
        with translate_read_errors(self.location):
            if wanted is None:
                above = sum(level.live_rows for level in overlay.levels)
            else:
                above = sum(
                    int(batch.num_rows)
                    for level in overlay.levels
                    for batch in level.batches([], filter=wanted)
                )
            if overlay.keys is None or not len(overlay.keys):
                return above + int(self.base.count_rows(filter=wanted))
            # Lance's own count knows nothing of rows whose key is newer above: keys are compared.
            below = self._base_rows(list(self.columns.keys), wanted, None)
            return above + sum(int(batch.num_rows) for batch in below)

    def _rows(
        self,
        schema: pa.Schema,
        wanted: str | None,
        fragments: Sequence[object] | None,
        *,
        levels: bool,
    ) -> Iterator[pa.RecordBatch]:
        overlay = self.overlay
        size = batch_rows(schema)
        with translate_read_errors(self.location):
            if levels:
                for level in overlay.levels:
                    for batch in level.batches(schema.names, filter=wanted, batch_size=size):
                        yield as_schema(batch, schema)
            if fragments is None or len(fragments):
                for batch in self._base_rows(schema.names, wanted, fragments, size):
                    yield as_schema(batch, schema)

    def _base_rows(
        self,
        names: Sequence[str],
        wanted: str | None,
        fragments: Sequence[object] | None,
        size: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield base rows whose key is nowhere above."""
        above = self.overlay.keys
        keys = self.columns.keys if above is not None and len(above) else ()
        # Keys come along even if nobody asked for them: rows are compared by them.
        columns = [*names, *(key for key in keys if key not in names)]
        size = size or batch_rows(pa.schema([self.columns.schema.field(c) for c in columns]))
        scanner = self.base.scanner(
            columns=columns,
            filter=wanted,
            batch_size=size,
            fragments=None if fragments is None else list(fragments),
        )
        if above is None or not keys:
            yield from scanner.to_reader()
        else:
            yield from above.without(scanner.to_reader(), keys)

    def _log(self, shard: ShardSnapshot) -> Level | None:
        return log_level(shard.manifest.shard_id, shard.entries, self.columns)

    def _sstables(self) -> list[tuple[str, SsTable]]:
        sstables = [
            (shard.manifest.shard_id, one)
            for shard in self.snapshot.shards
            for one in shard.sstables
        ]
        return sorted(sstables, key=lambda pair: pair[1].generation, reverse=True)

    def _sstable(self, named: tuple[str, SsTable]) -> Level:
        shard_id, sstable = named
        dataset, files = self._open_sstable(shard_id, sstable)
        name = f"generation {sstable.generation} of {shard_id}"
        return sstable_level(name, dataset, self.columns, files)


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema out of a batch, marked as the schema marks them."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


def _limit_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left is not None and left <= batch.num_rows:
            if left:
                yield batch.slice(0, left)
            return
        if batch.num_rows:
            yield batch
        left = None if left is None else left - batch.num_rows


def _call_concurrently(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function for each item, several concurrently: most of it is waiting for a store."""
    if len(items) < 2:  # noqa: PLR2004 - nothing to do concurrently
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(_OPENERS, len(items)), "holdfast-read") as pool:
        return list(pool.map(function, items))


__all__ = ["OpenSstable", "Overlay", "View", "as_schema"]
