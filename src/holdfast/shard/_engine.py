"""What happens inside a writer: rows on their way to the log, to memory and to SSTables.

    put -> queue -> one log entry per group, decided -> acknowledged and in the MemTable
        -> frozen -> SSTable -> one shard manifest decision -> forgotten here

`ShardWriter` is what users hold; it adds the calls. Memory is exactly what the log has: rows
enter it when their entry is decided, and a writer that cannot keep that up stops.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, cast

from holdfast._clock import Clock
from holdfast.commits import GroupCommit, GroupItem
from holdfast.errors import (
    BackpressureError,
    CollectedError,
    CommitStoreRegressedError,
    ConflictError,
    CorruptError,
    FencedError,
    ForeignVersionError,
    HoldfastError,
    InvalidInputError,
    PermissionDeniedError,
    PoisonedError,
    StaleHandleError,
    UnavailableError,
)
from holdfast.events import EventKind, emit
from holdfast.formats import TXNS_TAG, EntryDraft, SsTable, txns_tag
from holdfast.memtable import IndexConfig, MemTable, Reading
from holdfast.shard._base import Base
from holdfast.shard._budget import Budget, Charge
from holdfast.shard._config import Settings
from holdfast.shard._flusher import Flusher
from holdfast.shard._publish import PublishedSstable, publish_oldest
from holdfast.shard._rows import InputRows, fit_entry, relabel, stored_batch
from holdfast.shard._shards import Members
from holdfast.shard._sstables import SstableWriter
from holdfast.shard._tables import Generation, Tables
from holdfast.storage import Handle
from holdfast.txn import Txn, TxnLike, parse_txn
from holdfast.wal import Appended, LogMemory, ShardManifests, WalAppender

log = logging.getLogger("holdfast.shard")

_NO_LIMIT = 1 << 62
_REPLAYS = 16
"""How often a log is replayed anew that others flush meanwhile."""
ENTRIES_UNCHECKED = 1000
"""After so many log entries a writer looks whether the table can still read its log."""
MEMTABLE_TAG = "memtable"
"""Marks the entries of a writer that flushes its log by itself."""
# After these, a flush by this writer can never succeed.
_FINAL = (
    CollectedError,
    CommitStoreRegressedError,
    CorruptError,
    FencedError,
    ForeignVersionError,
    PoisonedError,
    StaleHandleError,
)
# What a log write raises when it sent nothing: it is repeated.
_REFUSED = (UnavailableError, PermissionDeniedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """One acknowledged put or delete.

    Attributes:
        position: the log entry it is in; None when `durable_write` is off: then it may
            still be lost; None, too, for what was applied before.
        rows: how many rows.
        elapsed: seconds.
        txn: its transaction id, if it was given one.
        applied: False when the transaction was applied before, so that nothing was written;
            None when `durable_write` is off: nobody knows yet.
    """

    position: int | None
    rows: int
    elapsed: float
    txn: Txn | None = None
    applied: bool | None = True


class Put(GroupItem):
    """Rows on their way to the log."""

    __slots__ = ("applied", "base", "begun", "charge", "clock", "given", "position", "txn")

    def __init__(self, given: InputRows, base: Base, clock: Clock, txn: Txn | None) -> None:
        super().__init__(given.size, given.batch.num_rows)
        self.given = given
        self.charge = Charge(given.size)
        self.base = base
        self.clock = clock
        self.begun = clock.elapsed()
        self.position: int | None = None
        self.txn = txn
        self.applied = True

    def result(self) -> PutResult:
        """Return what its caller gets."""
        elapsed = self.clock.elapsed() - self.begun
        return PutResult(
            position=self.position,
            rows=self.rows,
            elapsed=elapsed,
            txn=self.txn,
            applied=self.applied if self.done else None,
        )

    def error_for_caller(self, error: HoldfastError) -> HoldfastError:
        """Return the error with these rows in it."""
        rows = (self.given.to_stored(self.base),)
        return type(error)(error.message, **{**error.details, "unacknowledged": rows})


class Freeze(GroupItem):
    """Asks whoever leads to freeze the active MemTable."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(alone=True)


