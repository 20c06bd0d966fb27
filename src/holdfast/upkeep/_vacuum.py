"""`vacuum`: the one verb that deletes. It plans by default.

    plan = vacuum("s3://lake/events.lance")                  # what would go, and why
    vacuum("s3://lake/events.lance", confirm=True)

Taken is only what no version needs, what no commit under way can need, and what is older than
the grace period by the store's own clock. Files that commits bring are listed first, and go by
a later run (`_numbers`): so no clock protects them. Each kind of leftover has one finder; a new
kind is one more function in `FINDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from holdfast.arbiter import open_arbiter
from holdfast.commits import KEPT_AT_LEAST, Edit, Versions
from holdfast.core import TableCore
from holdfast.errors import InvalidInputError
from holdfast.events import EventKind, emit
from holdfast.options import StorageOptions, suggestion
from holdfast.storage import ObjectStore, open_store
from holdfast.upkeep._leftovers import Contents, Progress, read_contents
from holdfast.upkeep._numbers import Touch, is_numbered, may_rise, raise_number, read_due
from holdfast.upkeep._vacuum_files import (
    Found,
    find_branches,
    find_data,
    find_deletions,
    find_manifests,
    find_probes,
    find_staged,
    find_temporary,
    find_transactions,
    find_txns,
    find_versions,
)
from holdfast.upkeep._vacuum_index import find_indexes, take_indexes
from holdfast.upkeep._vacuum_log import find_log, find_sstables, take_log, take_sstables
from holdfast.upkeep._vacuum_versions import take_versions, versions_that_go

GRACE = timedelta(days=7)
"""How old a leftover is before it is taken by default."""

LEAST_GRACE = timedelta(hours=1)
"""Below this nobody can tell a leftover from a write that is under way."""


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
    BRANCHES = "branches"
    TXNS = "txns"


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
        version: the newest version.
        rows: always 0: no row of any version is touched.
        txn: always None: to repeat a vacuum does no harm.
        applied: True when the leftovers were deleted, False when this is a plan.
        leftovers: what would be deleted now, or was.
        waiting: what nobody needs and a later run deletes: a confirmed run lists it first, and
            one that comes a grace period later takes it.
        raised: whether this run made such a list, or would.
        elapsed: seconds.
    """

    version: int
    rows: int
    txn: None
    applied: bool
    leftovers: tuple[Leftover, ...]
    waiting: tuple[Leftover, ...]
    raised: bool
    elapsed: float

    @property
    def size(self) -> int:
        """Return the bytes of all leftovers."""
        return sum(one.size for one in self.leftovers)


Finder = Callable[[Contents], Found]


def vacuum(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    what: Collection[str] | None = None,
    grace: timedelta = GRACE,
    keep_versions_for: timedelta | None = None,
    confirm: bool = False,
    commit_store: str | None = None,
    progress: Progress | None = None,
) -> VacuumResult:
    """Find what nobody needs in a table and, when confirmed, delete it. Safe to repeat.

    Files that a commit may still bring (data, deletions, transactions, indexes) go in two
    steps: a confirmed run lists them and makes a version that says so; the next one that comes
    at least `grace` later deletes what is on the list and still in no version. Work that was
    begun before the list, and is not committed by then, is refused with a `StaleWorkError`.

    Warning:
        Choose a grace period longer than your longest job. A reader, a stream or an index
        build that is at a version for longer than `keep_versions_for` after a newer one came
        finds it gone. Stock writers do not know of the list: for them only the grace holds.

    Args:
        uri: where the table is.
        storage_options: pylance's storage options.
        what: the kinds of leftovers; all by default.
        grace: how old a leftover must be.
        keep_versions_for: how long a version stays after a newer one came; seven days at
            least. For ever by default. The newest stays, and so does one with a tag.
        confirm: delete; without it this is a plan.
        commit_store: another address of the table's commit store, with credentials, say.
        progress: hears how many of how many versions were read.

    Raises:
        NotFoundError: there is no Holdfast table.
        InvalidInputError: an unknown kind, a grace period below an hour, versions kept for
            less than seven days, or a table whose lost appends can still be rescued by what
            its old versions tell.
        CorruptError: a version cannot be read, so nobody knows which files it shows.
        UnavailableError, PermissionDeniedError: a store gave no answer, or refused; what was
            deleted until then, nobody needed.
    """
    options = StorageOptions(storage_options)
    arbiter = open_arbiter(uri, options, commit_store=commit_store)
    try:
        core = TableCore(open_store(uri, options), arbiter, uri, options)
        return vacuum_table(
            core,
            touch=lambda edit: _touch(core, edit),
            what=what,
            grace=grace,
            keep_versions_for=keep_versions_for,
            confirm=confirm,
            remember=True,
            progress=progress,
        )
    finally:
        arbiter.close()


