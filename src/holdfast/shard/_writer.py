"""`ShardWriter`: durable ingest into one shard, readable at once.

    with table.claim_writer("unsharded") as writer:   # writes: it locks the writer before out
        writer.put(rows)                              # durable when it returns
        writer.delete([17, 18])
        writer.lookup([19])

    put -> queue -> one log entry per group, decided -> acknowledged and in the MemTable
        -> frozen -> SSTable -> one shard manifest decision -> forgotten here

A put that returned is in the log: it survives this process, and the next writer of the shard
has it. What this writer has in memory is exactly what the log has: rows appear when they are
acknowledged, and when that cannot be kept up the writer stops, for reads too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, Self, cast

import pyarrow as pa

from holdfast._clock import Clock
from holdfast.commits._data import Data
from holdfast.errors import (
    BackpressureError,
    CollectedError,
    CommitStoreRegressedError,
    CorruptError,
    FencedError,
    ForeignVersionError,
    HoldfastError,
    InvalidInputError,
    PermissionDeniedError,
    PoisonedError,
    UnavailableError,
)
from holdfast.events import EventKind, emit
from holdfast.formats._entry import EntryDraft
from holdfast.memtable import IndexConfig, Reading
from holdfast.memtable._vector import Vector
from holdfast.shard._base import Base
from holdfast.shard._budget import Budget
from holdfast.shard._config import Settings, ShardWriterConfig
from holdfast.shard._flusher import Flusher
from holdfast.shard._group import GroupCommit, Item
from holdfast.shard._publish import publish
from holdfast.shard._rows import Keys, fitted, keys_of, relabelled, rows_of, tombstones_of
from holdfast.shard._shards import Shard
from holdfast.shard._sstables import Sstables
from holdfast.shard._stats import MemTableStats, WalStats, WriterStats
from holdfast.shard._tables import Generation, Tables
from holdfast.storage import Handle
from holdfast.wal import Appended, ShardManifests, WalAppender

_NO_LIMIT = 1 << 62
_SEARCH_LIMIT = 10
# After these, a flush by this writer can never succeed.
_FINAL = (
    CollectedError,
    CommitStoreRegressedError,
    CorruptError,
    FencedError,
    ForeignVersionError,
    PoisonedError,
)
# What a log write raises when it sent nothing: it is repeated.
_REFUSED = (UnavailableError, PermissionDeniedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """One acknowledged put or delete.

    Attributes:
        position: the log entry it is in; None when `durable_write` is off: then it may
            still be lost.
        rows: how many rows.
        elapsed: seconds.
    """

    position: int | None
    rows: int
    elapsed: float


class Put(Item):
    """Rows on their way to the log."""

    __slots__ = ("batch", "begun", "clock", "elapsed", "position")

    def __init__(self, batch: pa.RecordBatch, clock: Clock) -> None:
        super().__init__(int(batch.nbytes), int(batch.num_rows))
        self.batch = batch
        self.clock = clock
        self.begun = clock.elapsed()
        self.position: int | None = None
        self.elapsed = 0.0

    def result(self) -> PutResult:
        """Return what its caller gets."""
        elapsed = self.clock.elapsed() - self.begun
        return PutResult(position=self.position, rows=self.rows, elapsed=elapsed)

    def failed(self, error: HoldfastError) -> HoldfastError:
        """Return the error with these rows in it."""
        return type(error)(error.message, **{**error.details, "unacknowledged": (self.batch,)})


class Freeze(Item):
    """Asks whoever leads to freeze the active MemTable."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(alone=True)


class ClaimsWriters(Protocol):
    """A table."""

    def claim_writer(
        self, shard: str | Shard, *, config: ShardWriterConfig | None = None
    ) -> ShardWriter:
        """Claim a shard."""
        ...


