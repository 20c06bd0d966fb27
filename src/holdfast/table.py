"""`Table`: a real Lance table whose every version is decided by Holdfast.

    table = holdfast.create_table("s3://bucket/events.lance", schema, commit_store="postgresql://db/lake")
    result = table.append(rows, txn=("job7", 42))
    result.applied  # False: this transaction was in the table already

An append that returned is in the table, durably. Repeated under the same transaction id it
is there once. Stock pylance reads every version.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from holdfast._clock import Clock, SystemClock
from holdfast.arbiter import (
    Arbiter,
    RecordedDecisions,
    confirm_pin,
    create_arbiter,
    open_arbiter,
)
from holdfast.commits._appends import Append, Appender
from holdfast.commits._columns import columns_of
from holdfast.commits._committer import Committer, LanceOperation
from holdfast.commits._data import Data, as_reader, read_any
from holdfast.commits._history import TableStatus, VersionInfo, read_history, read_status
from holdfast.commits._lance import translated
from holdfast.commits._opening import created, opened
from holdfast.commits._operation import LongLived, Operation
from holdfast.commits._versions import Edit, Versions, address_of
from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from holdfast.formats import (
    PIN_PATH,
    VERSIONS_SERIES,
    Pin,
    is_applied,
    is_staged_manifest,
    version_name,
)
from holdfast.index._verbs import IndexVerbs
from holdfast.options import StorageOptions, resolve
from holdfast.read._verbs import ReadVerbs
from holdfast.shard._verbs import ShardVerbs
from holdfast.storage import ObjectStore, open_store
from holdfast.txn import TxnLike, parse_txn
from holdfast.upkeep._vacuum import GRACE, VacuumResult, vacuum_store
from holdfast.upkeep._verbs import UpkeepVerbs
from holdfast.upkeep._waiting import guard_of
from holdfast.wal._shards import accept_shards
from holdfast.wal._verbs import LogVerbs

PRIMARY_KEY = b"lance-schema:unenforced-primary-key"
_OVERWRITES = 10  # how often one is tried again when another came first


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What one write did.

    Attributes:
        version: the version that holds it.
        rows: how many rows it wrote; 0 when not `applied`.
        txn: the transaction id it was made under.
        applied: False when the transaction was in the table already.
        elapsed: seconds.
    """

    version: int
    rows: int
    txn: TxnLike | None
    applied: bool
    elapsed: float


