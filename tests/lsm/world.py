"""Worlds in which flushes, merges, drains, collections, readers and a slow writer meet.

Rows are marks; the table has no key, so a mark that is lost or doubled anywhere shows. The
log, the shard's manifests, `flush_parts`, `merge_shard` with its marker, `drain`, `publish`,
`collect_log`, the choice of SSTables to delete and `take_snapshot` are the production code.
Only Lance is a model: an SSTable is one object that lists marks, a base version is a manifest
whose data files are marks.

What must hold in every state: a fresh reader finds every acknowledged mark exactly once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

import holdfast.commits._versions
import holdfast.shard._publish
import holdfast.shard._tables
import holdfast.upkeep._compact_lsm
import holdfast.upkeep._flush_log
import holdfast.upkeep._vacuum_log
import holdfast.upkeep._waiting
import holdfast.wal._collect
from holdfast.core import TableCore
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.formats import version_name
from holdfast.formats._entry import draft_entry
from holdfast.formats._mem_wal_details import (
    DETAILS_TYPE,
    MEM_WAL_INDEX,
    MemWalDetails,
    encode_details,
    read_details,
)
from holdfast.formats._mem_wal_details import _classes as index_classes
from holdfast.formats._protobuf import FOOTER, LENGTH, MAGIC, message_classes, read_section
from holdfast.formats._shard_manifest import ShardManifest, SsTable, encode_shard_manifest
from holdfast.formats._sstable import sstable_path
from holdfast.formats._wal_names import entry_name, shard_manifest_name
from holdfast.read._snapshot import BaseVersion, take_snapshot
from holdfast.read._source import Shards
from holdfast.shard._config import ShardWriterConfig
from holdfast.testing import (
    CountedIds,
    Scenario,
    SimulatedCommitStore,
    SimulatedStore,
    State,
    StillClock,
    World,
)
from holdfast.upkeep._leftovers import Contents
from holdfast.upkeep._memory import ReadMemory
from holdfast.wal import ShardManifests, WalTailer
from model.commit_scenarios import Maker, conditional, recorded
from model.decide_scenarios import PINNED

SHARD = "00000000-0000-4000-8000-000000000001"
EMPTY = LENGTH.pack(0)
NEW, PUT = "new", "put"
"""The row of an overwrite, and one that is put beside it."""
HONEST = (
    CommitUnknownError,
    ConflictError,
    PermissionDeniedError,
    UnavailableError,
)

_CLASSES = message_classes(
    "lsm.world",
    {
        "DataFile": (("path", 1, "string"),),
        "Fragment": (("id", 1, "uint64"), ("files", 2, "*<DataFile")),
        "Manifest": (
            ("fields", 1, "*<Field"),
            ("fragments", 2, "*<Fragment"),
            ("version", 3, "uint64"),
            ("index_section", 6, "uint64"),
            ("config", 16, "{}"),
            ("transaction_section", 23, "uint64"),
        ),
        "Empty": (),
        "Transaction": (
            ("read_version", 1, "uint64"),
            ("uuid", 2, "string"),
            ("append", 100, "<Empty"),
            ("overwrite", 102, "<Empty"),
        ),
        "Field": (("name", 2, "string"), ("primary_key", 12, "bool")),
    },
)


def overwrite_bytes(version: int, marks: Sequence[str], config: Mapping[str, str]) -> bytes:
    """Return what Lance makes of an overwrite: no index section, so nothing of the log."""
    transaction: Any = _CLASSES["Transaction"]()
    transaction.overwrite.SetInParent()
    said = transaction.SerializeToString(deterministic=True)
    message: Any = _CLASSES["Manifest"]()
    for number, mark in enumerate(marks):
        message.fragments.add(id=number).files.add(path=mark)
    message.version = version
    message.transaction_section = 0
    message.config.update(config)
    body = message.SerializeToString(deterministic=True)
    before = LENGTH.pack(len(said)) + said
    return b"".join((before, LENGTH.pack(len(body)), body, FOOTER.pack(len(before), 0, 2, MAGIC)))


def base_bytes(
    version: int,
    marks: Sequence[str],
    details: MemWalDetails,
    config: Mapping[str, str],
    *,
    appends: bool = False,
) -> bytes:
    """Return a base version whose data files are marks; with a key if it is an append."""
    transaction: Any = _CLASSES["Transaction"]()
    transaction.uuid = "x"
    transaction.read_version = version - 1
    if appends:
        transaction.append.SetInParent()
    said = transaction.SerializeToString(deterministic=True) if appends else b""
    section: Any = index_classes()["IndexSection"]()
    index = section.indices.add(name=MEM_WAL_INDEX)
    index.details.type_url = DETAILS_TYPE
    index.details.value = encode_details(details)
    listed = section.SerializeToString(deterministic=True)
    message: Any = _CLASSES["Manifest"]()
    for number, mark in enumerate(marks):
        message.fragments.add(id=number).files.add(path=mark)
    message.version = version
    message.index_section = 0
    if appends:
        message.fields.add(name="mark", primary_key=True)
        message.transaction_section = LENGTH.size + len(listed)
        listed += LENGTH.pack(len(said)) + said
    message.config.update(config)
    body = message.SerializeToString(deterministic=True)
    size = section.ByteSize()
    start = LENGTH.size + len(listed)
    return b"".join(
        (
            LENGTH.pack(size),
            listed,
            LENGTH.pack(len(body)),
            body,
            FOOTER.pack(start, 0, 2, MAGIC),
        )
    )


def read_marks(body: bytes) -> tuple[list[str], Mapping[str, str]]:
    start = FOOTER.unpack_from(body, len(body) - FOOTER.size)[0]
    message: Any = read_section(body, start, _CLASSES["Manifest"])[0]
    return [file.path for part in message.fragments for file in part.files], dict(message.config)


@functools.cache
def entry_bytes(position: int, mark: str) -> bytes:
    batch = pa.RecordBatch.from_pydict({"mark": [mark], "_tombstone": [False]})
    draft = draft_entry([batch], shard_id=SHARD, epoch=1, writer="w")
    return draft.stamp(position=position, sequence=position, token=f"hf-{position:032x}")


def marks_of(entries: Sequence[Any]) -> list[str]:
    return [mark for one in entries for batch in one.batches for mark in batch["mark"].to_pylist()]


_MARKS = pa.schema([("mark", pa.string()), ("_tombstone", pa.bool_())])
# The base table, the first generation and the limits of a live writer.
_MEMTABLE = (SimpleNamespace(storage_schema=_MARKS, keys=()), 1, ShardWriterConfig().resolve({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The modules under test; a mutant takes the place of one."""

    compact: Any = holdfast.upkeep._compact_lsm
    flush: Any = holdfast.upkeep._flush_log
    vacuum: Any = holdfast.upkeep._vacuum_log
    publish: Any = holdfast.shard._publish
    tables: Any = holdfast.shard._tables
    collect: Any = holdfast.wal._collect
    snapshot: Callable[..., Any] = take_snapshot
    versions: Any = holdfast.commits._versions
    waiting: Any = holdfast.upkeep._waiting
    mark_after: bool = False


