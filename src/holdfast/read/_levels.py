"""Levels: rows newer than the base table, from a log or an SSTable, in the base table's columns.

Columns, and fields inside them, are paired by id, as Lance does it: one that was renamed keeps
its rows, one that was dropped and made anew does not get the old ones, one that is missing is
null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import CorruptError
from holdfast.formats import (
    TOMBSTONE,
    Entry,
    Field,
    arrow_field,
    counterpart,
    fit_column,
    key_columns,
    key_values,
    lance_fields,
)
from holdfast.read._key_index import KeyIndex
from holdfast.read._lance import Dataset, in_memory
from holdfast.read._newest import Mask

ADDRESS = "_rowaddr"
_OFFSET = np.uint64(0xFFFFFFFF)
_FRAGMENT = np.uint64(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The base table's columns.

    Attributes:
        schema: the columns.
        fields: the columns with their ids, at every depth.
        keys: those of the primary key; none for an append-only table.
    """

    schema: pa.Schema
    fields: tuple[Field, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, dataset: Dataset) -> Columns:
        """Return the columns of the base table."""
        schema = dataset.schema
        fields = lance_fields(schema, dataset.lance_schema.fields())
        return cls(schema=schema, fields=tuple(fields), keys=key_columns(schema))

    @property
    def stored(self) -> pa.Schema:
        """Return the columns of a level: the same with nulls allowed, and the tombstone."""
        fields = [field.with_nullable(nullable=True).remove_metadata() for field in self.schema]
        return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_())])

    def fit(self, rows: pa.Table, theirs: Sequence[Field]) -> pa.Table:
        """Return rows in these columns.

        Args:
            rows: with columns of their own.
            theirs: those columns, without the tombstone.

        Raises:
            CorruptError: a key column is missing, or a column cannot have its type.
        """
        made = []
        for field in self.fields:
            at = counterpart(field, theirs)
            if at is not None:
                made.append(fit_column(rows[theirs[at].name], theirs[at], field))
            elif field.name in self.keys:
                raise CorruptError("rows without a key column", column=field.name)
            else:
                made.append(pa.nulls(rows.num_rows, field.field.type))
        if TOMBSTONE in rows.column_names:
            made.append(rows[TOMBSTONE])
        else:
            made.append(pa.array(np.zeros(rows.num_rows, np.bool_)))
        return pa.Table.from_arrays(made, schema=self.stored)


class SstableFiles(Protocol):
    """What an SSTable has beside its rows."""

    def may_hold(self, columns: Sequence[pa.Array]) -> Mask | None:
        """Tell of each key whether it may be there; None when nobody can tell."""
        ...

    def key_index(self) -> KeyIndex:
        """Return its key index."""
        ...


