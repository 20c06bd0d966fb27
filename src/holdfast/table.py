"""`Table`: a real Lance table whose every version is decided by Holdfast.

    table = holdfast.create_table("s3://bucket/events.lance", schema, commit_store="postgresql://db/lake")
    result = table.append(rows, txn=("job7", 42))
    result.applied  # False: this transaction was in the table already

An append that returned is in the table, durably. Repeated under the same transaction id it
is there once. Stock pylance reads every version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from holdfast._clock import Clock, SystemClock
from holdfast.arbiter import (
    Arbiter,
    RecordedDecisions,
    confirm_pin,
    create_arbiter,
    open_arbiter,
)
from holdfast.commits._appends import Append, Appender
from holdfast.commits._data import Data, as_reader
from holdfast.commits._operation import TABLE_ID, LongLived, Operation
from holdfast.commits._versions import Versions
from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
)
from holdfast.formats import PIN_PATH, VERSIONS_SERIES, Pin, is_applied, version_name
from holdfast.options import StorageOptions, resolve
from holdfast.storage import ObjectStore, open_store
from holdfast.txn import TxnLike, parse_txn

PRIMARY_KEY = b"lance-schema:unenforced-primary-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What one write did.

    Attributes:
        version: the version that holds it.
        rows: how many rows it added; those of an earlier call when not `applied`.
        txn: the transaction id it was made under.
        applied: False when the transaction was in the table already.
        elapsed: seconds.
    """

    version: int
    rows: int
    txn: TxnLike | None
    applied: bool
    elapsed: float


