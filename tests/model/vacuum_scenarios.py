"""Worlds in which vacuums run beside work that takes its time; Lance is a model.

Writers read a version, write a file, and commit it some time later. Vacuums run one after the
other and at the same time, each time as if the grace period had passed. What must hold in every
state: each version that is there shows only files that are there, and what was acknowledged is
in the newest version. Vacuum, its list, its number, and the hook are the production code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from holdfast.arbiter import Arbiter
from holdfast.commits._floor import check_not_due
from holdfast.commits._versions import Edit, Versions
from holdfast.core import TableCore
from holdfast.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    PermissionDeniedError,
    StaleWorkError,
    UnavailableError,
)
from holdfast.formats import TOKEN_KEY, older_files, read_config, version_name, version_of
from holdfast.formats._manifest import VERSION_KEY
from holdfast.formats._protobuf import FOOTER, LENGTH, MAGIC, message_classes, read_section
from holdfast.formats._vacuum_mark import read_mark
from holdfast.testing import (
    CountedIds,
    Scenario,
    SimulatedCommitStore,
    SimulatedStore,
    State,
    World,
)
from holdfast.txn import FreeTxn, Txn
from holdfast.upkeep import _vacuum
from holdfast.upkeep._vacuum import LeftoverKind
from model.commit_scenarios import Maker, conditional, recorded
from model.decide_scenarios import PINNED

HONEST = (CommitUnknownError, ConflictError, PermissionDeniedError, UnavailableError)
NO_GRACE = timedelta(seconds=-1)  # the simulated store stamps everything with the same time
KINDS = [LeftoverKind.DATA, LeftoverKind.TXNS]
TRIES = 4

_CLASSES = message_classes(
    "model.vacuum",
    {
        "DataFile": (("path", 1, "string"),),
        "Fragment": (("id", 1, "uint64"), ("files", 2, "*<DataFile")),
        "Restore": (("version", 1, "uint64"),),
        "Transaction": (("restore", 106, "<Restore"),),
        "Manifest": (
            ("fragments", 2, "*<Fragment"),
            ("version", 3, "uint64"),
            ("transaction_file", 12, "string"),
            ("config", 16, "{}"),
            ("transaction_section", 23, "uint64"),
        ),
    },
)


class NoThreads:
    """Stands in for the pool that vacuum reads with: greenlets do not cross threads."""

    def __init__(self, readers: int, thread_name_prefix: str) -> None:
        """Start nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End nothing."""

    def map(self, call: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Call for one item after the other, each when its result is taken."""
        return map(call, items)


def manifest_bytes(
    version: int,
    marks: Sequence[str],
    config: Mapping[str, str],
    *,
    read_version: int = 0,
    restored: int = 0,
) -> bytes:
    """Return a version whose data files are marks."""
    transaction: Any = _CLASSES["Transaction"]()
    if restored:
        transaction.restore.version = restored
    inside = transaction.SerializeToString(deterministic=True)
    message: Any = _CLASSES["Manifest"](version=version, transaction_section=0)
    for number, mark in enumerate(marks):
        message.fragments.add(id=number).files.add(path=mark)
    message.transaction_file = f"{read_version}-model.txn"
    message.config.update(config)
    body: bytes = message.SerializeToString(deterministic=True)
    before: bytes = LENGTH.pack(len(inside)) + inside
    return before + LENGTH.pack(len(body)) + body + FOOTER.pack(len(before), 0, 2, MAGIC)


def marks_in(body: bytes) -> list[str]:
    start = FOOTER.unpack_from(body, len(body) - FOOTER.size)[0]
    message: Any = read_section(body, start, _CLASSES["Manifest"])[0]
    return [file.path for part in message.fragments for file in part.files]