def _touch(core: TableCore, edit: Edit) -> None:
    """Make a version that changes nothing but what the edit does."""
    # Lance is loaded only by who commits.
    from holdfast.commits import touch  # noqa: PLC0415

    touch(Versions(core), edit)


def plan_vacuum(
    core: TableCore,
    *,
    what: Collection[str] | None = None,
    grace: timedelta = GRACE,
    keep_versions_for: timedelta | None = None,
    remember: bool = False,
    progress: Progress | None = None,
) -> tuple[Contents, list[Leftover]]:
    """Return what nobody needs in a table, and the contents among which it was found.

    Raises:
        InvalidInputError, NotFoundError, CorruptError: as for `vacuum`.
    """
    _check_grace(grace)
    _check_kept(keep_versions_for, what)
    return find_leftovers(
        core,
        _kinds(what),
        grace=grace,
        keep_versions_for=keep_versions_for,
        remember=remember,
        progress=progress,
    )


def find_leftovers(
    core: TableCore,
    kinds: Sequence[LeftoverKind],
    *,
    grace: timedelta,
    keep_versions_for: timedelta | None = None,
    remember: bool = False,
    progress: Progress | None = None,
) -> tuple[Contents, list[Leftover]]:
    """Do what `plan_vacuum` does, by any grace period.

    Raises:
        NotFoundError, CorruptError: as for `vacuum`.
    """
    kept = keep_versions_for if LeftoverKind.VERSIONS in kinds else None
    contents = read_contents(
        core,
        grace,
        keep_versions_for=kept,
        choose=versions_that_go,
        remember=remember,
        progress=progress,
    )
    leftovers = [
        Leftover(kind=kind, path=info.path, size=info.size, age=contents.age(info), reason=reason)
        for kind in kinds
        for info, reason in FINDERS[kind](contents)
    ]
    return contents, sorted(leftovers, key=lambda one: (kinds.index(one.kind), one.path))


def vacuum_table(
    core: TableCore,
    *,
    touch: Touch,
    what: Collection[str] | None = None,
    grace: timedelta = GRACE,
    keep_versions_for: timedelta | None = None,
    confirm: bool = False,
    remember: bool = False,
    progress: Progress | None = None,
) -> VacuumResult:
    """Do what `vacuum` does, on a table that is open; `touch` makes its version.

    With `remember`, a plan reads only what no earlier run on this machine has read.

    Raises:
        HoldfastError: as for `vacuum`.
    """
    begun = core.clock.elapsed()
    contents, found = plan_vacuum(
        core,
        what=what,
        grace=grace,
        keep_versions_for=keep_versions_for,
        remember=remember,
        progress=progress,
    )
    raised = _is_worth_raising(contents, found)
    if confirm:
        gone, raised = take_leftovers(contents, found, touch)
        _tell(core.store, gone)
    else:
        due = read_due(contents, contents.mark, rising=raised)
        gone = [one for one in found if one.path in due or not is_numbered(one.path)]
    taken = {one.path for one in gone}
    return VacuumResult(
        version=contents.newest,
        rows=0,
        txn=None,
        applied=confirm,
        leftovers=tuple(gone),
        waiting=tuple(_waits(one) for one in found if _may_wait(contents, one, taken)),
        raised=raised,
        elapsed=core.clock.elapsed() - begun,
    )


def _may_wait(contents: Contents, one: Leftover, taken: Collection[str]) -> bool:
    return one.path not in taken and is_numbered(one.path) and not contents.is_needed(one.path)


