"""`doctor`: what is wrong with a table, and what to do about it. It changes nothing.

Works on Holdfast's tables and on plain Lance tables: there the lost appends are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from holdfast._clock import Clock, SystemClock
from holdfast.arbiter import open_arbiter, read_pin
from holdfast.commits._history import (
    VERSIONS_FOLDER,
    Records,
    foreign,
    list_versions,
    read_version,
    records_of,
    unfinished,
)
from holdfast.errors import (
    CommitStoreRegressedError,
    CorruptError,
    NotFoundError,
    PinMismatchError,
)
from holdfast.formats import (
    PIN_PATH,
    PROBE_FOLDER,
    STAGED_FOLDER,
    TEMPORARY_FOLDER,
    ArbiterKind,
    Pin,
    shown_files,
    version_name,
    version_of,
)
from holdfast.options import StorageOptions
from holdfast.storage import ObjectInfo, ObjectStore, open_store
from holdfast.upkeep._candidates import Candidate, find_candidates, orphaned_changes
from holdfast.upkeep._survey import Progress, Survey, survey

_WHOLE_BYTES = 1 << 20
_SAMPLES = 4
_HINT = f"{VERSIONS_FOLDER}/latest_version_hint.json"


class FindingKind(StrEnum):
    """What kind of thing was found. Append-only."""

    UNFINISHED = "unfinished_decision"
    STRAY = "stray_objects"
    FOREIGN = "foreign_version"
    MISSING = "missing_file"
    REGRESSED = "commit_store_regressed"
    PIN = "pin_problem"
    LOST_APPEND = "lost_append"
    ORPHANED_CHANGE = "orphaned_change"
    UNREADABLE = "unreadable_object"


class Severity(StrEnum):
    """How bad it is: a note needs nobody, a warning somebody, a problem somebody now."""

    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: a stable code.
        severity: how bad it is.
        what: what was found, in words.
        advice: what to do.
        path: the object or folder it is about.
        version: the version it is about.
        candidate: for `lost_append`, the append.
    """

    kind: FindingKind
    severity: Severity
    what: str
    advice: str
    path: str | None = None
    version: int | None = None
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What `doctor` found, the worst first.

    Attributes:
        uri: the table's address.
        arbiter: `conditional-put`, `commit-store`, or None for a plain Lance table.
        version: the newest version.
        versions: how many versions were read.
        transactions: how many transaction files were read.
        findings: what was found.
        elapsed: seconds.
    """

    uri: str
    arbiter: str | None
    version: int
    versions: int
    transactions: int
    findings: tuple[Finding, ...]
    elapsed: float

    @property
    def healthy(self) -> bool:
        """Tell whether there is nothing but notes."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Return the appends that may have been lost, oldest first."""
        found = (f.candidate for f in self.findings if f.candidate is not None)
        return tuple(sorted(found, key=lambda one: (one.time, one.id)))