class Process:
    """One process: its ports, and what it can do."""

    def __init__(self, setup: Vacuums, store: Any, commits: Any, owner: int) -> None:
        self.setup = setup
        self.store = store
        self.ids = CountedIds(owner)
        self.arbiter: Arbiter = setup.make(store, commits, self.ids)
        self.versions = setup.versions(TableCore(store, self.arbiter, "", ids=self.ids))

    def newest(self) -> tuple[int, bytes]:
        found = [version_of(info.path) for info in self.store.list("_versions")]
        number = max(version for version in found if version is not None)
        return number, self.store.get(version_name(number).path)

    def commit(
        self,
        change: Callable[[int, bytes], bytes],
        *,
        edit: Edit | None = None,
        begun_on: int | None = None,
        txns: Sequence[Txn] = (),
    ) -> int:
        """Put a change on top of the newest version, and again when others were faster."""
        for _ in range(TRIES):
            number, body = self.newest()
            staged = f"{version_name(number + 1).path}-{self.ids.token()}"
            self.store.put(staged, change(number, body))
            request = {"version": number + 1, "manifest_path": staged, "naming_scheme": "V2"}
            try:
                self.versions.create(request, txns, synced=True, edit=edit, begun_on=begun_on)
            except ConflictError as error:
                if type(error) is not ConflictError:
                    raise
            else:
                return number + 1
        raise ConflictError("too many conflicts")

    def append(
        self,
        mark: str,
        begun_on: int | None,
        edit: Edit | None = None,
        txns: Sequence[Txn] = (),
    ) -> None:
        def change(number: int, body: bytes) -> bytes:
            marks = [*marks_in(body), mark]
            return manifest_bytes(number + 1, marks, read_config(body), read_version=number)

        self.commit(change, edit=edit, begun_on=begun_on, txns=txns)

    def touch(self, edit: Edit) -> None:
        def change(number: int, body: bytes) -> bytes:
            return manifest_bytes(
                number + 1, marks_in(body), read_config(body), read_version=number
            )

        self.commit(change, edit=edit)

    def restore(self, version: int) -> None:
        """Show an older version again, with its config, as Lance does."""
        old = self.store.get(version_name(version).path)

        def change(number: int, _body: bytes) -> bytes:
            return manifest_bytes(
                number + 1, marks_in(old), read_config(old), read_version=number, restored=version
            )

        self.commit(change)

    def vacuum(self) -> None:
        contents, found = _vacuum.find_leftovers(
            TableCore(self.store, self.arbiter, ids=self.ids), KINDS, grace=NO_GRACE
        )
        self.setup.take(contents, found, self.touch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuums:
    """One row of the table of scenarios."""

    name: str
    actors: Mapping[str, Callable[[Process, World], None]]
    make: Maker = conditional
    honest: bool = True
    orphans: Sequence[str] = ("orphan",)
    before: int = 0
    faults: int = 0
    crashes: int = 0
    preemptions: int | None = 2
    restores: bool = False
    versions: type[Versions] = Versions
    take: Callable[..., Any] = _vacuum.take_leftovers

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    def build(self) -> World:
        world = World(
            honest=self.honest,
            faults=self.faults,
            crashes=self.crashes,
            preemptions=self.preemptions,
            objects=PINNED if self.make is recorded else {},
        )
        self._create(world.state)
        for number, (name, act) in enumerate(self.actors.items(), 1):
            process = Process(self, world.store(), world.commit_store(), number)
            world.add(name, functools.partial(act, process, world))
        return world

    def _create(self, state: State) -> None:
        """Decide version 1, leave orphans, and let vacuum run, before anybody moves."""
        process = Process(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 77)
        token = process.ids.token()
        process.store.put("data/first", b"rows")
        body = manifest_bytes(1, ["first"], {TOKEN_KEY: token, VERSION_KEY: "1"})
        process.arbiter.decide(version_name(1), body, token)
        for mark in self.orphans:
            process.store.put(f"data/{mark}", b"rows")
        for _ in range(self.before):
            process.vacuum()

    def check(self, world: World, state: State) -> str | None:
        for actor in world.actors:
            if actor.error and not isinstance(actor.error, HONEST):
                return f"STOPPED: {actor.name}: {type(actor.error).__name__}: {actor.error}"
        process = Process(self, SimulatedStore(state.apply), SimulatedCommitStore(state.apply), 99)
        number, newest = 1, b""
        while (body := self._read(process, number)) is not None:
            newest = body
            missing = [m for m in marks_in(body) if f"data/{m}" not in state.objects]
            missing += [
                file.name
                for file in older_files(read_config(body))
                if file.path not in state.objects
            ]
            if missing:
                return f"GONE: version {number} shows {missing}"
            number += 1
        if self.restores:
            return None  # who goes back, leaves rows behind
        lost = [mark for kind, mark in world.acknowledged if mark not in marks_in(newest)]
        return f"LOST: {lost}" if lost else None

    def _read(self, process: Process, number: int) -> bytes | None:
        try:
            return process.arbiter.read(version_name(number))
        except HoldfastError as error:
            raise AssertionError(f"unreadable: {error}") from error


# What actors do.


def write(process: Process, world: World, mark: str = "new") -> None:
    """Read a version, write a file, commit it; all of it may take for ever."""
    begun_on, _ = process.newest()
    process.store.put(f"data/{mark}", b"rows")
    try:
        process.append(mark, begun_on)
    except StaleWorkError:
        return
    world.acknowledge("append", mark)


def write_by_string(process: Process, world: World) -> None:
    """Commit nothing but a string, which goes to a file."""
    begun_on, _ = process.newest()
    try:
        process.append("first", begun_on, txns=[FreeTxn("new")])
    except StaleWorkError:
        return
    world.acknowledge("append", "first")


def write_undated(process: Process, world: World) -> None:
    """Commit a file of which nobody says when it was written."""

    def check(manifest: bytes) -> bytes:
        check_not_due(process.store, read_mark(read_config(manifest)), ["data/orphan"])
        return manifest

    try:
        process.append("orphan", None, check)
    except StaleWorkError:
        return
    world.acknowledge("append", "orphan")


def vacuum(process: Process, _world: World) -> None:
    process.vacuum()


def vacuum_twice(process: Process, _world: World) -> None:
    process.vacuum()
    process.vacuum()


def restore(process: Process, _world: World) -> None:
    """Go back to the first version, whose config knows of no vacuum."""
    process.restore(1)


def restore_past_us(process: Process, _world: World) -> None:
    """Go back to the first version, then commit something, as stock's writers do: ask nobody."""
    for mark in ((), ("stock",)):
        for _ in range(TRIES):
            number, body = process.newest()
            old = body if mark else process.store.get(version_name(1).path)
            manifest = manifest_bytes(
                number + 1,
                [*marks_in(old), *mark],
                read_config(old),
                read_version=number,
                restored=0 if mark else 1,
            )
            for one in mark:
                process.store.put(f"data/{one}", b"rows")
            with suppress(AlreadyExistsError):
                process.store.put_if_absent(version_name(number + 1).path, manifest)
                break


__all__ = ["Process", "Vacuums", "conditional", "recorded"]
