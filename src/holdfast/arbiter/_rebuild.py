"""Compare a table's objects with its commit store's records, and make the two agree again.

Two things go wrong. A commit store that was set back *forgot* decisions whose objects are there:
the objects count, and the boundary of their series is raised to them. Objects that were lost or
damaged although a record still holds their bytes are *put back*. Both leave everything else as it
is, and both can be run again: each step is one that nothing follows from until it is whole.

| step                                             | left behind by a crash                   |
|--------------------------------------------------|------------------------------------------|
| 1 read records and objects of each series        | nothing                                  |
| 2 put an object's bytes aside, if there are any  | a copy that nobody needs                 |
| 3 put the decided bytes at the name              | the object is whole again                |
| 4 raise the boundary of one series to the last   | that series goes on; the others are      |
|   object that its records do not know            | refused as before                        |

In a series that forgot something nothing is put back: what is missing there below newer objects
may have been collected since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from holdfast._ids import Ids, RandomIds
from holdfast.arbiter._accept import build_names, flushed_positions
from holdfast.arbiter._commit_store import CommitStore
from holdfast.arbiter._decision import SupportsSeries
from holdfast.arbiter._recorded import for_reading
from holdfast.errors import (
    AlreadyExistsError,
    CommitStoreRegressedError,
    ForeignVersionError,
    HoldfastError,
    NotFoundError,
)
from holdfast.formats import (
    MEM_WAL_FOLDER,
    VERSIONS_SERIES,
    Name,
    Record,
    decode_record,
    entry_name,
    position_of,
    set_aside_path,
    shard_manifest_name,
    shard_of,
    shard_version_of,
    version_name,
    version_of,
)
from holdfast.storage import ObjectStore

_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A series whose records lack decisions that the object store shows.

    Attributes:
        series: the series.
        first: the first number that is there without a record.
        last: the last.
        newest_recorded: the newest record; None if there is none.
        path: the object of `last`.
    """

    series: str
    first: int
    last: int
    newest_recorded: int | None
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """An object that nobody decided: it was written past Holdfast."""

    name: Name
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """An object that is gone or has other bytes than its record.

    Attributes:
        name: the object's name.
        record: what was decided.
        body: the decided bytes; None where the record does not hold them any more.
        missing: True for an object that is gone, False for one with other bytes.
    """

    name: Name
    record: Record
    body: bytes | None
    missing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where a table's objects and its records disagree."""

    forgotten: tuple[Forgotten, ...]
    undecided: tuple[Undecided, ...]
    wrong: tuple[Wrong, ...]


def compare(store: ObjectStore, arbiter: SupportsSeries) -> Comparison:
    """Compare all objects that are decided in order with their records. Reads only.

    Raises:
        CorruptError: a record cannot be read.
        UnavailableError, PermissionDeniedError: a store did not tell.
    """
    looking = for_reading(arbiter)
    commit_store = arbiter.commit_store
    forgotten: list[Forgotten] = []
    undecided: list[Undecided] = []
    wrong: list[Wrong] = []
    for series in _all_series(store):
        records = _records(commit_store, arbiter.pin.table_id, series.name)
        boundary = commit_store.boundary(f"{arbiter.pin.table_id}/{series.name}")
        unknown = sorted(n for n in series.there if n > max(boundary, 0) and n not in records)
        strange = [one for n in unknown if (one := _strange(looking, series.make(n)))]
        undecided += strange
        flushed_beyond = series.flushed > max([0, boundary, *records])
        if strange:
            continue
        if unknown or flushed_beyond:
            last = max([*unknown, series.flushed if flushed_beyond else 0])
            forgotten.append(
                Forgotten(
                    series=series.name,
                    first=unknown[0] if unknown else max([boundary, *records]) + 1,
                    last=last,
                    newest_recorded=max(records, default=boundary if boundary >= 0 else None),
                    path=series.make(last).path,
                )
            )
            continue
        wrong += _wrong(store, series, records)
    forgotten += _forgotten_builds(store, arbiter)
    return Comparison(forgotten=tuple(forgotten), undecided=tuple(undecided), wrong=tuple(wrong))


def rebuild_records(arbiter: SupportsSeries, forgotten: Forgotten) -> None:
    """Take what the object store shows of a series as decided. Safe to repeat.

    Raises:
        UnavailableError, PermissionDeniedError: the commit store did not do its part; repeat.
    """
    arbiter.accept(forgotten.series, forgotten.last)


