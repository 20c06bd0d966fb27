"""Both ways with stock Lance and LanceDB: entries, tailing, fencing, and a fight for one shard."""

from __future__ import annotations

import multiprocessing
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner
from pyarrow import ipc

from holdfast.errors import FencedError
from holdfast.formats._wal_names import entry_name
from holdfast.lifecycle import adopt_table
from holdfast.table import Table
from holdfast.wal import WalAppender, WalTailer
from wal.stock_worker import SCHEMA, log_batch, ours, stock, table

SHARD = "c86481e0-7f0b-47f8-aead-d10d7a62c5b2"
LONG = "HOLDFAST_EXPLORE" in os.environ


@pytest.fixture
def uri(tmp_path: Path) -> str:
    path = str(tmp_path / "t.lance")
    lance.write_dataset(SCHEMA.empty_table(), path).initialize_mem_wal()
    return path


def opened(uri: str) -> Table:
    return adopt_table(uri)


def claim(uri: str) -> WalAppender:
    its = opened(uri)
    return WalAppender.claim(its.core, SHARD)


def tailer(uri: str) -> WalTailer:
    its = opened(uri)
    return WalTailer(its.core, SHARD)


def stock_rows(uri: str) -> dict[int, str]:
    """Return what stock sees once it has opened the shard and replayed the log."""
    writer = lance.dataset(uri).mem_wal_writer(SHARD)
    found = writer.lsm_scanner().to_table()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


@pytest.mark.requirement("L6")
def test_stock_replays_our_entries_and_tombstones(uri: str) -> None:
    with claim(uri) as appender:
        appender.append([log_batch(uri, 1), log_batch(uri, 2, 3)], generation=1)
        appender.append(log_batch(uri, *range(100, 5000)), generation=1, tags={"a": "b"})
        appender.append(log_batch(uri, 2, deleted=True), generation=1)
    found = stock_rows(uri)
    assert found == {n: f"v{n}" for n in (1, 3, *range(100, 5000))}


def variants(uri: str) -> dict[str, pa.RecordBatch]:
    full = log_batch(uri, 1)
    bare = pa.record_batch(list(full.columns), names=full.schema.names)
    return {
        "full": full,
        "no field ids": bare,
        "no tombstone column": full.select(["id", "v"]),
        "bare, no tombstone": bare.select(["id", "v"]),
        "reordered": full.select(["v", "_tombstone", "id"]),
        "extra column": full.append_column("extra", pa.array([1])),
        "missing column": full.select(["id", "_tombstone"]),
    }


@pytest.mark.requirement("L6")
def test_every_variant_is_read_by_both(tmp_path: Path) -> None:
    for number, name in enumerate(variants(_fresh(tmp_path / "names"))):
        uri = _fresh(tmp_path / str(number))
        rows = variants(uri)[name]
        with claim(uri) as appender:
            appender.append(rows)
        (entry,) = tailer(uri).entries()
        assert entry.batches[0].equals(rows), name
        expected = None if name == "missing column" else "v1"
        assert stock_rows(uri) == {1: expected}, name


def _fresh(path: Path) -> str:
    lance.write_dataset(SCHEMA.empty_table(), str(path)).initialize_mem_wal()
    return str(path)


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_stock_entries_in_any_codec_are_read(uri: str, codec: str | None) -> None:
    kept = {"writer_epoch": "1"}
    rows = log_batch(uri, 1, 2).replace_schema_metadata(kept)
    sink = pa.BufferOutputStream()
    options = ipc.IpcWriteOptions(compression=codec)
    with ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    claim(uri).close()
    opened(uri).core.store.put(entry_name(SHARD, 2).path, sink.getvalue().to_pybytes())
    assert [entry.rows for entry in claim(uri).replay()] == [2]


@pytest.mark.requirement("W7", "L6")
def test_we_tail_stock_live(uri: str) -> None:
    writer = lance.dataset(uri).mem_wal_writer(SHARD, max_wal_flush_interval_ms=5)
    tail = tailer(uri)
    for number in range(20):
        writer.put(table(number))
        entry = tail.read(number + 1)
        assert entry is not None
        assert entry.batches[0]["id"].to_pylist() == [number]
    assert [e.epoch for e in tail.entries()] == [1] * 20


