"""`MemTable`: the rows of one generation in memory, the newest of each key known at once.

Rows are added in the order of the log and never changed. A reader takes a `Snapshot`: the
rows there were at one moment, and which of them no later row replaces. One lock guards the
parts and the marks; nothing that waits happens under it.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.formats._keys import newest_per_key
from holdfast.formats._sstable import TOMBSTONE
from holdfast.memtable._parts import (
    KeyCodes,
    Numbers,
    Part,
    has_doubles,
    hits,
    make_part,
    settle,
)

Mask = npt.NDArray[np.bool_]
_SPARE = 2  # retained over used bytes from which on a slice is copied out of what it hangs on
_NO_CODES = np.zeros(0, np.int64)
_SERIALS = itertools.count()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of a MemTable at one moment.

    Attributes:
        rows: all of them, tombstones and replaced rows included, in the order of the log.
        newest: which of them are the newest with their key.
    """

    rows: pa.Table
    newest: Mask

    def live(self) -> Mask:
        """Tell which rows are there for a reader of this MemTable alone."""
        deleted: Mask = self.rows[TOMBSTONE].to_numpy()
        return self.newest & ~deleted


class MemTable:
    """The rows of one generation.

    Args:
        generation: its number; may change before it is flushed.
        schema: the columns with the tombstone.
        keys: the key columns; none for an append-only table.
        deferred_rows: how many new rows may wait for the key index; a read never does.

    Attributes:
        serial: tells it from every other MemTable of this process, whatever its number.
    """

    def __init__(
        self,
        generation: int,
        schema: pa.Schema,
        keys: Sequence[str],
        *,
        deferred_rows: int = 0,
    ) -> None:
        self.generation = generation
        self.serial = next(_SERIALS)
        self.schema = schema
        self.keys = tuple(keys)
        self._codes = KeyCodes(schema, keys)
        self._deferred_rows = deferred_rows
        self._lock = threading.Lock()  # guards everything below
        self._parts: list[Part] = []
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._newest = np.ones(1024, np.bool_)
        self.row_count = 0
        self.batch_count = 0
        self.byte_count = 0
        self.first_position = 0
        self.last_position = 0
        self._positions = array("q")  # of each entry, and how many rows there were after it
        self._ends = array("q")

    def add(self, batches: Sequence[pa.RecordBatch], position: int, *, puts: int = 1) -> None:
        """Add the rows of one log entry; readers see all of them or none.

        Args:
            batches: the rows, with their tombstones.
            position: where the log has them.
            puts: as how many batches they count.
        """
        kept = [_own(batch) for batch in batches]
        size = sum(int(batch.nbytes) for batch in kept)
        with self._lock:
            self._waiting.extend(kept)
            rows = sum(int(batch.num_rows) for batch in kept)
            self._waiting_rows += rows
            self.row_count += rows
            self.batch_count += puts
            self.byte_count += size
            self.first_position = self.first_position or position
            self.last_position = position
            self._positions.append(position)
            self._ends.append(self.row_count)
            if self._waiting_rows > self._deferred_rows:
                self._catch_up()

    def catch_up(self) -> None:
        """Index what waits."""
        with self._lock:
            self._catch_up()

    @property
    def waiting_rows(self) -> int:
        """Return how many rows the key index does not cover yet."""
        return self._waiting_rows

    def snapshot(self) -> Snapshot:
        """Return the rows as they are now."""
        with self._lock:
            self._catch_up()
            batches = [part.batch for part in self._parts]
            newest = self._newest[: self._indexed()].copy()
        return Snapshot(pa.Table.from_batches(batches, self.schema), newest)

    def find(self, columns: Sequence[pa.Array], *, below: int | None = None) -> Numbers:
        """Return for each key the number of its newest row, or -1.

        Args:
            columns: the key columns of what is looked for.
            below: look no further than this row.
        """
        codes = self._codes.of(columns)
        found = np.full(len(codes), -1, np.int64)
        with self._lock:
            self._catch_up()
            parts = tuple(self._parts)
        for part, which, inside in hits(parts, codes):
            rows = inside + part.first
            good = self._same(columns, which, part.batch, inside)
            if below is not None:
                good &= rows < below
            np.maximum.at(found, which[good], rows[good])
        return found

    def take(self, numbers: Numbers) -> pa.Table:
        """Return rows by their numbers, in that order."""
        with self._lock:
            parts = tuple(self._parts)
        ends = np.array([part.end for part in parts])
        owner = np.searchsorted(ends, numbers, "right")
        pieces, places = [], []
        for index in np.unique(owner).tolist():
            at = np.flatnonzero(owner == index)
            part = parts[index]
            pieces.append(part.batch.take(pa.array(numbers[at] - part.first)))
            places.append(at)
        table = pa.Table.from_batches(pieces, self.schema)
        if len(pieces) <= 1:
            return table
        return table.take(pa.array(np.argsort(np.concatenate(places), kind="stable")))

    def newest_rows(self) -> pa.Table:
        """Return the newest row of each key, tombstones included, in the order of the log."""
        found = self.snapshot()
        return found.rows if found.newest.all() else found.rows.filter(pa.array(found.newest))

    def beyond(self, position: int) -> MemTable:
        """Return a MemTable with the rows of those entries only that lie beyond a position."""
        with self._lock:
            entries = list(zip(self._positions, self._ends, strict=True))
        rows = self.snapshot().rows
        rest = MemTable(self.generation, self.schema, self.keys, deferred_rows=self._deferred_rows)
        covered = bisect_right(entries, position, key=lambda entry: entry[0])
        start = entries[covered - 1][1] if covered else 0
        for at, end in entries[covered:]:
            rest.add(rows.slice(start, end - start).to_batches(), at)
            start = end
        return rest

    def _indexed(self) -> int:
        return self._parts[-1].end if self._parts else 0

    def _catch_up(self) -> None:
        for batch in self._waiting:
            self._index(batch)
        self._waiting.clear()
        self._waiting_rows = 0

    def _index(self, batch: pa.RecordBatch) -> None:
        first, rows = self._indexed(), int(batch.num_rows)
        self._grow(first + rows)
        if self.keys:
            columns = self._codes.columns(batch)
            part = make_part(batch, first, self._codes.of(columns))
            self._mark(columns, part)
        else:
            part = make_part(batch, first, _NO_CODES)
        self._parts.append(part)
        settle(self._parts)

    def _mark(self, columns: list[pa.Array], new: Part) -> None:
        """Mark what these rows replace, among themselves and before."""
        if has_doubles(new):
            self._newest[new.first : new.end] = False
            self._newest[new.first + newest_per_key(columns).to_numpy()] = True
        for part, which, inside in hits(self._parts, new.codes):
            good = self._same(columns, new.order[which], part.batch, inside)
            self._newest[inside[good] + part.first] = False

    def _same(
        self, columns: Sequence[pa.Array], which: Numbers, batch: pa.RecordBatch, inside: Numbers
    ) -> Mask:
        if self._codes.exact or not len(which):
            return np.ones(len(which), np.bool_)
        asked = [column.take(pa.array(which)) for column in columns]
        stored = [column.take(pa.array(inside)) for column in self._codes.columns(batch)]
        return self._codes.same(asked, stored)

    def _grow(self, rows: int) -> None:
        if rows > len(self._newest):
            more = np.ones(max(rows, 2 * len(self._newest)), np.bool_)
            more[: len(self._newest)] = self._newest
            self._newest = more


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows alone when they are a small slice that keeps much else in memory."""
    if batch.get_total_buffer_size() > _SPARE * batch.nbytes + 4096:
        return batch.take(pa.array(np.arange(batch.num_rows)))
    return batch
