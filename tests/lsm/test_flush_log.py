"""A log into generations by anyone: exact rows, nobody fenced, nobody's rows lost."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import InvalidInputError, NotFoundError, UnavailableError
from holdfast.formats._shard_manifest import SsTable
from holdfast.shard._config import ShardWriterConfig
from holdfast.shard._sstables import sstables_of
from holdfast.upkeep import _flush_log
from holdfast.upkeep._flush_log import publish_part
from holdfast.wal import WalAppender
from lsm.tables import (
    base_of,
    make_table,
    manifests_of,
    new_shard,
    pending_of,
    rows_of,
    stock_generation,
)

pytestmark = [pytest.mark.requirement("W13"), pytest.mark.requirement("L12")]

NOW = timedelta(0)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(4)])


def wal_only(table: Any, shard: str) -> Any:
    return table.claim_writer(shard, config=ShardWriterConfig(enable_memtable=False))


def fresh(table: Any) -> dict[Any, Any]:
    rows = table.scan().read_all().to_pylist()
    found = {row["k"]: row["v"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_log_without_memtables_becomes_generations_while_its_writer_goes_on(table: Any) -> None:
    shard = new_shard()
    writer = wal_only(table, shard)
    writer.put([{"k": 1, "v": "a"}, {"k": 9, "v": "a"}])
    writer.put([{"k": 1, "v": "b"}])
    writer.delete_keys([2])
    expected = {0: "base", 1: "b", 3: "base", 9: "a"}
    assert fresh(table) == expected
    done = table.flush_log(shard)
    assert (done.generations, done.rows, done.applied, done.waits) == ((1,), 3, True, None)
    assert fresh(table) == expected
    writer.put([{"k": 3, "v": "later"}])  # not fenced
    again = table.flush_log(shard)
    assert (again.generations, again.rows) == ((2,), 1)
    assert table.flush_log(shard).applied is False
    expected[3] = "later"
    assert fresh(table) == expected
    table.compact_lsm()
    assert fresh(table) == rows_of(table) == expected
    writer.close()


def test_generations_have_a_bounded_size_and_entries_are_never_divided(table: Any) -> None:
    shard = new_shard()
    with wal_only(table, shard) as writer:
        for number in range(5):
            writer.put([{"k": 10 * number + n, "v": "x"} for n in range(4)])
    done = table.flush_log(shard, rows_per_generation=9)
    assert done.generations == (1, 2, 3)
    assert [sstables_of(table.core).open(shard, one.path).count_rows()
            for one in manifests_of(table, shard).latest().sstables] == [8, 8, 4]  # type: ignore[union-attr]  # fmt: skip
    table.compact_lsm()
    assert len(rows_of(table)) == 4 + 20 - 4


def test_two_flushes_at_once_make_one_generation(table: Any) -> None:
    shard = new_shard()
    with wal_only(table, shard) as writer:
        writer.put([{"k": 1, "v": "a"}])
    manifests = manifests_of(table, shard)
    seen = manifests.latest()
    assert seen is not None
    table.flush_log(shard)
    late = SsTable(generation=1, path="0badcafe_gen_1")
    assert publish_part(manifests, seen, late, 2) is None
    assert pending_of(table, shard) == [1]
    current = manifests_of(table, shard).latest()
    assert current is not None
    assert current.sstables[0].path != late.path


def test_a_new_owner_does_not_stop_a_flush_and_is_not_stopped(table: Any) -> None:
    shard = new_shard()
    wal_only(table, shard).put([{"k": 1, "v": "a"}])
    manifests = manifests_of(table, shard)
    seen = manifests.latest()
    assert seen is not None
    writer = wal_only(table, shard)  # a higher epoch, after we looked
    base = base_of(table)
    rows = pa.Table.from_pylist(
        [{"k": 1, "v": "a", "_tombstone": False}], schema=base.storage_schema
    )
    written = sstables_of(table.core).write(base, shard, 1, rows)
    decided = publish_part(manifests, seen, written, 1)
    assert decided is not None
    assert decided.writer_epoch == writer.epoch
    writer.put([{"k": 2, "v": "b"}])
    table.flush_log(shard)
    table.compact_lsm()
    assert rows_of(table) == {0: "base", 1: "a", 2: "b", 3: "base"}


def test_a_writer_with_memtables_is_left_in_peace_until_it_is_silent(table: Any) -> None:
    shard = new_shard()
    writer = table.claim_writer(shard)
    writer.put([{"k": 1, "v": "a"}])
    done = table.flush_log(shard)
    assert (done.applied, done.generations) == (False, ())
    assert done.waits is not None
    writer.abort()  # as if it had died
    assert table.flush_log(shard, idle=NOW).generations == (1,)
    assert fresh(table)[1] == "a"


def test_a_live_writer_whose_rows_are_all_covered_goes_on(table: Any) -> None:
    shard = new_shard()
    writer = table.claim_writer(shard)
    writer.put([{"k": 1, "v": "a"}])
    table.flush_log(shard, idle=NOW)
    writer.flush()
    writer.put([{"k": 1, "v": "b"}])
    writer.close()
    assert pending_of(table, shard) == [1, 2]
    table.compact_lsm()
    assert rows_of(table)[1] == "b"


def test_a_live_writer_whose_rows_are_covered_in_part_goes_on(table: Any) -> None:
    shard = new_shard()
    writer = table.claim_writer(shard)
    writer.put([{"k": 1, "v": "a"}])
    writer.put([{"k": 3, "v": "a"}])
    table.flush_log(shard, idle=NOW, rows_per_generation=1)  # generations 1 and 2
    writer.put([{"k": 2, "v": "beyond"}, {"k": 3, "v": "again"}])  # in its MemTable 1
    expected = {0: "base", 1: "a", 2: "beyond", 3: "again"}
    assert fresh(table) == expected
    writer.flush()
    assert pending_of(table, shard) == [1, 2, 3]
    assert fresh(table) == expected
    assert writer.to_table().num_rows == 0
    writer.put([{"k": 3, "v": "c"}])
    assert writer.lookup([3]).to_pylist() == [{"k": 3, "v": "c"}]
    assert writer.memtable_stats().generation == 4
    writer.close()
    table.compact_lsm()
    assert rows_of(table) == {**expected, 3: "c"}


def test_rows_that_were_flushed_for_a_writer_do_not_come_back(table: Any) -> None:
    """Their SSTable would hide what became of their keys since they were merged."""
    shard = new_shard()
    writer = table.claim_writer(shard)
    writer.put([{"k": 1, "v": "old"}])
    table.flush_log(shard, idle=NOW)
    table.compact_lsm()
    table.dataset().delete("k = 1")
    table.append([{"k": 1, "v": "new"}])
    writer.put([{"k": 2, "v": "two"}])
    writer.close()
    expected = {0: "base", 1: "new", 2: "two", 3: "base"}
    assert fresh(table) == expected
    table.compact_lsm()
    assert rows_of(table) == expected


def test_frozen_and_active_rows_of_a_live_writer_are_told_apart(table: Any) -> None:
    """Several MemTables wait, somebody flushes into the middle of one, all are renumbered."""
    shard = new_shard()
    config = ShardWriterConfig(max_memtable_rows=4)
    with table.claim_writer(shard, config=config) as writer:
        held = threading.Event()
        write = writer._sstables.write

        def slow(*given: Any) -> Any:
            held.wait()
            return write(*given)

        writer._sstables = SimpleNamespace(write=slow)
        for key in range(6):
            writer.put([{"k": key, "v": "one"}])
        table.flush_log(shard, idle=NOW, rows_per_generation=1)
        for key in range(3, 13):
            writer.put([{"k": key, "v": "two"}])
        table.compact_lsm()
        before = writer.to_table(filter="k < 100").to_pylist()
        held.set()
        writer.flush()
        assert len(before) == 13
        assert writer.to_table(filter="k < 100").num_rows == 0
        for key in range(12, 15):
            writer.put([{"k": key, "v": "three"}])
        shown = {row["k"]: row["v"] for row in writer.to_table(filter="k < 100").to_pylist()}
        assert shown == dict.fromkeys(range(12, 15), "three")
    expected = {
        **dict.fromkeys(range(3), "one"),
        **dict.fromkeys(range(3, 12), "two"),
        **dict.fromkeys(range(12, 15), "three"),
    }
    assert fresh(table) == expected
    generations = pending_of(table, shard)
    assert generations == list(range(7, 7 + len(generations)))
    table.compact_lsm()
    assert rows_of(table) == expected


def test_what_a_live_writer_left_after_it_was_overtaken_is_replayed(table: Any) -> None:
    """It dies before it notices: its entries are tagged with numbers that are taken."""
    shard = new_shard()
    config = ShardWriterConfig(max_memtable_rows=4)
    writer = table.claim_writer(shard, config=config)
    writer._sstables = SimpleNamespace(write=_refuse)
    for key in range(6):
        writer.put([{"k": key, "v": "one"}])
    table.flush_log(shard, idle=NOW, rows_per_generation=1)
    for key in range(3, 20):
        writer.put([{"k": key, "v": "two"}])
    writer.abort()
    expected = {**dict.fromkeys(range(3), "one"), **dict.fromkeys(range(3, 20), "two")}
    assert fresh(table) == expected
    with table.claim_writer(shard, config=config) as again:
        assert all(one.table.row_count <= 4 for one in again._memtables().frozen)
        assert again._memtables().active.row_count <= 4
        again.put([{"k": 19, "v": "three"}])
    expected[19] = "three"
    assert fresh(table) == expected
    table.compact_lsm()
    assert rows_of(table) == expected
    stock_generation(table, shard, [{"k": [3], "v": ["stock"]}])  # and stock goes on
    table.compact_lsm()
    assert rows_of(table)[3] == "stock"


def _refuse(*_: Any) -> Any:
    raise UnavailableError("the disk is full")


def test_a_log_that_stock_left_behind(table: Any) -> None:
    shard = new_shard()
    stock_generation(table, shard, [{"k": [1], "v": ["one"]}])
    writer = table.dataset().mem_wal_writer(shard, max_wal_flush_interval_ms=1)
    writer.put(pa.table({"k": [1, 2], "v": ["two", "two"]}, schema=table.schema))
    assert table.flush_log(shard).waits is not None
    assert table.flush_log(shard, idle=NOW).generations == (2,)
    table.compact_lsm()
    assert rows_of(table) == {0: "base", 1: "two", 2: "two", 3: "base"}
    del writer
    stock_generation(table, shard, [{"k": [3], "v": ["three"]}])  # stock opens it again
    table.compact_lsm()
    assert rows_of(table)[3] == "three"


def test_a_live_stock_writer_is_locked_out_before_its_log_is_flushed(table: Any) -> None:
    """Stock would pass over what it appends under a generation that is published."""
    shard = new_shard()
    writer = table.dataset().mem_wal_writer(shard, max_wal_flush_interval_ms=1)
    writer.put(pa.table({"k": [1, 2], "v": ["a", "a"]}, schema=table.schema))
    assert table.flush_log(shard, idle=NOW).generations == (1,)
    with pytest.raises(OSError, match="fenced"):
        writer.put(pa.table({"k": [3], "v": ["lost"]}, schema=table.schema))
    del writer
    stock_generation(table, shard, [{"k": [3], "v": ["three"]}])
    expected = {0: "base", 1: "a", 2: "a", 3: "three"}
    assert fresh(table) == expected
    table.compact_lsm()
    assert rows_of(table) == expected


def test_stock_finds_what_a_live_writer_was_acknowledged_after_others_flushed(table: Any) -> None:
    shard = new_shard()
    writer = table.claim_writer(shard)
    writer.put([{"k": 1, "v": "a"}])
    writer.put([{"k": 2, "v": "a"}])
    table.flush_log(shard, idle=NOW, rows_per_generation=1)
    writer.put([{"k": 3, "v": "beyond"}])
    writer.abort()  # as if it had died before it noticed
    stock_generation(table, shard, [{"k": [4], "v": ["stock"]}])
    expected = {0: "base", 1: "a", 2: "a", 3: "beyond", 4: "stock"}
    assert fresh(table) == expected
    table.compact_lsm()
    assert rows_of(table) == expected


@pytest.mark.requirement("P5")
def test_generations_are_bounded_in_bytes_too(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gigabytes of text are more than one array of Arrow's holds, however few rows."""
    monkeypatch.setattr(_flush_log, "BYTES_PER_GENERATION", 10_000)
    shard = new_shard()
    with wal_only(table, shard) as writer:
        for number in range(5):
            writer.put([{"k": number, "v": "x" * 4_000}])
        writer.put([{"k": 5, "v": "y" * 40_000}])
    assert table.flush_log(shard).generations == (1, 2, 3, 4)
    expected = dict.fromkeys(range(5), "x" * 4_000) | {5: "y" * 40_000}
    assert fresh(table) == expected


