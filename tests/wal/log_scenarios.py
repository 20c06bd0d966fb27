"""Worlds in which writers claim one shard from each other, append, flush and collect.

The appender, the manifests, the tailer, the collection and both arbiters are the production
code. A MemTable is a list of marks, an SSTable is a list of marks in its name. What must hold in
every state, if everybody died now and a fresh writer opened the shard:

- it opens without an error;
- SSTables and replay together hold every acknowledged mark, once, and each writer's in order;
- whatever a reader was shown is still there, in the same order;
- nobody was told of a newer owner that there is not.

Clocks lie in these worlds: every manifest but the newest counts as old enough to be collected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import pyarrow as pa

from holdfast._ids import Ids
from holdfast.arbiter import Arbiter
from holdfast.core import TableCore
from holdfast.errors import (
    CollectedError,
    CommitUnknownError,
    ConflictError,
    FencedError,
    HoldfastError,
    PermissionDeniedError,
    PoisonedError,
    UnavailableError,
)
from holdfast.formats import _entry
from holdfast.formats._entry import Entry
from holdfast.read._snapshot import BaseVersion, take_snapshot
from holdfast.read._source import Shards
from holdfast.testing import (
    CountedIds,
    Outcome,
    Scenario,
    SimulatedCommitStore,
    SimulatedStore,
    State,
    StillClock,
    World,
    mutate,
)
from holdfast.testing._world import FAULTS
from holdfast.upkeep._flush_log import FlushPart, flush_parts
from holdfast.wal import ShardManifest, SsTable
from model.decide_scenarios import PINNED, conditional, inline, staged

SHARD = "11111111-2222-4333-8444-555555555555"
MODULES = ("_boundary", "_manifests", "_log", "_appender", "_tailer", "_collect")
HONEST_ANSWERS = (
    CommitUnknownError,
    ConflictError,
    FencedError,
    PermissionDeniedError,
    PoisonedError,
    UnavailableError,
)
Replacements = dict[str, Sequence[tuple[str, str]]]


# Pure functions of bytes, called again and again for the same bytes.
_decode = functools.lru_cache(maxsize=65536)(_entry.decode_entry)


@functools.lru_cache(maxsize=4096)
def _fence(shard_id: str, epoch: int, writer: str) -> _Draft:
    return _Draft(_entry.draft_fence(shard_id=shard_id, epoch=epoch, writer=writer))


@functools.lru_cache(maxsize=4096)
def _rows(mark: str, epoch: int, writer: str) -> _Draft:
    batch = pa.record_batch({"mark": [mark]})
    return _Draft(_entry.draft_entry([batch], shard_id=SHARD, epoch=epoch, writer=writer))


class _Draft:
    """An `EntryDraft` that remembers what it was stamped with."""

    def __init__(self, draft: _entry.EntryDraft) -> None:
        self._draft = draft
        self.stamp = functools.lru_cache(maxsize=4096)(draft.stamp)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)


class Code:
    """The modules of the log, one after the other built on the ones before; some mutated."""

    def __init__(self, replacements: Replacements | None = None) -> None:
        given = replacements or {}
        unknown = set(given) - {*MODULES, "_conditional"}
        assert not unknown, unknown
        made: dict[str, ModuleType] = {}
        for name in MODULES:
            module = mutate(f"holdfast.wal.{name}", *given.get(name, ()))
            for below in made.values():
                for label, value in vars(below).items():
                    home = getattr(value, "__module__", "")
                    if home.startswith("holdfast.wal.") and label in vars(module):
                        setattr(module, label, value)
            made[name] = module
        for module in made.values():
            for label, fast in (("decode_entry", _decode), ("draft_fence", _fence)):
                if label in vars(module):
                    setattr(module, label, fast)
        self.appender: Any = made["_appender"].__dict__["WalAppender"]
        self.appender_module = made["_appender"]
        made["_appender"].__dict__["EntryDraft"] = _Draft
        self.tailer: Any = made["_tailer"].__dict__["WalTailer"]
        self.manifests: Any = made["_manifests"].__dict__["ShardManifests"]
        made["_collect"].__dict__["RETENTION"] = timedelta(seconds=-1)
        self.collect: Callable[..., Any] = made["_collect"].__dict__["collect_log"]
        self.conditional: Any = None
        if "_conditional" in given:
            module = mutate("holdfast.arbiter._conditional", *given["_conditional"])
            self.conditional = module.__dict__["ConditionalPut"]


PRODUCTION = Code()
Maker = Callable[[SimulatedStore, SimulatedCommitStore, Ids], Arbiter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One row of the table of scenarios.

    Attributes:
        scripts: per actor a word: `o` opens and replays, `w` opens without replaying, a letter
            of `abc` appends it, `f` flushes, `g` collects, `r` reads the log to its end, `t`
            follows it to its end, `m`
            flushes the log without owning it, as upkeep does, `s` reads all, as a table's
            readers do.
        prepared: a script that ran to its end before anybody moved.
    """

    name: str
    make: Maker = conditional
    scripts: Sequence[str] = ("oa", "ob")
    prepared: Sequence[str] = ()
    honest: bool = True
    faults: int = 0
    crashes: int = 0
    preemptions: int | None = None
    kinds: Sequence[Outcome] = FAULTS
    code: Code = field(default=PRODUCTION, compare=False)
    leftovers: Sequence[str] = ()
    page: int | None = None

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    def build(self) -> World:
        world = World(
            honest=self.honest,
            faults=self.faults,
            crashes=self.crashes,
            preemptions=self.preemptions,
            fault_kinds=self.kinds,
            page=self.page,
            objects=PINNED,
        )
        for path in self.leftovers:
            world.state.objects[path] = b""
        for index, script in enumerate(self.prepared):
            state = world.state
            ports = SimulatedStore(state.apply), SimulatedCommitStore(state.apply)
            actor = Writer(self, world, ports, CountedIds(50 + index), f"P{index}")
            actor.run(script)
        for index, script in enumerate(self.scripts):
            ports = world.store(), world.commit_store()
            writer = Writer(self, world, ports, CountedIds(index + 1), f"{'ABCDE'[index]}")
            world.add(writer.name, functools.partial(writer.run, script))
        return world

    def arbiter(self, store: SimulatedStore, commits: SimulatedCommitStore, ids: Ids) -> Arbiter:
        made = self.make(store, commits, ids)
        if self.code.conditional is not None and type(made).__name__ == "ConditionalPut":
            from holdfast.arbiter import Verdict
            from model.decide_scenarios import RETRY

            mutant: Arbiter = self.code.conditional(
                store, Verdict.ENFORCED, clock=StillClock(), ids=ids, retry=RETRY
            )
            return mutant
        return made

    def check(self, world: World, state: State) -> str | None:
        for actor in world.actors:
            if actor.error and not isinstance(actor.error, HONEST_ANSWERS):
                return f"STOPPED: {actor.name}: {type(actor.error).__name__}: {actor.error}"
            if isinstance(actor.error, FencedError) and not _is_overtaken(actor.error):
                return f"FALSELY FENCED: {actor.name}: {actor.error}"
        try:
            marks = self._recovered(state)
        except HoldfastError as error:
            return f"UNREADABLE: {type(error).__name__}: {error}"
        return wrong_with(marks, world)

    def _recovered(self, state: State) -> list[str]:
        """Open the shard as a fresh writer would, and return all it holds."""
        store, commits = SimulatedStore(state.apply), SimulatedCommitStore(state.apply)
        arbiter = self.make(store, commits, CountedIds(99))
        opened = PRODUCTION.appender.claim(
            TableCore(store, arbiter, clock=StillClock(), ids=CountedIds(98)), SHARD
        )
        flushed = [mark for table in opened.manifest.sstables for mark in marks_in(table)]
        return flushed + [mark_of(entry) for entry in opened.replay()]


