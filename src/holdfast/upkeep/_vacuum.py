"""`vacuum`: the one verb that deletes. It plans unless told to act.

    plan = vacuum("s3://lake/events.lance")                  # what would go, and why
    vacuum("s3://lake/events.lance", confirm=True)

Taken is only what no version needs, what no commit under way can need, and what is older than
the grace period by the store's own clock. Each kind of leftover has one finder below; a
new kind is one more function in `FINDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids
from holdfast.arbiter import Arbiter, open_arbiter
from holdfast.commits._boundary import KEPT_AT_LEAST
from holdfast.commits._history import VERSIONS_FOLDER
from holdfast.errors import CorruptError, InvalidInputError, NotFoundError
from holdfast.events import EventKind, emit
from holdfast.formats import (
    PIN_PATH,
    PROBE_FOLDER,
    STAGED_FOLDER,
    TEMPORARY_FOLDER,
    is_staged_manifest,
)
from holdfast.formats._transaction import DATA_FOLDER, TRANSACTIONS_FOLDER, VersionFacts
from holdfast.options import StorageOptions, suggestion
from holdfast.storage import ObjectInfo, ObjectStore, open_store
from holdfast.upkeep._doctor import candidates_in
from holdfast.upkeep._leftovers import Ground, read_ground
from holdfast.upkeep._survey import survey
from holdfast.upkeep._vacuum_index import find_indexes, take_indexes
from holdfast.upkeep._vacuum_log import find_log, find_sstables, take_log, take_sstables
from holdfast.upkeep._vacuum_versions import find_versions, take_versions, versions_that_go

GRACE = timedelta(days=7)
"""How old a leftover is before it is taken, unless told."""

LEAST_GRACE = timedelta(hours=1)
"""Below this nobody can tell a leftover from a write that is under way."""

DELETIONS_FOLDER = "_deletions"
_BRANCHES = ("tree/", "_refs/branches/")


class LeftoverKind(StrEnum):
    """What kind of leftover, in the order in which they go. Names are never changed."""

    VERSIONS = "versions"
    DATA = "data"
    DELETIONS = "deletions"
    TRANSACTIONS = "transactions"
    STAGED = "staged"
    MANIFESTS = "manifests"
    TEMPORARY = "temporary"
    PROBES = "probes"
    LOG = "log"
    SSTABLES = "sstables"
    INDEXES = "indexes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One object that nobody needs.

    Attributes:
        kind: a stable code.
        path: the object.
        size: its bytes.
        age: how old it is, by the store's clock.
        reason: why nobody needs it.
    """

    kind: LeftoverKind
    path: str
    size: int
    age: timedelta
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult:
    """What `vacuum` found, and whether it took it.

    Attributes:
        version: the newest version; vacuum makes none.
        rows: always 0: no row of any version is touched.
        txn: always None: to repeat a vacuum does no harm.
        applied: True when the leftovers were deleted, False when this is a plan.
        leftovers: what was found, or deleted.
        elapsed: seconds.
    """

    version: int
    rows: int
    txn: None
    applied: bool
    leftovers: tuple[Leftover, ...]
    elapsed: float

    @property
    def size(self) -> int:
        """Return the bytes of all leftovers."""
        return sum(one.size for one in self.leftovers)


Finder = Callable[[Ground], Iterator[tuple[ObjectInfo, str]]]
"""Yields leftovers of one kind, each with the reason."""


def vacuum(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    what: Collection[str] | None = None,
    grace: timedelta = GRACE,
    keep_versions_for: timedelta | None = None,
    confirm: bool = False,
    commit_store: str | None = None,
) -> VacuumResult:
    """Find what nobody needs in a table and, when confirmed, delete it. Safe to repeat.

    Warning:
        A job that writes files and commits them later than `grace` after that finds them
        gone. Choose a grace period longer than your longest job. A reader, a stream or an
        index build that is at a version for longer than `keep_versions_for` after a newer one
        came finds it gone.

    Args:
        uri: where the table is.
        storage_options: pylance's storage options.
        what: the kinds of leftovers; all unless told.
        grace: how old a leftover must be.
        keep_versions_for: how long a version stays after a newer one came; seven days at
            least. For ever unless told. The newest stays, and so does one with a tag.
        confirm: delete; without it this is a plan.
        commit_store: another address of the table's commit store, with credentials, say.

    Raises:
        NotFoundError: there is no Holdfast table.
        InvalidInputError: an unknown kind, a grace period below an hour, versions kept for
            less than seven days, a table with branches, or one whose lost appends can still
            be rescued by what its old versions tell.
        CorruptError: a version cannot be read, so nobody knows which files it shows.
        UnavailableError, PermissionDeniedError: a store gave no answer, or refused; what was
            deleted until then, nobody needed.
    """
    options = StorageOptions(storage_options)
    arbiter = open_arbiter(uri, options, commit_store=commit_store)
    try:
        store = open_store(uri, options)
        return vacuum_store(
            store,
            arbiter,
            what=what,
            grace=grace,
            keep_versions_for=keep_versions_for,
            confirm=confirm,
        )
    finally:
        arbiter.close()


