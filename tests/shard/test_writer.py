"""A writer's promises: acknowledgement, replay, fences, flushes."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import (
    FencedError,
    InvalidInputError,
    PoisonedError,
    UnavailableError,
)
from holdfast.events import Event, EventKind, subscribed
from holdfast.shard import ShardWriter
from holdfast.shard import _flusher as flusher_module
from holdfast.storage import LocalStore
from holdfast.wal import WalAppender
from lsm.tables import base_of
from shard.levels import (
    KEYED,
    flushed_rows,
    logged_rows,
    manifest_of,
    newest,
    stock_rows,
    tables_of,
)
from shard.writing import Config, failing, rows, unavailable


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
        writer.delete_keys([1])
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


def test_entries_carry_no_number_that_somebody_else_may_take(table: holdfast.Table) -> None:
    """Stock passes over entries whose generation is published, whoever published it."""
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(1))
        writer.close(flush=False)
    appender = WalAppender.claim(table.core, writer.shard_id)
    (entry,) = appender.replay()
    assert (entry.generation, dict(entry.tags)) == (None, {"memtable": "true"})


@pytest.mark.requirement("W8")
def test_replay_keeps_to_the_generations_of_a_stock_writer(table: holdfast.Table) -> None:
    table.prepare_writers()
    shard_id = str(uuid.uuid4())
    appender = WalAppender.claim(table.core, shard_id)
    columns = base_of(table).log_schema
    for key in range(7):
        batch = pa.RecordBatch.from_pydict(
            {"k": [key], "v": ["x"], "_tombstone": [False]}, schema=columns
        )
        appender.append(batch, generation=1 + key // 3)
    appender.close()
    second = table.claim_writer(shard_id, config=Config(max_memtable_rows=2))
    # The third has room left, so nobody flushes it meanwhile.
    assert [one.physical_rows for one in tables_of(table, second.shard_id)] == [3, 3]
    second.close()
    assert [one.physical_rows for one in tables_of(table, second.shard_id)] == [3, 3, 1]
    assert newest(stock_rows(table, second.shard_id)) == dict.fromkeys(range(7), "x")


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
    assert newest(writer.to_table().to_pylist()) == {2: "x"}
    writer.put(rows(3, v="y"))
    writer.delete_keys([2])
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
        lambda: old.delete_keys([1]),
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
    assert newest(new.to_table().to_pylist()) == {1: "x"}
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
    assert newest(writer.to_table().to_pylist()) == dict.fromkeys(range(5), "x")
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
        writer.to_table()
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
        writer.to_table()
    writer.abort()


def readable(table: holdfast.Table, writer: ShardWriter) -> dict[int, Any]:
    """Return what SSTables and memory hold; read again when a flush moved rows meanwhile."""
    while True:
        before = tables_of(table, writer.shard_id)
        found = [*flushed_rows(table, writer.shard_id), *writer.to_table().to_pylist()]
        if tables_of(table, writer.shard_id) == before:
            return newest(found)


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
        assert readable(table, w) == dict.fromkeys(range(7), "x")
        while w.stats().flush_failures < 3:  # counted, so none is left for closing
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
    from holdfast.shard import _publish

    publish, lost = vars(_publish)["publish"], [UnavailableError("the answer was lost")]

    def unanswered(*given: Any) -> Any:
        done = publish(*given)
        if lost:
            raise lost.pop()
        return done

    monkeypatch.setattr(flusher_module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(_publish, "publish", unanswered)
    writer = table.claim_writer("unsharded")
    writer.put(rows(1))
    with suppress(UnavailableError):  # not seen when the repeat is faster than this thread
        writer.flush()
    assert not lost
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
        files = {info.path for info in table.core.store.list(folder)}
        assert files and files <= synced


@pytest.mark.requirement("P1")
def test_a_table_with_stable_row_ids_gets_no_log(tmp_path: Path) -> None:
    """Nothing could be merged into it: refused before anything is written."""
    uri = str(tmp_path / "t")
    lance.write_dataset(KEYED.empty_table(), uri, enable_stable_row_ids=True)
    table = holdfast.adopt_table(uri)
    before = table.dataset().version
    with pytest.raises(InvalidInputError, match="stable row ids"):
        table.claim_writer("unsharded")
    assert table.shards() == []
    assert table.dataset().version == before
