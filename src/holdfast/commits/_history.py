"""History and status: what became of a table, told from its manifests and its commit store.

Nothing is written, finished or fenced here. Each manifest is read once; what a version
applied is told by its config, who decided it by its record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from holdfast.arbiter import Arbiter, SupportsSeries
from holdfast.core import TableCore
from holdfast.errors import CorruptError, InvalidInputError, NotFoundError
from holdfast.formats import (
    STAGED_FOLDER,
    VERSIONS_SERIES,
    ArbiterKind,
    Record,
    RecordState,
    Transaction,
    VersionFacts,
    applied_here,
    decode_record,
    decode_transaction,
    transaction_path,
    version_name,
    version_of,
)
from holdfast.storage import ObjectInfo, ObjectStore

ADOPTED = "adopted"
VERSIONS_FOLDER = "_versions"
STATUS_WINDOW = 1000
"""How many of the newest versions `read_status` compares with the commit store."""

_READERS = 16
_RECORDS_AT_ONCE = 200
In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo:
    """One version of a table.

    Attributes:
        version: its number.
        time: when its writer made it, UTC, by that machine's clock.
        operation: Lance's word: Append, Overwrite, Delete, Update, Rewrite, CreateIndex, ...
        txns: the transaction ids that this very version applied.
        rows: how many rows it shows.
        fragments: how many fragments it has.
        decided_by: `conditional-put`, the commit store's URL, `adopted` for a version that
            was there before, or None for one that nobody decided.
        foreign: on a table with a commit store, a version that no record covers.
    """

    version: int
    time: datetime
    operation: str
    txns: tuple[str, ...]
    rows: int
    fragments: int
    decided_by: str | None
    foreign: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """How a table is doing.

    Attributes:
        uri: its address.
        version: the newest version, decided or adopted.
        rows: how many rows that shows.
        fragments: how many fragments that has.
        arbiter: who decides: `conditional-put` or `commit-store`.
        commit_store: the commit store's URL, without credentials.
        commit_store_id: the commit store's own id.
        table_id: the table's id, under which the commit store knows it.
        newest_recorded: the newest version that the commit store knows.
        newest_in_store: the newest version that the object store holds.
        unfinished: versions that are decided, but not yet (or not known to be) in place.
        staged_objects: how many objects wait for a decision, or were left behind.
        staged_bytes: their size.
        foreign: versions that nobody decided, among the newest 1000.
    """

    uri: str
    version: int
    rows: int
    fragments: int
    arbiter: str
    commit_store: str | None
    commit_store_id: str | None
    table_id: str | None
    newest_recorded: int | None
    newest_in_store: int | None
    unfinished: tuple[int, ...]
    staged_objects: int
    staged_bytes: int
    foreign: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What a commit store knows of a table's versions."""

    url: str
    boundary: int
    newest: int | None
    by_version: Mapping[int, Record]

    def is_unfinished(self, version: int, *, listed: bool) -> bool:
        """Tell whether a decided version is not, or not known to be, in place."""
        record = self.by_version.get(version)
        return record is not None and (not listed or record.state is RecordState.STAGED)

    def is_foreign(self, version: int) -> bool:
        """Tell whether nobody decided a version that is there."""
        return version > self.boundary and version not in self.by_version


def read_history(core: TableCore, limit: int | None = None) -> list[VersionInfo]:
    """Return the versions of a table, newest first.

    Raises:
        InvalidInputError: a limit below 1.
        NotFoundError: the table has no version.
        CorruptError: a manifest or a record cannot be read.
    """
    given: object = limit
    if given is not None and (not isinstance(given, int) or given < 1):
        raise InvalidInputError("a limit is at least 1", limit=repr(given))
    store = core.store
    listed = list_versions(store)
    wanted = sorted(listed, reverse=True)[:limit]
    records = records_of(core.arbiter, after=min(wanted, default=0) - 1)
    recorded = {} if records is None else records.by_version
    numbers = sorted({*listed, *recorded}, reverse=True)
    # One more than asked for: a version is told from its predecessor.
    chosen = numbers if limit is None else numbers[: limit + 1]

    def look(version: int) -> tuple[VersionInfo, str | None] | None:
        body = read_version(store, version, recorded.get(version))
        return None if body is None else _info(store, version, body, records)

    seen = [one for one in in_parallel(look, chosen) if one is not None]
    if not seen:
        raise NotFoundError("the table has no version yet", location=store.location)
    return list(_with_txns(seen))[:limit]


def read_status(core: TableCore) -> TableStatus:
    """Return how a table is doing; changes nothing.

    Raises:
        NotFoundError: the table has no version.
        CorruptError: a manifest or a record cannot be read.
    """
    store = core.store
    listed = list_versions(store)
    newest = max(listed, default=None)
    records = records_of(core.arbiter, after=max(-1, (newest or 0) - STATUS_WINDOW))
    current = newest if records is None else records.newest
    record = None if records is None or current is None else records.by_version.get(current)
    body = None if current is None else read_version(store, current, record)
    if current is None or body is None:
        raise NotFoundError("the table has no version yet", uri=core.location)
    facts = VersionFacts(body)
    staged = store.list(STAGED_FOLDER)
    pin = core.arbiter.pin
    return TableStatus(
        uri=core.location,
        version=current,
        rows=facts.rows,
        fragments=facts.fragments,
        arbiter=ArbiterKind.CONDITIONAL_PUT.value if pin is None else pin.arbiter.value,
        commit_store=None if records is None else records.url,
        commit_store_id=None if pin is None else pin.store_id,
        table_id=None if pin is None else pin.table_id,
        newest_recorded=None if records is None else records.newest,
        newest_in_store=newest,
        unfinished=unfinished_versions(records, listed),
        staged_objects=len(staged),
        staged_bytes=sum(info.size for info in staged),
        foreign=foreign(records, listed, above=(newest or 0) - STATUS_WINDOW),
    )