class ShardWriter(Handle):
    """The one writer of a shard; made by `Table.claim_writer` or `ShardWriter.open`.

    Threads may share it. It belongs to the process that opened it.
    """

    @classmethod
    def open(
        cls,
        table: ClaimsWriters,
        shard: str | Shard,
        *,
        config: ShardWriterConfig | None = None,
    ) -> ShardWriter:
        """Claim a shard for writing. This WRITES: it locks the shard's previous writer out.

        The same as `table.claim_writer(shard, config=config)`.

        Raises:
            As for `Table.claim_writer`.
        """
        return table.claim_writer(shard, config=config)

    def __init__(
        self,
        appender: WalAppender,
        base: Base,
        *,
        sstables: Sstables,
        manifests: ShardManifests,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._appender = appender
        self._base = base
        self._sstables = sstables
        self._manifests = manifests
        self._settings = settings
        self._clock = clock
        self._pid = os.getpid()
        self._budget = Budget(settings.max_unflushed_memtable_bytes)
        self._tables: Tables | None = None
        if settings.enable_memtable:
            generation = appender.manifest.current_generation
            self._tables = Tables(base, generation, settings, clock)
        self._reading = Reading(
            base.schema,
            base.keys,
            _indexes(base, settings),
            base.storage_version,
            settings.async_index_buffer_rows,
        )
        name = f"holdfast-{appender.shard_id[:8]}"
        self._group = GroupCommit(
            self._write,
            name=f"{name}-log",
            max_bytes=settings.max_wal_buffer_size,
            max_rows=settings.max_memtable_rows if settings.enable_memtable else _NO_LIMIT,
            wrapped=self._stopped_by,
        )
        self._flusher: Flusher[Generation] = Flusher(
            self._flush,
            final=self._is_final,
            report=self._fail,
            name=f"{name}-flush",
        )
        self._lock = threading.Lock()  # guards the counts and `_closed`
        self._closed = False
        self._counts: dict[str, float] = dict.fromkeys(_COUNTS, 0)
        self._counts["flushed_position"] = appender.manifest.replay_after

    def __repr__(self) -> str:
        mode = "MemTable" if self._tables else "log only"
        return f"ShardWriter({self.shard_id}, epoch {self.epoch}, {mode})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(HoldfastError):
                self.close()

    @property
    def shard_id(self) -> str:
        """Return the shard's id."""
        return self._appender.shard_id

    @property
    def epoch(self) -> int:
        """Return the epoch that this writer claimed."""
        return self._appender.epoch

    def put(self, data: Data, *, timeout: timedelta | None = None) -> PutResult:
        """Write rows; with a primary key, they replace rows of the same key.

        Durable when this returns, and readable through this writer. All rows of one call
        are in one log entry: all or none survive. With `durable_write=False` it returns
        early, which acknowledges nothing.

        Args:
            data: anything with Arrow's stream interface, a batch, or a list of dicts. Do not
                change its memory afterwards.
            timeout: how long to wait while the writer's buffer is full; for ever unless told.

        Raises:
            InvalidInputError: no rows, rows that do not fit, or the writer is closed.
            BackpressureError: the buffer stayed full; nothing was taken.
            FencedError: another writer owns the shard; `unacknowledged` has the rows. Final.
            PoisonedError: the outcome is unknown; so. Final.
            UnavailableError, PermissionDeniedError: the store refused, more often than
                `max_wal_persist_retries`; nothing of it is in the log; so. Final.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: a name is not what
                was decided. Final.
        """
        self._check()
        return self._put(rows_of(data, self._base), timeout)

    def delete(self, keys: Keys, *, timeout: timedelta | None = None) -> PutResult:
        """Delete rows by key; durable when this returns. A key that is not there is fine.

        Args:
            keys: Arrow data with the key columns, rows as dicts, or the values of a key of
                one column.
            timeout: as for `put`.

        Raises:
            InvalidInputError: the table has no primary key, or these are no keys of it.
            Other errors: as for `put`.
        """
        self._check()
        return self._put(tombstones_of(keys, self._base), timeout)

    def put_nowait(self, data: Data) -> Future[PutResult]:
        """Write rows and return at once; the future is done when they are durable.

        Futures are done in the order of the calls. What is done as a future's callback holds
        up the puts behind it.

        Raises:
            InvalidInputError: no rows, rows that do not fit, or the writer is closed.
            BackpressureError: the buffer is full; nothing was taken.
            Other errors: of a writer that stopped before, as for `put`. The future gets those
                that come later.
        """
        self._check()
        return self._nowait(rows_of(data, self._base))

    def delete_nowait(self, keys: Keys) -> Future[PutResult]:
        """Delete rows by key and return at once; the future is done when that is durable.

        Raises:
            InvalidInputError: the table has no primary key, or these are no keys of it.
            Other errors: as for `put_nowait`.
        """
        self._check()
        return self._nowait(tombstones_of(keys, self._base))

    def lookup(self, keys: Keys, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the newest rows of keys that this writer holds, in the order of the keys.

        Rows that are flushed already, or in the base table, are not found here: the table's
        own reads cover all of them.

        Raises:
            InvalidInputError: no keys of the table, an unknown column, or a writer without
                MemTables.
            Other errors: a stopped writer's, as for `put`.
        """
        return self._reading.lookup(self._readable(), keys_of(keys, self._base), columns)

    def scan(
        self,
        filter: str | None = None,  # noqa: A002 - Lance's word
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the rows that this writer holds, the newest of each key; see `lookup`.

        Args:
            filter: SQL as Lance speaks it, such as `"score > 0.5"`.
            columns: which columns; all unless told.
            limit: how many rows at most.

        Raises:
            InvalidInputError: a filter that Lance does not understand, an unknown column, or
                a writer without MemTables.
            Other errors: a stopped writer's, as for `put`.
        """
        return self._reading.scan(self._readable(), filter, columns, limit)

    def search(
        self,
        column: str,
        query: object,
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = _SEARCH_LIMIT,
    ) -> pa.Table:
        """Return rows that this writer holds whose text matches, best first; see `lookup`.

        Args:
            column: a column of text.
            query: words, or one of Lance's query objects.
            columns: which columns; all unless told. `_score` comes with them.
            limit: how many rows at most; None for all.

        Raises:
            InvalidInputError: no column of text, an unknown column, or a writer without
                MemTables.
            Other errors: a stopped writer's, as for `put`.
        """
        return self._reading.search(self._readable(), column, query, columns, limit)

    def nearest(
        self,
        column: str,
        query: Vector,
        *,
        k: int = _SEARCH_LIMIT,
        metric: str | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's word
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the k rows that this writer holds with the nearest vectors; see `lookup`.

        Exact: every vector is compared.

        Args:
            column: a column of vectors.
            query: a vector of the same length.
            k: how many rows.
            metric: `l2`, `cosine` or `dot`; as the table's index has it, else `l2`.
            filter: SQL; only rows for which it is true are compared.
            columns: which columns; all unless told. `_distance` comes with them.

        Raises:
            InvalidInputError: no column of vectors, a query that does not fit, an unknown
                metric or column, or a writer without MemTables.
            Other errors: a stopped writer's, as for `put`.
        """
        return self._reading.nearest(
            self._readable(),
            column,
            query,
            k=k,
            metric=metric,
            condition=filter,
            columns=columns,
        )

    def flush(self) -> int:
        """Flush everything put so far to SSTables; return the log position they reach.

        Raises:
            UnavailableError: an attempt failed; it is being repeated, and the rows are safe
                in the log.
            InvalidInputError: a writer without MemTables.
            Other errors: a stopped writer's, as for `put`.
        """
        self._readable()
        self._group.submit(Freeze())
        error = self._flusher.drain()
        if error is not None:
            raise error
        return int(self._counts["flushed_position"])

    def check_fenced(self) -> None:
        """Return if this writer still owns the shard; reads only.

        Raises:
            FencedError: it does not.
            UnavailableError, PermissionDeniedError: a store did not tell.
            Other errors: a stopped writer's, as for `put`.
        """
        self._check()
        self._manifests.check(self.epoch)

    def stats(self) -> WriterStats:
        """Return what this writer did; works on a stopped writer, too."""
        with self._lock:
            counts = dict(self._counts)
        error = self._flusher.error
        whole = {
            name: counts[name] if name.endswith("seconds") else int(counts[name])
            for name in _COUNTS
            if name in WriterStats.__slots__
        }
        found: dict[str, Any] = {
            **whole,
            "shard_id": self.shard_id,
            "epoch": self.epoch,
            "flush_failures": self._flusher.failures,
            "flush_error": None if error is None else str(error),
            "buffered_bytes": self._budget.used,
            "buffer_limit": self._budget.limit,
            "backpressure_waits": self._budget.waits,
        }
        return WriterStats(**found)

    def wal_stats(self) -> WalStats:
        """Return what this writer did to the log, and where it goes on."""
        with self._lock:
            counts = dict(self._counts)
        return WalStats(
            next_position=self._appender.next_position,
            epoch=self.epoch,
            entries=int(counts["entries"]),
            rows=int(counts["entry_rows"]),
            size=int(counts["entry_bytes"]),
            seconds=counts["entry_seconds"],
            retries=int(counts["retries"]),
            waiting=self._group.length,
            waiting_bytes=self._group.waiting_bytes,
        )

    def memtable_stats(self) -> MemTableStats:
        """Return what is in memory.

        Raises:
            InvalidInputError: a writer without MemTables.
        """
        tables = self._memtables()
        frozen, active = tables.frozen, tables.active
        return MemTableStats(
            generation=active.generation,
            rows=active.row_count,
            batches=active.batch_count,
            size=active.byte_count,
            waiting_rows=active.waiting_rows,
            frozen=len(frozen),
            frozen_bytes=sum(one.table.byte_count for one in frozen),
        )

    def close(self, *, flush: bool = True) -> None:
        """Write what waits, flush it to SSTables, and let go of the shard. May be repeated.

        Args:
            flush: False leaves the rows in the log, from where the next writer replays them.

        Raises:
            UnavailableError: a flush failed. The writer is closed all the same, and every
                acknowledged row is in the log.
            Other errors: of a writer that stopped before, as for `put`.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._group.close(_closed())
        failure = self._group.failure
        if failure is None and flush and self._tables is not None:
            self._freeze()
            failure = self._flusher.drain()
        self._end(_closed())
        if failure is not None:
            raise failure

    def abort(self) -> None:
        """Stop at once. What waits for the log fails; what is acknowledged stays in the log."""
        with self._lock:
            self._closed = True
        self._group.fail(InvalidInputError("this writer was aborted: claim the shard again"))
        self._group.close(_closed())
        self._end(_closed())

    def _end(self, error: HoldfastError) -> None:
        self._budget.stop(error)
        self._flusher.close()
        self._appender.close()

    # Putting, in the caller's thread.

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidInputError(
                "a writer does not survive a fork: open the table and claim a shard in the "
                "new process"
            )
        if self._closed and self._group.failure is None:
            raise _closed()

    def _put(self, batch: pa.RecordBatch, timeout: timedelta | None) -> PutResult:
        item = Put(batch, self._clock)
        seconds = None if timeout is None else max(0.0, timeout.total_seconds())
        self._admit(item, seconds)
        self._submit(item, wait=self._settings.durable_write)
        result = item.result()
        if self._settings.durable_write:
            self._count(put_seconds=result.elapsed)
        return result

    def _nowait(self, batch: pa.RecordBatch) -> Future[PutResult]:
        item = Put(batch, self._clock)
        future: Future[object] = Future()
        future.set_running_or_notify_cancel()
        item.future = future
        self._admit(item, 0.0)
        self._submit(item, wait=False)
        return cast("Future[PutResult]", future)

    def _admit(self, item: Put, seconds: float | None) -> None:
        try:
            self._budget.take(item.size, seconds, lambda: self._crowded(item.size))
        except BackpressureError:
            raise
        except HoldfastError as error:
            raise item.failed(error) from error

    def _submit(self, item: Put, *, wait: bool) -> None:
        try:
            self._group.submit(item, wait=wait)
        except HoldfastError:
            self._budget.give(item.size)
            raise

    def _crowded(self, wanted: int) -> None:
        """Say that a put waits, and see to it that a flush will make room."""
        emit(
            EventKind.BACKPRESSURE,
            shard_id=self.shard_id,
            used=self._budget.used,
            limit=self._budget.limit,
            wanted=wanted,
        )
        self._make_room()

    def _make_room(self) -> None:
        if self._tables is not None and not self._tables.frozen:
            with suppress(HoldfastError):  # the waiting put gets it
                self._group.submit(Freeze(), wait=False)

    # Writing, in the thread that leads.

    def _write(self, items: Sequence[Item]) -> None:
        puts = [item for item in items if isinstance(item, Put)]
        if puts:
            self._append(puts)
        elif any(isinstance(item, Freeze) for item in items):
            self._freeze()

    def _append(self, puts: Sequence[Put]) -> None:
        rows = sum(put.rows for put in puts)
        size = sum(put.size for put in puts)
        generation = None
        if self._tables is not None:
            if not self._tables.has_room(rows):
                self._freeze()
            generation = self._tables.active.generation
        batches = [relabelled(put.batch, self._base.log_schema) for put in puts]
        draft = self._appender.draft(batches, generation=generation)
        done = self._persist(draft)
        if self._tables is None:
            self._budget.give(size)
        else:
            kept = [relabelled(batch, self._base.storage_schema) for batch in draft.batches]
            self._tables.add(kept, done.position, size)
            if self._tables.full() or (self._budget.waiting and not self._tables.frozen):
                self._freeze()
        for put in puts:
            put.position = done.position
        self._count(
            puts=len(puts),
            rows=rows,
            entries=1,
            entry_rows=rows,
            entry_bytes=done.size,
            entry_seconds=done.elapsed,
        )

    def _persist(self, draft: EntryDraft) -> Appended:
        """Append an entry; one that was refused stays first and is sent again."""
        pause = self._settings.wal_persist_retry_base_delay.total_seconds()
        for left in reversed(range(self._settings.max_wal_persist_retries + 1)):
            try:
                return self._appender.append(draft)
            except _REFUSED:
                if not left:
                    raise
            self._count(retries=1)
            self._clock.sleep(pause)
            pause *= 2
        raise AssertionError  # the last attempt returns or raises

    def _freeze(self) -> None:
        tables = self._memtables()
        frozen = tables.freeze()
        if frozen is not None:
            self._flusher.add(frozen)

    def _stopped_by(self, error: BaseException) -> HoldfastError:
        """Return what everybody gets after a write failed for good, and stop everything."""
        if isinstance(error, HoldfastError):
            details = {k: v for k, v in error.details.items() if k != "unacknowledged"}
            failure = type(error)(error.message, **details)
        else:
            failure = PoisonedError(
                "a log write was cut short, so this writer stops: open the shard again, replay "
                "tells what is there",
                shard_id=self.shard_id,
                epoch=self.epoch,
                reason=type(error).__name__,
            )
        self._budget.stop(failure)
        self._appender.close()
        return failure

    # Flushing, in the flusher's thread.

    def _flush(self, generation: Generation) -> None:
        begun = self._clock.elapsed()
        table = generation.table
        failure = self._group.failure
        if failure is not None:
            raise failure
        if generation.written is None:
            generation.written = self._sstables.write(
                self._base, self.shard_id, table.generation, table.newest_rows()
            )
        written = generation.written
        publish(self._manifests, self.epoch, written, table.last_position, table.first_position)
        self._memtables().flushed(generation)
        self._budget.give(generation.size)
        elapsed = self._clock.elapsed() - begun
        rows = written.physical_rows or 0
        with self._lock:
            self._counts["flushed_position"] = table.last_position
        self._count(flushes=1, flushed_rows=rows, flush_seconds=elapsed)
        emit(
            EventKind.FLUSHED,
            shard_id=self.shard_id,
            generation=table.generation,
            rows=rows,
            size=written.in_memory_bytes,
            position=table.last_position,
            elapsed=elapsed,
        )
        if self._budget.waiting:
            self._make_room()

    def _is_final(self, error: HoldfastError) -> bool:
        return isinstance(error, _FINAL) or self._group.failure is not None

    def _fail(self, error: HoldfastError) -> None:
        self._group.fail(error)
        self._budget.stop(error)
        self._appender.close()

    # Opening.

    def replayed(self) -> Self:
        """Take over what the log holds beyond the flushed cursor; called once, by the opener.

        Raises:
            HoldfastError: that failed; the writer is closed.
        """
        try:
            if self._tables is not None:
                self._replay()
        except BaseException:
            self.abort()
            raise
        return self

    def _replay(self) -> None:
        tables, begun = self._memtables(), self._clock.elapsed()
        entries = rows = 0
        for entry in self._appender.replay():
            batches = [fitted(batch, self._base) for batch in entry.batches]
            if self._turns(entry.generation, entry.rows):
                self._flush_replayed()
            size = sum(int(batch.nbytes) for batch in batches)
            self._budget.add(size)
            tables.add(batches, entry.position, size)
            entries, rows = entries + 1, rows + entry.rows
        if tables.full():
            self._freeze()
        elapsed = self._clock.elapsed() - begun
        self._count(replayed_entries=entries, replayed_rows=rows, replay_seconds=elapsed)

    def _turns(self, generation: int | None, rows: int) -> bool:
        """Tell whether an entry of the log begins a new generation.

        One that is tagged says so itself; its generation was small enough for its writer, and
        split otherwise stock could not read what is left of it. Others are split by size.
        """
        tables = self._memtables()
        if not tables.active.row_count:
            return False
        if generation is not None:
            return generation > tables.active.generation
        return tables.full() or not tables.has_room(rows)

    def _flush_replayed(self) -> None:
        frozen = self._memtables().freeze()
        if frozen is not None:
            self._flush(frozen)

    # Helpers.

    def _readable(self) -> list[Any]:
        self._check()
        tables = self._memtables()
        failure = self._group.failure
        if failure is not None:
            raise failure
        return list(tables.all())

    def _memtables(self) -> Tables:
        if self._tables is None:
            raise InvalidInputError(
                "this writer has no MemTables: it was opened with enable_memtable=False; read "
                "through the table instead"
            )
        return self._tables

    def _count(self, **more: float) -> None:
        with self._lock:
            for name, value in more.items():
                self._counts[name] += value


_COUNTS = (
    "puts",
    "rows",
    "put_seconds",
    "entries",
    "entry_rows",
    "entry_bytes",
    "entry_seconds",
    "retries",
    "flushes",
    "flushed_rows",
    "flush_seconds",
    "flushed_position",
    "replayed_entries",
    "replayed_rows",
    "replay_seconds",
)


def _closed() -> InvalidInputError:
    return InvalidInputError("this writer is closed: claim the shard again")


def _indexes(base: Base, settings: Settings) -> tuple[IndexConfig, ...]:
    if settings.index_configs is not None:
        unknown = [
            one.column for one in settings.index_configs if one.column not in base.schema.names
        ]
        if unknown:
            raise InvalidInputError(
                "index_configs names columns that are not there", columns=unknown
            )
        return settings.index_configs
    kinds = {"BTREE": "btree", "INVERTED": "text", "VECTOR": "vector"}
    return tuple(
        IndexConfig(column=one.column, kind=kinds[one.kind], name=one.name, settings=one.settings)
        for one in base.indexes
    )
