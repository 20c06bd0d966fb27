"""Worlds in which processes append to a table: through the commit hook, or directly.

Through the hook Lance is a model; the direct way is production code from end to end.
`LanceModel` does what pylance does around its hook: look for the newest version, build the
next manifest on it, stage it, ask the hook, and on a refusal find out whose version it is
(`test_commits.py` pins this to the real calls). The hook, the ledger and both arbiters are
the production code. Each actor appends one mark under a transaction id; some are started
twice with the same id. What must hold in every state:

- an acknowledged append is in the newest version, once, and stays there;
- a transaction is in the table at most once, whoever retried it;
- everybody may die now: a fresh reader finds all of this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lance
from lance.fragment import DataFile, FragmentMetadata

from holdfast.arbiter import Arbiter, ConditionalPut, RecordedDecisions, Verdict
from holdfast.arbiter._parallel import one_by_one
from holdfast.commits._direct import Direct
from holdfast.commits._operation import CommitHook
from holdfast.commits._versions import AlreadyAppliedError, Versions
from holdfast.core import TableCore
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.formats import _append as formats_of_appends
from holdfast.formats import edit_config, older_files, version_name, version_of
from holdfast.formats._manifest import _classes, _parse
from holdfast.formats._protobuf import FOOTER, LENGTH, MAGIC
from holdfast.formats._transaction import transaction_path
from holdfast.storage import ObjectStore
from holdfast.testing import (
    CountedIds,
    Scenario,
    SimulatedCommitStore,
    SimulatedStore,
    State,
    StillClock,
    World,
)
from holdfast.txn import Txn, TxnLike, parse_txn
from model.decide_scenarios import PIN, PINNED, RETRY

TRIES = 4
HONEST_ANSWERS = (CommitUnknownError, ConflictError, PermissionDeniedError)
Config = tuple[tuple[str, str], ...]


@functools.lru_cache(maxsize=4096)
def manifest_bytes(
    marks: tuple[str, ...], transaction: str, config: tuple[tuple[str, str], ...]
) -> bytes:
    """Return a manifest whose data files are the marks."""
    message: Any = _classes()["Manifest"]()
    for number, mark in enumerate(marks):
        part = message.fragments.add(id=number)
        part.files.add(path=mark)
    message.transaction_file = transaction
    for key, value in config:
        message.config[key] = value
    body: bytes = message.SerializeToString(deterministic=True)
    return LENGTH.pack(len(body)) + body + FOOTER.pack(0, 0, 2, MAGIC)


@functools.lru_cache(maxsize=4096)
def read_manifest(body: bytes) -> tuple[tuple[str, ...], str, Config]:
    """Return marks, transaction and config of a manifest."""
    message = _parse(body)[0]
    marks = tuple(file.path for part in message.fragments for file in part.files)
    return marks, message.transaction_file, tuple(sorted(message.config.items()))


def plain_manifest() -> bytes:
    """Return the manifest of an empty version 1 that Holdfast may append to without Lance."""
    made: Any = formats_of_appends._classes()["Manifest"](version=1)
    made.writer_version = formats_of_appends._words("lance", lance.__version__)
    made.data_format = formats_of_appends._words("lance", "2.1")
    body: bytes = made.SerializeToString(deterministic=True)
    return LENGTH.pack(len(body)) + body + FOOTER.pack(0, 0, 2, MAGIC)


class LanceModel:
    """What pylance does to append through a namespace hook."""

    def __init__(self, store: ObjectStore, hook: Any, transaction: str) -> None:
        self._store = store
        self._hook = hook
        self._transaction = transaction

    def append(self, mark: str) -> None:
        """Append, rebasing on conflicts.

        Raises:
            OSError: the outcome is not known to Lance.
        """
        self._hook.list_table_versions({"limit": 1, "descending": True})
        for attempt in range(TRIES):
            version, body = self._newest()
            marks, _, config = read_manifest(body)
            staged = f"{version_name(version + 1).path}-{self._transaction}-{attempt}"
            built = manifest_bytes((*marks, mark), self._transaction, config)
            self._store.put(staged, built)
            request = {
                "version": version + 1,
                "manifest_path": staged,
                "manifest_size": len(built),
                "naming_scheme": "V2",
            }
            try:
                self._hook.create_table_version(request)
            except HoldfastError:
                if self._is_ours(version + 1):
                    return
                self._store.delete([staged])
            else:
                return
        raise OSError("too many conflicts")

    def _newest(self) -> tuple[int, bytes]:
        found = [version_of(info.path) for info in self._store.list("_versions")]
        newest = max(version for version in found if version is not None)
        return newest, self._store.get(version_name(newest).path)

    def _is_ours(self, version: int) -> bool:
        try:
            answer = self._hook.describe_table_version({"version": version})
        except HoldfastError as error:
            raise OSError("commit result is unknown") from error
        body = self._store.get(str(answer["version"]["manifest_path"]).lstrip("/"))
        return read_manifest(body)[1] == self._transaction


def commit_and_clean_up(store: ObjectStore) -> None:
    """Do what stock pylance does: commit twice, then remove all versions but the newest."""
    with suppress(HoldfastError):  # whatever happens to it, it is none of ours
        for mark in ("x", "y"):
            number = newest_of(store)
            body = append_mark(store.get(version_name(number).path), mark, number + 1)
            store.put_if_absent(version_name(number + 1).path, body)
        newest = newest_of(store)
        listed = [info.path for info in store.list("_versions")]
        store.delete([path for path in listed if (version_of(path) or newest) < newest])


def newest_of(store: ObjectStore) -> int:
    """Return the newest version in a listing."""
    return max(version_of(info.path) or 0 for info in store.list("_versions"))


def append_mark(manifest: bytes, mark: str, version: int) -> bytes:
    """Return the next version as a stock writer makes it: with one more file, the config as is."""
    message: Any = formats_of_appends.AppendBase(manifest, lance.__version__)._message
    part: Any = _classes()["DataFragment"](id=len(message.fragments))
    part.files.add(path=mark)
    message.fragments.append(part.SerializeToString(deterministic=True))
    message.max_fragment_id = part.id
    message.version, message.transaction_file = version, ""
    body: bytes = message.SerializeToString(deterministic=True)
    return LENGTH.pack(len(body)) + body + FOOTER.pack(0, 0, 2, MAGIC)


Maker = Callable[[SimulatedStore, SimulatedCommitStore, CountedIds], Arbiter]


def conditional(store: SimulatedStore, _commits: SimulatedCommitStore, ids: CountedIds) -> Arbiter:
    return ConditionalPut(store, Verdict.ENFORCED, clock=StillClock(), ids=ids, retry=RETRY)


def recorded(store: SimulatedStore, commits: SimulatedCommitStore, ids: CountedIds) -> Arbiter:
    return RecordedDecisions(
        store,
        commits,
        PIN,
        clock=StillClock(),
        ids=ids,
        retry=RETRY,
        patience=0,
        together=one_by_one,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One row of the table of scenarios."""

    name: str
    make: Maker
    marks: Sequence[str] = ("a", "b")
    honest: bool = True
    faults: int = 0
    crashes: int = 0
    preemptions: int | None = None
    versions: type[Versions] = Versions
    operation: type[CommitHook] = CommitHook
    direct: bool = False
    cleaner: bool = False
    txns: bool = True
    ids: Mapping[str, TxnLike] | None = None

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    def build(self) -> World:
        world = World(
            honest=self.honest,
            faults=self.faults,
            crashes=self.crashes,
            preemptions=self.preemptions,
            objects=PINNED,
        )
        self._create(world.state)
        for index, mark in enumerate(self.marks):
            kind = DirectWriter if self.direct else Writer
            writer = kind(self, world, CountedIds(index + 1), mark)
            world.add(f"{mark}{index}", writer.run)
        if self.cleaner:
            world.add("stock", functools.partial(commit_and_clean_up, world.store()))
        return world

    def _create(self, state: State) -> None:
        """Put version 1 there, decided, before anybody moves."""
        ids = CountedIds(77)
        arbiter = self.make(SimulatedStore(state.apply), SimulatedCommitStore(state.apply), ids)
        token = ids.token()
        empty = plain_manifest() if self.direct else manifest_bytes((), "create", ())
        body = edit_config(empty, {"holdfast.token": token, "holdfast.version": "1"})
        arbiter.decide(version_name(1), body, token)

    def check(self, world: World, state: State) -> str | None:
        for actor in world.actors:
            gone = self.cleaner and isinstance(actor.error, NotFoundError)
            if actor.error and not gone and not isinstance(actor.error, HONEST_ANSWERS):
                return f"STOPPED: {actor.name}: {actor.error}"
        try:
            marks = self._read(state)
        except HoldfastError as error:
            return f"unreadable: {error}"
        for actor in world.actors:
            refused = isinstance(actor.error, PermissionDeniedError)
            if refused and actor.name[0] in marks and self.marks.count(actor.name[0]) == 1:
                return f"GUESSED: {actor.name} was told that nothing was committed"
        gone_files = _gone_files(state)
        if gone_files or len(set(marks)) != len(marks):
            return f"GONE: {gone_files}" if gone_files else f"DOUBLED: {marks}"
        for outcome, mark in world.acknowledged:
            if mark not in marks:
                return f"LOST: {mark}, {outcome}"
        return None

    def _read(self, state: State) -> tuple[str, ...]:
        """Read the newest version as a fresh process would."""
        store = SimulatedStore(state.apply)
        arbiter = self.make(store, SimulatedCommitStore(state.apply), CountedIds(99))
        number = 1
        if self.cleaner:  # which leaves holes
            number = max(version_of(path) or 0 for path in state.objects)
        newest = arbiter.read(version_name(number))
        assert newest is not None
        while (body := arbiter.read(version_name(number + 1))) is not None:
            number, newest = number + 1, body
        marks, transaction, _ = read_manifest(newest)
        if self.direct and transaction:
            store.get(transaction_path(transaction))  # whoever may have decided it, keeps it
        return marks