class Table:
    """A Lance table that commits through Holdfast. Threads may share it.

    It travels to other processes as its address and options; live handles do not.
    """

    def __init__(
        self,
        uri: str,
        options: StorageOptions,
        store: ObjectStore,
        arbiter: Arbiter,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._uri = uri
        self._options = options
        self._resolved = {key: resolve(key, value) for key, value in options.items()}
        self._store = store
        self._arbiter = arbiter
        self._clock = clock or SystemClock()
        self._versions = Versions(store, arbiter, uri)
        self._appender = Appender(self._versions, self._resolved)

    def __repr__(self) -> str:
        return f"Table({self._uri})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (open_table, (self._uri, dict(self._options)))

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

    def dataset(self, version: int | None = None) -> lance.LanceDataset:
        """Return a pylance dataset, the newest or of one version; its commits are decided.

        Use it for everything pylance can do. Do not pickle it: a dataset loses its hook on
        the way to another process. Send this table instead.
        """
        hook: Any = LongLived(self._versions, self._resolved)
        return lance.dataset(namespace_client=hook, table_id=TABLE_ID, version=version)

    def append(self, data: Data, *, txn: TxnLike | None = None) -> CommitResult:
        """Add rows. They are in the table, durably, when this returns.

        Args:
            data: anything with Arrow's stream interface, or a list of dicts.
            txn: makes a repeat harmless: `(app, number)` or a string.

        Raises:
            InvalidInputError: no rows, columns that do not fit, a malformed txn.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            ConflictError: other writers changed the table in a way that excludes this.
        """
        begun = self._clock.elapsed()
        table = self.dataset()
        if txn is not None and is_applied(table.config(), parse_txn(txn)):
            return self._result(table.version, 0, txn, applied=False, begun=begun)
        reader = as_reader(data, table.schema)
        fragments = write_fragments(reader, table, mode="append")
        return self.commit(fragments, txn=txn, _begun=begun)

    def commit(
        self,
        fragments: Iterable[Any],  # Any: Lance's FragmentMetadata
        *,
        txn: TxnLike | None = None,
        _begun: float | None = None,
    ) -> CommitResult:
        """Append fragments that were written elsewhere, as engines do.

        Raises:
            InvalidInputError: no rows, or a malformed txn.
            CommitUnknownError, ConflictError: as for `append`.
        """
        begun = self._clock.elapsed() if _begun is None else _begun
        parsed = None if txn is None else parse_txn(txn)
        append = Append(fragments=list(fragments), txn=parsed)
        if not append.rows:
            raise InvalidInputError("there are no rows to append", table=self._uri)
        done = self._appender.append(append)
        return self._result(done.version, append.rows, txn, applied=done.applied, begun=begun)

    def applied(self, txns: Sequence[TxnLike]) -> list[bool]:
        """Tell of each transaction whether the newest version holds it.

        Raises:
            InvalidInputError: a malformed txn.
        """
        parsed = [parse_txn(txn) for txn in txns]
        config = self.dataset().config()
        return [is_applied(config, txn) for txn in parsed]

    def close(self) -> None:
        """Let go of connections; the table is not used afterwards."""
        self._arbiter.close()

    def _result(
        self, version: int, rows: int, txn: TxnLike | None, *, applied: bool, begun: float
    ) -> CommitResult:
        elapsed = self._clock.elapsed() - begun
        return CommitResult(version=version, rows=rows, txn=txn, applied=applied, elapsed=elapsed)


def open_table(
    uri: str,
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
    return Table(uri, options, store, open_arbiter(uri, options, commit_store=commit_store))


def create_table(
    uri: str,
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
    table = Table(uri, options, store, arbiter)
    if arbiter.read(version_name(1)) is not None:
        raise AlreadyExistsError("there is a table already: open it", uri=uri)
    operation = Operation(table._versions, table._resolved)  # noqa: SLF001 - its own maker
    hook: Any = operation
    with operation.settled():
        lance.write_dataset(
            keyed.empty_table(), namespace_client=hook, table_id=TABLE_ID, mode="create"
        )
    if isinstance(arbiter, RecordedDecisions):
        confirm_pin(store, arbiter.pin)
    return table


def adopt_table(
    uri: str,
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
    newest = _newest_plain(uri, resolved)
    store = open_store(uri, options)
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
        confirm_pin(store, arbiter.pin)
    return Table(uri, options, store, arbiter)


def release_table(uri: str, storage_options: Mapping[str, str] | None = None) -> int:
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
    return _newest_plain(uri, resolved)


def write_table(
    data: Data,
    uri: str,
    *,
    mode: Literal["append", "create"] = "append",
    txn: TxnLike | None = None,
    commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> CommitResult:
    """Append rows to a table in one call; with `mode="create"`, create it first.

    Raises:
        InvalidInputError, CommitUnknownError, ConflictError: as for `Table.append`.
        AlreadyExistsError: with `mode="create"`, there is a table.
        NotFoundError: with `mode="append"`, there is none.
    """
    if mode not in {"append", "create"}:
        raise InvalidInputError("mode is 'append' or 'create'", mode=repr(mode))
    if mode == "create":
        rows = data if not isinstance(data, list) else pa.Table.from_pylist(data)
        schema = getattr(rows, "schema", None)
        if not isinstance(schema, pa.Schema):
            rows = pa.table(rows)
            schema = rows.schema
        table = create_table(
            uri, schema, commit_store=commit_store, storage_options=storage_options
        )
        return table.append(rows, txn=txn)
    table = open_table(uri, storage_options, commit_store=commit_store)
    return table.append(data, txn=txn)


def _with_key(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    if not isinstance(schema, pa.Schema) or not schema.names:
        raise InvalidInputError("a table needs a pyarrow schema with at least one column")
    for name in primary_key:
        if name not in schema.names:
            raise InvalidInputError("the primary key names a column that is not there", key=name)
        index = schema.get_field_index(name)
        field = schema.field(index)
        marked = {**(field.metadata or {}), PRIMARY_KEY: b"true"}
        schema = schema.set(index, field.with_nullable(nullable=False).with_metadata(marked))
    return schema


def _refuse_existing(uri: str, store: ObjectStore) -> None:
    if store.list("_versions"):
        raise AlreadyExistsError(
            "there is a Lance table already: open it, or adopt it with adopt_table", uri=uri
        )


def _newest_plain(uri: str, resolved: Mapping[str, str]) -> int:
    """Return the newest version as stock Lance sees it."""
    try:
        return int(lance.dataset(uri, storage_options=dict(resolved) or None).version)
    except HoldfastError:
        raise
    except (ValueError, OSError) as error:
        raise NotFoundError("no Lance table is there", uri=uri) from error


__all__ = [
    "CommitResult",
    "Table",
    "adopt_table",
    "create_table",
    "open_table",
    "release_table",
    "write_table",
]
