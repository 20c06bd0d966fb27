"""Readers beside a writer, a flush, a merge, a drain and a collector, as explorable worlds.

Log, manifests and the snapshot are production code. Rows of SSTables and of the base are small
JSON objects, read as a `View` reads files: one that is gone is a `NotFoundError`.

Write number n sets key `a` to n and adds key `w<n>`. So whoever reads `a` = n must find
`w1` to `w<n>`, no more and no fewer: a prefix of the log. After a merge, somebody changes `w1` in
the base directly: an SSTable that is merged must not hide that.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import holdfast.read._pins as production_pins
import holdfast.read._snapshot as production
from holdfast.arbiter import ConditionalPut, Verdict
from holdfast.core import TableCore
from holdfast.errors import SnapshotExpiredError
from holdfast.formats import version_name, version_of
from holdfast.formats._shard_manifest import ShardManifest, SsTable
from holdfast.formats._sstable import sstable_path
from holdfast.formats._wal_names import entry_name
from holdfast.read._source import Shards
from holdfast.storage import ObjectStore
from holdfast.testing import (
    CountedIds,
    Scenario,
    SimulatedStore,
    State,
    StillClock,
    World,
)
from holdfast.wal._appender import WalAppender
from holdfast.wal._log import Log
from holdfast.wal._manifests import ShardManifests

SHARD = str(uuid.UUID(int=7))
ACKED = "test/acked"
CHANGED = "test/changed"
NEW = 1000
Rows = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One world.

    Attributes:
        name: for reports.
        snapshot: the module whose snapshot is explored.
        flushed: how many writes are in SSTables at the start.
        logged: how many more are in the log.
        writes: how many more are written meanwhile.
        rounds: how often upkeep flushes, merges, drains and collects.
        merges: whether upkeep merges; otherwise it flushes and collects the log.
        changes: whether somebody changes the base after a merge.
        readers: how many read.
    """

    name: str
    snapshot: Any = production
    flushed: int = 0
    logged: int = 1
    writes: int = 0
    rounds: int = 1
    merges: bool = True
    changes: bool = True
    readers: int = 1
    preemptions: int | None = None

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=check)

    def build(self) -> World:
        world = World(preemptions=self.preemptions)
        port = Port(SimulatedStore(world.state.apply))
        begin = Steps(port, CountedIds(50))
        begin.put_base({}, 0)
        begin.claim()
        for _ in range(self.flushed):
            begin.write()
            begin.flush()
        for _ in range(self.logged):
            begin.write()
        if self.writes:
            port.target = world.store()
            world.add("writer", lambda: self._write(begin))
        world.add("upkeep", lambda: self._keep(world))
        for number in range(self.readers):
            world.add(f"reader{number}", lambda: self._read(world))
        return world

    def _write(self, writer: Steps) -> None:
        for _ in range(self.writes):
            writer.write()

    def _keep(self, world: World) -> None:
        steps = Steps(world.store(), CountedIds(60))
        for _ in range(self.rounds):
            steps.flush()
            if not self.merges:
                steps.collect(())
                continue
            merged = steps.merge()
            if self.changes:
                steps.change_base()
            folders = steps.drain(merged)
            steps.collect(folders)

    def _read(self, world: World) -> None:
        store = world.store()
        floor = int(json.loads(store.get(ACKED)))
        changed = bool(json.loads(store.get(CHANGED)))
        steps = Steps(store, CountedIds(90))
        snapshot = self.snapshot
        source = Shards(TableCore(store, steps.arbiter), lambda: _base(store, snapshot))
        try:
            rows = snapshot.with_snapshot(
                lambda: snapshot.take_snapshot(source), lambda found: _rows(store, found)
            )
        except (SnapshotExpiredError, snapshot.SnapshotExpiredError):
            return
        world.acknowledge("read", floor, changed, tuple(sorted(rows.items())))


@dataclass(frozen=True, kw_only=True)
class Pinned(Setup):
    """Readers that pin their snapshot: a file of it is never gone, at the first try.

    Attributes:
        pins: the module whose pins are explored.
        pins_first: whether the collector reads pins before it knows what is garbage.
    """

    pins: Any = production_pins
    pins_first: bool = False

    def _keep(self, world: World) -> None:
        steps = Steps(world.store(), CountedIds(60))
        for _ in range(self.rounds):
            steps.flush()
            early = steps.pins() if self.pins_first else None
            folders = steps.drain(steps.merge())
            steps.collect_unpinned(folders, early)

    def _read(self, world: World) -> None:
        store = world.store()
        steps = Steps(store, CountedIds(90))
        source = Shards(TableCore(store, steps.arbiter), lambda: _base(store, self.snapshot))
        token = steps.ids.token()
        taken = self.pins.take_pinned(store, token, lambda: self.snapshot.take_snapshot(source))
        rows = _rows(store, taken)
        world.acknowledge("read", 0, False, tuple(sorted(rows.items())))
        production_pins.release(store, token)


class Port:
    """A store that leads into the explored world once the beginning is made."""

    def __init__(self, target: SimulatedStore) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