def doctor(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Diagnosis:
    """Examine a table: Holdfast's, or a plain Lance table. Reads only.

    Every version and transaction file is read once. A commit that is under way on a plain
    table may look lost: stop the writers, or look again.

    Args:
        uri: where the table is.
        storage_options: pylance's storage options.
        commit_store: another address of the table's commit store, with credentials, say.
        progress: hears how many of how many objects were read.
        clock: measures how long it takes.

    Raises:
        NotFoundError: no Lance table is there.
        InvalidInputError: it has the old manifest names, or an option is not known.
        CorruptError: the newest manifest cannot be read.
        UnavailableError, PermissionDeniedError: a store gave no answer, or refused.
    """
    clock = clock or SystemClock()
    begun = clock.elapsed()
    options = StorageOptions(storage_options)
    store = open_store(uri, options)
    pin, records, problems = _tie(uri, options, store, commit_store)
    seen = survey(store, records, progress)
    findings = [*problems, *_examine(store, pin, records, seen)]
    worst_first = list(Severity)[::-1]
    return Diagnosis(
        uri=uri,
        arbiter=None if pin is None else pin.arbiter.value,
        version=seen.version,
        versions=len(seen.traces),
        transactions=len(seen.written),
        findings=tuple(sorted(findings, key=lambda f: worst_first.index(f.severity))),
        elapsed=clock.elapsed() - begun,
    )


def candidates_in(
    store: ObjectStore, pin: Pin | None, records: Records | None, seen: Survey
) -> list[Candidate]:
    """Return the appends that may have been lost, oldest first."""
    tied = seen.objects.get(PIN_PATH) if pin is not None else None
    return find_candidates(
        seen,
        tied_at=None if tied is None else tied.modified,
        boundary=None if records is None else records.boundary,
        read=lambda path: _sample(store, seen.objects[path]),
    )


def _tie(
    uri: str, options: StorageOptions, store: ObjectStore, commit_store: str | None
) -> tuple[Pin | None, Records | None, list[Finding]]:
    """Return what the table is tied to, what its commit store knows, and what is wrong there."""
    try:
        pin = read_pin(store)
    except CorruptError as error:
        return None, None, [_pin_problem(str(error), "restore _holdfast/pin.json from a backup")]
    if pin is None or pin.arbiter is ArbiterKind.CONDITIONAL_PUT:
        return pin, None, []
    try:
        arbiter = open_arbiter(uri, options, commit_store=commit_store)
    except (PinMismatchError, NotFoundError) as error:
        # The message has the way out, for each case its own.
        return pin, None, [_pin_problem(str(error), "until then nobody can write to the table")]
    try:
        return pin, records_of(arbiter), []
    except CommitStoreRegressedError as error:
        lost = Finding(
            kind=FindingKind.REGRESSED,
            severity=Severity.PROBLEM,
            what=str(error),
            advice="stop all writers; bring the records back from a backup, or take what the "
            "object store shows with `holdfast adopt --accept`",
        )
        return pin, None, [lost]
    finally:
        arbiter.close()


def _pin_problem(what: str, advice: str) -> Finding:
    return Finding(
        kind=FindingKind.PIN, severity=Severity.PROBLEM, what=what, advice=advice, path=PIN_PATH
    )


def _examine(
    store: ObjectStore, pin: Pin | None, records: Records | None, seen: Survey
) -> Iterator[Finding]:
    if records is not None:
        listed = list_versions(store)
        yield from _undecided(records, listed, seen)
        yield from _unfinished(store, records, listed)
    yield from _missing(store, seen)
    yield from _strays(records, seen)
    yield from _lost(candidates_in(store, pin, records, seen))
    yield from _orphans(seen, tied=pin is not None)
    for path in seen.unreadable:
        yield Finding(
            kind=FindingKind.UNREADABLE,
            severity=Severity.WARNING,
            what="an object of the table cannot be read as what it should be",
            advice="if it was damaged, restore it; nothing that is said here takes it into account",
            path=path,
        )


def _undecided(
    records: Records, listed: Mapping[int, ObjectInfo], seen: Survey
) -> Iterator[Finding]:
    """Tell versions that strangers wrote from versions that the commit store forgot."""
    changed = [v for v, trace in seen.traces.items() if trace.as_decided is False and v in listed]
    for version in sorted({*foreign(records, listed), *changed}):
        trace, before = seen.traces.get(version), seen.traces.get(version - 1)
        token = None if trace is None else trace.token
        ours = token is not None and token != (None if before is None else before.token)
        if ours and version not in changed:
            yield Finding(
                kind=FindingKind.REGRESSED,
                severity=Severity.PROBLEM,
                what=f"the commit store forgot version {version}; it knows {records.newest}",
                advice="stop all writers; was it restored from a backup? Then bring it up to "
                "date, or take what the object store shows with `holdfast adopt --accept`",
                path=version_name(version).path,
                version=version,
            )
            continue
        yield Finding(
            kind=FindingKind.FOREIGN,
            severity=Severity.PROBLEM,
            what=f"version {version} was written past Holdfast",
            advice="find that writer and stop it; look at the version; to keep it, "
            "`holdfast adopt --accept`",
            path=version_name(version).path,
            version=version,
        )


def _unfinished(
    store: ObjectStore, records: Records, listed: Mapping[int, ObjectInfo]
) -> Iterator[Finding]:
    for version in unfinished(records, listed):
        path = version_name(version).path
        if version in listed:
            yield Finding(
                kind=FindingKind.UNFINISHED,
                severity=Severity.NOTE,
                what=f"version {version} is decided and in place, but not marked so",
                advice="none needed: a staged copy stays behind until it is vacuumed",
                path=path,
                version=version,
            )
        elif read_version(store, version, records.found[version]) is None:
            yield Finding(
                kind=FindingKind.MISSING,
                severity=Severity.PROBLEM,
                what=f"version {version} is decided, but its bytes are gone",
                advice="somebody deleted them: restore the object from a backup",
                path=path,
                version=version,
            )
        else:
            yield Finding(
                kind=FindingKind.UNFINISHED,
                severity=Severity.WARNING,
                what=f"version {version} is decided, but not in place: stock readers do not see it",
                advice="the next reader or writer through Holdfast puts it there: open the table",
                path=path,
                version=version,
            )


def _missing(store: ObjectStore, seen: Survey) -> Iterator[Finding]:
    """Look for files that the newest version shows; what is listed is there."""
    others = {
        path for path in shown_files(seen.manifest) if path.startswith(("_deletions/", "_indices/"))
    }
    folders = {f"{path.rpartition('/')[0]}/" for path in seen.objects}
    for path in sorted(seen.shown | others):
        there = path in folders if path.endswith("/") else path in seen.objects
        if there or _is_there(store, path):
            continue
        yield Finding(
            kind=FindingKind.MISSING,
            severity=Severity.PROBLEM,
            what=f"version {seen.version} shows a file that is not there",
            advice="somebody deleted it: restore the object, or go back to an older version",
            path=path,
            version=seen.version,
        )


def _is_there(store: ObjectStore, path: str) -> bool:
    """Ask once more: it may be younger than the listing."""
    if path.endswith("/"):
        return bool(store.list(path[:-1]))
    with suppress(NotFoundError):
        store.head(path)
        return True
    return False


def _strays(records: Records | None, seen: Survey) -> Iterator[Finding]:
    found = {} if records is None else records.found
    needed = {record.staged for record in found.values() if record.staged is not None}
    for folder, what in (
        (STAGED_FOLDER, "staged objects that no decision needs"),
        (TEMPORARY_FOLDER, "temporary files of writers that stopped half-way"),
        (PROBE_FOLDER, "objects of a probe that was cut off"),
        (VERSIONS_FOLDER, "staged manifests of commits that were cut off"),
    ):
        left = [
            info
            for path, info in seen.objects.items()
            if path.startswith(f"{folder}/")
            and path not in needed
            and path != _HINT
            and version_of(path) is None
        ]
        if left:
            yield _stray(folder, what, left)


def _stray(folder: str, what: str, left: Sequence[ObjectInfo]) -> Finding:
    size = sum(info.size for info in left)
    return Finding(
        kind=FindingKind.STRAY,
        severity=Severity.NOTE,
        what=f"{len(left)} {what}, {size} bytes",
        advice="harmless; while no writer runs they may be deleted",
        path=folder,
    )


def _lost(candidates: Sequence[Candidate]) -> Iterator[Finding]:
    for one in candidates:
        rows = f"{one.rows} row{'' if one.rows == 1 else 's'}"
        sure = one.doubt is None
        yield Finding(
            kind=FindingKind.LOST_APPEND,
            severity=Severity.WARNING if sure else Severity.NOTE,
            what=f"an append of {rows} is not in the table: {one.known}",
            advice="if its writer was told that it succeeded, bring it back: `holdfast rescue`"
            if sure
            else "most likely no loss; if it is one, `holdfast rescue --id` brings it back",
            path=one.files[0],
            candidate=one,
        )


def _orphans(seen: Survey, *, tied: bool) -> Iterator[Finding]:
    for one in orphaned_changes(seen):
        operation = one.transaction.operation
        yield Finding(
            kind=FindingKind.ORPHANED_CHANGE,
            severity=Severity.NOTE if tied else Severity.WARNING,
            what=f"no version came of this {operation}, begun on version "
            f"{one.transaction.read_version}: it failed, or it was lost",
            advice="if its writer was told that it succeeded, do it again: it cannot be rescued",
            path=one.info.path,
        )


def _sample(store: ObjectStore, info: ObjectInfo) -> bytes:
    """Return a file's bytes, or of a large one some pieces, to compare."""
    if info.size <= _WHOLE_BYTES:
        return store.get(info.path)
    piece = _WHOLE_BYTES // _SAMPLES
    starts = [(info.size - piece) * number // (_SAMPLES - 1) for number in range(_SAMPLES)]
    return b"".join(store.get(info.path, start=start, end=start + piece) for start in starts)