class Engine(Handle):
    """The parts of a writer and how they work together.

    Args:
        appender: the shard's log, claimed.
        base: the base table.
        sstables: writes SSTables.
        manifests: the shard's manifests.
        settings: how it works.
        clock: time.
        memory: which transactions the log has applied.
        newest_base: returns the base table as it is now, for searches by its indexes.
        check_log: raises if nobody could read what this writer writes.
    """

    def __init__(
        self,
        appender: WalAppender,
        base: Base,
        *,
        sstables: SstableWriter,
        manifests: ShardManifests,
        settings: Settings,
        clock: Clock,
        memory: LogMemory,
        newest_base: Callable[[], Base],
        check_log: Callable[[], None] = lambda: None,
    ) -> None:
        self._newest_base = newest_base
        self._appender = appender
        self._base = base
        self._members = Members(base, appender.shard_id)
        self._sstables = sstables
        self._manifests = manifests
        self._settings = settings
        self._clock = clock
        self._memory = memory
        self._check_log = check_log
        self._unchecked = 0  # entries since the table was last looked at
        self._pid = os.getpid()
        # No stock tag of a generation: stock passes over entries whose generation is published,
        # and `flush_log` may publish that number while this writer goes on.
        self._tags = {MEMTABLE_TAG: "true"} if settings.enable_memtable else {}
        self._budget = Budget(settings.max_unflushed_memtable_bytes)
        self._tables: Tables | None = None
        if settings.enable_memtable:
            self._tables = self._new_tables(appender.manifest.current_generation)
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
            wrapped=self._stopped_by,
            stops=True,
            gathers=True,
            max_bytes=settings.max_wal_buffer_size,
            max_rows=settings.max_memtable_rows if settings.enable_memtable else _NO_LIMIT,
            linger=timedelta(0) if settings.durable_write else settings.max_wal_flush_interval,
        )
        self._flusher: Flusher[Generation] = Flusher(
            self._flush_frozen,
            final=self._is_final,
            report=self._fail,
            name=f"{name}-flush",
        )
        self._lock = threading.Lock()  # guards the counts and `_closed`
        self._closed = False
        self._counts: dict[str, float] = dict.fromkeys(COUNTS, 0)
        self._counts["flushed_position"] = appender.manifest.replay_after

    @property
    def shard_id(self) -> str:
        """Return the shard's id."""
        return self._appender.shard_id

    @property
    def epoch(self) -> int:
        """Return the epoch that this writer claimed."""
        return self._appender.epoch

    def abort(self) -> None:
        """Stop immediately. What waits for the log fails; what is acknowledged stays in the log."""
        with self._lock:
            self._closed = True
        self._group.fail(InvalidInputError("this writer was aborted: claim the shard again"))
        self._group.close(closed_error())
        self._end(closed_error())

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
            raise closed_error()

    def _put(self, given: InputRows, timeout: timedelta | None, txn: TxnLike | None) -> PutResult:
        item = self._new_put(given, txn)
        seconds = None if timeout is None else max(0.0, timeout.total_seconds())
        self._submit(item, seconds, wait=self._settings.durable_write)
        result = item.result()
        if self._settings.durable_write:
            self._count(put_seconds=result.elapsed)
        return result

    def _nowait(self, given: InputRows, txn: TxnLike | None) -> Future[PutResult]:
        item = self._new_put(given, txn)
        future: Future[object] = Future()
        future.set_running_or_notify_cancel()
        item.future = future
        self._submit(item, 0.0, wait=False)
        return cast("Future[PutResult]", future)

    def _new_put(self, given: InputRows, txn: TxnLike | None) -> Put:
        """Check rows and their transaction id; reads and writes what an id needs beforehand."""
        self._members.check(given.batch, deleted=given.deleted)
        item = Put(given, self._base, self._clock, None if txn is None else parse_txn(txn))
        if item.txn is not None:
            # Here, before the rows are queued, and not where they are written: a request in the
            # leader's hands would hold up everybody's log write.
            self._memory.prepare(self._appender.fence_position)
            # Who leads looks again; what is read here for it needs not be read there.
            self._memory.holds(item.txn)
        return item

    def _submit(self, item: Put, seconds: float | None, *, wait: bool) -> None:
        try:
            # Memory is taken before the queue is entered: who waits for room must not stand in
            # front of others, and the leader never waits for a flush.
            self._admit(item, seconds)
            self._group.submit(item, wait=wait)
        except HoldfastError:
            self._budget.give_back(item.charge)
            raise
        except BaseException:
            # Interrupted: whoever writes the rows gives their bytes back, if somebody does.
            if not item.queued:
                self._budget.give_back(item.charge)
            raise

    def _admit(self, item: Put, seconds: float | None) -> None:
        try:
            self._budget.take(item.charge, seconds, lambda: self._report_backpressure(item.size))
        except BackpressureError:
            raise
        except HoldfastError as error:
            raise item.error_for_caller(error) from error

    def _report_backpressure(self, wanted: int) -> None:
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
        self._group.hurry()
        if self._tables is not None and not self._tables.frozen:
            with suppress(HoldfastError):  # the waiting put gets it
                self._group.submit(Freeze(), wait=False)

    # Writing, in the thread that leads.

    def _write(self, items: Sequence[GroupItem]) -> None:
        puts = [item for item in items if isinstance(item, Put)]
        if puts:
            self._append(puts)
        elif any(isinstance(item, Freeze) for item in items):
            self._freeze()

    def _choose(self, puts: Sequence[Put]) -> tuple[Sequence[Put], list[Txn]]:
        """Return the puts that are to be written, and the transactions that they are.

        Only here: one thread at a time leads, so nobody applies one of them meanwhile.
        """
        if all(put.txn is None for put in puts):
            return puts, []
        # Two puts of one group may bring the same id: the second one must see the first.
        chosen, entry = [], self._memory.begin()
        for put in puts:
            try:
                put.applied = put.txn is None or entry.takes(put.txn)
            except HoldfastError as error:  # nothing of it is written; the others go on
                put.error = put.error_for_caller(error)
                put.applied = False
            if put.applied:
                chosen.append(put)
            else:
                self._budget.give_back(put.charge)
        return chosen, entry.txns

    def _append(self, group: Sequence[Put]) -> None:
        puts, txns = self._choose(group)
        if not puts:
            return
        rows = sum(put.rows for put in puts)
        size = sum(put.size for put in puts)
        # Before the entry is written: rows of one entry belong to one generation, since the cursor
        # that a flush publishes is a position.
        if self._tables is not None and not self._tables.has_room(rows):
            self._freeze()
        self._look_at_table()
        batch = stored_batch([put.given for put in puts], self._base.log_schema)
        tags = {**self._tags, TXNS_TAG: txns_tag(txns)} if txns else self._tags
        draft = self._appender.draft(batch, tags=tags)
        # The log first, memory afterwards: a row that can be read and is not in the log would
        # vanish with this process.
        done = self._persist(draft)
        # Only what is in the log counts as applied: after an error the same id may be put again.
        self._memory.add(done.position, txns)
        if self._tables is None:
            self._budget.give(size)
        else:
            # The batch of the log entry itself, under other field names: the rows are held once in
            # memory.
            kept = relabel(batch, self._base.storage_schema)
            self._tables.add([kept], done.position, size)
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

    def _look_at_table(self) -> None:
        """Every so many entries, see that the table can still read what is written here.

        Somebody may have overwritten it past Holdfast; a put must not be acknowledged for ever
        into a log that nobody can read. What was is in the log, and stays there.
        """
        self._unchecked += 1
        if self._unchecked >= ENTRIES_UNCHECKED:
            with suppress(*_REFUSED):
                self._check_log()
            self._unchecked = 0

    def _persist(self, draft: EntryDraft) -> Appended:
        """Append an entry; one that was refused stays first and is sent again."""
        # The next entry waits meanwhile. A later one that is written first would leave a hole at
        # the position of this one if the process dies.
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

    def _flush_frozen(self, generation: Generation) -> None:
        # Somebody else flushed our log up to a later position, `maintain` for one. What lies at or
        # below that cursor is in an SSTable already, and would be flushed a second time.
        if self._flush(generation).overtaken:
            # Entries of the active MemTable may be flushed, too: let it come here, and drop them.
            with suppress(HoldfastError):  # whoever puts next gets it
                self._group.submit(Freeze(), wait=False)
        if self._budget.waiting:
            self._make_room()

    def _flush(self, generation: Generation) -> PublishedSstable:
        begun = self._clock.elapsed()
        failure = self._group.failure
        if failure is not None:
            raise failure
        # Before the SSTable is written: what an overwritten table cannot merge would only be left
        # behind.
        self._check_log()
        done = publish_oldest(
            self._memtables(), generation, self._manifests, self.epoch, self._write_sstable
        )
        # After the manifest names the SSTable. Given back earlier, a failed flush would let more in
        # than fits.
        self._budget.give(generation.size)
        self._memory.put_flushed(done.position)
        elapsed = self._clock.elapsed() - begun
        with self._lock:
            self._counts["flushed_position"] = done.position
        if done.overtaken:
            log.info(
                "shard %s: somebody else flushed this writer's log up to %d; what it holds beyond "
                "that is numbered anew",
                self.shard_id,
                done.position,
            )
        if done.written is None:
            return done
        rows = done.written.physical_rows or 0
        self._count(flushes=1, flushed_rows=rows, flush_seconds=elapsed)
        emit(
            EventKind.FLUSHED,
            shard_id=self.shard_id,
            generation=done.written.generation,
            rows=rows,
            size=done.written.in_memory_bytes,
            position=done.position,
            elapsed=elapsed,
        )
        return done

    def _write_sstable(self, table: MemTable) -> SsTable:
        return self._sstables.write(
            self._base, self.shard_id, table.generation, table.newest_rows()
        )

    def _is_final(self, error: HoldfastError) -> bool:
        return isinstance(error, _FINAL) or self._group.failure is not None

    def _fail(self, error: HoldfastError) -> None:
        self._group.fail(error)
        self._budget.stop(error)
        self._appender.close()

    # Opening.

    def replay(self) -> Self:
        """Take over what the log holds beyond the flushed cursor; called once, by the opener.

        Raises:
            HoldfastError: that failed; the writer is closed.
        """
        try:
            if self._tables is not None:
                self._replay()
            else:
                self._memory.read(self._appender.fence_position)
        except BaseException:
            self.abort()
            raise
        return self

    def _replay(self) -> None:
        """Replay the log; from the new cursor when others flushed and collected it meanwhile."""
        for _ in range(_REPLAYS):
            try:
                self._replay_once()
            except CollectedError:
                # What was replayed so far is partly flushed by others, nobody knows which part:
                # begin again.
                self._budget.give(self._memtables().active_size)
                manifest = self._appender.manifest
                self._tables = self._new_tables(manifest.current_generation)
                self._counts["flushed_position"] = manifest.replay_after
            else:
                return
        raise ConflictError(
            "others flushed the log each time while it was replayed: claim the shard again",
            shard_id=self.shard_id,
        )

    def _replay_once(self) -> None:
        tables, begun = self._memtables(), self._clock.elapsed()
        entries = rows = 0
        behind = False  # whether the active one has entries that are tagged with a lower number
        # Ids up to the cursor; those of the entries behind it come with the entries, which are read
        # anyway.
        self._memory.read(self._appender.manifest.replay_after)
        for entry in self._appender.replay():
            self._memory.learn(entry.position, entry.tags)
            batches = [fit_entry(batch, self._base) for batch in entry.batches]
            if self._turns(entry.generation, entry.rows, behind=behind):
                self._flush_replayed()
                behind = False
            behind |= entry.generation is not None and entry.generation < tables.active.generation
            size = sum(int(batch.nbytes) for batch in batches)
            self._budget.add(size)
            tables.add_replayed(batches, entry.position, size)
            entries, rows = entries + 1, rows + entry.rows
        if tables.full():
            self._freeze()
        elapsed = self._clock.elapsed() - begun
        self._count(replayed_entries=entries, replayed_rows=rows, replay_seconds=elapsed)

    def _turns(self, generation: int | None, rows: int, *, behind: bool) -> bool:
        """Tell whether an entry of the log begins a new generation.

        One that stock tagged says so itself; its generation was small enough for its writer,
        and split otherwise stock could not read what is left of it. Others are split by size,
        and so are those whose number somebody else took.
        """
        tables = self._memtables()
        if not tables.active.row_count:
            return False
        if generation is not None and generation > tables.active.generation:
            return True
        if generation == tables.active.generation and not behind:
            return False
        return tables.full() or not tables.has_room(rows)

    def _flush_replayed(self) -> None:
        frozen = self._memtables().freeze()
        if frozen is not None:
            self._flush(frozen)

    # Helpers.

    def _new_tables(self, generation: int) -> Tables:
        return Tables(self._base, generation, self._settings, self._clock)

    def _use_newest_indexes(self) -> None:
        """Search by the indexes that the table has now: one may have been made anew."""
        if self._settings.index_configs is None:
            self._reading.use(_indexes(self._newest_base(), self._settings))

    def _readable(self) -> list[Any]:
        self._check()
        tables = self._memtables()
        if not self._settings.durable_write:
            # Such a put returns before its rows are in the log, and so in memory.
            # So a writer reads its own writes, durable or not.
            self._group.drain()
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


COUNTS = (
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


def closed_error() -> InvalidInputError:
    """Return what a closed writer answers."""
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