class Steps:
    """What writers and upkeep do, over production code where there is some."""

    def __init__(self, store: Any, ids: CountedIds) -> None:
        self.store: ObjectStore = store
        self.ids = ids
        self.arbiter = ConditionalPut(self.store, Verdict.ENFORCED, clock=StillClock(), ids=ids)
        self.appender: WalAppender | None = None
        self.count = 0

    def claim(self) -> None:
        self.appender = WalAppender.claim(
            TableCore(self.store, self.arbiter, clock=StillClock(), ids=self.ids), SHARD
        )
        self.store.put(ACKED, b"0")
        self.store.put(CHANGED, b"false")

    def write(self) -> None:
        assert self.appender is not None
        self.count += 1
        rows = {"k": ["a", f"w{self.count}"], "v": [self.count, self.count]}
        self.appender.append([pa.RecordBatch.from_pydict(rows)])
        self.store.put(ACKED, str(self.count).encode())

    def manifests(self) -> ShardManifests:
        return ShardManifests(TableCore(self.store, self.arbiter, ids=self.ids), SHARD)

    def flush(self) -> None:
        manifests = self.manifests()
        current = manifests.latest()
        assert current is not None
        log = Log(TableCore(self.store, self.arbiter), SHARD)
        last = max(log.list_entries(), default=0)
        if last <= current.replay_after:
            return
        rows: Rows = {}
        for entry in log.entries(current.replay_after, last):
            rows.update(_entry_rows(entry))
        generation = current.current_generation
        folder = f"{self.ids.token()[-8:]}_gen_{generation}"
        self.store.put(_data(folder), json.dumps(rows).encode())

        def publish(found: ShardManifest) -> ShardManifest:
            return replace(
                found,
                sstables=(*found.sstables, SsTable(generation=generation, path=folder)),
                current_generation=generation + 1,
                replay_after=last,
            )

        manifests.update(current.writer_epoch, publish)

    def merge(self) -> int:
        current = self.manifests().latest()
        assert current is not None
        _, rows, merged = read_base(self.store)
        for one in current.sstables:
            if one.generation > merged:
                rows.update(json.loads(self.store.get(_data(one.path))))
                merged = one.generation
                self.put_base(rows, merged)
        return merged

    def change_base(self) -> None:
        _, rows, merged = read_base(self.store)
        if "w1" in rows:
            self.put_base({**rows, "w1": NEW}, merged)
            self.store.put(CHANGED, b"true")

    def put_base(self, rows: Rows, merged: int) -> None:
        version = _newest(self.store) + 1
        body = json.dumps({"rows": rows, "merged": merged}).encode()
        self.store.put_if_absent(version_name(version).path, body)

    def drain(self, through: int) -> Sequence[str]:
        manifests = self.manifests()
        current = manifests.latest()
        assert current is not None

        def change(found: ShardManifest) -> ShardManifest:
            left = tuple(one for one in found.sstables if one.generation > through)
            return replace(found, sstables=left)

        manifests.update(current.writer_epoch, change)
        return [one.path for one in current.sstables if one.generation <= through]

    def collect(self, folders: Sequence[str]) -> None:
        current = self.manifests().latest()
        assert current is not None
        flushed = [entry_name(SHARD, n).path for n in range(1, current.replay_after + 1)]
        self.store.delete([*flushed, *map(_data, folders)])

    def pins(self) -> list[Any]:
        return list(production_pins.read_pins(self.store, 0.0))

    def collect_unpinned(self, folders: Sequence[str], early: list[Any] | None) -> None:
        """Delete drained SSTables that no pin needs; what is garbage is known by now."""
        pins = self.pins() if early is None else early
        if any(pin.record is None for pin in pins):
            return
        kept = {
            folder for pin in pins for shard in pin.record.shards for _, folder in shard.sstables
        }
        self.store.delete([_data(folder) for folder in folders if folder not in kept])


def check(world: World, _state: State) -> str | None:
    for actor in world.actors:
        if actor.error is not None:
            return f"STOPPED: {actor.name}: {actor.error}"
    for _, floor, changed, items in world.acknowledged:
        rows: Rows = dict(items)  # type: ignore[call-overload]
        newest = rows.get("a", 0)
        writes = {key for key in rows if key != "a"}
        if newest < int(str(floor)):
            return f"LOST: read {newest}, acknowledged {floor}"
        if writes != {f"w{number}" for number in range(1, newest + 1)}:
            return f"TORN: read {rows}"
        if changed and rows["w1"] != NEW:
            return f"STALE: read {rows} after the base was changed"
    return None


def _entry_rows(entry: Any) -> Rows:
    rows: Rows = {}
    for batch in entry.batches:
        rows.update(zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True))
    return rows


def _rows(store: ObjectStore, snapshot: Any) -> Rows:
    """Read a snapshot's rows from the base up."""
    rows: Rows = dict(snapshot.base.dataset)
    for shard in snapshot.shards:
        for one in reversed(shard.sstables):
            rows.update(json.loads(store.get(_data(one.path))))
        for entry in shard.entries:
            rows.update(_entry_rows(entry))
    return rows


def _base(store: ObjectStore, module: Any) -> Any:
    version, rows, merged = read_base(store)
    return module.BaseVersion(version=version, compacted={SHARD: merged}, dataset=rows)


def read_base(store: ObjectStore) -> tuple[int, Rows, int]:
    version = _newest(store)
    found = json.loads(store.get(version_name(version).path))
    return version, found["rows"], found["merged"]


def _newest(store: ObjectStore) -> int:
    found = [version_of(info.path) for info in store.list("_versions")]
    return max((number for number in found if number is not None), default=0)


def _data(folder: str) -> str:
    return f"{sstable_path(SHARD, folder)}/data"


# What the default test run leaves out: more preemptions, more writes, more rounds.
DEEPER = [
    Setup(name="read: every schedule", flushed=1, logged=1),
    Setup(name="read: beside a writer", flushed=1, writes=2, rounds=2, preemptions=3),
    Setup(name="read: two readers", readers=2, rounds=2, preemptions=2),
    Pinned(name="read: a pinned reader", flushed=1, changes=False),
]

__all__ = ["DEEPER", "Pinned", "Setup", "check"]
