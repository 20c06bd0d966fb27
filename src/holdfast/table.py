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
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from holdfast._clock import Clock, SystemClock
from holdfast.arbiter import (
    STOCK_DYNAMODB,
    Arbiter,
    StockRows,
    SupportsSeries,
    SupportsVerdict,
    accept_shards,
    confirm_pin,
    create_arbiter,
    for_reading,
    open_arbiter,
)
from holdfast.changes import ChangeVerbs
from holdfast.commits import (
    After,
    Append,
    Appender,
    Committed,
    Committer,
    Data,
    Edit,
    LanceOperation,
    LongLived,
    Operation,
    Prepared,
    TableStatus,
    VersionInfo,
    Versions,
    address_of,
    as_reader,
    checked,
    columns_of,
    created,
    hold,
    join_rows,
    opened,
    read_any,
    read_history,
    translated,
)
from holdfast.edit import EditVerbs
from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    HoldfastError,
    InvalidInputError,
    LogWaitsError,
    NotFoundError,
)
from holdfast.formats import (
    PIN_PATH,
    VERSIONS_SERIES,
    Pin,
    add_key,
    base_roots,
    creation_mark,
    edit_config,
    is_created_by,
    is_staged_manifest,
    key_columns,
    read_config,
    version_name,
)
from holdfast.index import IndexVerbs
from holdfast.options import StorageOptions, resolve
from holdfast.read import ReadVerbs
from holdfast.shard import ShardVerbs
from holdfast.storage import ObjectStore, open_store
from holdfast.txn import Txn, TxnLike, parse_txn
from holdfast.upkeep import (
    GRACE,
    Status,
    VacuumResult,
    merge_waiting,
    read_full_status,
    vacuum_store,
)
from holdfast.wal import LogVerbs

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