def list_versions(store: ObjectStore) -> dict[int, ObjectInfo]:
    """Return the versions that the object store holds."""
    pairs = ((version_of(info.path), info) for info in store.list(VERSIONS_FOLDER))
    return {version: info for version, info in pairs if version is not None}


def require_versions(store: ObjectStore) -> dict[int, ObjectInfo]:
    """Return the versions that the object store holds; there is at least one.

    Raises:
        NotFoundError: no Lance table is there.
        InvalidInputError: it has the old manifest names.
    """
    versions = list_versions(store)
    if versions:
        return versions
    if any(info.path.endswith(".manifest") for info in store.list(VERSIONS_FOLDER)):
        raise InvalidInputError(
            "this table has the old manifest names: migrate it first with "
            "`lance.dataset(uri).migrate_manifest_paths_v2()`",
            location=store.location,
        )
    raise NotFoundError("no Lance table is there", location=store.location)


def records_of(arbiter: Arbiter, *, after: int = -1) -> Records | None:
    """Return the records of the versions above `after`; None for a table without a commit store."""
    if not isinstance(arbiter, SupportsSeries):
        return None
    commit_store = arbiter.commit_store
    series = f"{arbiter.pin.table_id}/{VERSIONS_SERIES}"
    records: dict[int, Record] = {}
    while True:
        entries = commit_store.scan(series, after=after, limit=_RECORDS_AT_ONCE)
        records.update((entry.number, decode_record(entry.value)) for entry in entries)
        if len(entries) < _RECORDS_AT_ONCE:
            break
        after = entries[-1].number
    return Records(
        url=commit_store.url,
        boundary=commit_store.boundary(series),
        newest=max(records, default=arbiter.newest(VERSIONS_SERIES)),
        by_version=records,
    )


def read_version(store: ObjectStore, version: int, record: Record | None) -> bytes | None:
    """Return a version's manifest, also where it waits to be put in place; None if it is gone."""
    for path in (version_name(version).path, None if record is None else record.staged):
        if path is not None:
            with suppress(NotFoundError):
                return store.get(path)
    return None if record is None else record.body


def unfinished_versions(records: Records | None, listed: Iterable[int]) -> tuple[int, ...]:
    """Return the decided versions that are not, or not known to be, in place."""
    there = set(listed)
    recorded = {} if records is None else records.by_version
    return tuple(
        version
        for version in sorted(recorded)
        if records is not None and records.is_unfinished(version, listed=version in there)
    )


def foreign(records: Records | None, listed: Iterable[int], *, above: int = -1) -> tuple[int, ...]:
    """Return the versions that are there although nobody decided them."""
    if records is None:
        return ()
    return tuple(sorted(v for v in listed if v > above and records.is_foreign(v)))


def transaction_of(store: ObjectStore, facts: VersionFacts) -> Transaction | None:
    """Return the transaction that made a version; None when nothing tells any more."""
    if facts.transaction is not None:
        return facts.transaction
    if facts.transaction_file is None:
        return None
    try:
        return decode_transaction(store.get(transaction_path(facts.transaction_file)))
    except (NotFoundError, CorruptError):
        return None


def in_parallel(call: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
    """Yield the results in order; requests of one table go out several at a time."""
    with ThreadPoolExecutor(_READERS, thread_name_prefix="holdfast-read") as pool:
        yield from pool.map(call, items)


def _info(
    store: ObjectStore, version: int, body: bytes, records: Records | None
) -> tuple[VersionInfo, str | None]:
    """Return what one manifest tells, and its token."""
    facts = VersionFacts(body)
    transaction = transaction_of(store, facts)
    decided_by: str | None = ArbiterKind.CONDITIONAL_PUT.value
    is_foreign = False
    if records is not None:
        record = records.by_version.get(version)
        is_foreign = records.is_foreign(version) if record is None else not record.matches(body)
        adopted = None if is_foreign else ADOPTED
        decided_by = records.url if record is not None and not is_foreign else adopted
    info = VersionInfo(
        version=version,
        time=facts.time,
        operation="Unknown" if transaction is None else transaction.operation,
        txns=applied_here(facts.config),
        rows=facts.rows,
        fragments=facts.fragments,
        decided_by=decided_by,
        foreign=is_foreign,
    )
    return info, facts.token


def _with_txns(seen: list[tuple[VersionInfo, str | None]]) -> Iterator[VersionInfo]:
    """Leave out transactions that a stock writer only carried on from the version before."""
    before = [token for _, token in seen[1:]]
    for (info, token), previous in zip(seen, [*before, None], strict=True):
        yield info if token != previous or not info.txns else replace(info, txns=())