def test_generations_follow_what_stock_tagged(table: Any) -> None:
    """A number of stock's is published with all of its entries, or stock would miss the rest."""
    shard = new_shard()
    appender = WalAppender.claim(table.core, shard)
    columns = base_of(table).log_schema
    for key in range(6):
        batch = pa.RecordBatch.from_pydict(
            {"k": [key], "v": ["x"], "_tombstone": [False]}, schema=columns
        )
        appender.append(batch, generation=1 + key // 2)
    appender.close()
    assert table.flush_log(shard, idle=NOW, rows_per_generation=1).generations == (1, 2, 3)
    found = manifests_of(table, shard).latest()
    assert found is not None
    assert [one.physical_rows for one in found.sstables] == [2, 2, 2]
    assert fresh(table) == dict.fromkeys(range(6), "x")


def test_a_table_without_a_key(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", [{"k": 1, "v": "a"}], key=())
    shard = new_shard()
    with wal_only(table, shard) as writer:
        writer.put([{"k": 1, "v": "b"}, {"k": 1, "v": "b"}])
    table.flush_log(shard)
    table.compact_lsm()
    assert sorted(table.dataset().to_table()["v"].to_pylist()) == ["a", "b", "b"]


def test_refusals(table: Any) -> None:
    with pytest.raises(NotFoundError):
        table.flush_log(new_shard())
    with pytest.raises(InvalidInputError):
        table.flush_log("x")
    with pytest.raises(InvalidInputError):
        table.flush_log(new_shard(), rows_per_generation=0)
