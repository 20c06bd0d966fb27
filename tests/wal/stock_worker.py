"""Worker processes of the stress test: ours and stock's, fighting for one shard."""

from __future__ import annotations

import random
import time
from typing import Any

import lance
import pyarrow as pa

from holdfast.core import TableCore
from holdfast.errors import HoldfastError
from holdfast.table import open_table
from holdfast.wal import WalAppender, log_schema

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("v", pa.string())]
)


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "v": [f"v{n}" for n in ids]}, schema=SCHEMA)


def log_batch(uri: str, *ids: int, deleted: bool = False) -> pa.RecordBatch:
    """Return rows as they stand in the log."""
    schema = log_schema(SCHEMA, lance.dataset(uri).lance_schema.fields(), ["id"])
    values = [None if deleted else f"v{n}" for n in ids]
    arrays = [pa.array(ids, pa.int64()), pa.array(values, pa.string())]
    return pa.record_batch([*arrays, pa.array([deleted] * len(ids))], schema=schema)


def goes_on(until: float, has_won: bool) -> bool:
    """Whoever has won nothing yet goes on when the others have ended."""
    return time.monotonic() < (until if has_won else until + 40)


def ours(uri: str, shard: str, first: int, seconds: float, told: Any) -> None:
    """Claim the shard again and again, append until fenced, and report what was acknowledged."""
    opened = open_table(uri)
    store, arbiter = opened.core.store, opened.core.arbiter
    number, acknowledged, fencings = first, first, 0
    until = time.monotonic() + seconds
    while goes_on(until, acknowledged > first):
        try:
            with WalAppender.claim(TableCore(store, arbiter), shard) as appender:
                for _ in range(15):
                    number += 1
                    appender.append(log_batch(uri, number))
                    told.put(("acknowledged", acknowledged := number))
                    time.sleep(0.01)
        except HoldfastError:
            fencings += 1
            time.sleep(random.uniform(0, 0.1))  # or the faster ones let nobody in
    told.put(("fenced", fencings))


def stock(uri: str, shard: str, first: int, seconds: float, told: Any) -> None:
    """The same with stock's own writer."""
    number, acknowledged, fencings = first, first, 0
    until = time.monotonic() + seconds
    while goes_on(until, acknowledged > first):
        try:
            writer = lance.dataset(uri).mem_wal_writer(shard, max_wal_flush_interval_ms=5)
            for _ in range(15):
                number += 1
                writer.put(table(number))
                told.put(("acknowledged", acknowledged := number))
                time.sleep(0.01)
        except OSError:
            fencings += 1
            time.sleep(random.uniform(0, 0.1))  # or the faster ones let nobody in
    told.put(("fenced", fencings))