def _is_overtaken(error: FencedError) -> bool:
    """Tell whether the error names an owner that is newer, or as new: of two claims one loses."""
    epoch, stored = error.details["epoch"], error.details["stored_epoch"]
    assert isinstance(epoch, int)
    return stored is None or (isinstance(stored, int) and stored >= epoch)


def wrong_with(marks: list[str], world: World) -> str | None:
    """Return what is wrong with the marks that a fresh writer finds, or None."""
    if len(set(marks)) != len(marks):
        return f"DOUBLED: {marks}"
    for kind, told in world.acknowledged:
        if kind == "misread":
            return f"MISREAD: {told}"
        if kind == "appended" and told not in marks:
            return f"LOST: {told}"
        if kind == "read" and isinstance(told, tuple):
            still = [mark for mark in marks if mark in told]
            if still != list(told):
                return f"UNSTABLE: a reader saw {told}, now {marks}"
    for writer in "ABCDEP":
        own = [mark for mark in marks if mark.startswith(writer)]
        if own != sorted(own):
            return f"REORDERED: {own}"
    return None


class Writer:
    """Runs a script as one process would; opens again, once, when it was poisoned."""

    def __init__(
        self,
        shard: Shard,
        world: World,
        ports: tuple[SimulatedStore, SimulatedCommitStore],
        ids: CountedIds,
        name: str,
    ) -> None:
        self.name = name
        self._shard = shard
        self._world = world
        arbiter = shard.arbiter(*ports, ids)
        self._core = TableCore(ports[0], arbiter, clock=StillClock(), ids=ids)
        self._appender: Any = None
        self._memory: list[str] = []
        self._flushed = 0
        self._count = 0

    def run(self, script: str) -> None:
        for step in script:
            if step in "ow":
                self._open(replaying=step == "o")
            elif step == "f":
                self._flush()
            elif step == "g":
                self._shard.code.collect(self._core, SHARD, confirm=True)
            elif step in "rt":
                self._read(following=step == "t")
            elif step == "m":
                self._flush_for_others()
            elif step == "s":
                self._read_all()
            else:
                self._count += 1
                self._append(f"{self.name}{self._count}{step}")

    def _open(self, *, replaying: bool) -> None:
        self._appender = self._shard.code.appender.claim(self._core, SHARD)
        while replaying:
            try:
                self._memory = [mark_of(entry) for entry in self._appender.replay()]
            except CollectedError:
                continue
            return

    def _append(self, mark: str) -> None:
        try:
            self._append_once(mark)
        except CommitUnknownError:
            return  # never from the real one: it stops instead
        except PoisonedError:
            self._open(replaying=True)
            if mark in self._memory or mark in self._published():
                self._world.acknowledge("appended", mark)
            else:
                self._append_once(mark)

    def _append_once(self, mark: str) -> None:
        appender = self._appender
        appender.append(_rows(mark, appender.epoch, appender.writer))
        self._memory.append(mark)
        self._world.acknowledge("appended", mark)

    def _published(self) -> list[str]:
        return [m for table in self._appender.manifest.sstables for m in marks_in(table)]

    def _flush(self) -> None:
        """Publish what is in memory, as one SSTable, and move the cursor."""
        covered, marks = self._appender.next_position - 1, tuple(self._memory)

        def publish(current: ShardManifest) -> ShardManifest:
            if current.replay_after >= covered:
                return current
            name = "-".join((*marks, "gen"))
            table = SsTable(generation=current.current_generation, path=name)
            return replace(
                current,
                replay_after=covered,
                current_generation=current.current_generation + 1,
                sstables=(*current.sstables, table),
            )

        self._appender.manifests.update(self._appender.epoch, publish)
        self._memory = []

    def _flush_for_others(self) -> None:
        manifests = self._shard.code.manifests(self._core, SHARD)
        tailer = self._shard.code.tailer(self._core, SHARD)

        def write(generation: int, part: FlushPart) -> SsTable:
            name = "-".join((*map(mark_of, part.entries), "gen"))
            return SsTable(generation=generation, path=name)

        for _ in flush_parts(manifests, tailer, write):
            pass

    def _read_all(self) -> None:
        before = {str(told) for kind, told in self._world.acknowledged if kind == "appended"}
        base = BaseVersion(version=1, compacted={}, dataset=None)
        source = Shards(self._core, lambda: base)
        manifests = self._shard.code.manifests(self._core, SHARD)
        source._manifests[SHARD] = manifests
        (shard,) = take_snapshot(source).shards
        marks = [mark for table in shard.sstables for mark in marks_in(table)]
        marks += map(mark_of, shard.entries)
        if len(set(marks)) != len(marks) or not before <= set(marks):
            self._world.acknowledge("misread", f"{marks} instead of {sorted(before)}")

    def _read(self, *, following: bool) -> None:
        tailer = self._shard.code.tailer(self._core, SHARD)
        seen: list[str] = []
        try:
            entries = tailer.follow(timeout=timedelta(0)) if following else tailer.entries()
            seen.extend(map(mark_of, entries))
        except CollectedError:
            return
        self._world.acknowledge("read", tuple(seen))