def _waits(one: Leftover) -> Leftover:
    return replace(one, reason=f"{one.reason}; it is listed first, and goes by a later run")


def _is_worth_raising(contents: Contents, leftovers: Collection[Leftover]) -> bool:
    """Tell whether the number would rise: something waits, and the last time is long ago."""
    numbered = {one.path for one in leftovers if is_numbered(one.path)}
    return bool(numbered - read_due(contents, contents.mark)) and may_rise(contents)


def take_leftovers(
    contents: Contents, leftovers: Collection[Leftover], touch: Touch
) -> tuple[list[Leftover], bool]:
    """Delete what still nobody needs; return it, and whether the number was raised.

    Old versions go first: what only they showed is on the list then. The number that counts
    is read from the newest version, and after it the versions are read once more: each one
    below is seen then, also where a listing is no snapshot.
    """
    # What a later version shows may be on the plan: a rescue can bring an old data file back.
    contents.look_again()  # the plan took a while: what landed since is needed
    versions = [one for one in leftovers if one.kind is LeftoverKind.VERSIONS]
    # Versions before their files: a crash in between leaves files that nobody needs, the other
    # order would leave versions that cannot be read.
    gone = _take(contents, versions)
    contents.keep_the_rest()
    raising = _is_worth_raising(contents, leftovers)
    before = contents.mark.number
    if raising:
        raise_number(contents, touch)
        contents.look_again()
    mark = contents.mark
    # By the mark that a version carries, not by a clock of ours: a commit that was begun before the
    # list was made is refused by that number, so nothing on it can be needed later.
    due = read_due(contents, mark)
    contents.look_again()
    others = [one for one in leftovers if one.kind is not LeftoverKind.VERSIONS]
    if any(one.path in due for one in others):
        # The memory is a file on this machine: a wrong one may make a plan wrong, never a deletion.
        contents.read_all_again()  # what was remembered is for plans
        # A stock restore went back behind the mark: commits that it would have refused may pass
        # now.
        if contents.mark.number < mark.number:
            due = frozenset()
    gone += _take(contents, [p for p in others if p.path in due or not is_numbered(p.path)])
    return gone, raising and contents.mark.number > before


def _take(contents: Contents, leftovers: Collection[Leftover]) -> list[Leftover]:
    """Delete what still nobody needs, and return it."""
    gone: list[Leftover] = []
    for kind in LeftoverKind:
        some = [one for one in leftovers if one.kind is kind]
        if not some:
            continue
        take = TAKERS.get(kind, _take_files)
        taken = take(contents, [one.path for one in some])
        gone += [one for one in some if one.path in taken]
    return gone


def _take_files(contents: Contents, paths: Collection[str]) -> set[str]:
    gone = {path for path in paths if not contents.is_needed(path)}
    contents.core.store.delete(sorted(gone))
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
            f"versions are kept for {KEPT_AT_LEAST.days} days at least: readers and commits under "
            "way may still be at an older one",
            keep_versions_for=keep_versions_for,
        )


FINDERS: Mapping[LeftoverKind, Finder] = {
    LeftoverKind.VERSIONS: find_versions,
    LeftoverKind.DATA: find_data,
    LeftoverKind.DELETIONS: find_deletions,
    LeftoverKind.TRANSACTIONS: find_transactions,
    LeftoverKind.STAGED: find_staged,
    LeftoverKind.MANIFESTS: find_manifests,
    LeftoverKind.TEMPORARY: find_temporary,
    LeftoverKind.PROBES: find_probes,
    LeftoverKind.LOG: find_log,
    LeftoverKind.SSTABLES: find_sstables,
    LeftoverKind.INDEXES: find_indexes,
    LeftoverKind.BRANCHES: find_branches,
    LeftoverKind.TXNS: find_txns,
}

# Kinds that need more than deleting; they return what they deleted.
TAKERS: Mapping[LeftoverKind, Callable[[Contents, Collection[str]], set[str]]] = {
    LeftoverKind.VERSIONS: take_versions,
    LeftoverKind.LOG: take_log,
    LeftoverKind.SSTABLES: take_sstables,
    LeftoverKind.INDEXES: take_indexes,
}