class Hands:
    """One process: its ports and what it can do."""

    def __init__(self, setup: Lsm, store: Any, commits: Any, owner: int) -> None:
        self.code = setup.code
        self.store = store
        self.ids = CountedIds(owner)
        self.arbiter = setup.make(store, commits, self.ids)
        self.owner = owner
        self._folders = 0

    @property
    def manifests(self) -> ShardManifests:
        return ShardManifests(self.core, SHARD)

    def write(self, generation: int, marks: Sequence[str]) -> SsTable:
        self._folders += 1
        folder = f"{self.owner:04x}{self._folders:04x}_gen_{generation}"
        self.store.put(f"{sstable_path(SHARD, folder)}/rows", json.dumps(marks).encode())
        return SsTable(generation=generation, path=folder, physical_rows=len(marks))

    def rows(self, table: SsTable) -> list[str]:
        found: list[str] = json.loads(self.store.get(f"{sstable_path(SHARD, table.path)}/rows"))
        return found

    def newest(self) -> tuple[int, bytes]:
        number, newest = 1, self.arbiter.read(version_name(1))
        assert newest is not None
        while (body := self.arbiter.read(version_name(number + 1))) is not None:
            number, newest = number + 1, body
        return number, newest

    def base(self) -> BaseVersion:
        number, body = self.newest()
        details = read_details(body)
        return BaseVersion(
            version=number,
            compacted={} if details is None else details.compacted,
            dataset=read_marks(body)[0],
            has_log=details is not None,
        )

    def flush(self, rows: int = 100) -> None:
        tailer = WalTailer(self.core, SHARD)

        def write(generation: int, part: Any) -> SsTable:
            return self.write(generation, marks_of(part.entries))

        for _ in self.code.flush.flush_parts(self.manifests, tailer, write, rows=rows):
            pass

    def merge(self) -> None:
        self.code.compact.merge_shard(ModelBase(self), self.manifests, SHARD, rows=1)

    def supersede(self, *, fence: bool) -> dict[str, int]:
        """Flush all that waits, as `Keeper` does for a real table."""
        assert not fence, "the columns are the same"
        self.flush()
        current = self.manifests.latest()
        assert current is not None
        return {SHARD: current.current_generation - 1}

    def waiting_shards(self, merged: Mapping[str, int]) -> list[str]:
        current = self.manifests.latest()
        assert current is not None
        tailer = WalTailer(self.core, SHARD)
        waits = any(one.generation > merged.get(SHARD, 0) for one in current.sstables)
        more = next(iter(tailer.entries(after=current.replay_after)), None)
        return [SHARD] if waits or more is not None else []

    def overwrite(self, mark: str) -> None:
        """Replace all rows by one, as Lance does it: on the newest version, or once more."""
        for _ in range(4):
            number, body = self.newest()
            staged = f"{version_name(number + 1).path}-{self.ids.token()}"
            self.store.put(staged, overwrite_bytes(number + 1, [mark], read_marks(body)[1]))
            request = {"version": number + 1, "manifest_path": staged, "naming_scheme": "V2"}
            try:
                self.versions().create(request, synced=True)
            except ConflictError as error:
                if type(error) is not ConflictError:
                    raise
            else:
                return
        raise ConflictError("others were faster each time")

    def append(self, mark: str, after: Mapping[str, int] | None) -> None:
        """Append a row to the base, as Lance does it: on the newest version, or once more."""
        for _ in range(4):
            number, body = self.newest()
            marks, config = read_marks(body)
            details = read_details(body)
            assert details is not None
            staged = f"{version_name(number + 1).path}-{self.ids.token()}"
            made = base_bytes(number + 1, [*marks, mark], details, config, appends=True)
            self.store.put(staged, made)
            request = {"version": number + 1, "manifest_path": staged, "naming_scheme": "V2"}
            try:
                self.versions().create(request, synced=True, after=after)
            except ConflictError as error:
                if type(error) is not ConflictError:
                    raise
            else:
                return
        raise ConflictError("others were faster each time")

    @property
    def core(self) -> TableCore:
        return TableCore(self.store, self.arbiter, "", clock=StillClock(), ids=self.ids)

    def versions(self) -> Any:
        return self.code.versions.Versions(self.core, keeper=self)

    def put(self, position: int, mark: str) -> None:
        """Append one entry, as the owner of the log."""
        token = f"hf-{position:032x}"
        self.arbiter.decide(entry_name(SHARD, position), entry_bytes(position, mark), token)

    def publish(self, *tables: Sequence[int]) -> None:
        """Publish MemTables of these entries, as a writer that replayed the log long ago."""
        manifests, held = self.manifests, self.code.tables.Tables(*_MEMTABLE, StillClock())
        frozen = []
        for positions in tables:
            for position in positions:
                batch = pa.RecordBatch.from_pydict(
                    {"mark": ["abcdef"[position - 1]], "_tombstone": [False]}
                )
                held.add([batch], position, 1)
            frozen.append(held.freeze())

        def write(table: Any) -> SsTable:
            return self.write(table.generation, table.newest_rows()["mark"].to_pylist())

        for oldest in frozen:
            self.code.publish.publish_oldest(held, oldest, manifests, 1, write)

    def vacuum(self) -> None:
        self.code.collect.collect_log(self.core, SHARD, confirm=True)
        objects = {info.path: info for info in self.store.list("_mem_wal")}
        contents = Contents(
            core=self.core,
            records=None,
            now=0.0,
            grace=timedelta(seconds=-1),
            memory=ReadMemory(None, 0.0),
            objects=objects,
        )
        found = [info.path for info, _ in self.code.vacuum.find_sstables(contents)]
        if found:
            self.code.vacuum.take_sstables(contents, found)

    def read(self) -> list[str]:
        """Return all rows, as a reader that tries again when files vanish."""
        for _ in range(4):
            taken = self.code.snapshot(Shards(self.core, self.base))
            found = list(taken.base.dataset)
            try:
                for shard in taken.shards:
                    found += [mark for one in shard.sstables for mark in self.rows(one)]
                    found += marks_of(shard.entries)
            except NotFoundError:
                continue
            return found
        raise ConflictError("files vanished each time")


