"""`doctor`: what is wrong with a table, and what to do about it. It changes nothing.

Works on Holdfast's tables and on plain Lance tables: there the lost appends are. It looks at
versions, records, files, indexes, shards with their logs and SSTables, leftovers, unknown files
and the commit store. What is damaged is a finding, never the end of the examination; only an
object store that gives no answer ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from holdfast._clock import Clock, SystemClock
from holdfast.arbiter import (
    EMBEDDED,
    Arbiter,
    ConditionalPut,
    SupportsSeries,
    SupportsSetUp,
    Verdict,
    for_reading,
    open_arbiter,
    read_pin,
)
from holdfast.commits import VERSIONS_FOLDER, Records, records_of
from holdfast.core import TableCore
from holdfast.errors import (
    CommitStoreRegressedError,
    CorruptError,
    HoldfastError,
    NotFoundError,
    PinMismatchError,
)
from holdfast.formats import (
    EMBEDDED_PATH,
    PIN_PATH,
    Pin,
    base_roots,
    read_details,
    version_name,
    version_of,
)
from holdfast.options import StorageOptions
from holdfast.storage import ObjectInfo, ObjectStore, SupportsLocalFiles, open_store
from holdfast.upkeep._candidates import Candidate, find_candidates
from holdfast.upkeep._doctor_files import FilesExam, sample_of
from holdfast.upkeep._doctor_shards import ShardsExam
from holdfast.upkeep._doctor_versions import VersionsExam
from holdfast.upkeep._findings import Finding, FindingKind, Severity, stamp_of
from holdfast.upkeep._log_findings import find_lost_log, find_past_log
from holdfast.upkeep._memory import ReadMemory, open_memory
from holdfast.upkeep._survey import Progress, Survey, survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What `doctor` found, the worst first.

    Attributes:
        uri: the table's address.
        arbiter: `conditional-put`, `commit-store`, or None for a plain Lance table.
        version: the newest version that can be read; 0 if none can.
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
        candidates = (f.candidate for f in self.findings if f.candidate is not None)
        return tuple(sorted(candidates, key=lambda one: (one.time, one.id)))


def doctor(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Diagnosis:
    """Examine a table: Holdfast's, or a plain Lance table. Reads only.

    Every version and transaction file is read once, but for those that an earlier run on this
    machine has read, and what the logs of shards hold that is not flushed. A commit that is under
    way on a plain table may look lost: stop the writers, or look again.

    Args:
        uri: where the table is.
        storage_options: pylance's storage options.
        commit_store: another address of the table's commit store, with credentials, say.
        progress: hears how many of how many objects were read.
        clock: measures how long it takes.

    Raises:
        NotFoundError: no Lance table is there.
        InvalidInputError: it has the old manifest names, or an option is not known.
        UnavailableError, PermissionDeniedError: the object store gave no answer, or refused.
    """
    clock = clock or SystemClock()
    begun = clock.elapsed()
    options = StorageOptions(storage_options)
    store = open_store(uri, options)
    tie = _tie(uri, options, store, commit_store)
    try:
        memory = open_memory(store, tie.pin, clock.now())
        seen = _survey(store, tie, progress, memory)
        # Without its commit store a table's shards are read as the object store shows them.
        reader = tie.arbiter or ConditionalPut(store, Verdict.ENFORCED)
        core = TableCore(store, reader, uri, options)
        findings = [*tie.problems, *_examine(uri, core, tie, seen)]
        findings = [_with_time(finding, store, seen) for finding in findings]
    finally:
        if tie.arbiter is not None:
            tie.arbiter.close()
    worst_first = list(Severity)[::-1]
    return Diagnosis(
        uri=uri,
        arbiter=None if tie.pin is None else tie.pin.arbiter.value,
        version=0 if seen is None else seen.version,
        versions=0 if seen is None else len(seen.traces),
        transactions=0 if seen is None else len(seen.written),
        findings=tuple(sorted(findings, key=lambda f: worst_first.index(f.severity))),
        elapsed=clock.elapsed() - begun,
    )


def _with_time(finding: Finding, store: ObjectStore, seen: Survey | None) -> Finding:
    """Say since when at the earliest: the object's own time, or that of the newest version."""
    if finding.since is not None:
        return finding
    objects = seen.objects if seen is not None else {one.path: one for one in store.list()}
    versions = [info for path, info in objects.items() if version_of(path) is not None]
    newest = max(versions or objects.values(), key=lambda info: info.modified, default=None)
    return replace(finding, since=stamp_of(objects.get(finding.path or "") or newest))


