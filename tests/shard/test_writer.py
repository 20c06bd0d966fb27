"""A writer's promises, one by one."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import (
    BackpressureError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    PoisonedError,
    UnavailableError,
)
from holdfast.events import Event, EventKind, subscribed
from holdfast.formats._wal_names import entry_name
from holdfast.memtable import IndexConfig
from holdfast.shard import ShardWriter, ShardWriterConfig
from holdfast.shard import _flusher as flusher_module
from holdfast.storage import LocalStore
from holdfast.wal import WalAppender
from shard.levels import (
    KEYED,
    PLAIN,
    counted,
    flushed_rows,
    logged_rows,
    manifest_of,
    newest,
    stock_rows,
    tables_of,
)
from shard.lsm import key_field

Config = ShardWriterConfig


@pytest.fixture
def table(tmp_path: Path) -> holdfast.Table:
    return holdfast.create_table(tmp_path / "t", KEYED)


def rows(*keys: int, v: str = "x") -> list[dict[str, Any]]:
    return [{"k": key, "v": v} for key in keys]


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, wanted: Callable[[str], bool], times: int, error: HoldfastError
) -> Iterator[list[str]]:
    """Let puts of some objects fail so many times; yields the paths that failed."""
    failed: list[str] = []
    for method in ("put", "put_if_absent"):
        plain = getattr(LocalStore, method)

        def broken(self: LocalStore, path: str, body: bytes, plain: Any = plain) -> None:
            if wanted(path) and len(failed) < times:
                failed.append(path)
                raise error
            plain(self, path, body)

        monkeypatch.setattr(LocalStore, method, broken)
    yield failed


@pytest.mark.requirement("W1")
def test_a_put_is_in_the_log_when_it_returns(table: holdfast.Table) -> None:
    writer = ShardWriter.open(table, "unsharded")
    result = writer.put(rows(1, 2))
    assert (result.rows, result.position) == (2, writer.wal_stats().next_position - 1)
    assert newest(logged_rows(table, writer.shard_id)) == {1: "x", 2: "x"}
    assert writer.lookup([2, 1]).to_pylist() == rows(2, 1)


@pytest.mark.requirement("W9", "W14")
def test_a_fresh_shard_replays_nothing_and_knows_its_next_position(table: holdfast.Table) -> None:
    for mode in (True, False):
        writer = table.claim_writer("bucket-1", config=Config(enable_memtable=mode))
        stats = writer.stats()
        assert (stats.replayed_entries, stats.replayed_rows, stats.puts) == (0, 0, 0)
        here = writer.wal_stats().next_position
        assert writer.put(rows(1)).position == here
        assert writer.wal_stats().next_position == here + 1
        writer.abort()
        with table.claim_writer("bucket-1", config=Config(enable_memtable=mode)) as again:
            assert again.wal_stats().next_position == here + 2  # the entry, then the fence


@pytest.mark.requirement("W14")
def test_stats_count_what_was_done(table: holdfast.Table) -> None:
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(1, 2, 3))
        writer.delete([1])
        memory = writer.memtable_stats()
        assert (memory.generation, memory.rows, memory.batches, memory.frozen) == (1, 4, 2, 0)
        assert memory.size > 0
        log = writer.wal_stats()
        assert (log.entries, log.rows, log.waiting, log.retries) == (2, 4, 0, 0)
        position = writer.flush()
        stats = writer.stats()
        assert (stats.puts, stats.rows, stats.flushes, stats.flushed_rows) == (2, 4, 1, 3)
        assert stats.flushed_position == position == log.next_position - 1
        assert (stats.buffered_bytes, writer.memtable_stats().generation) == (0, 2)
        assert stats.put_seconds > 0 and stats.flush_seconds > 0


@pytest.mark.requirement("W11")
@pytest.mark.parametrize(
    "config",
    [
        Config(max_memtable_rows=5),
        Config(max_memtable_batches=5),
        Config(max_memtable_size=5 * 14),
    ],
)
def test_every_limit_freezes(table: holdfast.Table, config: Config) -> None:
    with table.claim_writer("unsharded", config=config) as writer:
        for key in range(11):
            writer.put(rows(key))
    generations = tables_of(table, writer.shard_id)
    assert [one.generation for one in generations] == list(range(1, len(generations) + 1))
    assert [one.physical_rows for one in generations] == [5, 5, 1]
    assert manifest_of(table, writer.shard_id).replay_after == writer.wal_stats().next_position - 1
    assert newest(stock_rows(table, writer.shard_id)) == dict.fromkeys(range(11), "x")


def test_no_tagged_generation_has_more_rows_than_the_limit(table: holdfast.Table) -> None:
    """Stock cannot open a shard whose generation does not fit its own limit."""
    with table.claim_writer("unsharded", config=Config(max_memtable_rows=5)) as writer:
        writer.put(rows(1, 2, 3))
        writer.put(rows(4, 5, 6))
        writer.put(rows(*range(10, 20)))
        writer.close(flush=False)
    found: dict[int, int] = {}
    appender = WalAppender.claim(table._store, table._arbiter, writer.shard_id)
    for entry in appender.replay():
        assert entry.generation is not None
        found[entry.generation] = found.get(entry.generation, 0) + entry.rows
    assert all(count <= 5 or count == 10 for count in found.values())


@pytest.mark.requirement("W8")
def test_replay_keeps_to_the_generations_of_the_writer_before(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ShardWriter, "_flush", lambda *_: (_ for _ in ()).throw(unavailable()))
        first = table.claim_writer("unsharded", config=Config(max_memtable_rows=3))
        for key in range(8):
            first.put(rows(key))
        first.abort()
    second = table.claim_writer("unsharded", config=Config(max_memtable_rows=2))
    assert [one.physical_rows for one in tables_of(table, second.shard_id)] == [3, 3]
    second.close()
    assert newest(stock_rows(table, second.shard_id)) == dict.fromkeys(range(8), "x")


def unavailable() -> UnavailableError:
    return UnavailableError("the disk is full")


@pytest.mark.requirement("W8")
def test_a_log_without_generations_is_split_by_size(table: holdfast.Table) -> None:
    with table.claim_writer("unsharded", config=Config(enable_memtable=False)) as log:
        for key in range(10):
            log.put(rows(key))
    with table.claim_writer("unsharded", config=Config(max_memtable_rows=4)) as writer:
        stats = writer.stats()
        assert (stats.replayed_entries, stats.replayed_rows) == (10, 10)
        assert writer.memtable_stats().rows <= 4
    assert newest(stock_rows(table, writer.shard_id)) == dict.fromkeys(range(10), "x")


@pytest.mark.requirement("W8")
def test_what_stock_wrote_is_replayed_and_what_we_wrote_stock_replays(
    table: holdfast.Table,
) -> None:
    table.prepare_writers()
    shard = "11111111-2222-3333-4444-555555555555"
    stock = lance.dataset(table.uri).mem_wal_writer(shard)
    stock.put(pa.Table.from_pylist(rows(1, 2), schema=KEYED))
    stock.delete(pa.table({"k": [1]}))
    del stock
    writer = table.claim_writer(shard)
    assert newest(writer.scan().to_pylist()) == {2: "x"}
    writer.put(rows(3, v="y"))
    writer.delete([2])
    writer.abort()
    with lance.dataset(table.uri).mem_wal_writer(shard) as again:
        assert newest(again.lsm_scanner().to_table().to_pylist()) == {3: "y"}


@pytest.mark.requirement("L7", "W5")
def test_a_fenced_writer_gives_its_rows_back_and_stops_for_reads_too(
    table: holdfast.Table,
) -> None:
    old = table.claim_writer("unsharded")
    old.put(rows(1))
    seen: list[Event] = []
    with subscribed(seen.append):
        new = table.claim_writer("unsharded")
        with pytest.raises(FencedError) as caught:
            old.put(rows(2))
    lost: Any = caught.value.unacknowledged
    assert lost[0].column("k").to_pylist() == [2]
    assert {EventKind.CLAIMED, EventKind.FENCED} <= {event.kind for event in seen}
    for call in (
        lambda: old.put(rows(3)),
        lambda: old.delete([1]),
        lambda: old.put_nowait(rows(3)),
        old.scan,
        old.flush,
        lambda: old.lookup([1]),
    ):
        with pytest.raises(FencedError):
            call()
    assert old.stats().puts == 1
    with pytest.raises(FencedError):
        old.close()
    assert newest(new.scan().to_pylist()) == {1: "x"}
    new.close()


def test_a_fenced_writer_can_no_longer_flush(table: holdfast.Table) -> None:
    old = table.claim_writer("unsharded")
    old.put(rows(1))
    with table.claim_writer("unsharded") as new:
        with pytest.raises(FencedError):
            old.flush()
        with pytest.raises(FencedError):
            old.put(rows(2))
        new.flush()
        assert len(tables_of(table, new.shard_id)) == 1
        with pytest.raises(FencedError):
            old.check_fenced()
        new.check_fenced()


@pytest.mark.requirement("W5")
def test_a_refused_log_write_is_repeated_in_order(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(wal_persist_retry_base_delay=timedelta(0))
    writer = table.claim_writer("unsharded", config=config)
    append, refusals = WalAppender.append, [unavailable(), unavailable()]

    def refusing(self: WalAppender, *given: Any, **more: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return append(self, *given, **more)

    monkeypatch.setattr(WalAppender, "append", refusing)
    futures = [writer.put_nowait(rows(key)) for key in range(5)]
    positions = [future.result().position for future in futures]
    assert positions == sorted(positions, key=lambda p: p or 0)
    assert writer.wal_stats().retries == 2
    assert newest(writer.scan().to_pylist()) == dict.fromkeys(range(5), "x")
    writer.close()
    assert newest(stock_rows(table, writer.shard_id)) == dict.fromkeys(range(5), "x")


@pytest.mark.requirement("W5")
def test_a_log_that_stays_away_fails_every_waiter_with_its_rows(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(wal_persist_retry_base_delay=timedelta(0), max_wal_persist_retries=1)
    writer = table.claim_writer("unsharded", config=config)
    begun, go = threading.Event(), threading.Event()

    def away(*_: Any, **__: Any) -> Any:
        begun.set()
        go.wait(60)
        raise unavailable()

    monkeypatch.setattr(WalAppender, "append", away)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(writer.put, rows(0))
        begun.wait(60)
        others = [pool.submit(writer.put, rows(key)) for key in (1, 2, 3)]
        while writer.wal_stats().waiting < 3:
            pass
        go.set()
        for key, future in enumerate([first, *others]):
            error: Any = future.exception(60)
            assert type(error) is UnavailableError
            lost: Any = error.details["unacknowledged"]
            assert lost[0].column("k").to_pylist() == [key]
    with pytest.raises(UnavailableError):
        writer.scan()
    with pytest.raises(UnavailableError):
        writer.close()


@pytest.mark.requirement("L11")
def test_an_interrupted_write_poisons(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = table.claim_writer("unsharded")

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(WalAppender, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.put(rows(1))
    with pytest.raises(PoisonedError):
        writer.put(rows(2))
    with pytest.raises(PoisonedError):
        writer.scan()
    writer.abort()


@pytest.mark.requirement("W11")
def test_a_failed_flush_is_repeated_and_blocks_later_ones(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, then freed: nothing is skipped, nothing lost, rows stay readable."""
    monkeypatch.setattr(flusher_module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(flusher_module, "LONGEST_PAUSE", 0.001)
    full = failing(monkeypatch, lambda path: path.endswith("bloom_filter.bin"), 3, unavailable())
    with full as failed, table.claim_writer("unsharded", config=Config(max_memtable_rows=2)) as w:
        for key in range(7):
            w.put(rows(key))
        assert newest([*flushed_rows(table, w.shard_id), *w.scan().to_pylist()]) == dict.fromkeys(
            range(7), "x"
        )
        while len(failed) < 3:
            with suppress(UnavailableError):
                w.flush()
    assert len(failed) == 3
    assert w.stats().flush_failures == 3
    assert [one.generation for one in tables_of(table, w.shard_id)] == [1, 2, 3, 4]
    assert newest(stock_rows(table, w.shard_id)) == dict.fromkeys(range(7), "x")


def test_closing_says_when_a_flush_fails_and_loses_nothing(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        always = failing(
            patched, lambda path: path.endswith("bloom_filter.bin"), 10**9, unavailable()
        )
        with always:
            writer = table.claim_writer("unsharded")
            writer.put(rows(1))
            with pytest.raises(UnavailableError):
                writer.close()
    assert tables_of(table, writer.shard_id) == ()
    with table.claim_writer("unsharded") as again:
        assert again.lookup([1]).num_rows == 1


@pytest.mark.requirement("W11")
def test_an_unanswered_publication_is_not_made_twice(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.shard import _writer

    publish, lost = vars(_writer)["publish"], [UnavailableError("the answer was lost")]

    def unanswered(*given: Any) -> Any:
        done = publish(*given)
        if lost:
            raise lost.pop()
        return done

    monkeypatch.setattr(flusher_module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(_writer, "publish", unanswered)
    writer = table.claim_writer("unsharded")
    writer.put(rows(1))
    with pytest.raises(UnavailableError):
        writer.flush()
    writer.put(rows(2))
    writer.close()
    assert [one.generation for one in tables_of(table, writer.shard_id)] == [1, 2]
    assert newest(stock_rows(table, writer.shard_id)) == {1: "x", 2: "x"}


def test_files_are_durable_before_they_are_published(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    plain = LocalStore.sync

    def sync(self: LocalStore, paths: Any) -> None:
        given = list(paths)
        synced.update(given)
        plain(self, given)

    monkeypatch.setattr(LocalStore, "sync", sync)
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(1))
        writer.flush()
        (one,) = tables_of(table, writer.shard_id)
        folder = f"_mem_wal/{writer.shard_id}/{one.path}"
        files = {info.path for info in table._store.list(folder)}
        assert files and files <= synced


# Backpressure.


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


# Many threads.


@pytest.mark.requirement("W2")
@pytest.mark.parametrize("memtable", [True, False])
def test_sixteen_threads_share_one_writer(table: holdfast.Table, memtable: bool) -> None:
    config = Config(enable_memtable=memtable)
    with table.claim_writer("unsharded", config=config) as writer:

        def work(worker: int) -> list[int]:
            return [
                writer.put(rows(worker * 1_000 + number)).position or 0 for number in range(200)
            ]

        with ThreadPoolExecutor(16) as pool:
            for positions in pool.map(work, range(16)):
                assert positions == sorted(set(positions))
        log = writer.wal_stats()
        assert log.rows == 16 * 200
        assert log.entries < 16 * 200 / 2  # they were written together
    if not memtable:
        table.claim_writer("unsharded").close()
    assert len(newest(stock_rows(table, writer.shard_id))) == 16 * 200


def test_threads_end_with_the_writer(table: holdfast.Table) -> None:
    writer = table.claim_writer("unsharded")
    writer.put_nowait(rows(1)).result()
    writer.flush()
    mine = [t.name for t in threading.enumerate() if t.name.startswith("holdfast-")]
    assert sorted(name.rsplit("-", 1)[1] for name in mine) == ["flush", "log"]
    writer.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("holdfast-")]


# Modes and settings.


@pytest.mark.requirement("W2", "W6")
def test_a_log_only_writer_has_no_memory(table: holdfast.Table) -> None:
    with table.claim_writer("unsharded", config=Config(enable_memtable=False)) as writer:
        writer.put(rows(1))
        for call in (
            writer.memtable_stats,
            writer.scan,
            writer.flush,
            lambda: writer.lookup([1]),
            lambda: writer.search("v", "x"),
            lambda: writer.nearest("v", [1.0]),
        ):
            with pytest.raises(InvalidInputError, match="no MemTables"):
                call()
        assert writer.stats().puts == 1
        assert writer.wal_stats().entries == 1
        assert writer.stats().buffered_bytes == 0
    assert tables_of(table, writer.shard_id) == ()
    assert newest(logged_rows(table, writer.shard_id)) == {1: "x"}


@pytest.mark.requirement("W2")
def test_a_log_only_writer_refuses_indexes(table: holdfast.Table) -> None:
    index = IndexConfig(column="v", kind="text")
    with pytest.raises(InvalidInputError, match="index_configs"):
        Config(enable_memtable=False, index_configs=(index,))
    table.prepare_writers(defaults=Config(enable_memtable=False))
    with pytest.raises(InvalidInputError, match="index_configs"):
        table.claim_writer("unsharded", config=Config(index_configs=(index,)))


@pytest.mark.requirement("W2")
@pytest.mark.parametrize(
    "ignored",
    [
        {"max_memtable_size": 1},
        {"max_memtable_rows": 1},
        {"max_memtable_batches": 1},
        {"sync_indexed_write": False},
        {"async_index_buffer_rows": 0},
        {"async_index_interval": timedelta(0)},
    ],
    ids=lambda one: next(iter(one)),
)
def test_a_log_only_writer_ignores_settings_of_memtables(
    table: holdfast.Table, ignored: dict[str, Any]
) -> None:
    with table.claim_writer("unsharded", config=Config(enable_memtable=False, **ignored)) as w:
        futures = [w.put_nowait(rows(key, key + 10)) for key in range(4)]
        for future in futures:
            future.result()
    assert tables_of(table, w.shard_id) == ()
    assert len(newest(logged_rows(table, w.shard_id))) == 8


def test_without_durable_write_a_put_does_not_wait(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    append = WalAppender.append

    def slow(self: WalAppender, *given: Any, **more: Any) -> Any:
        go.wait(60)
        return append(self, *given, **more)

    monkeypatch.setattr(WalAppender, "append", slow)
    writer = table.claim_writer("unsharded", config=Config(durable_write=False))
    assert writer.put(rows(1)).position is None
    assert writer.scan().num_rows == 0
    go.set()
    writer.close()
    assert newest(stock_rows(table, writer.shard_id)) == {1: "x"}


def test_settings_that_the_table_recorded_are_honoured(table: holdfast.Table) -> None:
    defaults = Config(max_memtable_rows=7, max_wal_flush_interval=timedelta(milliseconds=9))
    assert table.prepare_writers(defaults=defaults) is True
    assert table.prepare_writers(defaults=Config(max_memtable_rows=1)) is False
    details: Any = lance.dataset(table.uri).mem_wal_index_details()
    assert details["writer_config_defaults"] == {
        "max_memtable_rows": "7",
        "max_wal_flush_interval_ms": "9",
    }
    with table.claim_writer("unsharded") as writer:
        assert writer._settings.max_memtable_rows == 7
        assert writer._settings.max_wal_flush_interval == timedelta(milliseconds=9)
    with table.claim_writer("unsharded", config=Config(max_memtable_rows=8)) as writer:
        assert writer._settings.max_memtable_rows == 8


def test_what_stock_recorded_is_honoured_too(tmp_path: Path) -> None:
    lance.write_dataset(KEYED.empty_table(), str(tmp_path / "t"))
    lance.dataset(str(tmp_path / "t")).initialize_mem_wal(
        durable_write=False, max_memtable_batches=3, max_wal_flush_interval_ms=400
    )
    table = holdfast.adopt_table(tmp_path / "t")
    with table.claim_writer("unsharded") as writer:
        found = writer._settings
    assert found.durable_write is False
    assert found.max_memtable_batches == 3
    assert found.max_wal_flush_interval == timedelta(milliseconds=400)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_memtable_rows": 0},
        {"max_memtable_rows": True},
        {"max_wal_flush_interval": 5},
        {"max_wal_flush_interval": timedelta(seconds=-1)},
        {"durable_write": 1},
        {"index_configs": ("v",)},
        {"max_wal_buffer_size": 1 << 40},
        {"max_wal_persist_retries": -1},
    ],
    ids=str,
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        Config(**wrong)


def test_only_the_first_writer_prepares_the_table(table: holdfast.Table) -> None:
    before = table.dataset().version
    with ThreadPoolExecutor(4) as pool:
        for writer in pool.map(lambda n: table.claim_writer(f"bucket-{n}"), range(4)):
            writer.close()
    found = [one for one in table.history() if one.version > before]
    assert len(found) == 1


# What goes in.


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [{"k": 1, "w": 2}],
        [{"v": "no key"}],
        [{"k": None, "v": "null key"}],
        pa.table({"k": ["text"]}),
        42,
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_refused(table: holdfast.Table, wrong: Any) -> None:
    with table.claim_writer("unsharded") as writer:
        with pytest.raises(InvalidInputError):
            writer.put(wrong)
        assert writer.wal_stats().entries == 0


def test_a_null_where_none_may_be_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([key_field("k", pa.int64()), pa.field("v", pa.int32(), nullable=False)])
    table = holdfast.create_table(tmp_path / "t", schema)
    with table.claim_writer("unsharded") as writer:
        with pytest.raises(InvalidInputError, match="nulls"):
            writer.put(pa.table({"k": [1], "v": pa.array([None], pa.int32())}))
        writer.put([{"k": 1, "v": 1}])
        writer.delete([1])  # a tombstone has no value there
    assert stock_rows(table, writer.shard_id) == []


@pytest.mark.parametrize("wrong", [["text"], [None], pa.table({"v": ["x"]}), [{"v": 1}], 5])
def test_keys_that_are_none_are_refused(table: holdfast.Table, wrong: Any) -> None:
    with table.claim_writer("unsharded") as writer:
        with pytest.raises(InvalidInputError):
            writer.delete(wrong)
        assert writer.wal_stats().entries == 0


def test_keys_come_in_many_forms(table: holdfast.Table) -> None:
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(*range(8)))
        writer.delete([0])
        writer.delete([{"k": 1, "v": "other columns do not matter"}])
        writer.delete(pa.array([2], pa.int32()))
        writer.delete(pa.table({"k": [3], "v": ["x"]}))
        writer.delete(pa.record_batch({"k": [4]}))
        writer.delete_nowait(np.array([5]).tolist()).result()
        assert newest(writer.scan().to_pylist()) == {6: "x", 7: "x"}


def test_a_table_without_a_key_keeps_every_row(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", PLAIN)
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(1, 1))
        writer.put(rows(1))
        assert writer.scan("k = 1").num_rows == 3
        for call in (lambda: writer.delete([1]), lambda: writer.lookup([1])):
            with pytest.raises(InvalidInputError, match="no primary key"):
                call()
    assert counted(flushed_rows(table, writer.shard_id)) == {(1, "x"): 3}


def test_columns_of_every_type_survive_log_memory_and_flush(tmp_path: Path) -> None:
    from shard.test_sstables import TYPES

    fields = [pa.field(name, kind) for name, (kind, _) in TYPES.items()]
    schema = pa.schema([key_field("key", pa.int64()), *fields])
    table = holdfast.create_table(tmp_path / "t", schema)
    row = {"key": 1, **{name: value for name, (_, value) in TYPES.items()}}
    batch = pa.Table.from_pylist([row, {"key": 2}], schema=schema)
    expected = batch.to_pylist()
    writer = table.claim_writer("unsharded")
    writer.put(batch)
    futures = [writer.put_nowait(batch), writer.put_nowait(batch.slice(1))]
    assert [future.result().rows for future in futures] == [2, 1]
    writer.delete([3])
    assert writer.scan().sort_by("key").to_pylist() == expected
    assert writer.lookup([1]).to_pylist() == expected[:1]
    writer.abort()
    with table.claim_writer("unsharded") as again:
        assert again.scan().sort_by("key").to_pylist() == expected
        assert again.scan().schema.types == schema.types
    found = sorted(stock_rows(table, writer.shard_id), key=lambda one: one["key"])
    assert found == expected


def test_columns_dropped_and_made_anew_are_not_mixed_up(tmp_path: Path) -> None:
    """The log knows columns by id: values of a column that was dropped do not come back."""
    schema = pa.schema(
        [key_field("k", pa.int64()), pa.field("a", pa.string()), pa.field("v", pa.string())]
    )
    table = holdfast.create_table(tmp_path / "t", schema)
    table.append([{"k": 0, "a": "base", "v": "base"}])
    writer = table.claim_writer("unsharded")
    writer.put([{"k": 1, "a": "old", "v": "one"}])
    writer.abort()
    table.dataset().drop_columns(["a"])
    table.dataset().add_columns(pa.field("a", pa.string()))
    with table.claim_writer("unsharded") as again:
        assert again.lookup([1]).to_pylist() == [{"k": 1, "v": "one", "a": None}]
        again.put([{"k": 2, "a": "new", "v": "two"}])
    found = {row["k"]: (row["v"], row["a"]) for row in stock_rows(table, again.shard_id)}
    assert found == {0: ("base", None), 1: ("one", None), 2: ("two", "new")}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.int32(), [1, -5]),
        (pa.string(), ["", "é"]),
        (pa.binary(), [b"\x00", b"\xff"]),
        (pa.bool_(), [True, False]),
    ],
    ids=str,
)
def test_every_type_of_key(tmp_path: Path, kind: pa.DataType, keys: list[Any]) -> None:
    schema = pa.schema([key_field("k", kind), pa.field("v", pa.string())])
    table = holdfast.create_table(tmp_path / "t", schema)
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": key, "v": "1"} for key in keys])
        writer.put([{"k": keys[0], "v": "2"}])
        writer.delete(keys[1:])
        assert writer.scan().to_pylist() == [{"k": keys[0], "v": "2"}]
        assert writer.lookup(keys).to_pylist() == [{"k": keys[0], "v": "2"}]
    assert stock_rows(table, writer.shard_id) == [{"k": keys[0], "v": "2"}]