class ModelBase:
    """The base table, Lance being a model; its marker is the production edit."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    def merged_generation(self, shard_id: str) -> int:
        return self._hands.base().compacted.get(shard_id, 0)

    def begin(self, shard_id: str, sstables: Sequence[SsTable]) -> ModelPass | None:
        hands = self._hands
        number, body = hands.newest()
        details = read_details(body)
        assert details is not None
        if details.compacted.get(shard_id, 0) + 1 != sstables[0].generation:
            return None
        try:
            new = [mark for one in sstables for mark in hands.rows(one)]
        except NotFoundError:
            return None
        return ModelPass(hands, number, body, new, sstables)


class ModelPass:
    def __init__(
        self,
        hands: Hands,
        number: int,
        body: bytes,
        new: Sequence[str],
        sstables: Sequence[SsTable],
    ) -> None:
        self._hands = hands
        self._number = number
        self._body = body
        self._new = new
        self._sstables = sstables

    def commit(self) -> tuple[int, int] | None:
        hands = self._hands
        edit = hands.code.compact.only_after(self._number, SHARD, self._sstables)
        if hands.code.mark_after:
            self._create(self._number + 1, self._body, self._new, None)
            later = hands.arbiter.read(version_name(self._number + 1))
            edit = hands.code.compact.only_after(self._number + 1, SHARD, self._sstables)
            self._create(self._number + 2, later, (), edit)
        else:
            self._create(self._number + 1, self._body, self._new, edit)
        return len(self._new), 0

    def _create(self, version: int, below: bytes | None, new: Sequence[str], edit: Any) -> None:
        hands = self._hands
        assert below is not None
        marks, config = read_marks(below)
        details = read_details(below)
        assert details is not None
        staged = f"{version_name(version).path}-{hands.ids.token()}"
        hands.store.put(staged, base_bytes(version, [*marks, *new], details, config))
        request = {"version": version, "manifest_path": staged, "naming_scheme": "V2"}
        hands.versions().create(request, synced=True, edit=edit, after={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lsm:
    """One row of the table of scenarios."""

    name: str
    actors: Mapping[str, Callable[[Hands, World], None]]
    make: Maker = conditional
    honest: bool = True
    log: Sequence[str] = ("a", "b")
    flushed: Sequence[Sequence[str]] = ()
    faults: int = 0
    crashes: int = 0
    preemptions: int | None = 2
    code: Code = field(default_factory=Code)

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    @property
    def marks(self) -> list[str]:
        return sorted([*(mark for one in self.flushed for mark in one), *self.log])

    def build(self) -> World:
        world = World(
            honest=self.honest,
            faults=self.faults,
            crashes=self.crashes,
            preemptions=self.preemptions,
            objects=PINNED,
        )
        self._create(world.state)
        for number, (name, act) in enumerate(self.actors.items(), 1):
            hands = Hands(self, world.store(), world.commit_store(), number)
            world.add(name, functools.partial(act, hands, world))
        return world

    def _create(self, state: State) -> None:
        """Decide base version 1, the shard's manifest and its log before anybody moves."""
        hands = Hands(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 77)
        token = hands.ids.token()
        made = {"holdfast.token": token, "holdfast.version": "1"}
        body = base_bytes(1, (), MemWalDetails(), made)
        hands.arbiter.decide(version_name(1), body, token)
        gone = len(self.flushed)
        tables = tuple(hands.write(n, marks) for n, marks in enumerate(self.flushed, 1))
        manifest = ShardManifest(
            shard_id=SHARD,
            version=1,
            writer_epoch=1,
            replay_after=gone,
            current_generation=gone + 1,
            sstables=tables,
            token=(token := hands.ids.token()),
        )
        hands.arbiter.decide(shard_manifest_name(SHARD, 1), encode_shard_manifest(manifest), token)
        every = [*(one[0] for one in self.flushed), *self.log]
        for position, mark in enumerate(every, 1):
            token = f"hf-{position:032x}"
            hands.arbiter.decide(entry_name(SHARD, position), entry_bytes(position, mark), token)

    def check_appended(self, world: World, state: State) -> str | None:
        """A row of the base lies upon everything that waited when its append began."""
        for actor in world.actors:
            if actor.error and not isinstance(actor.error, HONEST):
                return f"STOPPED: {actor.name}: {type(actor.error).__name__}: {actor.error}"
        hands = Hands(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 99)
        told = [kind for kind, _ in world.acknowledged]
        versions = [hands.arbiter.read(version_name(n)) for n in range(1, hands.newest()[0] + 1)]
        found = [read_marks(body)[0] for body in versions if body is not None]
        first = next((marks for marks in found if NEW in marks), None)
        if first is None:
            return "LOST: the append" if "append" in told else None
        older = first[: first.index(NEW)]
        if not set(self.marks) <= set(older):
            return f"UNDONE: {NEW} lies upon {older}; older rows are merged after it"
        try:
            seen = sorted(hands.read())
        except HoldfastError as error:
            return f"unreadable: {type(error).__name__}: {error}"
        expected = sorted([*self.marks, NEW, *([PUT] if PUT in seen else [])])
        if "put" in told and PUT not in seen:
            return f"LOST: {seen}"
        return None if seen == expected else f"WRONG: {seen}"

    def check_replaced(self, world: World, state: State) -> str | None:
        """What waited is gone once an overwrite was acknowledged; what came behind it stays."""
        for actor in world.actors:
            if actor.error and not isinstance(actor.error, HONEST):
                return f"STOPPED: {actor.name}: {type(actor.error).__name__}: {actor.error}"
        told = [kind for kind, _ in world.acknowledged]
        hands = Hands(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 99)
        try:
            seen = sorted(hands.read())
        except HoldfastError as error:
            return f"unreadable: {type(error).__name__}: {error}"
        told_of: list[Any] = [found for kind, found in world.acknowledged if kind == "read"]
        for found in [seen, *(sorted(one) for one in told_of)]:
            rows = [mark for mark in found if mark != PUT]
            if rows not in (self.marks, [NEW]) or found.count(PUT) > 1:
                return f"WRONG: {found}"
        if "overwrite" in told and NEW not in seen:
            return f"UNDONE: {seen}"
        if "put" in told and PUT not in seen:
            began = told.index("begin")
            behind = "overwrite" in told and told.index("overwrite") < began
            return f"LOST: {seen}" if behind or NEW not in seen else None
        return None

    def check(self, world: World, state: State) -> str | None:
        if "a" in self.actors:
            return self.check_appended(world, state)
        if "o" in self.actors:
            return self.check_replaced(world, state)
        for actor in world.actors:
            if actor.error and not isinstance(actor.error, HONEST):
                return f"STOPPED: {actor.name}: {type(actor.error).__name__}: {actor.error}"
        for kind, found in world.acknowledged:
            if kind == "read" and found != tuple(self.marks):
                return f"READ {found} instead of {self.marks}"
        hands = Hands(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 99)
        try:
            seen = sorted(hands.read())
        except HoldfastError as error:
            return f"unreadable: {type(error).__name__}: {error}"
        return None if seen == self.marks else f"WRONG: {seen} instead of {self.marks}"


