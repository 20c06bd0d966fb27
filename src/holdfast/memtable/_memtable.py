"""`MemTable`: the rows of one generation in memory, the newest of each key known immediately.

Rows are added in the order of the log and never changed. A reader takes a `MemTableSnapshot`: the
rows there were at one moment, and which of them no later row replaces. One lock guards the
rows and the marks; nothing that waits happens under it. Keys are indexed a few thousand rows at
a time, and before every read: what was added is always found.
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

from holdfast.formats import TOMBSTONE, newest_per_key
from holdfast.memtable._parts import (
    KeyCodes,
    Keys,
    Numbers,
    Rows,
    add_keys,
    add_rows,
    hits,
    locate_rows,
    make_keys,
    pieces,
    replaced_inside,
)

Mask = npt.NDArray[np.bool_]
_SPARE = 2  # retained over used bytes from which on a slice is copied out of what it hangs on
_SERIALS = itertools.count()


@dataclass(frozen=True, slots=True)
class MemTableSnapshot:
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
        self._rows: list[Rows] = []
        self._index: list[Keys] = []
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

    def add(
        self,
        batches: Sequence[pa.RecordBatch],
        position: int,
        *,
        size: int | None = None,
        puts: int = 1,
        index: bool = True,
    ) -> None:
        """Add the rows of one log entry; readers see all of them or none.

        Args:
            batches: the rows, with their tombstones.
            position: where the log has them.
            size: how many bytes they have, if that is known.
            puts: as how many batches they count.
            index: index keys when many rows wait for it; otherwise a read does, or a later call.
        """
        if size is None:
            size = sum(int(batch.nbytes) for batch in batches)
        # Outside the lock: it may copy.
        kept = _own(batches, size)
        rows = sum(int(batch.num_rows) for batch in kept)
        with self._lock:
            self._waiting.extend(kept)
            self._waiting_rows += rows
            self.row_count += rows
            self.batch_count += puts
            self.byte_count += size
            self.first_position = self.first_position or position
            self.last_position = position
            self._positions.append(position)
            self._ends.append(self.row_count)
            # Many small batches cost less to index together, so they wait until there are enough
            # or somebody reads.
            if index and self._waiting_rows > self._deferred_rows:
                self._catch_up()

    def catch_up(self) -> None:
        """Index what waits."""
        with self._lock:
            self._catch_up()

    @property
    def waiting_rows(self) -> int:
        """Return how many rows the key index does not cover yet."""
        return self._waiting_rows

    def snapshot(self) -> MemTableSnapshot:
        """Return the rows as they are now."""
        with self._lock:
            self._catch_up()
            batches = [part.batch for part in self._rows]
            # A copy: later puts of the same keys clear marks in place, and this view must not
            # change.
            newest = self._newest[: self._count_indexed()].copy()
        return MemTableSnapshot(pa.Table.from_batches(batches, self.schema), newest)

    def find(self, columns: Sequence[pa.Array], *, below: int | None = None) -> Numbers:
        """Return for each key the number of its newest row, or -1.

        Args:
            columns: the key columns of what is looked for.
            below: look no further than this row.
        """
        codes = self._codes.of(columns)
        newest = np.full(len(codes), -1, np.int64)
        with self._lock:
            self._catch_up()
            rows, index = tuple(self._rows), tuple(self._index)
        for which, numbers in hits(index, codes):
            good = self._same(columns, which, rows, numbers)
            if below is not None:
                good &= numbers < below
            np.maximum.at(newest, which[good], numbers[good])
        return newest

    def take(self, numbers: Numbers) -> pa.Table:
        """Return rows by their numbers, in that order."""
        with self._lock:
            rows = tuple(self._rows)
        taken, places = [], []
        for part, at in locate_rows(rows, numbers):
            taken.append(part.batch.take(pa.array(numbers[at] - part.first)))
            places.append(at)
        table = pa.Table.from_batches(taken, self.schema)
        if len(taken) <= 1:
            return table
        return table.take(pa.array(np.argsort(np.concatenate(places), kind="stable")))

    def newest_rows(self) -> pa.Table:
        """Return the newest row of each key, tombstones included, in the order of the log."""
        view = self.snapshot()
        return view.rows if view.newest.all() else view.rows.filter(pa.array(view.newest))

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

    def _count_indexed(self) -> int:
        return self._rows[-1].end if self._rows else 0

    def _catch_up(self) -> None:
        if not self._waiting:
            return
        for batch in pieces(self._waiting):
            self._grow(self._count_indexed() + int(batch.num_rows))
            new = add_rows(self._rows, batch)
            if self.keys:
                self._index_keys(new)
        self._waiting.clear()
        self._waiting_rows = 0

    def _index_keys(self, rows: Rows) -> None:
        columns = self._codes.columns(rows.batch)
        keys = make_keys(self._codes.of(columns), rows.first)
        self._mark(columns, keys)
        add_keys(self._index, keys)

    def _mark(self, columns: list[pa.Array], new: Keys) -> None:
        """Mark what these rows replace, among themselves and before."""
        replaced = replaced_inside(new)
        if self._codes.exact:
            self._newest[replaced] = False
        elif len(replaced):  # equal codes may be of different keys
            # Codes of anything but one whole number are hashes: keys themselves are compared.
            self._newest[new.first : new.end] = False
            self._newest[new.first + newest_per_key(columns).to_numpy()] = True
        for which, numbers in hits(self._index, new.codes):
            good = self._same(columns, new.numbers[which] - new.first, self._rows, numbers)
            self._newest[numbers[good]] = False

    def _same(
        self, columns: Sequence[pa.Array], which: Numbers, rows: Sequence[Rows], numbers: Numbers
    ) -> Mask:
        """Tell of rows that have the code of a key whether they have the key."""
        good = np.ones(len(which), np.bool_)
        if self._codes.exact or not len(which):
            return good
        for part, at in locate_rows(rows, numbers):
            asked = [column.take(pa.array(which[at])) for column in columns]
            inside = pa.array(numbers[at] - part.first)
            stored = [column.take(inside) for column in self._codes.columns(part.batch)]
            good[at] = self._codes.same(asked, stored)
        return good

    def _grow(self, rows: int) -> None:
        if rows > len(self._newest):
            more = np.ones(max(rows, 2 * len(self._newest)), np.bool_)
            more[: len(self._newest)] = self._newest
            self._newest = more


def _own(batches: Sequence[pa.RecordBatch], size: int) -> Sequence[pa.RecordBatch]:
    """Return the rows alone when they are small slices that keep much else in memory."""
    held = sum(int(batch.get_total_buffer_size()) for batch in batches)
    if held <= _SPARE * size + 4096:
        return batches
    return [batch.take(pa.array(np.arange(batch.num_rows))) for batch in batches]