def put_back(store: ObjectStore, wrong: Wrong, ids: Ids | None = None) -> str | None:
    """Put decided bytes at their name; return where the bytes are that were there.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not do its part; repeat.
    """
    assert wrong.body is not None  # noqa: S101 - the caller chose one that has them
    aside = None
    if not wrong.missing:
        aside = set_aside_path(wrong.name.path, (ids or RandomIds()).token())
        store.copy(wrong.name.path, aside)
        store.put(wrong.name.path, wrong.body)
        return aside
    try:
        store.put_if_absent(wrong.name.path, wrong.body)
    except AlreadyExistsError:
        pass  # somebody put them there meanwhile, or wrote past us: the next look tells
    except HoldfastError:
        store.put(wrong.name.path, wrong.body)
    return aside


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """Names that are decided in order: how they are made, and which have objects."""

    name: str
    make: Callable[[int], Name]
    there: Mapping[int, str]
    flushed: int = 0


def _all_series(store: ObjectStore) -> Iterator[_Series]:
    versions = {
        number: info.path
        for info in store.list("_versions")
        if (number := version_of(info.path)) is not None
    }
    yield _Series(name=VERSIONS_SERIES, make=version_name, there=versions)
    paths = [info.path for info in store.list(MEM_WAL_FOLDER)]
    flushed = flushed_positions(store, paths)
    for shard_id in sorted({shard for path in paths if (shard := shard_of(path)) is not None}):
        mine = [path for path in paths if shard_of(path) == shard_id]
        manifests = {n: path for path in mine if (n := shard_version_of(path)) is not None}
        yield _shard_series(shard_id, manifests)
        done = flushed.get(shard_id, 0)
        entries = {n: path for path in mine if (n := position_of(path)) is not None}
        yield _log_series(shard_id, entries, done)


def _shard_series(shard_id: str, there: Mapping[int, str]) -> _Series:
    def make(number: int) -> Name:
        return shard_manifest_name(shard_id, number)

    return _Series(name=make(1).series, make=make, there=there)


def _log_series(shard_id: str, there: Mapping[int, str], flushed: int) -> _Series:
    def make(number: int) -> Name:
        return entry_name(shard_id, number)

    return _Series(name=make(1).series, make=make, there=there, flushed=flushed)


def _records(commit_store: CommitStore, table_id: str, series: str) -> dict[int, Record]:
    records: dict[int, Record] = {}
    after = -1
    while True:
        entries = commit_store.scan(f"{table_id}/{series}", after=after, limit=_AT_ONCE)
        records.update((entry.number, decode_record(entry.value)) for entry in entries)
        if len(entries) < _AT_ONCE:
            return records
        after = entries[-1].number


def _strange(looking: object, name: Name) -> Undecided | None:
    """Tell whether an object without a record is foreign; None if it was decided once."""
    try:
        looking.read(name)  # type: ignore[attr-defined]
    except CommitStoreRegressedError:
        return None
    except ForeignVersionError as error:
        return Undecided(name=name, reason=str(error))
    return None


def _wrong(store: ObjectStore, series: _Series, records: Mapping[int, Record]) -> Iterator[Wrong]:
    """Yield what is not as decided; flushed log entries may be collected, and are not needed."""
    for number, record in sorted(records.items()):
        if number <= series.flushed:
            continue
        name = Name(record.path, series.name, number)
        held = _held_bytes(store, record)
        if held is None and number in series.there:
            continue  # a record without bytes has nothing to give
        try:
            body = store.get(record.path)
        except NotFoundError:
            yield Wrong(name=name, record=record, body=held, missing=True)
            continue
        if not record.matches(body):
            yield Wrong(name=name, record=record, body=held, missing=False)


def _held_bytes(store: ObjectStore, record: Record) -> bytes | None:
    """Return the decided bytes if the record has them, or they wait where it says."""
    body = record.body
    if body is None and record.staged is not None:
        with suppress(NotFoundError):
            body = store.get(record.staged)
    return body if body is not None and record.matches(body) else None


def _forgotten_builds(store: ObjectStore, arbiter: SupportsSeries) -> Iterator[Forgotten]:
    """Yield the plans and tasks of index builds that no record knows."""
    for name in build_names(store):
        if arbiter.newest(name.series) is None:
            yield Forgotten(
                series=name.series, first=0, last=0, newest_recorded=None, path=name.path
            )
