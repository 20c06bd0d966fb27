"""Answers over MemTables, oldest to newest: a key's newest row is there unless it was deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.formats import TOMBSTONE
from holdfast.memtable._filter import Filtered, find_matching
from holdfast.memtable._memtable import Mask, MemTable, MemTableSnapshot
from holdfast.memtable._text import TextIndex
from holdfast.memtable._vector import Vector, distances

SCORE = "_score"
DISTANCE = "_distance"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """How a column is searched in memory.

    Attributes:
        column: the column.
        kind: `btree`, `text` or `vector`.
        name: of the index of the table that it goes with.
        settings: of text, how it is split into words, as Lance's inverted index takes it; of
            vectors, the `metric`.
    """

    column: str
    kind: str
    name: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a kind that is not known."""
        if self.kind not in {"btree", "text", "vector"}:
            raise InvalidInputError(
                "an index in memory is of kind btree, text or vector", kind=repr(self.kind)
            )


@dataclass(frozen=True, slots=True)
class Live:
    """The rows of one MemTable that a reader sees."""

    table: MemTable
    snapshot: MemTableSnapshot
    mask: Mask

    def numbers(self) -> np.ndarray:
        """Return their numbers."""
        return np.flatnonzero(self.mask)


class Reading:
    """Reads MemTables of one table.

    Args:
        columns: the table's columns, without the tombstone.
        keys: the key columns.
        indexes: how columns are searched.
        storage_version: of Lance's files.
        buffer_rows: how many rows may wait for a text index.
    """

    def __init__(
        self,
        columns: pa.Schema,
        keys: Sequence[str],
        indexes: Sequence[IndexConfig],
        storage_version: str,
        buffer_rows: int,
    ) -> None:
        self._columns = columns
        self._keys = tuple(keys)
        self._indexes = {(one.kind, one.column): one for one in indexes}
        self._storage_version = storage_version
        self._buffer_rows = buffer_rows
        self._texts: dict[tuple[int, str, str], TextIndex] = {}
        self._filters: dict[int, Filtered] = {}

    def use(self, indexes: Sequence[IndexConfig]) -> None:
        """Search columns as these indexes say; others as before."""
        self._indexes = {**self._indexes, **{(one.kind, one.column): one for one in indexes}}

    def lookup(
        self, tables: Sequence[MemTable], keys: pa.Table, columns: Sequence[str] | None
    ) -> pa.Table:
        """Return the newest rows of keys, in the order of the keys; absent ones are left out.

        Raises:
            InvalidInputError: the table has no key, or an unknown column.
        """
        chosen = self._choose_columns(columns)
        wanted = [_whole(keys[name]) for name in self._keys]
        open_ = np.arange(keys.num_rows)
        pieces, places = [], []
        for table in reversed(tables):
            if not len(open_):
                break
            asked = wanted if len(open_) == keys.num_rows else _take_rows(wanted, open_)
            numbers = table.find(asked)
            hit = numbers >= 0
            if hit.any():
                pieces.append(table.take(numbers[hit]))
                places.append(open_[hit])
                open_ = open_[~hit]
        if not pieces:
            return self._empty().select(chosen)
        rows = pa.concat_tables(pieces)
        if len(pieces) > 1:
            rows = rows.take(pa.array(np.argsort(np.concatenate(places), kind="stable")))
        return self._to_table_types(rows.filter(pa.compute.invert(rows[TOMBSTONE])), chosen)

    def scan(
        self,
        tables: Sequence[MemTable],
        condition: str | None,
        columns: Sequence[str] | None,
        limit: int | None,
    ) -> pa.Table:
        """Return the live rows for which a condition is true, oldest first.

        Raises:
            InvalidInputError: a filter that Lance does not understand, an unknown column, a
                negative limit.
        """
        chosen = self._choose_columns(columns)
        _check_limit(limit)
        parts = [self._filter_rows(live, condition) for live in self._live(tables)]
        self._forget(tables)
        rows = pa.concat_tables(parts) if parts else self._empty()
        return self._to_table_types(rows if limit is None else rows.slice(0, limit), chosen)

    def count(self, tables: Sequence[MemTable], condition: str | None) -> int:
        """Return how many live rows there are, or for how many a condition is true.

        Raises:
            InvalidInputError: a filter that Lance does not understand.
        """
        live = self._live(tables)
        if condition is None:
            return sum(int(part.mask.sum()) for part in live)
        passing = sum(int(self._filter_rows(part, condition).num_rows) for part in live)
        self._forget(tables)
        return passing

    def search(
        self,
        tables: Sequence[MemTable],
        column: str,
        query: object,
        *,
        columns: Sequence[str] | None,
        limit: int | None,
        condition: str | None = None,
    ) -> pa.Table:
        """Return the live rows that match words and a condition, best first, with a `_score`.

        Raises:
            InvalidInputError: no column of text, an unknown column, a filter that Lance does not
                understand, a negative limit.
        """
        chosen = self._choose_columns(columns)
        _check_limit(limit)
        kind = self._columns.field(self._choose_columns([column])[0]).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InvalidInputError("search needs a column of text", column=column, type=str(kind))
        parts = [self._empty().append_column(SCORE, pa.array([], pa.float32()))]
        for live in self._live(tables):
            numbers, scores = self._text(live.table, column).search(live.snapshot.rows, query)
            kept = live.mask[numbers]
            rows = self._plain(live.snapshot.rows.take(pa.array(numbers[kept])))
            rows = rows.append_column(SCORE, pa.array(scores[kept], pa.float32()))
            if condition is not None:
                passing = find_matching(self._plain(rows), condition, self._storage_version)
                rows = rows.take(pa.array(passing))
            parts.append(rows)
        self._forget(tables)
        ordered = pa.concat_tables(parts).sort_by([(SCORE, "descending")])
        return _with_extra(ordered if limit is None else ordered.slice(0, limit), chosen, SCORE)

    def nearest(
        self,
        tables: Sequence[MemTable],
        column: str,
        query: Vector,
        *,
        k: int,
        metric: str | None,
        condition: str | None,
        columns: Sequence[str] | None,
    ) -> pa.Table:
        """Return the k live rows whose vectors are nearest, nearest first, with a `_distance`.

        Raises:
            InvalidInputError: no column of vectors, a query that does not fit, a k below 1.
        """
        chosen = self._choose_columns(columns)
        self._choose_columns([column])
        if k < 1:
            raise InvalidInputError("k is 1 or more", k=k)
        if metric is None:
            known = self._indexes.get(("vector", column))
            metric = "l2" if known is None else str(known.settings.get("metric", "l2"))
        rows = pa.concat_tables(
            [
                self._empty(),
                *(self._filter_rows(live, condition) for live in self._live(tables)),
            ]
        )
        measured, there = distances(rows[column], query, metric)
        numbers = np.flatnonzero(there)
        order = numbers[np.argsort(measured[numbers], kind="stable")[:k]]
        closest = rows.take(pa.array(order))
        closest = closest.append_column(DISTANCE, pa.array(measured[order], pa.float32()))
        return _with_extra(closest, chosen, DISTANCE)

    def _empty(self) -> pa.Table:
        return pa.Table.from_batches([], self._columns)  # `empty_table` knows no extension types

    def _live(self, tables: Sequence[MemTable]) -> list[Live]:
        """Return what is there, table by table; a newer table's keys hide older rows."""
        newer: list[tuple[MemTable, int]] = []
        live_tables = []
        for table in reversed(tables):
            snapshot = table.snapshot()
            mask = snapshot.live()
            if self._keys:
                for other, rows in newer:
                    numbers = np.flatnonzero(mask)
                    keys = snapshot.rows.select(list(self._keys)).take(pa.array(numbers))
                    hidden = other.find([_whole(one) for one in keys.columns], below=rows) >= 0
                    mask[numbers[hidden]] = False
            newer.append((table, snapshot.rows.num_rows))
            live_tables.append(Live(table, snapshot, mask))
        return live_tables[::-1]

    def _filter_rows(self, live: Live, condition: str | None) -> pa.Table:
        rows = live.snapshot.rows
        if condition is None:
            return self._plain(rows if live.mask.all() else rows.filter(pa.array(live.mask)))
        known = self._filters.setdefault(live.table.serial, Filtered(self._storage_version))
        try:
            numbers = known.find_matching(rows, condition)
        except InvalidInputError:
            # A row that is not there any more may be what the filter cannot be asked of.
            shown = self._plain(rows.filter(pa.array(live.mask)))
            return shown.take(pa.array(find_matching(shown, condition, self._storage_version)))
        return self._plain(rows.take(pa.array(numbers[live.mask[numbers]])))

    def _text(self, table: MemTable, column: str) -> TextIndex:
        known = self._indexes.get(("text", column))
        settings = {} if known is None else known.settings
        return self._texts.setdefault(
            (table.serial, column, repr(sorted(settings.items(), key=repr))),
            TextIndex(column, settings, self._storage_version, self._buffer_rows),
        )

    def _forget(self, tables: Sequence[MemTable]) -> None:
        """Let go of what was kept for MemTables that are flushed."""
        kept = {table.serial for table in tables}
        for serial in [one for one in self._filters if one not in kept]:
            self._filters.pop(serial, None)
        for key in [key for key in self._texts if key[0] not in kept]:
            self._texts.pop(key, None)

    def _choose_columns(self, columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return list(self._columns.names)
        unknown = [name for name in columns if name not in self._columns.names]
        if isinstance(columns, str) or unknown:
            raise InvalidInputError(
                "columns is a list of columns of the table", unknown=", ".join(unknown)[:100]
            )
        return list(columns)

    def _plain(self, rows: pa.Table) -> pa.Table:
        return self._to_table_types(rows, self._columns.names)

    def _to_table_types(self, rows: pa.Table, chosen: Sequence[str]) -> pa.Table:
        """Return columns in the table's own types: a live row has a value where one must be."""
        fields = [self._columns.field(name) for name in chosen]
        return pa.Table.from_arrays([rows[name] for name in chosen], schema=pa.schema(fields))


def _with_extra(rows: pa.Table, chosen: Sequence[str], extra: str) -> pa.Table:
    return rows.select([*chosen, extra])


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 0:
        raise InvalidInputError("a limit is 0 or more", limit=limit)


def _take_rows(columns: Sequence[pa.Array], numbers: np.ndarray) -> list[pa.Array]:
    return [column.take(pa.array(numbers)) for column in columns]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