class Table(ReadVerbs, IndexVerbs, UpkeepVerbs, ShardVerbs, LogVerbs):
    """A Lance table that commits through Holdfast. Threads may share it.

    It travels to other processes as its address and options; live handles do not. Give
    secrets in them as `env:NAME`, so that they stay at home.
    """

    def __init__(
        self,
        uri: str | Path,
        options: StorageOptions,
        store: ObjectStore,
        arbiter: Arbiter,
        *,
        commit_store: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._uri = address_of(uri, store)
        self._options = options
        self._commit_store = commit_store
        self._resolved = {key: resolve(key, value) for key, value in options.items()}
        self._store = store
        self._arbiter = arbiter
        self._clock = clock or SystemClock()
        self._versions = Versions(store, arbiter, uri)
        self._appender = Appender(self._versions, self._resolved)
        self._committer = Committer(self._versions, self._resolved)

    def __repr__(self) -> str:
        return f"Table({self._uri})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self._uri, dict(self._options), self._commit_store))

    @property
    def uri(self) -> str:
        """Return the address."""
        return self._uri

    @property
    def pin(self) -> Pin | None:
        """Return what ties the table to its arbiter."""
        return self._arbiter.pin

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the newest version."""
        return self.dataset().schema

    def dataset(self, version: int | None = None, *, over_log: bool = False) -> lance.LanceDataset:
        """Return a pylance dataset, the newest or of one version; its commits are decided.

        Use it for everything pylance can do. Do not pickle it: a dataset loses its hook on
        the way to another process. Send this table instead.

        Warning:
            Rows that wait in the table's log win over what is changed here once they are
            merged. So `update` and `merge_insert` of a table with a key are refused while any
            wait; Lance then reports a commit whose result is unknown, and the log says why.

        Args:
            version: which one; the newest unless told.
            over_log: change keyed rows although some wait; if no key is in both, say.

        Raises:
            NotFoundError: there is no such version.
            UnavailableError: a store gave no answer.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: the newest version is
                not the one that was decided.
        """
        guard = None if over_log else guard_of(self._log_ground())
        live = LongLived(self._versions, self._resolved, guard)
        hook: Any = live
        with live.settled():
            return opened(hook, version)

    def append(self, data: Data, *, txn: TxnLike | None = None) -> CommitResult:
        """Add rows. They are in the table, durably, when this returns.

        Args:
            data: anything with Arrow's stream interface, or a list of dicts.
            txn: makes a repeat harmless: `(app, number)` or a string.

        Raises:
            InvalidInputError: no rows, columns that do not fit, a malformed txn.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            ConflictError: other writers changed the table in a way that excludes this.
            UnavailableError, PermissionDeniedError: a store did not do its part; nothing was
                added.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: the newest version is
                not the one that was decided; nothing was added.
        """
        begun = self._clock.elapsed()
        parsed = None if txn is None else parse_txn(txn)
        prepared = self._appender.prepare()
        if parsed is not None and is_applied(prepared.config, parsed):
            prepared = self._appender.prepare(exact=True)
            if is_applied(prepared.config, parsed):
                return self._result(prepared.version, 0, txn, applied=False, begun=begun)
        reader = as_reader(data, prepared.table.schema)
        with translated(self._uri):
            fragments = write_fragments(reader, prepared.table, mode="append")
        return self._commit(prepared.append(fragments, parsed), txn, begun)

    def commit(
        self,
        fragments: Iterable[Any],  # Any: Lance's FragmentMetadata
        *,
        txn: TxnLike | None = None,
        read_version: int | None = None,
    ) -> CommitResult:
        """Append fragments that were written elsewhere, as engines do.

        Args:
            fragments: what `lance.fragment.write_fragments` returned.
            txn: makes a repeat harmless: `(app, number)` or a string.
            read_version: the version for which they were written. Without it they must fit
                the columns as they are now: an overwrite with others goes unnoticed.

        Raises:
            InvalidInputError: no rows, no fragments of this table, or a malformed txn.
            NotFoundError: a data file is not there (looked for on local disk only).
            Other errors: as for `append`.
        """
        begun = self._clock.elapsed()
        parsed = None if txn is None else parse_txn(txn)
        given = list(fragments)
        if not all(isinstance(part, FragmentMetadata) for part in given):
            raise InvalidInputError("fragments are what lance.fragment.write_fragments returns")
        columns = None if read_version is None else columns_of(self.dataset(read_version))
        return self._commit(Append(fragments=given, txn=parsed, columns=columns), txn, begun)

    def commit_operation(
        self,
        operation: LanceOperation,
        *,
        read_version: int,
        txn: TxnLike | None = None,
    ) -> CommitResult:
        """Commit what was built elsewhere, as engines do; once per transaction id.

        An append goes on top of whatever is newest. Any other operation does so only where
        Lance finds that it still fits; where it does not, nobody but its maker can build it
        anew, so it fails with a conflict and changes nothing.

        Args:
            operation: one of `lance.LanceOperation`.
            read_version: the version it was built on.
            txn: makes a repeat harmless: `(app, number)` or a string.

        Raises:
            InvalidInputError: no operation, no version number, a malformed txn.
            NotFoundError: there is no such version, or a file that the operation shows is
                not there (looked for on local disk only).
            ConflictError: others changed what it was built on. `retryable` is True when
                reading again and building it anew may help.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            Other errors: as for `append`; nothing was committed.
        """
        return self._commit_operation(operation, read_version=read_version, txn=txn)

    def _commit_operation(
        self,
        operation: LanceOperation,
        *,
        read_version: int,
        txn: TxnLike | None = None,
        edit: Edit | None = None,
    ) -> CommitResult:
        """Commit an operation; `edit` changes the manifest that is decided, or refuses."""
        begun = self._clock.elapsed()
        parsed = None if txn is None else parse_txn(txn)
        _check_version(read_version)
        if isinstance(operation, lance.LanceOperation.Append) and edit is None:
            return self.commit(operation.fragments, txn=txn, read_version=read_version)
        done = self._committer.commit(operation, read_version=read_version, txn=parsed, edit=edit)
        rows = _rows_of(operation) if done.applied else 0
        return self._result(done.version, rows, txn, applied=done.applied, begun=begun)

    def _overwrite(self, data: Data, txn: TxnLike | None) -> CommitResult:
        """Replace all rows and columns; the newest of several overwrites stands."""
        parsed = None if txn is None else parse_txn(txn)
        begun = self._clock.elapsed()
        table = self.dataset()
        if parsed is not None and is_applied(table.config(), parsed):
            return self._result(table.version, 0, txn, applied=False, begun=begun)
        key = [field.name for field in table.schema if PRIMARY_KEY in (field.metadata or {})]
        reader = _with_rows(read_any(data))
        schema = _with_key(reader.schema, key)
        with translated(self._uri):
            fragments = write_fragments(reader.cast(schema), table, mode="overwrite")
        operation = lance.LanceOperation.Overwrite(schema, fragments)
        for left in reversed(range(_OVERWRITES)):
            try:
                newest = self.dataset().version
                return self.commit_operation(operation, read_version=newest, txn=txn)
            except ConflictError as error:
                if not error.details.get("retryable") or not left:
                    raise
        raise AssertionError("unreachable")

    def _commit(self, append: Append, txn: TxnLike | None, begun: float) -> CommitResult:
        if not append.rows:
            raise InvalidInputError("there are no rows to append", table=self._uri)
        done = self._appender.append(append)
        rows = append.rows if done.applied else 0
        return self._result(done.version, rows, txn, applied=done.applied, begun=begun)

    def applied(self, txns: Sequence[TxnLike]) -> list[bool]:
        """Tell of each transaction whether the newest version holds it.

        Raises:
            InvalidInputError: a malformed txn.
        """
        parsed = [parse_txn(txn) for txn in txns]
        config = self.dataset().config()
        return [is_applied(config, txn) for txn in parsed]

    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """Return the versions, newest first: what, when, by which transactions, decided by whom.

        Raises:
            InvalidInputError: a limit below 1.
        """
        return read_history(self._store, self._arbiter, limit)

    def status(self) -> TableStatus:
        """Return how the table is doing; reads only.

        Raises:
            NotFoundError: the table has no version.
        """
        return read_status(self._uri, self._store, self._arbiter)

    def vacuum(
        self,
        *,
        what: Collection[str] | None = None,
        grace: timedelta = GRACE,
        keep_versions_for: timedelta | None = None,
        confirm: bool = False,
    ) -> VacuumResult:
        """Find what nobody needs and, when confirmed, delete it; see `holdfast.upkeep.vacuum`.

        Args:
            what: the kinds of leftovers; all unless told.
            grace: how old a leftover must be; longer than the longest job.
            keep_versions_for: how long a version stays after a newer one came; seven days at
                least, for ever unless told.
            confirm: delete; without it this is a plan.

        Raises:
            InvalidInputError: an unknown kind, a grace period below an hour, versions kept
                for less than seven days, a table with branches, or one with appends to rescue.
            NotFoundError: the table has no version.
            CorruptError: a version cannot be read, so nobody knows which files it shows.
            UnavailableError, PermissionDeniedError: a store gave no answer, or refused.
        """
        return vacuum_store(
            self._store,
            self._arbiter,
            what=what,
            grace=grace,
            keep_versions_for=keep_versions_for,
            confirm=confirm,
            clock=self._clock,
        )

    def close(self) -> None:
        """Let go of connections; the table is not used afterwards."""
        self._arbiter.close()

    def _result(
        self, version: int, rows: int, txn: TxnLike | None, *, applied: bool, begun: float
    ) -> CommitResult:
        elapsed = self._clock.elapsed() - begun
        return CommitResult(version=version, rows=rows, txn=txn, applied=applied, elapsed=elapsed)


def open_table(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
) -> Table:
    """Open a table; it knows its own commit store.

    Args:
        uri: where the table is.
        storage_options: pylance's storage options.
        commit_store: another address of the table's commit store, with credentials, say.

    Raises:
        NotFoundError: there is no Holdfast table.
        PinMismatchError, UnsafeStoreError: see `open_arbiter`.
    """
    options = StorageOptions(storage_options)
    store = open_store(uri, options)
    arbiter = open_arbiter(uri, options, commit_store=commit_store)
    return Table(uri, options, store, arbiter, commit_store=commit_store)


def create_table(
    uri: str | Path,
    schema: pa.Schema,
    *,
    primary_key: Sequence[str] = (),
    commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """Create an empty table and tie it to its way of deciding, for good.

    Args:
        uri: where the table will be.
        schema: its columns.
        primary_key: the columns that identify a row; never null.
        commit_store: see `create_arbiter`.
        storage_options: pylance's storage options.

    Raises:
        AlreadyExistsError: there is a table.
        InvalidInputError: the schema or key is not usable.
        UnsafeStoreError: the store failed the probe and no commit store was given.
    """
    options = StorageOptions(storage_options)
    keyed = _with_key(schema, primary_key)
    store = open_store(uri, options)
    _refuse_existing(uri, store)
    arbiter = create_arbiter(uri, options, commit_store=commit_store)
    table = Table(uri, options, store, arbiter, commit_store=commit_store)
    if arbiter.read(version_name(1)) is not None:
        raise AlreadyExistsError("there is a table already: open it", uri=uri)
    operation = Operation(table._versions, table._resolved, creates=True)  # noqa: SLF001 - its own maker
    hook: Any = operation
    with operation.settled():
        made = created(hook, keyed)
        operation.returned(int(made.version))
    if isinstance(arbiter, RecordedDecisions):
        confirm_pin(store, arbiter.pin)
    return table


def adopt_table(
    uri: str | Path,
    *,
    commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    accept: int | None = None,
) -> Table:
    """Tie an existing Lance table to a way of deciding; its files stay as they are.

    With a commit store, the versions that are there count as decided. Stop stock writers
    first: from now on every writer goes through Holdfast. On a table that is tied already,
    `accept=N` takes foreign versions up to N as decided, and writing may go on.

    Raises:
        NotFoundError: no Lance table is there.
        InvalidInputError: it has the old manifest names, or `accept` is not its newest.
        PinMismatchError: it is tied to something else.
    """
    options = StorageOptions(storage_options)
    resolved = {key: resolve(key, value) for key, value in options.items()}
    store = open_store(uri, options)
    newest = _newest_plain(store, uri, resolved)
    try:
        store.head(version_name(newest).path)
    except NotFoundError:
        raise InvalidInputError(
            "this table has the old manifest names: migrate it first with "
            "`lance.dataset(uri).migrate_manifest_paths_v2()`",
            uri=uri,
        ) from None
    if accept is not None and accept != newest:
        raise InvalidInputError(
            "accept the newest version that is there", newest=newest, accept=accept
        )
    arbiter = create_arbiter(uri, options, commit_store=commit_store)
    if isinstance(arbiter, RecordedDecisions):
        if accept is not None or arbiter.newest(VERSIONS_SERIES) is None:
            arbiter.accept(VERSIONS_SERIES, newest)
        accept_shards(store, arbiter)
        confirm_pin(store, arbiter.pin)
    return Table(uri, options, store, arbiter, commit_store=commit_store)


def release_table(uri: str | Path, storage_options: Mapping[str, str] | None = None) -> int:
    """Give a plain Lance table back: finish what is unfinished, then remove the pin.

    Stop all writers first. Returns the newest version.

    Raises:
        NotFoundError: no Holdfast table is there.
    """
    options = StorageOptions(storage_options)
    store = open_store(uri, options)
    arbiter = open_arbiter(uri, options)
    if isinstance(arbiter, RecordedDecisions):
        newest = arbiter.newest(VERSIONS_SERIES)
        if newest:
            arbiter.read(version_name(newest))
    store.delete([PIN_PATH])
    arbiter.close()
    resolved = {key: resolve(key, value) for key, value in options.items()}
    return _newest_plain(store, uri, resolved)


def write_table(
    data: Data,
    uri: str | Path,
    *,
    mode: Literal["append", "create", "overwrite"] = "append",
    txn: TxnLike | None = None,
    commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> CommitResult:
    """Append rows to a table in one call, create it first, or replace all that it holds.

    An overwrite brings its own columns and keeps the primary key and the transaction ids;
    older versions stay readable. Of several at once the last one stands.

    Raises:
        InvalidInputError, CommitUnknownError, ConflictError: as for `Table.append`.
        AlreadyExistsError: with `mode="create"`, there is a table.
        NotFoundError: with `mode="append"` or `"overwrite"`, there is none.
    """
    if mode not in {"append", "create", "overwrite"}:
        raise InvalidInputError("mode is 'append', 'create' or 'overwrite'", mode=repr(mode))
    if mode != "create":
        table = open_table(uri, storage_options, commit_store=commit_store)
        return table.append(data, txn=txn) if mode == "append" else table._overwrite(data, txn)  # noqa: SLF001 - its own door
    if txn is not None:
        parse_txn(txn)  # before there is a table
    reader = _with_rows(read_any(data))
    table = create_table(
        uri, reader.schema, commit_store=commit_store, storage_options=storage_options
    )
    return table.append(reader, txn=txn)


def _check_version(given: object) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidInputError("a version is a number from 1", given=repr(given))


def _rows_of(operation: LanceOperation) -> int:
    """Count the rows in the fragments that an operation brings."""
    brought: Any = operation  # Any: each has fields of its own
    match operation:
        case lance.LanceOperation.Append() | lance.LanceOperation.Overwrite():
            return sum(int(part.physical_rows) for part in brought.fragments)
        case lance.LanceOperation.Update():
            return sum(int(part.physical_rows) for part in brought.new_fragments)
        case _:
            return 0


def _with_rows(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return the same stream once it has shown a row."""
    with translated("data"):
        first = next((batch for batch in reader if batch.num_rows), None)
    if first is None:
        raise InvalidInputError("there are no rows to append")
    return pa.RecordBatchReader.from_batches(reader.schema, itertools.chain([first], reader))


def _reopen(uri: str, options: Mapping[str, str], commit_store: str | None) -> Table:
    return open_table(uri, options, commit_store=commit_store)


def _with_key(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    if not isinstance(schema, pa.Schema) or not schema.names:
        raise InvalidInputError("a table needs a pyarrow schema with at least one column")
    if isinstance(primary_key, str):
        raise InvalidInputError("a primary key is a list of column names", key=primary_key)
    for name in primary_key:
        if name not in schema.names:
            raise InvalidInputError("the primary key names a column that is not there", key=name)
        index = schema.get_field_index(name)
        field = schema.field(index)
        marked = {**(field.metadata or {}), PRIMARY_KEY: b"true"}
        schema = schema.set(index, field.with_nullable(nullable=False).with_metadata(marked))
    return schema


def _refuse_existing(uri: str | Path, store: ObjectStore) -> None:
    # What a creator staged, who is still at it or died at it, is no version yet.
    if not all(is_staged_manifest(info.path) for info in store.list("_versions")):
        raise AlreadyExistsError(
            "there is a Lance table already: open it, or adopt it with adopt_table", uri=uri
        )


def _newest_plain(store: ObjectStore, uri: str | Path, resolved: Mapping[str, str]) -> int:
    """Return the newest version as stock Lance sees it."""
    if not store.list("_versions"):
        raise NotFoundError("no Lance table is there", uri=uri)
    address = address_of(uri, store)
    with translated(address):
        return int(lance.dataset(address, storage_options=dict(resolved) or None).version)


__all__ = [
    "CommitResult",
    "Table",
    "TableStatus",
    "VersionInfo",
    "adopt_table",
    "create_table",
    "open_table",
    "release_table",
    "write_table",
]