def mark_of(entry: Entry) -> str:
    mark: str = entry.batches[0].column(0)[0].as_py()
    return mark


def marks_in(table: SsTable) -> list[str]:
    return table.path.split("-")[:-1]


# What the default test run leaves out: more faults, more crashes, more writers.
DEEPER = [
    Shard(name="log, two faults", faults=2, preemptions=2),
    Shard(name="log, a fault and a crash", faults=1, crashes=1, preemptions=2),
    Shard(name="log, flush, a fault", scripts=("oafa", "obf"), faults=1, preemptions=2),
    Shard(name="log, flush, a crash", scripts=("oafg", "obf"), crashes=1, preemptions=3),
    Shard(name="log, three writers", scripts=("oa", "ob", "oc"), faults=1, preemptions=2),
    Shard(name="log, three collect", scripts=("oab", "obfg", "ocfg"), preemptions=3),
    Shard(name="log, a reader", scripts=("oabfg", "obfg", "rr"), preemptions=2),
    Shard(name="log, commit store, a fault", make=inline, honest=False, faults=1, preemptions=2),
    Shard(name="log, commit store, collect", make=inline, honest=False, scripts=("oafag", "obfg")),
    Shard(name="log, staged, a crash", make=staged, honest=False, crashes=1, preemptions=2),
]
WILD = [
    Shard(
        name=f"log, {kind}, 4 writers",
        make=make,
        honest=honest,
        scripts=("oaafa", "obfbg", "ocfc", "oagbf"),
        faults=5,
        crashes=3,
    )
    for kind, make, honest in [("conditional", conditional, True), ("inline", inline, False)]
]

__all__ = ["DEEPER", "SHARD", "WILD", "Code", "Shard", "inline", "staged"]