def plan_vacuum(
    store: ObjectStore,
    arbiter: Arbiter,
    *,
    what: Collection[str] | None = None,
    grace: timedelta = GRACE,
    keep_versions_for: timedelta | None = None,
    ids: Ids | None = None,
) -> tuple[Ground, list[Leftover]]:
    """Return the leftovers of a table, and the ground on which they were found.

    Raises:
        InvalidInputError, NotFoundError, CorruptError: as for `vacuum`.
    """
    kinds = _kinds(what)
    _check_grace(grace)
    _check_kept(keep_versions_for, what)
    kept = keep_versions_for if LeftoverKind.VERSIONS in kinds else None
    ground = read_ground(
        store, arbiter, grace, ids, keep_versions_for=kept, choose=versions_that_go
    )
    found = [
        Leftover(kind=kind, path=info.path, size=info.size, age=ground.age(info), reason=reason)
        for kind in kinds
        for info, reason in FINDERS[kind](ground)
    ]
    return ground, sorted(found, key=lambda one: (kinds.index(one.kind), one.path))


def vacuum_store(
    store: ObjectStore,
    arbiter: Arbiter,
    *,
    what: Collection[str] | None = None,
    grace: timedelta = GRACE,
    keep_versions_for: timedelta | None = None,
    confirm: bool = False,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> VacuumResult:
    """Do what `vacuum` does, on a table that is open.

    Raises:
        HoldfastError: as for `vacuum`.
    """
    clock = clock or SystemClock()
    begun = clock.elapsed()
    ground, found = plan_vacuum(
        store, arbiter, what=what, grace=grace, keep_versions_for=keep_versions_for, ids=ids
    )
    if confirm:
        ground.look_again()  # the plan took a while: what landed since is needed
        found = _take(ground, found)
        _tell(store, found)
    return VacuumResult(
        version=ground.newest,
        rows=0,
        txn=None,
        applied=confirm,
        leftovers=tuple(found),
        elapsed=clock.elapsed() - begun,
    )


def _take(ground: Ground, found: Collection[Leftover]) -> list[Leftover]:
    """Delete what still nobody needs, and return it."""
    gone: list[Leftover] = []
    for kind in LeftoverKind:
        some = [one for one in found if one.kind is kind]
        if not some:
            continue
        take = TAKERS.get(kind, _take_files)
        taken = take(ground, [one.path for one in some])
        gone += [one for one in some if one.path in taken]
    return gone


def _take_files(ground: Ground, paths: Collection[str]) -> set[str]:
    gone = {path for path in paths if not ground.is_needed(path)}
    ground.store.delete(sorted(gone))
    return gone


def _tell(store: ObjectStore, gone: Collection[Leftover]) -> None:
    for kind in LeftoverKind:
        some = [one for one in gone if one.kind is kind]
        if some:
            emit(
                EventKind.VACUUMED,
                location=store.location,
                what=kind.value,
                objects=len(some),
                size=sum(one.size for one in some),
            )


def _kinds(what: Collection[str] | None) -> list[LeftoverKind]:
    if what is None:
        return list(LeftoverKind)
    if isinstance(what, str):
        raise InvalidInputError("what is a list of kinds", what=what)
    known = [kind.value for kind in LeftoverKind]
    for name in what:
        if name not in known:
            raise InvalidInputError(
                f"there are no leftovers of kind {name!r}{suggestion(name, known)}",
                known=", ".join(known),
            )
    return [kind for kind in LeftoverKind if kind.value in what]


def _check_grace(grace: object) -> None:
    if not isinstance(grace, timedelta) or grace < LEAST_GRACE:
        raise InvalidInputError(
            "the grace period is a timedelta of at least an hour: what is younger may belong "
            "to a write that is under way",
            grace=grace,
        )


def _check_kept(keep_versions_for: object, what: Collection[str] | None) -> None:
    if keep_versions_for is None:
        if what is not None and LeftoverKind.VERSIONS in what:
            raise InvalidInputError("say for how long versions are kept: keep_versions_for")
        return
    if not isinstance(keep_versions_for, timedelta) or keep_versions_for < KEPT_AT_LEAST:
        raise InvalidInputError(
            f"versions are kept for {KEPT_AT_LEAST.days} days at least: a writer that slept for "
            "less does not look whether its version is gone",
            keep_versions_for=keep_versions_for,
        )


# The finders.


def _find_versions(ground: Ground) -> Iterator[tuple[ObjectInfo, str]]:
    """Manifests of versions that nobody keeps."""
    if not ground.going:
        return
    _refuse_branches(ground)
    tied = ground.objects.get(PIN_PATH)
    transactions = ground.old_below(TRANSACTIONS_FOLDER)
    if tied is not None and any(info.modified <= tied.modified for info in transactions):
        seen = survey(ground.store, ground.records)
        found = candidates_in(ground.store, ground.arbiter.pin, ground.records, seen)
        if any(one.doubt is None for one in found):
            raise InvalidInputError(
                "old versions tell which appends were lost before the table was tied: run "
                "`holdfast rescue` first, or keep versions"
            )
    yield from find_versions(ground)


def _find_data(ground: Ground) -> Iterator[tuple[ObjectInfo, str]]:
    """Data files that no version shows; those that `rescue` could bring back stay."""
    _refuse_branches(ground)
    orphans = [info for info in ground.old_below(DATA_FOLDER) if not ground.is_needed(info.path)]
    kept = _rescuable(ground, orphans)
    for info in orphans:
        if info.path not in kept:
            yield info, "no version shows it, and no commit under way speaks of it"


def _rescuable(ground: Ground, orphans: Collection[ObjectInfo]) -> set[str]:
    """Return data files of appends that may have been lost before the table was tied."""
    tied = ground.objects.get(PIN_PATH)
    if tied is None or all(info.modified > tied.modified for info in orphans):
        return set()
    seen = survey(ground.store, ground.records)
    found = candidates_in(ground.store, ground.arbiter.pin, ground.records, seen)
    return {file for one in found if one.doubt is None for file in one.files}


def _find_deletions(ground: Ground) -> Iterator[tuple[ObjectInfo, str]]:
    """Deletion files that no version shows."""
    _refuse_branches(ground)
    for info in ground.old_below(DELETIONS_FOLDER):
        under_way = any(f"-{version}-" in info.path for version in ground.under_way)
        if not under_way and not ground.is_needed(info.path):
            yield info, "no version shows it, and no commit under way speaks of it"


def _find_transactions(ground: Ground) -> Iterator[tuple[ObjectInfo, str]]:
    """Transaction files of commits that no version came of, or whose version is gone.

    Those from before the table was tied stay: by them `doctor` finds what was lost.
    """
    _refuse_branches(ground)
    tied = ground.objects.get(PIN_PATH)
    for info in ground.old_below(TRANSACTIONS_FOLDER):
        before = tied is not None and info.modified <= tied.modified
        if not before and not ground.is_needed(info.path):
            yield info, "no version came of this commit, or the version is gone"


def _find_staged(ground: Ground) -> Iterator[tuple[ObjectInfo, str]]:
    """Staged bytes of versions that are decided: whoever comes late with them, loses.

    Bytes for a version that nobody decided yet stay, however old: their writer may wake up,
    decide, and need them.
    """
    records = {} if ground.records is None else ground.records.found
    needed = {record.staged for record in records.values() if record.staged is not None}
    for info in ground.old_below(STAGED_FOLDER):
        version = None if info.path in needed else _version_in(ground.store, info.path)
        if version is not None and version <= ground.newest:
            yield info, f"version {version} is decided and does not need it"


def _version_in(store: ObjectStore, path: str) -> int | None:
    """Return the version that staged bytes want to be; None if they are no manifest."""
    try:
        return VersionFacts(store.get(path)).version
    except (CorruptError, NotFoundError):
        return None


def _find_manifests(ground: Ground) -> Iterator[tuple[ObjectInfo, str]]:
    """Manifests that Lance staged for commits that were refused or cut off."""
    for info in ground.old_below(VERSIONS_FOLDER):
        if is_staged_manifest(info.path):
            yield info, "staged for a commit that was refused or cut off"


def _find_temporary(ground: Ground) -> Iterator[tuple[ObjectInfo, str]]:
    """Files that got no name."""
    for info in ground.old_below(TEMPORARY_FOLDER):
        yield info, "a temporary file of a writer that stopped half-way"


def _find_probes(ground: Ground) -> Iterator[tuple[ObjectInfo, str]]:
    """Objects of probes."""
    for info in ground.old_below(PROBE_FOLDER):
        yield info, "an object of a probe that was cut off"


def _refuse_branches(ground: Ground) -> None:
    if any(path.startswith(_BRANCHES) for path in ground.objects):
        others = (LeftoverKind.STAGED, LeftoverKind.MANIFESTS, LeftoverKind.TEMPORARY)
        raise InvalidInputError(
            "the table has branches, whose files vacuum does not know: leave out data, deletions "
            "and transactions",
            what=", ".join(kind.value for kind in (*others, LeftoverKind.PROBES)),
        )


FINDERS: Mapping[LeftoverKind, Finder] = {
    LeftoverKind.VERSIONS: _find_versions,
    LeftoverKind.DATA: _find_data,
    LeftoverKind.DELETIONS: _find_deletions,
    LeftoverKind.TRANSACTIONS: _find_transactions,
    LeftoverKind.STAGED: _find_staged,
    LeftoverKind.MANIFESTS: _find_manifests,
    LeftoverKind.TEMPORARY: _find_temporary,
    LeftoverKind.PROBES: _find_probes,
    LeftoverKind.LOG: find_log,
    LeftoverKind.SSTABLES: find_sstables,
    LeftoverKind.INDEXES: find_indexes,
}

# Kinds that need more than deleting; they return what they deleted.
TAKERS: Mapping[LeftoverKind, Callable[[Ground, Collection[str]], set[str]]] = {
    LeftoverKind.VERSIONS: take_versions,
    LeftoverKind.LOG: take_log,
    LeftoverKind.SSTABLES: take_sstables,
    LeftoverKind.INDEXES: take_indexes,
}
