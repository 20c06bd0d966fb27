"""`Tables`: the MemTable that takes rows, and the frozen ones that wait to be flushed.

Only whoever leads the group commit adds and freezes; anybody may ask what is there. The lock
guards the list.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa

from holdfast._clock import Clock
from holdfast.formats import SsTable
from holdfast.memtable import PIECE_ROWS, MemTable
from holdfast.shard._base import Base
from holdfast.shard._config import Settings


class Generation:
    """A MemTable, what of the budget it holds, and its SSTable once that is written."""

    __slots__ = ("size", "table", "written")

    def __init__(self, table: MemTable) -> None:
        self.table = table
        self.size = 0
        self.written: SsTable | None = None


class Tables:
    """The MemTables of one writer.

    Args:
        base: the base table.
        generation: the number of the first one.
        settings: the limits.
        clock: time.
    """

    def __init__(self, base: Base, generation: int, settings: Settings, clock: Clock) -> None:
        self._schema = base.storage_schema
        self._keys = base.keys
        self._settings = settings
        self._clock = clock
        self._indexed = clock.elapsed()
        self._lock = threading.Lock()
        self._frozen: list[Generation] = []
        self._active = self._new(generation)

    @property
    def active(self) -> MemTable:
        """Return the one that takes rows."""
        return self._active.table

    @property
    def active_size(self) -> int:
        """Return what of the budget the one that takes rows holds."""
        return self._active.size

    @property
    def frozen(self) -> Sequence[Generation]:
        """Return those that wait, oldest first."""
        return tuple(self._frozen)

    def all(self) -> list[MemTable]:
        """Return all, oldest first."""
        with self._lock:
            return [one.table for one in (*self._frozen, self._active)]

    def add(self, batches: Sequence[pa.RecordBatch], position: int, size: int) -> None:
        """Add the rows of one log entry."""
        self._active.size += size
        self.active.add(batches, position, size=size, puts=len(batches))
        now = self._clock.elapsed()
        if now - self._indexed >= self._settings.async_index_interval.total_seconds():
            self.active.catch_up()
            self._indexed = now

    def add_replayed(self, batches: Sequence[pa.RecordBatch], position: int, size: int) -> None:
        """Add the rows of an entry while a shard is opened; the first read indexes them."""
        self._active.size += size
        self.active.add(batches, position, size=size, puts=len(batches), index=False)

    def has_room(self, rows: int) -> bool:
        """Tell whether so many rows more fit into the active one; an empty one takes any."""
        table, limits = self.active, self._settings
        return table.row_count == 0 or (
            table.row_count + rows <= limits.max_memtable_rows
            and table.batch_count < limits.max_memtable_batches
        )

    def full(self) -> bool:
        """Tell whether the active one has reached a limit."""
        table, limits = self.active, self._settings
        return (
            table.row_count >= limits.max_memtable_rows
            or table.batch_count >= limits.max_memtable_batches
            or table.byte_count >= limits.max_memtable_size
        )

    def freeze(self) -> Generation | None:
        """Freeze the active one and begin the next; None when it is empty."""
        with self._lock:
            frozen = self._active
            if not frozen.table.row_count:
                return None
            # Both under one lock: a reader that lists the tables sees the rows once, in the frozen
            # one or in the active one.
            self._frozen.append(frozen)
            self._active = self._new(frozen.table.generation + 1)
        return frozen

    def drop_flushed(self, generation: Generation) -> None:
        """Let go of one that is flushed."""
        with self._lock:
            self._frozen.remove(generation)

    def drop_covered(self, generation: Generation, position: int) -> bool:
        """Let go of the rows of a frozen one that are in SSTables; tell whether any are left.

        Args:
            generation: the oldest one.
            position: the shard's flushed cursor.
        """
        table = generation.table
        if position < table.first_position:
            return True
        if position >= table.last_position:
            return False
        # Outside the lock: it copies rows. Nobody adds to a frozen table.
        rest = table.beyond(position)
        with self._lock:
            generation.table, generation.written = rest, None
        return True

    def number(self, generation: int) -> bool:
        """Number those that are left from here on, oldest first; tell whether that is news."""
        news = False
        with self._lock:
            for number, one in enumerate((*self._frozen, self._active), generation):
                if one.table.generation != number:
                    one.table.generation, one.written, news = number, None, True
        return news

    def _new(self, generation: int) -> Generation:
        settings = self._settings
        # A read indexes what waits, so rows that do are found like all others.
        deferred = PIECE_ROWS if settings.sync_indexed_write else settings.async_index_buffer_rows
        return Generation(MemTable(generation, self._schema, self._keys, deferred_rows=deferred))
