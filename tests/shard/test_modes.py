"""Modes and settings of writers."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

import holdfast
from holdfast.errors import (
    InvalidInputError,
)
from holdfast.memtable import IndexConfig
from holdfast.wal import WalAppender
from shard.levels import (
    KEYED,
    logged_rows,
    newest,
    stock_rows,
    tables_of,
)
from shard.writing import Config, rows


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
    assert writer.wal_stats().entries == 0
    go.set()
    writer.close()
    assert newest(stock_rows(table, writer.shard_id)) == {1: "x"}


@pytest.mark.requirement("W2")
def test_puts_that_nobody_waits_for_share_an_entry(table: holdfast.Table) -> None:
    config = Config(durable_write=False, max_wal_flush_interval=timedelta(hours=1))
    with table.claim_writer("unsharded", config=config) as writer:
        for key in range(8):
            writer.put(rows(key))
        assert writer.wal_stats().entries == 0  # they wait for more
        assert len(writer.lookup([7])) == 1  # a read waits for them, so they are written
        assert writer.wal_stats().entries == 1
        for key in range(8, 16):
            writer.put(rows(key))
    assert newest(stock_rows(table, writer.shard_id)) == dict.fromkeys(range(16), "x")


@pytest.mark.requirement("W2")
def test_a_put_that_waits_for_room_ends_the_waiting_of_others(table: holdfast.Table) -> None:
    config = Config(
        enable_memtable=False,
        durable_write=False,
        max_wal_flush_interval=timedelta(hours=1),
        max_unflushed_memtable_bytes=1,  # one put at a time
    )
    with table.claim_writer("unsharded", config=config) as writer:
        for key in range(5):
            writer.put(rows(key))
        assert writer.wal_stats().entries >= 4


@pytest.mark.requirement("W2")
def test_rows_wait_no_longer_than_the_interval(table: holdfast.Table) -> None:
    config = Config(durable_write=False, max_wal_flush_interval=timedelta(milliseconds=30))
    with table.claim_writer("unsharded", config=config) as writer:
        writer.put(rows(1))
        deadline = time.monotonic() + 60
        while not writer.wal_stats().entries:  # nobody reads, flushes or closes
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_settings_that_the_table_recorded_are_honoured(table: holdfast.Table) -> None:
    defaults = Config(max_memtable_rows=7, max_wal_flush_interval=timedelta(milliseconds=9))
    assert table.prepare_writers(defaults=defaults) is True
    assert table.prepare_writers(defaults=Config(max_memtable_rows=1)) is False
    details: Any = lance.dataset(table.uri).mem_wal_index_details()
    assert details["writer_config_defaults"].pop("holdfast.log")  # the log's id
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
