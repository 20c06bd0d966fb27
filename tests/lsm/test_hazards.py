"""The hazards of logs beside tables that have to do with merging and collecting, each met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner, ShardSnapshot

from holdfast.errors import CorruptError, LogWaitsError, WalGapError
from holdfast.formats._wal_names import entry_name
from holdfast.shard._config import ShardWriterConfig
from holdfast.upkeep._compact_lsm import LanceBase
from lsm.tables import (
    add_generation,
    make_table,
    manifests_of,
    merged_of,
    new_shard,
    pending_of,
    rows_of,
)

pytestmark = [pytest.mark.requirement("W13"), pytest.mark.requirement("L10")]


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(4)])


def fresh(table: Any) -> dict[Any, Any]:
    return {row["k"]: row["v"] for row in table.scan().read_all().to_pylist()}


def test_b1_a_merged_generation_does_not_hide_what_changed_the_base_since(table: Any) -> None:
    shard = new_shard()
    add_generation(table, shard, [{"k": 1, "v": "log"}])
    current = manifests_of(table, shard).latest()
    assert current is not None
    merging = LanceBase(table.versions).begin(shard, current.sstables)
    assert merging is not None
    merging.commit()  # and dies before it drains
    newer = pa.table({"k": [1], "v": ["newer"]}, schema=table.schema)
    table.dataset().merge_insert("k").when_matched_update_all().execute(newer)
    assert pending_of(table, shard) == [1]
    assert fresh(table)[1] == "newer"
    # Stock, told of the generation, still shows the old value.
    told = ShardSnapshot(shard).with_current_generation(2).with_sstable(1, current.sstables[0].path)
    stock = LsmScanner.from_snapshots(lance.dataset(table.uri), [told]).to_table().to_pylist()
    assert {row["k"]: row["v"] for row in stock}[1] == "log"
    table.compact_lsm()
    assert fresh(table)[1] == "newer"
    assert pending_of(table, shard) == []


def wal_only(table: Any, shard: str) -> Any:
    return table.claim_writer(shard, config=ShardWriterConfig(enable_memtable=False))


def test_b4_a_hole_in_the_log_is_an_error_and_nothing_is_flushed_past_it(table: Any) -> None:
    shard = new_shard()
    with wal_only(table, shard) as writer:
        positions = [writer.put([{"k": n, "v": "x"}]).position for n in range(3)]
    hole = Path(table.uri, entry_name(shard, positions[1]).path)
    kept = hole.read_bytes()
    hole.unlink()
    with pytest.raises(WalGapError):
        table.flush_log(shard)
    assert pending_of(table, shard) == []
    hole.write_bytes(kept)
    assert table.flush_log(shard).rows == 3


def test_b5_a_torn_entry_is_an_error_and_nothing_is_flushed_past_it(table: Any) -> None:
    shard = new_shard()
    with wal_only(table, shard) as writer:
        position = writer.put([{"k": 1, "v": "x"}]).position
    torn = Path(table.uri, entry_name(shard, position).path)
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-8])
    with pytest.raises(CorruptError):
        table.flush_log(shard)
    torn.write_bytes(whole[:300] + bytes([whole[300] ^ 1]) + whole[301:])
    with pytest.raises(CorruptError):
        table.flush_log(shard)
    assert pending_of(table, shard) == []
    assert merged_of(table) == {}


def test_an_update_by_lance_itself_is_refused_while_rows_wait(tmp_path: Path) -> None:
    """The row that waits would win over it, once it is merged."""
    table = make_table(tmp_path / "t", [{"k": 1, "v": "base"}, {"k": 2, "v": "base"}])
    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": 1, "v": "waits"}])
        newer = pa.table({"k": [1], "v": ["newer"]}, schema=table.schema)
        for change in (
            lambda: table.dataset().update({"v": "'newer'"}, where="k = 1"),
            lambda: table.dataset().merge_insert("k").when_matched_update_all().execute(newer),
        ):
            with pytest.raises(LogWaitsError, match="merge_log"):
                change()
        assert rows_of(table) == {1: "base", 2: "base"}
        table.dataset(over_log=True).update({"v": "'over'"}, where="k = 2")
        table.append([{"k": 3, "v": "new"}])  # merges what waits first
        table.dataset().update({"v": "'newest'"}, where="k = 1")
        assert rows_of(table) == {1: "newest", 2: "over", 3: "new"}
    table.dataset().update({"v": "'newer'"}, where="k = 1")
    assert rows_of(table) == {1: "newer", 2: "over", 3: "new"}
