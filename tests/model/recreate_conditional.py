"""Worlds in which put-if-absent decides, and a table is made anew under a handle that appends.

Strangers' files lie in every folder that is listed. A stale handle makes a plain append, from
the version that it remembers or from the newest. Meanwhile a creator removes every object, makes
the table anew with as many versions as the old one had, fewer, or more, and goes on. What must
hold in every state:

- what the creator was acknowledged is in the newest version of the new table, once the stale
  handle is done: between its put and its second look its version may lie on top, which is the
  assumption of RFC 0002, and the explorer finds it immediately without the exception below;
- an append of the old handle is never acknowledged after one of the new table's;
- nobody stops with an error of an operator's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lance.fragment import DataFile, FragmentMetadata

from holdfast.arbiter import ConditionalPut, Verdict
from holdfast.commits._direct import Direct
from holdfast.commits._versions import Versions
from holdfast.core import TableCore
from holdfast.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    NotFoundError,
    StaleHandleError,
)
from holdfast.formats import (
    PIN_PATH,
    ArbiterKind,
    Pin,
    edit_config,
    encode_pin,
    version_name,
    version_of,
)
from holdfast.storage import ObjectStore
from holdfast.testing import CountedIds, Scenario, SimulatedStore, State, StillClock, World
from model.commit_scenarios import plain_manifest, read_manifest
from model.decide_scenarios import RETRY

HONEST_ANSWERS = (
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    NotFoundError,
    StaleHandleError,
)
OLD = Pin(table_id="hf-old", arbiter=ArbiterKind.CONDITIONAL_PUT, location="memory://simulated")
NEW = replace(OLD, table_id="hf-new")
STRANGERS = {
    "_versions/.DS_Store": b"?",
    "_versions/0.manifest": b"?",
    "_versions/latest_version_hint.json": b'{"version":77}',
    f"{version_name(2).path}.tmp": b"?",
    "_transactions/.tmpX1": b"?",
}


def first_version(ids: CountedIds, pin: Pin) -> tuple[bytes, str]:
    token = ids.token()
    entries = {"holdfast.token": token, "holdfast.version": "1", "holdfast.table": pin.table_id}
    return edit_config(plain_manifest(), entries), token


@dataclass(frozen=True, slots=True, kw_only=True)
class Remade:
    """One row of the table of scenarios."""

    name: str
    old: int = 1
    new: int = 2
    remembers: bool = False
    tells_md5: bool = True
    preemptions: int = 3
    versions: type[Versions] = Versions
    conditional: type[ConditionalPut] = ConditionalPut

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    def build(self) -> World:
        objects = {PIN_PATH: encode_pin(OLD), **STRANGERS}
        world = World(preemptions=self.preemptions, objects=objects)
        world.state.tells_md5 = self.tells_md5
        self._make(SimulatedStore(world.state.apply), CountedIds(77), OLD, "o", self.old)
        world.add("stale", lambda: self._be_stale(world))
        world.add("creator", lambda: self._create(world))
        return world

    def _direct(self, store: ObjectStore, ids: CountedIds, pin: Pin) -> Direct:
        arbiter = self.conditional(
            store, Verdict.ENFORCED, pin=pin, clock=StillClock(), ids=ids, retry=RETRY
        )
        versions = self.versions(TableCore(store, arbiter, "", ids=ids))
        return Direct(versions, clock=StillClock(), ids=ids)

    def _make(
        self, store: ObjectStore, ids: CountedIds, pin: Pin, mark: str, versions: int
    ) -> Direct:
        direct = self._direct(store, ids, pin)
        body, token = first_version(ids, pin)
        direct.versions.core.arbiter.decide(version_name(1), body, token)
        for number in range(2, versions + 1):
            append(direct, f"{mark}{number}")
        return direct

    def _be_stale(self, world: World) -> None:
        direct = self._direct(world.store(), CountedIds(1), OLD)
        for number in range(2 if self.remembers else 1):
            append(direct, f"stale{number}")
            world.acknowledge("old", f"stale{number}")

    def _create(self, world: World) -> None:
        ids, store = CountedIds(2), world.store()
        store.delete([info.path for info in store.list() if info.path not in STRANGERS])
        if any(version_of(info.path) for info in store.list("_versions")):
            raise AlreadyExistsError("there is a table already")  # as `create_table` does
        store.put(PIN_PATH, encode_pin(NEW))
        direct = self._make(store, ids, NEW, "n", self.new - 1)
        append(direct, "last")
        world.acknowledge("new", "last")

    def check(self, world: World, state: State) -> str | None:
        for actor in world.actors:
            if actor.error and not isinstance(actor.error, HONEST_ANSWERS):
                return f"STOPPED: {actor.name}: {actor.error}"
        kinds = [facts[0] for facts in world.acknowledged]
        if "new" not in kinds:
            return None
        if "old" in kinds[kinds.index("new") :]:
            return "INVISIBLE: the old table's append was acknowledged after the new table's"
        if world.actors[0].alive:
            return None
        try:
            marks = self._marks(state)
        except HoldfastError as error:
            return f"unreadable: {error}"
        return None if "last" in marks else f"LOST: last; there is {marks}"

    @staticmethod
    def _marks(state: State) -> tuple[str, ...]:
        newest = max(version_of(path) or 0 for path in state.objects)
        return read_manifest(state.objects[version_name(newest).path])[0]


def append(direct: Direct, mark: str) -> None:
    """Append one file, as a table does."""
    base = direct.hint()
    if base is None:
        raise ConflictError("left to Lance")
    file = DataFile(mark, [0], [0], 2, 1, 100)
    fragments: list[Any] = [FragmentMetadata(0, [file], 1)]
    transaction = direct.transaction(fragments, base.version)
    assert transaction is not None
    direct.write(transaction)
    if direct.commit(transaction, base.shape, [], lambda: None) is None:
        raise ConflictError("left to Lance")