def test_a_composite_key(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("a", pa.string()), pa.field("b", pa.int64()), pa.field("v", pa.int64())]
    )
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["a", "b"])
    with table.claim_writer("unsharded") as writer:
        writer.put([{"a": a, "b": b, "v": 1} for a in "xy" for b in (1, 2)])
        writer.put([{"a": "x", "b": 1, "v": 2}])
        writer.delete([{"a": "y", "b": 2}])
        assert writer.lookup([{"b": 1, "a": "x"}]).to_pylist() == [{"a": "x", "b": 1, "v": 2}]
        with pytest.raises(InvalidInputError, match="several columns"):
            writer.lookup(["x"])
    found = {(row["a"], row["b"]): row["v"] for row in stock_rows(table, writer.shard_id)}
    assert found == {("x", 1): 2, ("x", 2): 1, ("y", 1): 1}


def test_maintained_indexes_are_searched_in_memory_and_flushed(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            key_field("k", pa.int64()),
            pa.field("text", pa.string()),
            pa.field("vec", pa.list_(pa.float32(), 2)),
        ]
    )
    table = holdfast.create_table(tmp_path / "t", schema)
    table.append([{"k": n, "text": "base words", "vec": [n, 1.0]} for n in range(300)])
    table.dataset().create_scalar_index("text", "INVERTED", name="words", stem=True)
    table.dataset().create_index("vec", "IVF_FLAT", name="near", num_partitions=1, metric="cosine")
    with table.claim_writer("unsharded") as writer:
        writer.put(
            [
                {"k": 1000, "text": "running", "vec": [0.0, 5.0]},
                {"k": 1001, "text": "sleep", "vec": [5.0, 0.0]},
            ]
        )
        assert writer.search("text", "run")["k"].to_pylist() == [1000]  # stemmed, as the index
        assert writer.nearest("vec", [0.0, 1.0], k=1)["k"].to_pylist() == [1000]  # by cosine
    (one,) = tables_of(table, writer.shard_id)
    from shard.lsm import sstables_of

    described = sstables_of(tmp_path / "t").open(writer.shard_id, one.path).describe_indices()
    assert {index.name for index in described} == {"words", "near"}