def candidates_in(
    store: ObjectStore, pin: Pin | None, records: Records | None, seen: Survey
) -> list[Candidate]:
    """Return the appends that may have been lost, oldest first."""
    tied = seen.objects.get(PIN_PATH) if pin is not None else None
    return find_candidates(
        seen,
        tied_at=None if tied is None else tied.modified,
        boundary=None if records is None else records.boundary,
        read=lambda path: sample_of(store, seen.objects[path]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tie:
    """What a table is tied to, as far as it can be learnt, and what is wrong there."""

    pin: Pin | None = None
    arbiter: Arbiter | None = None
    records: Records | None = None
    problems: tuple[Finding, ...] = ()


def _tie(uri: str, options: StorageOptions, store: ObjectStore, commit_store: str | None) -> _Tie:
    try:
        pin = read_pin(store)
    except CorruptError as error:
        advice = "until then nobody opens the table: put it back with the command"
        return _Tie(problems=(_pin_problem(uri, str(error), advice),))
    if pin is None:
        return _Tie()
    return _ask_arbiter(uri, options, store, pin, commit_store)


def _ask_arbiter(
    uri: str, options: StorageOptions, store: ObjectStore, pin: Pin, commit_store: str | None
) -> _Tie:
    arbiter = None
    try:
        arbiter = for_reading(open_arbiter(uri, options, commit_store=commit_store))
        records = records_of(arbiter)
    except PinMismatchError as error:
        # The message has the way out, for each case its own.
        advice = "until then nobody can write to the table"
        problem = _pin_problem(uri, str(error), advice)
    except HoldfastError as error:
        problem = _store_problem(uri, store, pin, error)
    else:
        return _Tie(pin=pin, arbiter=arbiter, records=records, problems=tuple(_unfit(pin, arbiter)))
    if arbiter is not None:
        arbiter.close()
    return _Tie(pin=pin, problems=(problem,))


def _unfit(pin: Pin, arbiter: Arbiter) -> Iterator[Finding]:
    """Tell what makes a commit store unfit to decide, as `holdfast store check` does."""
    if not isinstance(arbiter, SupportsSeries):
        return
    commit_store = arbiter.commit_store
    if not isinstance(commit_store, SupportsSetUp):
        return
    try:
        unfit = list(commit_store.check())
    except HoldfastError as error:
        unfit = [str(error)]
    for what in unfit:
        yield Finding(
            kind=FindingKind.COMMIT_STORE,
            severity=Severity.WARNING,
            what=f"the commit store is not fit to decide: {what}",
            advice="change the server's settings, or restore its file, before anybody writes; then "
            "look again with the command",
            command=f"holdfast store check {commit_store.url}",
            path=_place_of(pin),
        )


def _pin_problem(uri: str, what: str, advice: str) -> Finding:
    return Finding(
        kind=FindingKind.PIN,
        severity=Severity.PROBLEM,
        what=what,
        advice=advice,
        command=f"holdfast repair {uri}",
        path=PIN_PATH,
    )


def _store_problem(uri: str, store: ObjectStore, pin: Pin, error: HoldfastError) -> Finding:
    """Tell of a commit store that forgot, is damaged, gone, or gives no answer."""
    if isinstance(error, CommitStoreRegressedError):
        return Finding(
            kind=FindingKind.REGRESSED,
            severity=Severity.PROBLEM,
            what=str(error),
            advice="stop all writers; bring the records back from a backup, or take what the "
            "object store shows with the command",
            command=f"holdfast repair {uri} --confirm",
            path=_place_of(pin),
        )
    lost = isinstance(error, NotFoundError | CorruptError)
    return Finding(
        kind=FindingKind.COMMIT_STORE,
        severity=Severity.PROBLEM,
        what=f"the commit store cannot be asked, so nobody can write: {error}",
        advice="start it, or bring it back from a backup; what is said below does not know "
        "its records",
        command=f"holdfast repair {uri}" if lost else f"holdfast store check {_url(store, pin)}",
        path=_place_of(pin),
    )


def _url(store: ObjectStore, pin: Pin) -> str | None:
    """Return the address of a commit store without its credentials."""
    if pin.store_url == EMBEDDED and isinstance(store, SupportsLocalFiles):
        return f"sqlite:///{store.root / EMBEDDED_PATH}"
    return pin.store_url


def _place_of(pin: Pin) -> str | None:
    """Return where the commit store is: its file in the table, or its address."""
    return EMBEDDED_PATH if pin.store_url == EMBEDDED else pin.store_url


def _survey(
    store: ObjectStore, tie: _Tie, progress: Progress | None, memory: ReadMemory
) -> Survey | None:
    """Read all versions; None if none can be read, of what was a table."""
    try:
        return survey(store, tie.records, progress, past_damage=True, memory=memory)
    except CorruptError:
        return None
    except NotFoundError:
        if tie.pin is None and not tie.problems:
            raise
        return None


def _examine(uri: str, core: TableCore, tie: _Tie, seen: Survey | None) -> Iterator[Finding]:
    store = core.store
    merged: Mapping[str, int] = {}
    objects: Mapping[str, ObjectInfo]
    if seen is None:
        objects = {info.path: info for info in store.list()}
        yield _no_version(objects)
    else:
        objects = seen.objects
        details = read_details(seen.manifest)
        # A clone has merged generations of shards that only the original has.
        cloned = bool(base_roots(seen.manifest))
        merged = {} if details is None or cloned else details.compacted
        versions = VersionsExam(uri=uri, store=store, records=tie.records, seen=seen)
        candidates = candidates_in(store, tie.pin, tie.records, seen)
        yield from versions.findings()
        yield from FilesExam(uri=uri, store=store, records=tie.records, seen=seen).findings()
        if tie.pin is not None:
            yield from _log(uri, store, seen, shared=tie.records is None)
        yield from versions.find_lost(candidates, tied=tie.pin is not None)
    yield from ShardsExam(
        uri=uri,
        core=core,
        objects=objects,
        merged=merged,
    ).findings()


def _log(uri: str, store: ObjectStore, seen: Survey, *, shared: bool) -> Iterator[Finding]:
    """Tell whether the log's rows can be read, and what strangers wrote past them."""
    lost = None
    newer = (version_of(path) or 0 for path in seen.unreadable)
    if max(newer, default=0) < seen.version:  # else an older version is read, and says nothing
        with suppress(CorruptError):  # a shard's manifest, which is told of with its shard
            lost = find_lost_log(store, seen)
    if lost is not None:
        yield Finding(
            kind=FindingKind.LOG_LOST,
            severity=Severity.PROBLEM,
            what=lost,
            advice="say what becomes of the rows that wait: `holdfast wal reset` with --keep or "
            "--discard; or restore the version before",
            command=f"holdfast wal reset {uri} --keep",
            version=seen.version,
            since=stamp_of(seen.objects.get(version_name(seen.version).path)),
        )
    for version, operation in find_past_log(seen) if shared else ():
        path = version_name(version).path
        yield Finding(
            kind=FindingKind.PAST_LOG,
            severity=Severity.NOTE,
            what=f"version {version} ({operation}) was written past Holdfast, beside the log",
            advice="rows that waited in the log then win over it: let such writers go through "
            "Holdfast, or merge the log first, with the command",
            command=f"holdfast maintain {uri}",
            path=path,
            version=version,
            since=stamp_of(seen.objects.get(path)),
        )


def _no_version(objects: Mapping[str, ObjectInfo]) -> Finding:
    listed = [info for path, info in objects.items() if version_of(path) is not None]
    return Finding(
        kind=FindingKind.UNREADABLE if listed else FindingKind.MISSING,
        severity=Severity.PROBLEM,
        what=f"none of the table's {len(listed)} manifests can be read"
        if listed
        else "the table has no version: it was never finished, or somebody deleted them",
        advice="bring back the objects of the folder from a backup",
        path=VERSIONS_FOLDER,
        since=stamp_of(max(listed, key=lambda info: info.modified, default=None)),
    )