class Table(ReadVerbs, ChangeVerbs, IndexVerbs, EditVerbs, ShardVerbs, LogVerbs):
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
        self._versions = Versions(store, arbiter, uri, options=self._resolved)
        self._appender = Appender(self._versions, self._resolved)
        self._committer = Committer(self._versions, self._resolved)
        self._has_log = False  # whether an append found rows that waited

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
            Rows that wait in the table's log would win over what is changed here once they are
            merged. So changes of a table with a key are refused while any wait: with a
            `LogWaitsError`, unless the dataset went through pylance's functions
            (`lance.write_dataset(rows, dataset)`); those report a commit whose result is
            unknown, and the log says why. `merge_log` merges what waits. A restore supersedes it.

        Args:
            version: which one; the newest by default.
            over_log: change keyed rows although some wait; if no key is in both, say.

        Raises:
            NotFoundError: there is no such version.
            UnavailableError: a store gave no answer.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: the newest version is
                not the one that was decided.
        """
        live = LongLived(self._versions, self._resolved, {} if over_log else None)
        hook: Any = live
        with live.settled():
            return hold(opened(hook, version), live)

    def check_writable(self) -> None:
        """Return if this table's versions can be decided, before files are written for one.

        The first call on an object store that decides by itself probes it, if nobody did lately.

        Raises:
            UnsafeStoreError: the store failed the probe.
            PermissionDeniedError: it cannot be written to.
        """
        if isinstance(self._arbiter, SupportsVerdict):
            self._arbiter.require_verdict()

    def append(self, data: Data, *, txn: TxnLike | None = None) -> CommitResult:
        """Add rows. They are in the table, durably, when this returns.

        On a table with a key and a log, what waits there is merged first: so older rows do not
        come back over these.

        Args:
            data: anything with Arrow's stream interface, or a list of dicts.
            txn: makes a repeat harmless: `(app, number)` or a string.

        Raises:
            InvalidInputError: no rows, columns that do not fit, a malformed txn.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            ConflictError: other writers changed the table in a way that excludes this.
            StaleWorkError: it took so long that vacuum may have taken its files.
            LogWaitsError: rows wait in the log that cannot be merged now.
            LogLostError: the table does not say how far its log is merged.
            UnavailableError, PermissionDeniedError: a store did not do its part; nothing was
                added.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: the newest version is
                not the one that was decided; nothing was added.
        """
        begun = self._clock.elapsed()
        parsed = None if txn is None else parse_txn(txn)
        self.check_writable()
        prepared = self._appender.prepare()
        ledger = self._versions.ledger
        if parsed is not None and ledger.may_hold(prepared.config, parsed):
            prepared = self._appender.prepare(exact=True)
            if ledger.holds(prepared.config, parsed):
                return self._result(prepared.version, 0, txn, applied=False, begun=begun)
        if parsed is not None:
            ledger.check_room(prepared.config, parsed)
        renewed: list[Prepared] = []

        def schema_now() -> pa.Schema:
            renewed.append(self._appender.prepare(exact=True))
            return renewed[0].table.schema

        # What rows are written for is remembered: others may have changed the columns since.
        reader = as_reader(data, prepared.table.schema, schema_now)
        prepared = renewed[0] if renewed else prepared
        with translated(self._uri):
            fragments = write_fragments(reader, prepared.table, mode="append")
        return self._commit(prepared.append(fragments, parsed), txn, begun)

    def append_all(
        self, items: Sequence[tuple[pa.Table | list[dict[str, Any]], TxnLike | None]]
    ) -> list[CommitResult | HoldfastError]:
        """Add the rows of several callers as one version and one fragment, where that can be.

        Each is added once under its own transaction id, as by `append`, and has its own
        outcome: a result, or the error that `append` would have raised. Those that cannot be
        joined with the others are added one by one.

        Args:
            items: rows, and what makes a repeat of them harmless; for a server that takes many
                small inserts.

        Raises:
            HoldfastError: as for `dataset`; nothing was added.
        """
        begun = self._clock.elapsed()
        outcomes = self._append_joined(items, begun) if len(items) > 1 else {}
        for number, (data, txn) in enumerate(items):
            if number not in outcomes:
                try:
                    outcomes[number] = self.append(data, txn=txn)
                except HoldfastError as error:
                    outcomes[number] = error
        return [outcomes[number] for number in range(len(items))]

    def _append_joined(
        self, items: Sequence[tuple[pa.Table | list[dict[str, Any]], TxnLike | None]], begun: float
    ) -> dict[int, CommitResult | HoldfastError]:
        """Add those that fit together as one fragment; return their outcomes by their numbers."""
        prepared = self._appender.prepare()
        joined = join_rows(items, prepared, self._versions.ledger)
        if len(joined) < 2:  # noqa: PLR2004 - nothing to join
            return {}
        txns = tuple(part.txn for part in joined if part.txn is not None)
        try:
            with translated(self._uri):
                rows = pa.concat_tables([part.rows for part in joined])
                fragments = write_fragments(rows, prepared.table, mode="append")
            append = replace(prepared.append(fragments, None), txn=next(iter(txns), None))
            done = self._append_over_log(replace(append, others=txns[1:]))
        except HoldfastError as error:
            # Nothing was added: one of them may be the reason, or be in the table already.
            alone = error.kind in {ErrorKind.CONFLICT, ErrorKind.INVALID_INPUT}
            return {} if alone else dict.fromkeys((part.number for part in joined), error)
        return {
            part.number: self._result(
                done.version, part.rows.num_rows, items[part.number][1], applied=True, begun=begun
            )
            for part in joined
        }

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
                the columns as they are now: an overwrite with others goes unnoticed; and each
                file is looked for, once the table was vacuumed.

        Raises:
            StaleWorkError: they were written so long ago that vacuum may have taken them.
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
        append = Append(fragments=given, txn=parsed, columns=columns, read_version=read_version)
        return self._commit(append, txn, begun)

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
            StaleWorkError: it was built so long ago that vacuum may have taken its files.
            LogWaitsError: it changes keyed rows, and rows wait in the table's log: merge them
                with `merge_log`, read again and rebuild.
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
        begun_on: int | None = None,
        after: After | None = None,
    ) -> CommitResult:
        """Commit an operation; `edit` changes the manifest that is decided, or refuses.

        `begun_on` is the version that was read before files were written, if it is older;
        `after` tells how far `merge_waiting` merged the log before the operation was built.
        """
        begun = self._clock.elapsed()
        parsed = None if txn is None else parse_txn(txn)
        _check_version(read_version)
        if isinstance(operation, lance.LanceOperation.Append) and edit is None:
            return self.commit(operation.fragments, txn=txn, read_version=read_version)
        done = self._committer.commit(
            operation,
            read_version=read_version,
            txn=parsed,
            edit=edit,
            begun_on=begun_on,
            after=after,
        )
        rows = _rows_of(operation) if done.applied else 0
        return self._result(done.version, rows, txn, applied=done.applied, begun=begun)

    def restore(self, version: int, *, txn: TxnLike | None = None) -> CommitResult:
        """Make the rows and columns of an older version the newest ones, by a new version.

        What came since stays readable in its versions. Transactions that were applied since are
        taken back with their rows: repeated, they are applied again. Rows that wait in the
        table's log are superseded.

        Args:
            version: the version to go back to.
            txn: makes a repeat harmless: `(app, number)` or a string.

        Raises:
            InvalidInputError: no version number, a malformed txn.
            NotFoundError: there is no such version.
            ConflictError: others were faster each time; nothing was changed.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            Other errors: as for `append`; nothing was changed.
        """
        _check_version(version)
        begun = self._clock.elapsed()
        self.check_writable()
        if txn is not None and self._is_repeat(txn):
            newest = int(self.dataset().version)
            return self._result(newest, 0, txn, applied=False, begun=begun)
        self.dataset(version)
        operation = lance.LanceOperation.Restore(version)
        return self._commit_on_newest(operation, txn)

    def _commit_on_newest(
        self, operation: LanceOperation, txn: TxnLike | None, begun_on: int | None = None
    ) -> CommitResult:
        """Commit what replaces all rows, whatever is newest."""
        for left in reversed(range(_OVERWRITES)):
            try:
                newest = int(self.dataset().version)
                return self._commit_operation(
                    operation, read_version=newest, txn=txn, begun_on=begun_on
                )
            except ConflictError as error:
                if not error.details.get("retryable") or not left:
                    raise
        raise AssertionError("unreachable")

    def _overwrite(self, data: Data, txn: TxnLike | None) -> CommitResult:
        """Replace all rows and columns; the newest of several overwrites stands."""
        parsed = None if txn is None else parse_txn(txn)
        begun = self._clock.elapsed()
        self.check_writable()
        table = self.dataset()
        if parsed is not None:
            if self._versions.ledger.holds(table.config(), parsed):
                return self._result(table.version, 0, txn, applied=False, begun=begun)
            self._versions.ledger.check_room(table.config(), parsed)
        reader = _with_rows(read_any(data))
        schema = add_key(reader.schema, key_columns(table.schema))
        with translated(self._uri):
            fragments = write_fragments(checked(reader, schema), table, mode="overwrite")
        operation = lance.LanceOperation.Overwrite(schema, fragments)
        return self._commit_on_newest(operation, txn, int(table.version))

    def _commit(self, append: Append, txn: TxnLike | None, begun: float) -> CommitResult:
        if not append.rows:
            raise InvalidInputError("there are no rows to append", table=self._uri)
        done = self._append_over_log(append)
        rows = append.rows if done.applied else 0
        return self._result(done.version, rows, txn, applied=done.applied, begun=begun)

    def _append_over_log(self, append: Append) -> Committed:
        """Append; rows that wait in the log of a table with a key are merged first.

        That a table has a log is learnt from the manifest that is about to be decided, so one
        without pays nothing; it is kept in mind for the next append.
        """
        for left in reversed(range(_OVERWRITES)):
            after = merge_waiting(self._log_ground()) if self._has_log else None
            try:
                return self._appender.append(replace(append, after=after))
            except LogWaitsError:
                if not left:
                    raise
                self._has_log = True
                append = replace(append, handle=None)  # it may be used once
        raise AssertionError("unreachable")

    def applied(self, txns: Sequence[TxnLike]) -> list[bool]:
        """Tell of each transaction whether the newest version holds it.

        Raises:
            InvalidInputError: a malformed txn.
        """
        parsed = [parse_txn(txn) for txn in txns]
        applied = set(self._versions.ledger.applied(self.dataset().config(), parsed))
        return [txn in applied for txn in parsed]

    def _is_repeat(self, txn: TxnLike) -> bool:
        """Tell whether a transaction is applied; refuse, before work begins, one that cannot be.

        Raises:
            InvalidInputError: a malformed txn, or one of an app whose numbers have too many gaps.
        """
        parsed, config = parse_txn(txn), self.dataset().config()
        if self._versions.ledger.holds(config, parsed):
            return True
        self._versions.ledger.check_room(config, parsed)
        return False

    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """Return the versions, newest first: what, when, by which transactions, decided by whom.

        Raises:
            InvalidInputError: a limit below 1.
        """
        return read_history(self._store, self._arbiter, limit)

    def status(self) -> Status:
        """Return how the table is doing, its shards, indexes and upkeep included; reads only.

        Raises:
            NotFoundError: the table has no version.
            CorruptError: its newest manifest or a record cannot be read.
            UnavailableError, PermissionDeniedError: a store gave no answer, or refused.
        """
        looking = Versions(self._store, for_reading(self._arbiter), self._uri)
        live = LongLived(looking, self._resolved)
        hook: Any = live

        def open_dataset() -> lance.LanceDataset:
            with live.settled():
                return opened(hook)

        return read_full_status(
            self._uri, self._store, self._arbiter, self._clock, open_dataset=open_dataset
        )

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
            what: the kinds of leftovers; all by default.
            grace: how old a leftover must be; longer than the longest job.
            keep_versions_for: how long a version stays after a newer one came; seven days at
                least, for ever by default.
            confirm: delete; without it this is a plan.

        Raises:
            InvalidInputError: an unknown kind, a grace period below an hour, versions kept
                for less than seven days, or a table with appends to rescue.
            NotFoundError: the table has no version.
            CorruptError: a version cannot be read, so nobody knows which files it shows.
            UnavailableError, PermissionDeniedError: a store gave no answer, or refused.
        """
        return vacuum_store(
            self._store,
            self._arbiter,
            touch=self._committer.touch,
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
    txn: TxnLike | None = None,
) -> Table:
    """Create an empty table and tie it to its way of deciding, for good.

    Given a transaction id, it may be repeated, after an unknown outcome, say: the table that a
    creation under the same id made is opened, whatever it holds by now.

    Args:
        uri: where the table will be.
        schema: its columns. Dictionaries get indices of 32 bits at least: Lance cannot read a
            file again whose values the indices cannot count.
        primary_key: the columns that identify a row, in the order in which a lookup names
            them; never null.
        commit_store: see `create_arbiter`.
        storage_options: pylance's storage options.
        txn: makes a repeat harmless: `(app, number)` or a string. It is not applied by this:
            rows may be appended under the same id, as `write_table` does.

    Raises:
        AlreadyExistsError: there is a table, and it was not created under this id.
        CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
        InvalidInputError: the schema or key is not usable, or a malformed txn.
        UnsafeStoreError: the store failed the probe and no commit store was given.
    """
    options = StorageOptions(storage_options)
    keyed = add_key(schema, primary_key)
    parsed = None if txn is None else parse_txn(txn)
    return _create_or_find(uri, keyed, options, commit_store, txn=parsed)


