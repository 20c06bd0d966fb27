"""Creating a table, adopting one of stock Lance, and giving it back.

table = holdfast.create_table("s3://bucket/events.lance", schema, commit_store="postgresql://db/lake")
holdfast.write_table(rows, "s3://bucket/events.lance", txn="load-7")
holdfast.release_table("s3://bucket/events.lance")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from holdfast.arbiter import (
    STOCK_DYNAMODB,
    StockRows,
    SupportsSeries,
    accept_shards,
    confirm_pin,
    create_arbiter,
    open_arbiter,
)
from holdfast.commits import (
    CommitHook,
    CommitResult,
    Data,
    create_hooked,
    read_any,
    require_rows,
    translate_errors,
)
from holdfast.core import TableCore, address_of
from holdfast.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from holdfast.formats import (
    PIN_PATH,
    VERSIONS_SERIES,
    add_key,
    base_roots,
    creation_mark,
    edit_config,
    is_created_by,
    is_staged_manifest,
    read_config,
    version_name,
)
from holdfast.options import StorageOptions, resolve
from holdfast.storage import ObjectStore, open_store
from holdfast.table import Table, open_table
from holdfast.txn import Txn, TxnLike, parse_txn


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
    table = Table(TableCore(store, arbiter, uri, options), commit_store=commit_store)
    if arbiter.read(version_name(1)) is not None:
        raise AlreadyExistsError("there is a table already: open it", uri=uri)
    operation = CommitHook(table.versions, creates=True, edit=mark)
    hook: Any = operation
    with operation.raising_outcome():
        made = create_hooked(hook, schema, fragments)
        operation.note_success(int(made.version))
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
    table = Table(TableCore(store, arbiter, uri, options), commit_store=commit_store)
    _bring_txns(table)
    return table


def _bring_txns(table: Table) -> None:
    """Copy the files of transaction ids that a cloned table's config names."""
    versions = table.versions
    manifest = versions.newest_manifest()
    if manifest is not None:
        sources = [open_store(root, table.core.options) for root in base_roots(manifest)]
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
        return (
            table.append(data, txn=txn) if mode == "append" else table.writes.overwrite(data, txn)
        )
    if txn is not None:
        parse_txn(txn)  # before there is a table
    reader = require_rows(read_any(data))
    table = create_table(
        uri, reader.schema, commit_store=commit_store, storage_options=storage_options, txn=txn
    )
    return table.append(reader, txn=txn)


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
    with translate_errors(address):
        return int(lance.dataset(address, storage_options=dict(resolved) or None).version)


__all__ = [
    "adopt_table",
    "create_table",
    "create_with_fragments",
    "release_table",
    "write_table",
]
