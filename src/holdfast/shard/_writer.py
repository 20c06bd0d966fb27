"""`ShardWriter`: durable ingest into one shard, readable immediately.

    with table.claim_writer("unsharded") as writer:   # writes: it locks the writer before out
        writer.put(rows)                              # durable when it returns
        writer.delete_keys([17, 18])
        writer.lookup([19])

    put -> queue -> one log entry per group, decided -> acknowledged and in the MemTable
        -> frozen -> SSTable -> one shard manifest decision -> forgotten here

A put that returned is in the log: it survives this process, and the next writer of the shard
has it. What this writer has in memory is exactly what the log has: rows appear when they are
acknowledged, and when that cannot be kept up the writer stops, for reads too.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, Self

import pyarrow as pa
from lance.query import FullTextQuery

from holdfast.commits import Data
from holdfast.errors import (
    HoldfastError,
)
from holdfast.memtable import Vector
from holdfast.shard._config import ShardWriterConfig
from holdfast.shard._engine import COUNTS, Engine, Freeze, PutResult, closed_error
from holdfast.shard._rows import Keys, keys_of, rows_of, tombstones_of
from holdfast.shard._shards import Shard
from holdfast.shard._stats import MemTableStats, WalStats, WriterStats
from holdfast.txn import TxnLike

_SEARCH_LIMIT = 10


class ClaimsWriters(Protocol):
    """A table."""

    def claim_writer(
        self, shard: str | Shard, *, config: ShardWriterConfig | None = None
    ) -> ShardWriter:
        """Claim a shard."""
        ...


class ShardWriter(Engine):
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

    def put(
        self, data: Data, *, txn: TxnLike | None = None, timeout: timedelta | None = None
    ) -> PutResult:
        """Write rows; with a primary key, they replace rows of the same key.

        Durable when this returns, and readable through this writer. All rows of one call
        are in one log entry: all or none survive. With `durable_write=False` it returns
        early, which acknowledges nothing; this writer's reads find the rows all the same.

        Args:
            data: anything with Arrow's stream interface, a batch, or a list of dicts. Do not
                change its memory afterwards.
            txn: a pair (app, number) or a string. A put that is repeated under its id, here or
                by any later writer of this shard, is applied once; `applied` tells. An id counts
                within its shard, and puts and deletes share them.
            timeout: how long to wait while the writer's buffer is full; for ever by default.

        Raises:
            InvalidInputError: no rows, rows that do not fit or belong to another shard (see
                `Table.router`), no transaction id or one of an app with too many gaps, or the
                writer is closed.
            BackpressureError: the buffer stayed full; nothing was taken.
            FencedError: another writer owns the shard; `unacknowledged` has the rows. Final.
            PoisonedError: the outcome is unknown; so. Final.
            UnavailableError, PermissionDeniedError: the store refused, more often than
                `max_wal_persist_retries`; nothing of it is in the log; so. Final.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: a name is not what
                was decided. Final.
        """
        self._check()
        return self._put(rows_of(data, self._base), timeout, txn)

    def delete_keys(
        self, keys: Keys, *, txn: TxnLike | None = None, timeout: timedelta | None = None
    ) -> PutResult:
        """Delete rows by key; durable when this returns. A key that is not there is fine.

        Args:
            keys: Arrow data with the key columns, dicts, tuples in the key's order, or the
                values of a key of one column.
            txn: as for `put`.
            timeout: as for `put`.

        Raises:
            InvalidInputError: the table has no primary key, these are no keys of it, or keys of
                another shard.
            Other errors: as for `put`.
        """
        self._check()
        return self._put(tombstones_of(keys, self._base), timeout, txn)

    def put_nowait(self, data: Data, *, txn: TxnLike | None = None) -> Future[PutResult]:
        """Write rows and return immediately; the future is done when they are durable.

        With `txn` as `put` has it; the first one of a shard is prepared by one write, here.
        Futures are done in the order of the calls. A callback may use the writer; it holds up
        the futures behind it, so it must not wait for one of them.

        Raises:
            InvalidInputError: no rows, rows that do not fit or belong to another shard, or the
                writer is closed.
            BackpressureError: the buffer is full; nothing was taken.
            Other errors: of a writer that stopped before, as for `put`. The future gets those
                that come later.
        """
        self._check()
        return self._nowait(rows_of(data, self._base), txn)

    def delete_keys_nowait(self, keys: Keys, *, txn: TxnLike | None = None) -> Future[PutResult]:
        """Delete rows by key and return immediately; the future is done when that is durable.

        Raises:
            InvalidInputError: the table has no primary key, these are no keys of it, or keys of
                another shard.
            Other errors: as for `put_nowait`.
        """
        self._check()
        return self._nowait(tombstones_of(keys, self._base), txn)

    def lookup(self, keys: Keys, columns: Sequence[str] | None = None) -> pa.Table:
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
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's word
        *,
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Stream the rows that this writer holds, the newest of each key; see `lookup`.

        The rows are those of the moment of this call: what is put later does not come.

        Args:
            columns: which columns; all by default.
            filter: SQL as Lance speaks it, such as `"score > 0.5"`.
            limit: how many rows at most.

        Raises:
            InvalidInputError: a filter that Lance does not understand, an unknown column, or
                a writer without MemTables.
            Other errors: a stopped writer's, as for `put`.
        """
        return self.to_table(columns, filter, limit=limit).to_reader()

    def to_table(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's word
        *,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the rows that this writer holds, the newest of each key; see `lookup`.

        Raises:
            As for `scan`.
        """
        return self._reading.scan(self._readable(), filter, columns, limit)

    def count(self, filter: str | None = None) -> int:  # noqa: A002 - Lance's word
        """Return how many rows this writer holds, or pass the filter; see `lookup`.

        Raises:
            As for `scan`.
        """
        return self._reading.count(self._readable(), filter)

    def search(
        self,
        column: str,
        query: str | FullTextQuery,
        limit: int | None = _SEARCH_LIMIT,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's word
    ) -> pa.Table:
        """Return rows that this writer holds whose text matches, best first; see `lookup`.

        Text is split as the table's index says now: that costs a look at its newest version.

        Args:
            column: a column of text.
            query: words, or one of Lance's query objects.
            limit: how many rows at most; None for all.
            columns: which columns; all by default. `_score` comes with them.
            filter: SQL; only rows for which it is true are returned.

        Raises:
            InvalidInputError: no column of text, an unknown column, or a writer without
                MemTables.
            UnavailableError, PermissionDeniedError: a store did not tell.
            Other errors: a stopped writer's, as for `put`.
        """
        tables = self._readable()
        self._use_newest_indexes()
        return self._reading.search(
            tables, column, query, columns=columns, limit=limit, condition=filter
        )

    def nearest(
        self,
        column: str,
        query: Vector,
        k: int = _SEARCH_LIMIT,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's word
        metric: str | None = None,
    ) -> pa.Table:
        """Return the k rows that this writer holds with the nearest vectors; see `lookup`.

        Exact: every vector is compared.

        Args:
            column: a column of vectors.
            query: a vector of the same length.
            k: how many rows.
            columns: which columns; all by default. `_distance` comes with them.
            filter: SQL; only rows for which it is true are compared.
            metric: `l2`, `cosine` or `dot`; as the table's index has it, else `l2`.

        Raises:
            InvalidInputError: no column of vectors, a query that does not fit, an unknown
                metric or column, or a writer without MemTables.
            Other errors: a stopped writer's, as for `put`.
        """
        tables = self._readable()
        if metric is None:
            self._use_newest_indexes()
        return self._reading.nearest(
            tables,
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
            for name in COUNTS
            if name in WriterStats.__slots__
        }
        fields: dict[str, Any] = {
            **whole,
            "shard_id": self.shard_id,
            "epoch": self.epoch,
            "flush_failures": self._flusher.failures,
            "flush_error": None if error is None else str(error),
            "buffered_bytes": self._budget.used,
            "buffer_limit": self._budget.limit,
            "backpressure_waits": self._budget.waits,
        }
        return WriterStats(**fields)

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
        try:
            self._group.close(closed_error())
            failure = self._group.failure
            if failure is None and flush and self._tables is not None:
                self._freeze()
                failure = self._flusher.drain()
        finally:  # also when this is interrupted: the rows are in the log
            self._end(closed_error())
        if failure is not None:
            raise failure