def overwrite(hands: Hands, world: World) -> None:
    hands.overwrite(NEW)
    world.acknowledge("overwrite", (NEW,))


class AllShards:
    """The one shard, for the production code that merges all that waits."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    def shard_ids(self) -> Sequence[str]:
        return [SHARD]

    def flush(self, _shard_id: str) -> int:
        return self._hands.supersede(fence=False)[SHARD]

    def merged_generations(self) -> Mapping[str, int]:
        return self._hands.base().compacted

    def merge(self, _shard_ids: Sequence[str]) -> None:
        self._hands.merge()


def append(hands: Hands, world: World) -> None:
    """Append to the base what waited before was merged."""
    hands.append(NEW, hands.code.waiting.merge_all(AllShards(hands)))
    world.acknowledge("append", (NEW,))


def hasty_append(hands: Hands, world: World) -> None:
    """The same by somebody who merges nothing."""
    hands.append(NEW, None)
    world.acknowledge("append", (NEW,))


def put(hands: Hands, world: World) -> None:
    """The owner of the log appends one more entry."""
    world.acknowledge("begin", (PUT,))
    hands.put(3, PUT)
    world.acknowledge("put", (PUT,))


def flush(hands: Hands, _world: World) -> None:
    hands.flush()


def flush_singly(hands: Hands, _world: World) -> None:
    hands.flush(rows=1)


def flush_in_pairs(hands: Hands, _world: World) -> None:
    hands.flush(rows=2)


def merge(hands: Hands, _world: World) -> None:
    hands.merge()


def flush_and_merge(hands: Hands, _world: World) -> None:
    hands.flush()
    hands.merge()


def vacuum(hands: Hands, _world: World) -> None:
    hands.vacuum()


def read(hands: Hands, world: World) -> None:
    world.acknowledge("read", tuple(sorted(hands.read())))


def zombie(hands: Hands, _world: World) -> None:
    """A live writer of the same epoch: two MemTables, of the entries a and b, and of c."""
    hands.publish((1, 2), (3,))


def long_zombie(hands: Hands, _world: World) -> None:
    """The same with more in the second MemTable: of the entries a, and of b, c and d."""
    hands.publish((1,), (2, 3, 4))


__all__ = ["Code", "Lsm", "conditional", "recorded"]