# The handle itself.


def test_closing_without_a_flush_leaves_the_rows_in_the_log(table: holdfast.Table) -> None:
    writer = table.claim_writer("unsharded")
    writer.put(rows(1))
    writer.close(flush=False)
    writer.close()
    assert tables_of(table, writer.shard_id) == ()
    for call in (lambda: writer.put(rows(2)), writer.scan, writer.flush):
        with pytest.raises(InvalidInputError, match="closed"):
            call()
    with table.claim_writer("unsharded") as again:
        assert again.lookup([1]).num_rows == 1


def test_closing_writes_what_waits(table: holdfast.Table) -> None:
    writer = table.claim_writer("unsharded")
    futures = [writer.put_nowait(rows(key)) for key in range(50)]
    writer.close()
    assert all(future.done() and future.result().rows for future in futures)
    assert len(stock_rows(table, writer.shard_id)) == 50


def test_aborting_fails_what_waits(table: holdfast.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = table.claim_writer("unsharded")
    held, go = threading.Event(), threading.Event()
    append = WalAppender.append

    def slow(self: WalAppender, *given: Any, **more: Any) -> Any:
        held.set()
        go.wait(60)
        return append(self, *given, **more)

    monkeypatch.setattr(WalAppender, "append", slow)
    first = writer.put_nowait(rows(1))
    held.wait(60)
    second = writer.put_nowait(rows(2))
    aborting = threading.Thread(target=writer.abort)
    aborting.start()
    with pytest.raises(InvalidInputError, match="aborted"):
        second.result(60)
    go.set()
    aborting.join()
    assert first.result(60).rows == 1
    monkeypatch.undo()
    with table.claim_writer("unsharded") as again:
        assert newest(again.scan().to_pylist()) == {1: "x"}


def test_an_error_in_the_block_is_not_hidden_by_closing(table: holdfast.Table) -> None:
    def block() -> None:
        with table.claim_writer("unsharded") as old:
            table.claim_writer("unsharded").abort()
            with pytest.raises(FencedError):
                old.put(rows(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()


def test_a_writer_does_not_travel(table: holdfast.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with table.claim_writer("unsharded") as writer:
        with pytest.raises(TypeError, match="does not travel"):
            pickle.dumps(writer)
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: -1)
            for call in (lambda: writer.put(rows(1)), writer.scan):
                with pytest.raises(InvalidInputError, match="fork"):
                    call()


def test_flushes_are_events(table: holdfast.Table) -> None:
    seen: list[Event] = []
    with subscribed(seen.append), table.claim_writer("unsharded") as writer:
        writer.put(rows(1, 1))
    (event,) = [one for one in seen if one.kind is EventKind.FLUSHED]
    assert event.fields["rows"] == 1
    assert event.fields["generation"] == 1


def test_a_damaged_entry_stops_the_opening(table: holdfast.Table) -> None:
    writer = table.claim_writer("unsharded")
    position = writer.put(rows(1)).position
    writer.abort()
    path = Path(table.uri) / entry_name(writer.shard_id, position or 0).path
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(HoldfastError) as caught:
        table.claim_writer("unsharded")
    assert caught.value.kind.value in {"corrupt", "wal_gap"}
