"""Files that go while they are read, snapshots that keep them, and readers that only read."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from holdfast.errors import (
    CorruptError,
    LogLostError,
    NotFoundError,
    SnapshotExpiredError,
    UnavailableError,
    WalGapError,
)
from holdfast.formats import version_name
from holdfast.formats._snapshot import (
    SNAPSHOT_PINS_FOLDER,
    decode_snapshot,
    encode_snapshot,
    snapshot_pin_path,
)
from holdfast.formats._sstable import sstable_path
from holdfast.formats._wal_names import entry_name, log_folder
from holdfast.read._pins import read_pins
from holdfast.read._reader import Reader
from holdfast.read._snapshot import TRIES
from read.lake import Lake, in_order, row


def two_levels(lake: Lake) -> str:
    (shard,) = lake.shards
    lake.append([row(n, 0) for n in range(4)])
    lake.put([row(1, 1), row(5, 1)])
    lake.flush(shard)
    lake.put([row(2, 2)])
    return shard


def move_on(lake: Lake, shard: str) -> None:
    """Flush, merge, drain and collect everything, without any grace."""
    lake.flush(shard)
    newest = lake.manifest(shard).current_generation - 1
    for one in lake.manifest(shard).sstables:
        lake.merge(shard, one.generation)
    lake.collect(shard, lake.drain(shard, newest))


class Interrupted(Reader):
    """A reader to whom something happens between taking a snapshot and reading it."""

    def __init__(self, lake: Lake, happens: Callable[[], None], times: int = 1) -> None:
        super().__init__(lake.table.versions)
        self._happens = happens
        self._left = times
        self.taken = 0

    def view(self, snapshot: Any) -> Any:
        self.taken += 1
        if self._left:
            self._left -= 1
            self._happens()
        return super().view(snapshot)


@pytest.mark.requirement("L12")
@pytest.mark.parametrize("verb", ["to_table", "scan", "count", "lookup"])
def test_a_reader_begins_anew_when_files_vanish(tmp_path: Path, verb: str) -> None:
    lake = Lake(tmp_path)
    shard = two_levels(lake)
    reader = Interrupted(lake, lambda: move_on(lake, shard))
    wanted = in_order(lake.wanted())
    if verb == "count":
        assert reader.of_view("latest", lambda view: view.count()) == len(wanted)
    elif verb == "lookup":
        from holdfast.read._lookup import lookup

        found = reader.of_view("latest", lambda view: lookup(view, [1, 5, 2, 3], None))
        assert found.to_pylist() == [lake.model[key] for key in (1, 5, 2, 3)]
    else:
        found = reader.to_table() if verb == "to_table" else reader.scan().read_all()
        assert in_order(found.to_pylist()) == wanted
    assert reader.taken == 2


def test_a_stream_that_began_fails_rather_than_ends_early(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    (shard,) = lake.shards
    for _ in range(3):
        lake.put([row(n, 1, "x" * 1000) for n in range(500)])
        lake.flush(shard)
        lake.append([row(1_000, 1)])
    snapshot = lake.table.snapshot()
    view = snapshot._view
    assert len(view.overlay.levels) == 3
    stream = view.batches()
    next(stream)
    for fragment in view.base.get_fragments():
        for file in fragment.data_files():
            Path(lake.table.uri, "data", file.path).unlink()
    with pytest.raises(NotFoundError):
        list(stream)
    reader = lake.table.snapshot().scan
    with pytest.raises(SnapshotExpiredError, match="collected"):
        reader().read_all()


def test_a_file_that_the_table_still_names_is_no_matter_of_trying_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    shard = two_levels(lake)
    (one,) = lake.manifest(shard).sstables
    for info in lake.table.core.store.list(f"{sstable_path(shard, one.path)}/data"):
        lake.table.core.store.delete([info.path])
    with pytest.raises(CorruptError, match="that the table names is gone"):
        lake.table.to_table()
    assert lake.table.count(freshness="base") == 4


def test_readers_give_up_on_a_table_that_never_stands_still(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    shard = two_levels(lake)

    class Restless(Interrupted):
        def take(self, freshness: Any = "latest") -> Any:
            lake.put([row(7, 7)])
            lake.flush(shard)
            return super().take(freshness)

    reader = Restless(lake, lambda: move_on(lake, shard), times=100)
    with pytest.raises(SnapshotExpiredError, match="collected each time"):
        reader.to_table()
    assert reader.taken == TRIES


def test_a_hole_in_the_log_is_an_error(tmp_path: Path) -> None:
    """Hazard B4: stock silently ignores what comes after a hole."""
    lake = Lake(tmp_path)
    (shard,) = lake.shards
    for number in range(4):
        lake.put([row(number, number)])
    last = max(int(p.stem[::-1], 2) for p in Path(lake.table.uri, log_folder(shard)).iterdir())
    lake.table.core.store.delete([entry_name(shard, last - 1).path])
    with pytest.raises(WalGapError, match="missing"):
        lake.table.count()
    assert lake.table.count(freshness="flushed") == 0


def test_a_torn_entry_is_an_error(tmp_path: Path) -> None:
    """Hazard B5: stock reads what is left of it."""
    lake = Lake(tmp_path)
    (shard,) = lake.shards
    lake.put([row(n, n) for n in range(100)])
    (path,) = [
        info.path for info in lake.table.core.store.list(log_folder(shard)) if info.size > 2_000
    ]
    body = lake.table.core.store.get(path)
    Path(lake.table.uri, path).write_bytes(body[:-8])
    with pytest.raises(CorruptError):
        lake.table.to_table()


def test_a_left_over_file_is_no_entry(tmp_path: Path) -> None:
    """Hazard B3: stock takes a temporary file for an entry."""
    lake = Lake(tmp_path)
    (shard,) = lake.shards
    lake.put([row(1, 1)])
    Path(lake.table.uri, entry_name(shard, 9).path + ".tmp.0123").write_bytes(b"half")
    assert lake.table.count() == 1


def test_a_base_that_was_restored_behind_its_shards_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    shard = two_levels(lake)
    before = lake.table.dataset().version
    move_on(lake, shard)
    assert in_order(lake.rows()) == in_order(lake.wanted())
    lance.dataset(lake.table.uri, version=before).restore()  # type: ignore[no-untyped-call]
    with pytest.raises(LogLostError, match="restored"):
        lake.table.to_table()
    assert lake.table.count(freshness="base") == 4


@pytest.mark.requirement("W13")
def test_a_merged_sstable_no_longer_hides_the_base(tmp_path: Path) -> None:
    """Hazard B1: stock returns the old value."""
    lake = Lake(tmp_path)
    (shard,) = lake.shards
    lake.append([row(1, 0)])
    lake.put([row(1, 1)])
    lake.flush(shard)
    lake.merge(shard, 1)
    fresh = pa.Table.from_pylist([row(1, 2)], schema=lake.table.schema)
    merge = lake.table.dataset().merge_insert(["k"]).when_matched_update_all()
    merge.execute(fresh)
    assert lake.rows(columns=["v"]) == [{"v": 2}]
    assert lake.table.lookup([1], ["v"]).to_pylist() == [{"v": 2}]
    assert [found["v"] for found in lake.stock_rows()] == [1]  # the day this fails, be glad
    lake.drain(shard, 1)
    assert lake.rows(columns=["v"]) == [{"v": 2}]


def test_columns_are_paired_by_id(tmp_path: Path) -> None:
    """Hazard B9: by name or place alone, a dropped column shifts its neighbours."""
    schema = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
    lake = Lake(tmp_path, schema)
    (shard,) = lake.shards
    lake.append([{"k": 1, "a": 10, "b": 11, "c": 12}])
    lake.put([{"k": 2, "a": 20, "b": 21, "c": 22}])
    lake.flush(shard)
    lake.put([{"k": 3, "a": 30, "b": 31, "c": 32}])
    lake.table.dataset().drop_columns(["a"])
    renamed: Any = {"path": "b", "name": "bee"}
    lake.table.dataset().alter_columns(renamed)
    lake.table.dataset().add_columns(pa.schema([("a", pa.int64())]))
    wanted = {1: (11, 12, None), 2: (21, 22, None), 3: (31, 32, None)}
    found = {part["k"]: (part["bee"], part["c"], part["a"]) for part in lake.rows()}
    assert found == wanted
    assert lake.rows(filter="bee = 21", columns=["k"]) == [{"k": 2}]
    assert lake.table.lookup([2, 3], ["bee", "a"]).to_pylist() == [
        {"bee": 21, "a": None},
        {"bee": 31, "a": None},
    ]
    lake.put([{"k": 2, "bee": 41, "c": 42, "a": 43}])
    assert lake.rows(filter="k = 2") == [{"k": 2, "bee": 41, "c": 42, "a": 43}]


class Watched:
    """A store that notes every call that changes something."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in {"put", "put_if_absent", "copy", "delete", "sync"}:
            self.calls.append(name)
        return getattr(self._store, name)