@pytest.mark.requirement("L3", "L5")
def test_each_side_fences_the_other(uri: str) -> None:
    theirs = lance.dataset(uri).mem_wal_writer(SHARD, max_wal_flush_interval_ms=5)
    theirs.put(table(1))
    mine = claim(uri)
    assert [e.batches[0]["id"].to_pylist() for e in mine.replay()] == [[1]]
    with pytest.raises(OSError, match="fenced"):
        theirs.put(table(2))
    mine.append(log_batch(uri, 3))
    again = lance.dataset(uri).mem_wal_writer(SHARD)
    found = again.lsm_scanner().to_table()["id"].to_pylist()
    assert sorted(found) == [1, 3]
    with pytest.raises(FencedError) as caught:
        mine.append(log_batch(uri, 4))
    assert (caught.value.epoch, caught.value.stored_epoch) == (2, 3)
    with pytest.raises(FencedError):
        mine.check_fenced()


def test_stock_opens_a_shard_with_our_token_and_stale_hints(uri: str) -> None:
    for _ in range(10):
        claim(uri).close()
    assert stock_rows(uri) == {}
    mine = claim(uri)
    assert mine.epoch == 12
    assert mine.manifest.token is not None


def test_stock_shards_are_adopted_by_a_commit_store(uri: str) -> None:
    writer = lance.dataset(uri).mem_wal_writer(SHARD, max_wal_flush_interval_ms=5)
    writer.put(table(1))
    del writer
    adopted = adopt_table(uri, commit_store="sqlite")
    appender = adopted.claim_appender(SHARD)
    assert [e.batches[0]["id"].to_pylist() for e in appender.replay()] == [[1]]
    appender.append(log_batch(uri, 2))
    assert [e.rows for e in adopted.tailer(SHARD).entries()] == [1, 1]
    adopted.close()


def test_lancedb_replays_our_entries(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    uri = _fresh(path)
    with claim(uri) as appender:
        appender.append(log_batch(uri, 7), generation=1)
    writer = lance.dataset(uri).mem_wal_writer(SHARD)
    writer.close()  # flushes what it replayed
    found = lancedb.connect(str(tmp_path)).open_table("t").to_arrow()
    scanned = LsmScanner.from_snapshots  # the reader that LanceDB is built on
    assert callable(scanned)
    assert found["id"].to_pylist() == [7]


@pytest.mark.requirement("L1", "L3", "C1")
def test_a_fight_of_two_of_ours_and_two_of_stock(tmp_path: Path) -> None:
    uri = _fresh(tmp_path / "t.lance")
    adopt_table(uri).close()
    shard = str(uuid.uuid4())
    seconds = 60.0 if LONG else 10.0
    spawn = multiprocessing.get_context("spawn")
    told: Any = spawn.Queue()
    sides: list[Callable[..., None]] = [ours, ours, stock, stock]
    workers = [
        spawn.Process(target=side, args=(uri, shard, (n + 1) * 1_000_000, seconds, told))
        for n, side in enumerate(sides)
    ]
    for worker in workers:
        worker.start()
    acknowledged: list[int] = []
    fencings: list[int] = []
    while len(fencings) < len(workers):
        kind, number = told.get(timeout=seconds + 120)
        (acknowledged if kind == "acknowledged" else fencings).append(number)
    for worker in workers:
        worker.join(60)
    its = opened(uri)
    appender = WalAppender.claim(its.core, shard)
    flushed = list(appender.manifest.sstables)
    found = [n for e in appender.replay() for b in e.batches for n in b["id"].to_pylist()]
    print(f"{len(acknowledged)} acknowledged, fenced {fencings}, {len(flushed)} generations")
    assert not flushed
    assert len(set(found)) == len(found)
    assert set(acknowledged) <= set(found)
    assert all(any(n // 1_000_000 == side + 1 for n in found) for side in range(4))
    per_side = [[n for n in found if n // 1_000_000 == side + 1] for side in range(4)]
    assert all(numbers == sorted(numbers) for numbers in per_side)