class Level:
    """Rows newer than the base table, as a dataset with the base table's columns.

    Args:
        name: for people and for parts of a distributed read.
        dataset: the rows.
        keys: the columns of the primary key.
        files: what an SSTable has beside its rows; None for rows in memory.
    """

    def __init__(
        self, name: str, dataset: Dataset, keys: Sequence[str], files: SstableFiles | None = None
    ) -> None:
        self.name = name
        self.dataset = dataset
        self._files = files
        self._index: KeyIndex | None = None
        self.copies: dict[str, Dataset] = {}  # in memory, by the index that each has
        self._keys = tuple(keys)
        self._marked = TOMBSTONE in dataset.schema.names
        self._starts = _starts(dataset)
        self._live: Mask | None = None  # by place in the files; None: every row

    def keys(self) -> tuple[list[pa.Array], pa.Table]:
        """Return the key columns of the rows, and what `keep_newest` needs beside the verdict."""
        columns = [*self._keys, *([TOMBSTONE] if self._marked else [])]
        rows = self.dataset.scanner(
            columns=list(columns), with_row_address=True, batch_size=1 << 18
        ).to_table()
        return [combine_column(rows[name]) for name in self._keys], rows.drop_columns(
            list(self._keys)
        )

    def keep_newest(self, newest: Mask, beside: pa.Table) -> None:
        """Take note which rows are the newest of their keys; tombstones never come out."""
        alive = newest
        if self._marked:
            dead = pc.fill_null(combine_column(beside[TOMBSTONE]), False)
            alive = newest & ~dead.to_numpy(zero_copy_only=False)
        live = np.zeros(self._places(), np.bool_)
        live[self._place_of(beside[ADDRESS])] = alive
        self._live = live

    @property
    def live_rows(self) -> int:
        """Return how many rows come out."""
        return int(self.dataset.count_rows()) if self._live is None else int(self._live.sum())

    def batches(self, columns: Sequence[str], **options: object) -> Iterator[pa.RecordBatch]:
        """Yield the rows that come out; options are those of a Lance scanner."""
        if self._live is None:
            yield from self.dataset.scanner(columns=list(columns), **options).to_reader()
            return
        if not self._live.any():
            return
        scanner = self.dataset.scanner(columns=list(columns), with_row_address=True, **options)
        for batch in scanner.to_reader():
            place = batch.schema.get_field_index(ADDRESS)
            alive = self._live[self._place_of(batch.column(place))]
            kept = batch.remove_column(place)
            yield kept if alive.all() else kept.filter(pa.array(alive))

    def alive(self, addresses: pa.ChunkedArray) -> Mask:
        """Tell of rows, by their addresses, whether they come out."""
        if self._live is None:
            return np.ones(len(addresses), np.bool_)
        living: Mask = self._live[self._place_of(addresses)]
        return living

    def find(self, columns: Sequence[pa.Array]) -> list[int | None]:
        """Return the place of the newest row of each key; None where the level has none."""
        values = key_values(columns)
        possible = self._files.may_hold(columns) if self._files else None
        if possible is not None and not possible.any():
            return [None] * len(values)
        if self._index is None:
            self._index = self._files.key_index() if self._files else self._own_index()
        return [
            self._index.find(values[at]) if possible is None or possible[at] else None
            for at in range(len(values))
        ]

    def _own_index(self) -> KeyIndex:
        """Index rows in memory; every one is there, so its number is its place."""
        return KeyIndex.of(key_values(self.keys()[0]))

    def take(self, places: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return rows by their places in the files, with their tombstone column."""
        wanted = [*columns, *([TOMBSTONE] if self._marked else [])]
        return self.dataset._take_rows(self._addresses(places), columns=list(wanted))  # noqa: SLF001 - the only way by address

    def _addresses(self, places: Sequence[int]) -> list[int]:
        if list(self._starts) == [0]:
            return list(places)
        addresses = []
        for place in places:
            fragment = max(f for f, start in self._starts.items() if start <= place)
            addresses.append((fragment << 32) | (place - self._starts[fragment]))
        return addresses

    def _places(self) -> int:
        return sum(fragment.physical_rows for fragment in self.dataset.get_fragments())

    def _place_of(self, addresses: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
        numbers = addresses.to_numpy().astype(np.uint64)
        if list(self._starts) == [0]:
            plain: npt.NDArray[np.int64] = numbers.astype(np.int64)
            return plain
        starts = np.zeros(max(self._starts, default=0) + 1, np.int64)
        starts[list(self._starts)] = list(self._starts.values())
        places: npt.NDArray[np.int64] = starts[(numbers >> _FRAGMENT).astype(np.int64)] + (
            numbers & _OFFSET
        ).astype(np.int64)
        return places


def log_level(shard_id: str, entries: Sequence[Entry], columns: Columns) -> Level | None:
    """Return the rows of a log as a level; None where there are none.

    Raises:
        CorruptError: an entry does not fit the table.
    """
    parts = []
    for entry in entries:
        for batch in entry.batches:
            theirs = [arrow_field(field) for field in batch.schema if field.name != TOMBSTONE]
            parts.append(columns.fit(pa.Table.from_batches([batch]), theirs))
    if not parts:
        return None
    rows = pa.concat_tables(parts).combine_chunks()
    return Level(f"log of {shard_id}", in_memory(rows), columns.keys)


def sstable_level(
    name: str, dataset: Dataset, columns: Columns, files: SstableFiles | None = None
) -> Level:
    """Return an SSTable as a level; read into memory where its columns are not the table's.

    Raises:
        CorruptError: it does not fit the table.
    """
    # A column made later may have the id that the tombstone had here.
    fields = lance_fields(dataset.schema, dataset.lance_schema.fields())
    theirs = [field for field in fields if field.name != TOMBSTONE]
    known = {field.name: field for field in theirs}
    if not all(f.name in known and known[f.name].is_like(f) for f in columns.fields):
        return Level(name, in_memory(columns.fit(dataset.to_table(), theirs)), columns.keys)
    return Level(name, dataset, columns.keys, files)


def combine_column(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _starts(dataset: Dataset) -> dict[int, int]:
    """Return at which place of all rows each fragment begins."""
    starts, start = {}, 0
    for fragment in dataset.get_fragments():
        starts[int(fragment.fragment_id)] = start
        start += int(fragment.physical_rows)
    return starts


__all__ = ["Columns", "Level", "SstableFiles", "combine_column", "log_level", "sstable_level"]
