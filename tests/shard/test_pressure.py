"""Full buffers and many threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from holdfast.errors import (
    BackpressureError,
)
from holdfast.events import Event, EventKind, subscribed
from holdfast.shard import ShardWriter
from holdfast.wal import WalAppender
from shard.levels import (
    flushed_rows,
    logged_rows,
    newest,
    stock_rows,
    tables_of,
)
from shard.writing import Config, rows


@pytest.mark.requirement("W3")
@pytest.mark.parametrize("memtable", [True, False])
def test_a_full_buffer_makes_puts_wait_and_says_so(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch, memtable: bool
) -> None:
    held, go = threading.Event(), threading.Event()
    target, name = (ShardWriter, "_flush") if memtable else (WalAppender, "append")
    plain = getattr(target, name)

    def slow(self: Any, *given: Any, **more: Any) -> Any:
        held.set()
        go.wait(60)
        return plain(self, *given, **more)

    monkeypatch.setattr(target, name, slow)
    config = Config(enable_memtable=memtable, max_unflushed_memtable_bytes=200)
    writer = table.claim_writer("unsharded", config=config)
    big = rows(1, v="y" * 180)
    first = writer.put_nowait(big)
    if memtable:
        first.result(60)
    else:
        held.wait(60)
    seen: list[Event] = []
    with subscribed(seen.append), pytest.raises(BackpressureError) as caught:
        writer.put(big, timeout=timedelta(milliseconds=20))
    error: Any = caught.value
    assert error.limit == 200 and error.used > 150 and error.wanted > 150
    assert [event.kind for event in seen if event.kind is EventKind.BACKPRESSURE]
    with pytest.raises(BackpressureError):
        writer.put_nowait(big)
    assert writer.stats().backpressure_waits == 2
    assert writer.stats().buffer_limit == 200
    assert isinstance(error, TimeoutError)
    go.set()
    assert writer.put(rows(2)).rows == 1  # there is room again
    writer.close()


@pytest.mark.requirement("W3")
def test_a_put_larger_than_the_budget_is_let_in_alone(table: holdfast.Table) -> None:
    config = Config(max_unflushed_memtable_bytes=100)
    with table.claim_writer("unsharded", config=config) as writer:
        for key in range(3):
            writer.put(rows(key, v="z" * 500))
    assert len(tables_of(table, writer.shard_id)) == 3


@pytest.mark.requirement("W3")
@pytest.mark.parametrize("memtable", [True, False])
def test_memory_stays_within_the_budget_under_overload(
    table: holdfast.Table, memtable: bool
) -> None:
    budget = 40_000
    config = Config(enable_memtable=memtable, max_unflushed_memtable_bytes=budget)
    highest = []
    with table.claim_writer("unsharded", config=config) as writer:

        def overload(worker: int) -> None:
            for number in range(15):
                writer.put(rows(worker * 100 + number, v="w" * 3_000))
                highest.append(writer.stats().buffered_bytes)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(overload, range(8)))
    assert max(highest) <= budget
    everything = [*flushed_rows(table, writer.shard_id), *logged_rows(table, writer.shard_id)]
    assert len(newest(everything)) == 8 * 15


@pytest.mark.requirement("W2")
@pytest.mark.parametrize("memtable", [True, False])
def test_sixteen_threads_share_one_writer(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch, memtable: bool
) -> None:
    config = Config(enable_memtable=memtable)
    append, all_wait = WalAppender.append, threading.Event()
    with table.claim_writer("unsharded", config=config) as writer:

        def after_all_came(self: WalAppender, *given: Any, **more: Any) -> Any:
            while not all_wait.is_set() and writer.wal_stats().waiting < 15:
                time.sleep(0.001)
            all_wait.set()
            return append(self, *given, **more)

        monkeypatch.setattr(WalAppender, "append", after_all_came)

        def work(worker: int) -> list[int]:
            return [
                writer.put(rows(worker * 1_000 + number)).position or 0 for number in range(200)
            ]

        with ThreadPoolExecutor(16) as pool:
            for positions in pool.map(work, range(16)):
                assert positions == sorted(set(positions))
        log = writer.wal_stats()
        assert log.rows == 16 * 200
        assert log.entries <= 16 * 200 - 14  # the 15 that waited were written together
    if not memtable:
        table.claim_writer("unsharded").close()
    assert len(newest(stock_rows(table, writer.shard_id))) == 16 * 200


def test_threads_end_with_the_writer(table: holdfast.Table) -> None:
    def mine() -> list[threading.Thread]:
        return [
            one
            for one in threading.enumerate()
            if one.name.startswith("holdfast-") and "sync" not in one.name
        ]

    before = mine()
    writer = table.claim_writer("unsharded")
    writer.put_nowait(rows(1)).result()
    writer.flush()
    begun = [one for one in mine() if one not in before]
    assert sorted(one.name.rsplit("-", 1)[1] for one in begun) == ["flush", "log"]
    writer.close()
    assert not [one for one in begun if one.is_alive()]
