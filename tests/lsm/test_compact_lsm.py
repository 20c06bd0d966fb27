"""Generations into the base table: exact rows, once, whoever merges and how often."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

import holdfast
from holdfast.errors import (
    ConflictError,
    InvalidInputError,
    LogLostError,
    NotFoundError,
)
from holdfast.shard._sstables import SstableWriter
from holdfast.upkeep import _key_set, _merge_rows
from holdfast.upkeep._compact_lsm import LanceBase, LancePass, merge_shard
from lsm.tables import (
    SCHEMA,
    add_generation,
    make_table,
    manifests_of,
    merged_of,
    new_shard,
    pending_of,
    rows_of,
    stock_generation,
)

pytestmark = pytest.mark.requirement("W13")

DEAD = {"v": None, "_tombstone": True}


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(6)])


def test_the_newest_row_of_every_key_reaches_the_base_and_the_shard_is_drained(table: Any) -> None:
    shard = new_shard()
    add_generation(table, shard, [{"k": 0, "v": "one"}, {"k": 1, "v": "one"}, {"k": 7, "v": "one"}])
    add_generation(table, shard, [{"k": 0, "v": "two"}, {"k": 2, **DEAD}, {"k": 7, **DEAD}])
    add_generation(table, shard, [{"k": 2, "v": "three"}, {"k": 99, **DEAD}])
    before = table.dataset().version
    done = table.compact_lsm()
    assert rows_of(table) == {0: "two", 1: "one", 2: "three", 3: "base", 4: "base", 5: "base"}
    assert merged_of(table) == {shard: 3}
    assert pending_of(table, shard) == []
    assert done.version == before + 1 == table.dataset().version
    (one,) = done.shards
    assert (one.generations, one.merged, one.drained) == ((1, 2, 3), 3, 3)
    assert (done.rows, one.replaced, done.applied) == (3, 3, True)

    again = table.compact_lsm()
    assert (again.applied, again.rows, again.version) == (False, 0, done.version)


def test_many_small_merges_end_in_the_same_rows_as_one(table: Any) -> None:
    shard = new_shard()
    chosen, expected = random.Random(5), rows_of(table)
    for number in range(6):
        rows = []
        for key in chosen.sample(range(12), 5):
            dies = chosen.random() < 0.3
            rows.append({"k": key, **DEAD} if dies else {"k": key, "v": f"{number}"})
            expected.pop(key, None)
            if not dies:
                expected[key] = f"{number}"
        add_generation(table, shard, rows)
    table.compact_lsm(rows_at_once=1)
    assert rows_of(table) == expected
    assert merged_of(table) == {shard: 6}


def test_what_stock_wrote_is_merged_and_stock_agrees_on_the_marker(table: Any) -> None:
    shard = new_shard()
    stock_generation(
        table, shard, [{"k": [0, 7], "v": ["one", "one"]}, [3], {"k": [0], "v": ["x"]}]
    )
    stock_generation(table, shard, [[7], {"k": [8], "v": ["two"]}])
    table.compact_lsm(rows_at_once=1)
    assert rows_of(table) == {0: "x", 1: "base", 2: "base", 4: "base", 5: "base", 8: "two"}
    stale = table.dataset().merge_insert("k").when_matched_update_all()
    stale = stale.mark_sstables_as_compacted([CompactedSsTable(shard, 2)])
    with pytest.raises(OSError, match="Stale SSTable compaction"):
        stale.execute(pa.table({"k": [0], "v": ["stale"]}, schema=table.schema))
    # The shard opens again with stock, which goes on at the next generation.
    stock_generation(table, shard, [{"k": [9], "v": ["three"]}])
    assert pending_of(table, shard) == [3]
    table.compact_lsm()
    assert rows_of(table)[9] == "three"


def test_a_writer_that_is_alive_goes_on_while_its_shard_is_drained(table: Any) -> None:
    shard = new_shard()
    stock_generation(table, shard, [{"k": [1], "v": ["one"]}])
    add_generation(table, shard, [{"k": 1, "v": "two"}])
    epoch = manifests_of(table, shard).latest().writer_epoch  # type: ignore[union-attr]
    writer = manifests_of(table, shard)
    writer.latest()  # its cached manifest still names the generations
    table.compact_lsm()
    after = manifests_of(table, shard).latest()
    assert after is not None
    assert after.writer_epoch == epoch
    import dataclasses

    done = writer.update(epoch, lambda now: dataclasses.replace(now, last_seen=77))
    assert (done.last_seen, done.sstables) == (77, ())


def test_tables_without_a_key_get_every_row_once(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", [{"k": 1, "v": "a"}], key=())
    shard = new_shard()
    add_generation(table, shard, [{"k": 1, "v": "b"}, {"k": 1, "v": "b"}])
    add_generation(table, shard, [{"k": 1, "v": "c"}])
    slow = LanceBase(table.versions)
    both = manifests_of(table, shard).latest()
    assert both is not None
    waiting = slow.begin(shard, both.sstables)  # both generations, computed before ...
    assert waiting is not None
    merge_shard(LanceBase(table.versions), manifests_of(table, shard), shard, rows=1)
    with pytest.raises(ConflictError, match="already"):  # ... others merged them
        waiting.commit()
    assert sorted(table.dataset().to_table()["v"].to_pylist()) == ["a", "b", "b", "c"]
    table.compact_lsm()
    assert table.dataset().count_rows() == 4


def test_a_merge_of_several_is_refused_once_the_first_of_them_is_merged(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", [{"k": 1, "v": "a"}], key=())
    shard = new_shard()
    add_generation(table, shard, [{"k": 1, "v": "b"}])
    first = manifests_of(table, shard).latest()
    assert first is not None
    add_generation(table, shard, [{"k": 1, "v": "c"}])
    both = manifests_of(table, shard).latest()
    assert both is not None
    base = LanceBase(table.versions)
    slow, fast = base.begin(shard, both.sstables), base.begin(shard, first.sstables)
    assert slow is not None
    assert fast is not None
    fast.commit()
    with pytest.raises(ConflictError, match="already"):
        slow.commit()
    assert table.compact_lsm().rows == 1
    assert sorted(table.dataset().to_table()["v"].to_pylist()) == ["a", "b", "c"]


def append_over_log(table: Any, rows: list[dict[str, Any]]) -> None:
    """Append past rows that wait, as writers do that know nothing of a log."""
    new = pa.Table.from_pylist(rows, schema=table.schema)
    lance.write_dataset(new, table.dataset(over_log=True), mode="append")


@pytest.mark.parametrize("between", ["append", "update", "delete", "other", "compact", "index"])
def test_whatever_others_commit_while_a_merge_is_computed_the_rows_are_exact(
    table: Any, between: str
) -> None:
    shard = new_shard()
    add_generation(table, shard, [{"k": 1, "v": "log"}, {"k": 20, "v": "log"}, {"k": 2, **DEAD}])
    base = LanceBase(table.versions)
    current = manifests_of(table, shard).latest()
    assert current is not None
    waiting = base.begin(shard, current.sstables)
    assert waiting is not None
    expected = rows_of(table) | {1: "log", 20: "log"}
    del expected[2]
    other = pa.table({"k": [4], "v": ["other"]}, schema=table.schema)
    if between == "append":  # of a key that the merge brings, too
        append_over_log(table, [{"k": 20, "v": "base"}])
    elif between == "update":
        same = pa.table({"k": [1], "v": ["base2"]}, schema=table.schema)
        table.dataset(over_log=True).merge_insert("k").when_matched_update_all().execute(same)
    elif between == "delete":
        table.dataset(over_log=True).delete("k = 1")
    elif between == "other":
        table.dataset(over_log=True).merge_insert("k").when_matched_update_all().execute(other)
        expected[4] = "other"
    elif between == "compact":
        append_over_log(table, [{"k": 30, "v": "base"}])
        table.dataset().optimize.compact_files()
        expected[30] = "base"
    else:
        table.dataset().create_scalar_index("k", "BTREE")
    done = waiting.commit()
    assert (done is not None) is (between == "index")
    table.compact_lsm()
    assert rows_of(table) == expected
    assert merged_of(table) == {shard: 1}


def test_a_commit_in_the_last_moment_is_seen_in_the_manifest_that_is_decided(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = new_shard()
    add_generation(table, shard, [{"k": 20, "v": "log"}])
    looked: list[int] = []
    fits = LancePass._fits

    def slow(merging: Any, newest: Any) -> bool:
        found = fits(merging, newest)
        if not looked:
            append_over_log(table, [{"k": 20, "v": "base"}])  # after the look, before the decision
        looked.append(int(newest.version))
        return found

    monkeypatch.setattr(LancePass, "_fits", slow)
    done = table.compact_lsm()
    assert len(looked) > 1
    assert done.shards[0].tries == 2
    assert rows_of(table)[20] == "log"


def test_an_append_of_other_keys_does_not_make_a_merge_begin_anew(table: Any) -> None:
    shard = new_shard()
    add_generation(table, shard, [{"k": 1, "v": "log"}])
    current = manifests_of(table, shard).latest()
    assert current is not None
    waiting = LanceBase(table.versions).begin(shard, current.sstables)
    assert waiting is not None
    append_over_log(table, [{"k": 40, "v": "base"}])
    assert waiting.commit() == (1, 1)
    assert rows_of(table)[40] == "base"
    assert rows_of(table)[1] == "log"


def test_mergers_at_once_merge_each_generation_once(table: Any) -> None:
    shards = [new_shard() for _ in range(2)]
    expected = rows_of(table)
    for number in range(3):
        for place, shard in enumerate(shards):
            key = 100 * (place + 1) + number
            add_generation(
                table, shard, [{"k": key, "v": str(number)}, {"k": place, "v": str(number)}]
            )
            expected |= {key: str(number), place: str(number)}
    merged: list[int] = []
    failed: list[BaseException] = []

    def merge() -> None:
        try:
            done = holdfast.open_table(table.uri).compact_lsm(rows_at_once=1)
            merged.extend(g for one in done.shards for g in one.generations)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=merge) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(merged) == [1, 1, 2, 2, 3, 3]
    assert rows_of(table) == expected
    assert merged_of(table) == dict.fromkeys(shards, 3)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (pa.int64(), lambda n: n),
        (pa.string(), lambda n: f"it's {n}"),
        (pa.binary(), lambda n: b"%d" % n),
    ],
)
def test_an_index_on_the_key_finds_the_same_rows(tmp_path: Path, kind: Any, make: Any) -> None:
    schema = pa.schema([pa.field("k", kind), pa.field("v", pa.string())])
    table = make_table(
        tmp_path / "t", [{"k": make(n), "v": "base"} for n in range(2000)], schema=schema
    )
    table.dataset().create_scalar_index("k", "BTREE")
    table.append([{"k": make(n), "v": "later"} for n in range(2000, 2400)])  # beyond the index
    shard = new_shard()
    add_generation(table, shard, [{"k": make(5), "v": "x"}, {"k": make(2399), **DEAD}])
    changes = LanceBase(table.versions).work(
        shard,
        manifests_of(table, shard).latest().sstables,  # type: ignore[union-attr]
    )
    assert changes is not None
    assert changes.changes._key_set._index_pays(changes.dataset)
    done = table.compact_lsm()
    assert done.shards[0].replaced == 2
    rows = rows_of(table)
    assert (len(rows), rows[make(5)], make(2399) in rows) == (2399, "x", False)


def test_a_key_of_two_columns(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("l", pa.int32()), ("v", pa.string())])
    rows = [{"k": a, "l": b, "v": "base"} for a in "xy" for b in range(3)]
    table = make_table(tmp_path / "t", rows, schema=schema, key=("k", "l"))
    shard = new_shard()
    add_generation(
        table,
        shard,
        [{"k": "x", "l": 1, "v": "new"}, {"k": "y", "l": 2, **DEAD}, {"k": "z", "l": 0, "v": "n"}],
    )
    table.compact_lsm()
    found = {(r["k"], r["l"]): r["v"] for r in lance.dataset(table.uri).to_table().to_pylist()}
    assert found == {
        ("x", 0): "base", ("x", 1): "new", ("x", 2): "base",
        ("y", 0): "base", ("y", 1): "base", ("z", 0): "n",
    }  # fmt: skip


def test_columns_are_paired_by_id_when_the_table_has_changed(tmp_path: Path) -> None:
    schema = pa.schema(
        [("gone", pa.int64()), ("k", pa.int64()), ("a", pa.string()), ("v", pa.string())]
    )
    table = make_table(tmp_path / "t", [{"gone": 1, "k": 1, "a": "a", "v": "v"}], schema=schema)
    shard = new_shard()
    add_generation(table, shard, [{"gone": 2, "k": 2, "a": "A", "v": "V"}])
    table.dataset().drop_columns(["gone"])
    rename: Any = {"path": "a", "name": "renamed"}
    table.dataset().alter_columns(rename)
    table.dataset().add_columns(pa.field("fresh", pa.int32()))
    table.compact_lsm()
    found = sorted(lance.dataset(table.uri).to_table().to_pylist(), key=lambda row: row["k"])
    assert found[1] == {"k": 2, "renamed": "A", "v": "V", "fresh": None}


def test_a_column_that_was_replaced_meanwhile_is_refused_before_anything_is_lost(
    table: Any,
) -> None:
    shard = new_shard()
    add_generation(table, shard, [{"k": 1, "v": "waits"}])
    table.dataset().drop_columns(["v"])
    table.dataset().add_columns(pa.field("v", pa.string()))
    with pytest.raises(InvalidInputError, match="replaced"):
        table.compact_lsm()
    assert pending_of(table, shard) == [1]
    assert merged_of(table) == {}


def test_a_table_that_was_restored_behind_what_is_drained_is_refused(table: Any) -> None:
    shard = new_shard()
    before = table.dataset().version
    add_generation(table, shard, [{"k": 1, "v": "one"}])
    table.compact_lsm()
    stock: Any = lance.dataset(table.uri, version=before)
    stock.restore()  # past Holdfast
    add_generation(table, shard, [{"k": 1, "v": "two"}])
    with pytest.raises(LogLostError, match="restored"):
        table.compact_lsm()


def test_refusals(table: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such shard"):
        table.compact_lsm(shards=[new_shard()])
    with pytest.raises(InvalidInputError, match="rows_at_once"):
        table.compact_lsm(rows_at_once=0)
    plain = holdfast.create_table(tmp_path / "plain", SCHEMA, primary_key=["k"])
    assert plain.compact_lsm().applied is False


def test_rows_are_read_in_batches_of_a_bounded_size(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_merge_rows, "_ROWS_AT_ONCE", 16)
    monkeypatch.setattr(_key_set, "_KEYS_AT_ONCE", 64)
    monkeypatch.setattr(_key_set, "_ROWS_AT_ONCE", 16)
    table.append([{"k": n, "v": "base"} for n in range(100, 1100)])
    shard = new_shard()
    add_generation(table, shard, [{"k": n, "v": "log"} for n in range(50, 600, 3)])
    table.compact_lsm()
    rows = rows_of(table)
    assert sum(value == "log" for value in rows.values()) == len(range(50, 600, 3))


@pytest.mark.parametrize("spread", [1, 1 << 40])
@pytest.mark.parametrize(
    ("kind", "least"), [(pa.int64(), -(1 << 62)), (pa.uint64(), 1 << 63), (pa.int8(), -128)]
)
def test_keys_that_are_close_and_keys_that_are_far_apart(
    tmp_path: Path, kind: pa.DataType, least: int, spread: int
) -> None:
    spread = 1 if kind == pa.int8() else spread
    schema = pa.schema([pa.field("k", kind), pa.field("v", pa.string())])
    keys = [least + spread * n for n in range(200)]
    table = make_table(tmp_path / "t", [{"k": key, "v": "base"} for key in keys], schema=schema)
    shard = new_shard()
    add_generation(table, shard, [{"k": key, "v": "log"} for key in keys[10:190:7]])
    done = table.compact_lsm()
    expected = dict.fromkeys(keys, "base") | dict.fromkeys(keys[10:190:7], "log")
    assert rows_of(table) == expected
    assert done.shards[0].replaced == len(keys[10:190:7])


@pytest.mark.requirement("P4")
@pytest.mark.parametrize("step", ["open", "read"])
def test_a_late_merge_whose_files_are_gone_finds_them_merged(
    table: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It was stopped while others merged its SSTables and vacuum took them."""
    shard = new_shard()
    for generation in range(2):
        add_generation(table, shard, [{"k": generation, "v": "new"}])
    late = []

    def meanwhile() -> None:
        late.append(step)
        monkeypatch.undo()
        holdfast.open_table(table.uri).compact_lsm()
        folder = Path(table.uri) / "_mem_wal" / shard
        for generation in folder.glob("*_gen_*"):
            shutil.rmtree(generation)

    if step == "open":
        plain = SstableWriter.open

        def opened(*given: Any) -> Any:
            meanwhile()
            return plain(*given)

        monkeypatch.setattr(SstableWriter, "open", opened)
    else:
        write = _merge_rows.RowChanges.write

        def written(*given: Any) -> Any:
            meanwhile()
            return write(*given)

        monkeypatch.setattr(_merge_rows.RowChanges, "write", written)
    assert table.compact_lsm().rows == 0
    assert late == [step]
    assert {k: v for k, v in rows_of(table).items() if v == "new"} == {0: "new", 1: "new"}
