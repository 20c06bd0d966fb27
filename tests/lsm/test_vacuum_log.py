"""What vacuum takes of shards, and what it never takes."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import FencedError
from holdfast.formats._snapshot import encode_snapshot, snapshot_pin_path
from holdfast.formats._sstable import sstable_path
from holdfast.formats._wal_names import entry_name, position_of
from holdfast.read._pins import release, take_pinned
from holdfast.read._snapshot import BaseVersion, take_snapshot
from holdfast.read._source import Shards
from holdfast.shard._base import read_merged
from holdfast.shard._config import ShardWriterConfig
from holdfast.upkeep import _vacuum
from holdfast.wal import WalAppender
from lsm.tables import (
    add_generation,
    base_of,
    make_table,
    manifests_of,
    new_shard,
    rows_of,
    sstables_of,
)

pytestmark = pytest.mark.requirement("L12")

HOUR = timedelta(hours=1)
KINDS = ["log", "sstables"]


@pytest.fixture(params=[None, "sqlite"], ids=["conditional-put", "commit-store"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    rows = [{"k": n, "v": "base"} for n in range(4)]
    return make_table(tmp_path / "t", rows, commit_store=request.param)


def grow_old(table: Any, days: float = 30) -> None:
    then = time.time() - days * 24 * 3600
    for path in Path(table.uri, "_mem_wal").rglob("*"):
        os.utime(path, (then, then))


def files(table: Any, shard: str) -> list[str]:
    root = Path(table.uri)
    return sorted(
        str(p.relative_to(root)) for p in (root / "_mem_wal" / shard).rglob("*") if p.is_file()
    )


def positions(table: Any, shard: str) -> list[int]:
    return sorted(n for n in map(position_of, files(table, shard)) if n is not None)


def wal_only(table: Any, shard: str) -> Any:
    return table.claim_writer(shard, config=ShardWriterConfig(enable_memtable=False))


def fresh(table: Any) -> dict[Any, Any]:
    return {row["k"]: row["v"] for row in table.scan().read_all().to_pylist()}


def test_what_is_flushed_merged_and_drained_goes_after_the_grace_period(table: Any) -> None:
    shard = new_shard()
    writer = wal_only(table, shard)
    writer.put([{"k": 1, "v": "a"}])
    writer.put([{"k": 2, "v": "b"}])
    table.flush_log(shard)
    writer.put([{"k": 3, "v": "c"}])
    before = files(table, shard)
    assert table.vacuum(what=KINDS, grace=HOUR, confirm=True).leftovers == ()
    grow_old(table)
    plan = table.vacuum(what=KINDS, grace=HOUR)
    assert not plan.applied
    assert files(table, shard) == before
    assert {one.kind.value for one in plan.leftovers} == {"log"}  # the SSTable is named
    done = table.vacuum(what=KINDS, grace=HOUR, confirm=True)
    assert {one.path for one in done.leftovers} == {one.path for one in plan.leftovers}
    assert fresh(table) == {0: "base", 1: "a", 2: "b", 3: "c"}
    table.compact_lsm()
    grow_old(table)
    done = table.vacuum(what=KINDS, grace=HOUR, confirm=True)
    assert {one.kind.value for one in done.leftovers} >= {"sstables"}
    assert not [path for path in files(table, shard) if "_gen_" in path]
    assert fresh(table) == {0: "base", 1: "a", 2: "b", 3: "c"}
    writer.put([{"k": 0, "v": "d"}])  # its writer goes on all the while
    assert fresh(table)[0] == "d"
    writer.close()


def test_fences_stay_so_a_sleeping_writer_is_never_acknowledged_and_lost(table: Any) -> None:
    """Hazard B2: A writes, B takes over and flushes, the log is collected, A wakes up."""
    shard, base = new_shard(), base_of(table)
    rows = pa.RecordBatch.from_pylist(
        [{"k": 1, "v": "a", "_tombstone": False}], schema=base.storage_schema
    )
    sleeper = WalAppender.claim(table.core, shard)
    last = sleeper.append(rows).position
    successor = wal_only(table, shard)
    successor.put([{"k": 2, "v": "b"}])
    table.flush_log(shard)
    table.compact_lsm()
    grow_old(table)
    table.vacuum(what=KINDS, grace=HOUR, confirm=True)
    left = positions(table, shard)
    assert last not in left
    assert last + 1 in left, "the successor's fence is where the sleeper's next entry would be"
    with pytest.raises(FencedError):
        sleeper.append(rows)
    assert rows_of(table) == {0: "base", 1: "a", 2: "b", 3: "base"}


def test_an_sstable_that_may_still_be_published_stays_however_old_it_is(table: Any) -> None:
    shard = new_shard()
    add_generation(table, shard, [{"k": 1, "v": "one"}])
    base, current = base_of(table), manifests_of(table, shard).latest()
    assert current is not None
    rows = pa.Table.from_pylist(
        [{"k": 2, "v": "two", "_tombstone": False}], schema=base.storage_schema
    )
    slow = sstables_of(table).write(base, shard, 2, rows)  # a writer sleeps before publishing
    rival = sstables_of(table).write(base, shard, 1, rows)  # one whose number is taken
    grow_old(table)
    done = table.vacuum(what=KINDS, grace=HOUR, confirm=True)
    folders = {one.path.split("/")[2] for one in done.leftovers if one.kind.value == "sstables"}
    assert folders == {rival.path}
    assert any(slow.path in path for path in files(table, shard))
    assert any(current.sstables[0].path in path for path in files(table, shard))


def test_what_a_pinned_snapshot_names_stays_until_it_is_released(table: Any) -> None:
    shard = new_shard()
    writer = wal_only(table, shard)
    writer.put([{"k": 1, "v": "a"}])
    table.flush_log(shard)
    writer.put([{"k": 2, "v": "b"}])
    token = table.core.ids.token()
    taken = take_pinned(table.core.store, token, lambda: snapshot(table))
    (sstable,) = taken.shards[0].sstables
    (entry,) = taken.shards[0].entries
    table.flush_log(shard)
    table.compact_lsm()
    grow_old(table)
    done = table.vacuum(what=KINDS, grace=HOUR, confirm=True)
    there = files(table, shard)
    assert [path for path in there if path.startswith(sstable_path(shard, sstable.path))]
    assert entry_name(shard, entry.position).path in there
    assert not any(one.path.endswith(".arrow") for one in done.leftovers)
    release(table.core.store, token)
    table.vacuum(what=KINDS, grace=HOUR, confirm=True)
    there = files(table, shard)
    assert not [path for path in there if "_gen_" in path]
    assert entry_name(shard, entry.position).path not in there


def snapshot(table: Any) -> Any:

    def base() -> BaseVersion:
        dataset = table.dataset()
        return BaseVersion(version=int(dataset.version), compacted=read_merged(table.core, dataset))

    return take_snapshot(Shards(table.core, base))


def test_nothing_goes_while_a_pin_is_being_taken(table: Any) -> None:
    shard = new_shard()
    with wal_only(table, shard) as writer:
        writer.put([{"k": 1, "v": "a"}])
    table.flush_log(shard)
    table.compact_lsm()
    grow_old(table)
    path = snapshot_pin_path("hf-" + "a" * 32)
    table.core.store.put(path, encode_snapshot(None))
    assert table.vacuum(what=KINDS, grace=HOUR, confirm=True).leftovers == ()
    table.core.store.delete([path])
    assert table.vacuum(what=KINDS, grace=HOUR, confirm=True).leftovers != ()


def test_a_plan_that_is_out_of_date_deletes_nothing_that_is_needed_now(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = new_shard()
    with wal_only(table, shard) as writer:
        writer.put([{"k": 1, "v": "a"}])
    table.flush_log(shard)
    table.compact_lsm()
    grow_old(table)
    plan = _vacuum.plan_vacuum

    def slow(*given: Any, **more: Any) -> Any:
        found = plan(*given, **more)
        table.core.store.put(snapshot_pin_path("hf-" + "b" * 32), encode_snapshot(None))
        return found

    monkeypatch.setattr(_vacuum, "plan_vacuum", slow)
    before = files(table, shard)
    assert table.vacuum(what=KINDS, grace=HOUR, confirm=True).leftovers == ()
    assert files(table, shard) == before
