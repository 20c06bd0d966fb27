"""Processes that write a shard's log: one dies at a chosen storage call, one is put to sleep."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from crash.worker import DyingPort, Run, _note
from holdfast._ids import RandomIds
from holdfast.arbiter import (
    Arbiter,
    ConditionalPut,
    RecordedDecisions,
    RetryPolicy,
    Verdict,
    connect_commit_store,
    pin_to_commit_store,
)
from holdfast.core import TableCore
from holdfast.errors import FencedError, HoldfastError
from holdfast.storage import ObjectStore, open_store
from holdfast.wal import ShardManifest, SsTable, WalAppender, collect_log

SLEEPS_AFTER = 5
SHARD = "11111111-2222-4333-8444-555555555555"


def rows(mark: str) -> pa.RecordBatch:
    return pa.record_batch({"mark": [mark]})


def parts(run: Run, calls: list[str]) -> tuple[ObjectStore, Arbiter]:
    """Return the store and the arbiter of a run, their calls counted."""
    plain = open_store(run.url, run.options)
    store: Any = DyingPort(plain, calls, run)
    retry = RetryPolicy(attempts=3)
    if run.commit_store is None:
        return store, ConditionalPut(store, Verdict.ENFORCED, retry=retry)
    connected = connect_commit_store(run.commit_store)
    pin = pin_to_commit_store(plain, connected, RandomIds())
    counted: Any = DyingPort(connected, calls, run)
    return store, RecordedDecisions(store, counted, pin, retry=retry, inline_bytes=run.inline_bytes)


def marks_in(entries: Any) -> list[str]:
    return [mark for entry in entries for b in entry.batches for mark in b["mark"].to_pylist()]


def flush(appender: WalAppender, marks: list[str]) -> None:
    """Publish an SSTable that holds the marks in its name, and move the cursor."""
    through = appender.next_position - 1
    table = SsTable(generation=0, path="-".join((*marks, "gen")))

    def publish(current: ShardManifest) -> ShardManifest:
        if current.replay_after >= through:
            return current
        return replace(current, replay_after=through, sstables=(*current.sstables, table))

    appender.manifests.update(appender.epoch, publish)


def recovered(store: ObjectStore, arbiter: Arbiter) -> tuple[WalAppender, list[str]]:
    """Open the shard and return everything it holds."""
    appender = WalAppender.claim(TableCore(store, arbiter), SHARD)
    flushed = [m for t in appender.manifest.sstables for m in t.path.split("-")[:-1]]
    return appender, flushed + marks_in(appender.replay())


def work(run: Run) -> None:
    """Claim, append, flush, collect, append; note each acknowledgement the moment it is given."""
    calls: list[str] = []
    store, arbiter = parts(run, calls)
    appender = WalAppender.claim(TableCore(store, arbiter), SHARD)
    memory = marks_in(appender.replay())
    for number in range(2):
        appender.append(rows(f"{run.mark}{number}"))
        _note(Path(run.acks), {"mark": f"{run.mark}{number}"})
        memory.append(f"{run.mark}{number}")
    flush(appender, memory)
    collect_log(TableCore(store, arbiter), SHARD, confirm=True)
    appender.append(rows(f"{run.mark}9"))
    _note(Path(run.acks), {"mark": f"{run.mark}9"})
    if run.calls_to:
        Path(run.calls_to).write_text(json.dumps(calls))


def sleeper(run: Run, told: Connection) -> None:
    """Append until it is stopped for good; tell what was acknowledged, and how it ended.

    Into a pipe: what was told is on its way when the process stops. A queue sends later.
    """
    store, arbiter = parts(run, [])
    appender = WalAppender.claim(TableCore(store, arbiter), SHARD)
    number = 0
    while True:
        mark = f"{run.mark}x{number:06d}"
        try:
            appender.append(rows(mark))
        except FencedError as error:
            told.send(("fenced", error.epoch, error.stored_epoch))
            return
        except HoldfastError as error:
            told.send(("other", type(error).__name__, str(error)))
            return
        told.send(("acknowledged", mark, None))
        number += 1
        if run.commit_store is not None and number == SLEEPS_AFTER:
            os.kill(os.getpid(), signal.SIGSTOP)