@pytest.mark.requirement("L6")
def test_readers_never_write_and_never_fence(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    shard = two_levels(lake)
    watched: Any = Watched(lake.table.core.store)
    lake.table.core.arbiter._store = watched  # type: ignore[attr-defined]
    lake.table.core.store = watched
    before = sorted(info.path for info in watched.list(""))
    epoch = lake.manifest(shard).writer_epoch
    lake.table.to_table()
    lake.table.scan(filter="v > 0").read_all()
    lake.table.count()
    lake.table.lookup([1, 2, 3])
    with lake.table.snapshot() as snapshot:
        snapshot.to_table()
    assert watched.calls == []
    assert sorted(info.path for info in watched.list("")) == before
    assert lake.manifest(shard).writer_epoch == epoch
    lake.put([row(9, 9)])  # the writer from before goes on


def test_a_pin_names_what_the_snapshot_needs_until_it_is_released(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    shard = two_levels(lake)
    store = lake.table.core.store
    with lake.table.snapshot(pinned=True) as snapshot:
        assert snapshot.pinned
        (info,) = store.list(SNAPSHOT_PINS_FOLDER)
        (pin,) = read_pins(store, info.modified)
        assert pin.record == snapshot.record
        (needed,) = snapshot.record.shards
        assert needed.shard_id == shard and needed.last_position > needed.replay_after
        assert [folder for _, folder in needed.sstables] == [
            one.path for one in lake.manifest(shard).sstables
        ]
        assert snapshot.version == lake.table.dataset().version
        assert read_pins(store, info.modified + 100, timedelta(seconds=50)) == []
        lake.put([row(1, 99)])
        lake.flush(shard)
        assert {part["k"]: part["v"] for part in snapshot.to_table().to_pylist()}[1] == 1
        assert snapshot.count() == 5 and snapshot.lookup([1], ["v"]).to_pylist() == [{"v": 1}]
    assert store.list(SNAPSHOT_PINS_FOLDER) == []
    snapshot.close()


def test_a_pin_is_put_before_its_snapshot_is_taken(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    two_levels(lake)
    store = lake.table.core.store
    seen: list[Any] = []

    class Looking(Reader):
        def take(self, freshness: Any = "latest") -> Any:
            seen.extend(
                decode_snapshot(store.get(info.path)) for info in store.list(SNAPSHOT_PINS_FOLDER)
            )
            return super().take(freshness)

    table = lake.table
    reader = Looking(table.versions)
    reader.snapshot(pinned=True).close()
    assert seen == [None]  # "being taken": nothing may be deleted

    class Failing(Reader):
        def take(self, freshness: Any = "latest") -> Any:
            raise UnavailableError("no answer")

    with pytest.raises(UnavailableError):
        Failing(table.versions).snapshot(pinned=True)
    assert store.list(SNAPSHOT_PINS_FOLDER) == []


def test_a_pin_that_cannot_be_read_keeps_everything(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    store = lake.table.core.store
    path = snapshot_pin_path("hf-" + "0" * 32)
    for body in (b"", b"{}", b"[]", json.dumps({"format": 9, "snapshot": None}).encode()):
        store.put(path, body)
        assert [pin.record for pin in read_pins(store, 0.0)] == [None]  # keep everything
    store.put(path, encode_snapshot(None))
    assert [pin.record for pin in read_pins(store, 0.0)] == [None]


def test_stock_reads_the_base_that_we_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    shard = two_levels(lake)
    move_on(lake, shard)
    stock = lance.dataset(lake.table.uri).to_table().to_pylist()
    assert in_order(stock) == in_order(lake.rows()) == in_order(lake.wanted())
    assert lake.table.core.store.get(version_name(lake.table.dataset().version).path)