def _gone_files(state: State) -> list[str]:
    """Return files of transaction ids that a version names and that are not there."""
    versions = (body for path, body in state.objects.items() if version_of(path) is not None)
    named = (file.path for body in versions for file in older_files(dict(read_manifest(body)[2])))
    return [path for path in named if path not in state.objects]


class Writer:
    """Appends one mark under its transaction id, and once more when the outcome is unknown."""

    def __init__(self, table: Table, world: World, ids: CountedIds, mark: str) -> None:
        self._table = table
        self._world = world
        self._ids = ids
        self._mark = mark

    def run(self) -> None:
        store, commits = self._world.store(), self._world.commit_store()
        arbiter = self._table.make(store, commits, self._ids)
        versions = self._table.versions(TableCore(store, arbiter, "", ids=self._ids))
        unknown: HoldfastError | None = None
        for _ in range(2 if self._table.txns else 1):
            try:
                self._append_once(store, versions)
            except (CommitUnknownError, UnavailableError) as error:
                unknown = error
            except PermissionDeniedError:
                if unknown is None:
                    raise
                raise CommitUnknownError("the first try stays unknown") from None
            else:
                return

    def _txns(self) -> list[Txn]:
        if self._table.ids is not None:
            return [parse_txn(self._table.ids[self._mark])]
        return [parse_txn(("app-" + self._mark, 1))] if self._table.txns else []

    def _append_once(self, store: ObjectStore, versions: Versions) -> None:
        operation = self._table.operation(versions, self._txns(), synced=True)
        try:
            with operation.raising_outcome():
                LanceModel(store, operation, self._ids.token()).append(self._mark)
        except AlreadyAppliedError:
            self._world.acknowledge("was there", self._mark)
        except OSError as error:
            if isinstance(error, HoldfastError):
                raise
            raise ConflictError(str(error)) from error
        else:
            self._world.acknowledge("appended", self._mark)


class DirectWriter(Writer):
    """Appends without Lance."""

    def _append_once(self, store: ObjectStore, versions: Versions) -> None:
        direct = Direct(versions, clock=StillClock(), ids=self._ids)
        base = direct.hint()
        if base is None:
            raise ConflictError("left to Lance")
        file = DataFile(self._mark, [0], [0], 2, 1, 100)
        fragment = FragmentMetadata(0, [file], 1)
        transaction = direct.transaction([fragment], base.version)
        assert transaction is not None
        direct.write(transaction)
        try:
            version = direct.commit(transaction, base.shape, self._txns(), lambda: None)
        except AlreadyAppliedError:
            self._world.acknowledge("was there", self._mark)
        else:
            if version is None:
                raise ConflictError("left to Lance")
            self._world.acknowledge("appended", self._mark)


def fields_of(request: Mapping[str, object]) -> set[str]:
    """Return which fields of a request carry something."""
    return {key for key, value in request.items() if value is not None}


__all__ = ["LanceModel", "NotFoundError", "Table", "conditional", "fields_of", "recorded"]
