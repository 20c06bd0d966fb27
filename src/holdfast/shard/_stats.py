"""What a writer tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WalStats:
    """A writer's log.

    Attributes:
        next_position: where the next entry goes.
        epoch: the epoch this writer claimed.
        entries: how many entries it wrote.
        rows: how many rows are in them.
        size: how many bytes they have on storage.
        seconds: how long writing them took.
        retries: how often a refused write was tried again.
        waiting: how many puts wait for the log now.
        waiting_bytes: how many bytes are in them.
    """

    next_position: int
    epoch: int
    entries: int
    rows: int
    size: int
    seconds: float
    retries: int
    waiting: int
    waiting_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemTableStats:
    """A writer's MemTables.

    Attributes:
        generation: the number of the active one.
        rows: how many rows it holds, replaced ones included.
        batches: how many log entries they came in.
        size: how many bytes.
        waiting_rows: rows that the key index does not cover yet.
        frozen: how many frozen ones wait to be flushed.
        frozen_bytes: how many bytes those hold.
    """

    generation: int
    rows: int
    batches: int
    size: int
    waiting_rows: int
    frozen: int
    frozen_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStats:
    """A writer since it was opened.

    Attributes:
        shard_id: the shard.
        epoch: the epoch it claimed.
        puts: how many puts and deletes were acknowledged.
        rows: how many rows were in them.
        put_seconds: how long callers waited for them, added up.
        flushes: how many SSTables it published.
        flushed_rows: how many rows those hold.
        flush_seconds: how long that took.
        flush_failures: attempts that failed and were repeated.
        flush_error: why the newest attempt failed; None when it did not.
        flushed_position: up to which position of the log all rows are in SSTables.
        replayed_entries: what the log held when the shard was opened.
        replayed_rows: how many rows were in it.
        replay_seconds: how long reading them took.
        buffered_bytes: how much of the budget is used: rows that wait for the log and, with
            MemTables, rows that wait to be flushed.
        buffer_limit: the budget, `max_unflushed_memtable_bytes`.
        backpressure_waits: how often a put had to wait for room.
    """

    shard_id: str
    epoch: int
    puts: int
    rows: int
    put_seconds: float
    flushes: int
    flushed_rows: int
    flush_seconds: float
    flush_failures: int
    flush_error: str | None
    flushed_position: int
    replayed_entries: int
    replayed_rows: int
    replay_seconds: float
    buffered_bytes: int
    buffer_limit: int
    backpressure_waits: int