def create_with_fragments(
    uri: str | Path,
    schema: pa.Schema,
    fragments: Sequence[FragmentMetadata],
    *,
    txn: TxnLike,
    commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """Create a table whose first version shows rows that were written for it, in one commit.

    `schema` names the key already, as the fragments were written. Safe to repeat under its id.

    Raises:
        AlreadyExistsError, CommitUnknownError, UnsafeStoreError: as for `create_table`.
    """
    options = StorageOptions(storage_options)
    return _create_or_find(
        uri, schema, options, commit_store, txn=parse_txn(txn), fragments=fragments
    )


def _create_or_find(
    uri: str | Path,
    schema: pa.Schema,
    options: StorageOptions,
    commit_store: str | None,
    *,
    txn: Txn | None,
    fragments: Sequence[FragmentMetadata] = (),
) -> Table:
    try:
        return _create(uri, schema, options, commit_store, txn=txn, fragments=fragments)
    except AlreadyExistsError:
        table = None if txn is None else _find_created(uri, options, commit_store, txn)
        if table is None:
            raise
        return table


def _create(
    uri: str | Path,
    schema: pa.Schema,
    options: StorageOptions,
    commit_store: str | None,
    *,
    txn: Txn | None,
    fragments: Sequence[FragmentMetadata],
) -> Table:
    def mark(manifest: bytes) -> bytes:
        return manifest if txn is None else edit_config(manifest, creation_mark(txn))

    store = open_store(uri, options)
    _refuse_existing(uri, store)
    arbiter = create_arbiter(uri, options, commit_store=commit_store)
    table = Table(uri, options, store, arbiter, commit_store=commit_store)
    if arbiter.read(version_name(1)) is not None:
        raise AlreadyExistsError("there is a table already: open it", uri=uri)
    operation = Operation(table._versions, table._resolved, creates=True, edit=mark)  # noqa: SLF001 - its own maker
    hook: Any = operation
    with operation.settled():
        made = created(hook, schema, fragments)
        operation.returned(int(made.version))
    if isinstance(arbiter, SupportsSeries):
        confirm_pin(store, arbiter.pin)
    return table


def _find_created(
    uri: str | Path, options: StorageOptions, commit_store: str | None, txn: Txn
) -> Table | None:
    """Return the table if it was created under this id.

    Its version 1 was decided before the pin is read here, as `confirm_pin` asks for.
    """
    try:
        table = open_table(uri, options, commit_store=commit_store)
    except NotFoundError:  # a plain Lance table
        return None
    if is_created_by(table.dataset().config(), txn):
        return table
    table.close()
    return None


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

    A table that stock Lance keeps on `s3+ddb://` is taken over under its plain `s3://` address:
    what stock decided in DynamoDB is finished, and its rows are closed, so that nobody opens it
    by them any more. It needs a commit store. Stop stock writers first all the same: a dataset
    that one has open may still write, which is noticed (`ForeignVersionError`).

    Transaction ids that a table was given before it was released, or before it was cloned with
    pylance's `shallow_clone`, are still applied: their files are where they were, or are copied
    from the original.

    Raises:
        NotFoundError: no Lance table is there.
        InvalidInputError: it has the old manifest names, or `accept` is not its newest.
        PinMismatchError: it is tied to something else.
    """
    if str(uri).startswith(STOCK_DYNAMODB):
        if commit_store is None:
            raise InvalidInputError(
                "a table of s3+ddb:// needs a commit store: datasets that stock Lance has open "
                "write without a condition, which only a commit store notices",
                uri=uri,
            )
        rows = StockRows(str(uri), storage_options)
        rows.close()
        uri, storage_options = rows.uri, rows.options
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
    if isinstance(arbiter, SupportsSeries):
        if accept is not None or arbiter.newest(VERSIONS_SERIES) is None:
            arbiter.accept(VERSIONS_SERIES, newest)
        accept_shards(store, arbiter)
        confirm_pin(store, arbiter.pin)
    table = Table(uri, options, store, arbiter, commit_store=commit_store)
    _bring_txns(table, options)
    return table


def _bring_txns(table: Table, options: StorageOptions) -> None:
    """Copy the files of transaction ids that a cloned table's config names."""
    versions = table._versions  # noqa: SLF001 - its own maker
    manifest = versions.newest_manifest()
    if manifest is not None:
        sources = [open_store(root, options) for root in base_roots(manifest)]
        versions.ledger.bring(read_config(manifest), sources)


def release_table(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
) -> int:
    """Give a plain Lance table back: finish what is unfinished, then remove the pin.

    Stop all writers first. Returns the newest version. Transaction ids stay, in the table's
    config and in `_holdfast/txns`, so that the table may be adopted again. `commit_store` may be
    another address of its commit store, with credentials, say.

    Raises:
        NotFoundError: no Holdfast table is there.
    """
    options = StorageOptions(storage_options)
    store = open_store(uri, options)
    arbiter = open_arbiter(uri, options, commit_store=commit_store)
    if isinstance(arbiter, SupportsSeries):
        newest = arbiter.newest(VERSIONS_SERIES)
        if newest:
            arbiter.read(version_name(newest))
    store.delete([PIN_PATH])
    if isinstance(arbiter, SupportsSeries):
        arbiter.retire()
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

    An overwrite brings its own columns and keeps the primary key and the transaction ids; older
    versions stay readable. It supersedes the rows that waited in the table's log. Of several at
    the same time the last one stands. Each mode may be repeated under its transaction id: a
    creation then finds the table that it made.

    Raises:
        InvalidInputError, CommitUnknownError, ConflictError: as for `Table.append`.
        AlreadyExistsError: with `mode="create"`, there is a table that was not created under
            this transaction id.
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
        uri, reader.schema, commit_store=commit_store, storage_options=storage_options, txn=txn
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
