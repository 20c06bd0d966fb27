"""From a table's URL to its arbiter.

`create_arbiter` ties a table to a way of deciding; `open_arbiter` reads the pin and needs
no option. `HOLDFAST_COMMIT_STORE_URL` may give another address of the pinned commit store
(with credentials, say), never another commit store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from holdfast._ids import RandomIds
from holdfast.arbiter._commit_store import CommitStore
from holdfast.arbiter._conditional import ConditionalPut
from holdfast.arbiter._pinning import (
    check_identity,
    pin_to_commit_store,
    pin_to_condition,
    read_pin,
)
from holdfast.arbiter._recorded import RecordedDecisions
from holdfast.arbiter._verdicts import verdict_of
from holdfast.arbiter.stores._registry import connect_commit_store
from holdfast.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    PinMismatchError,
    UnsafeStoreError,
)
from holdfast.formats import (
    EMBEDDED_PATH,
    PIN_PATH,
    VERSIONS_SERIES,
    ArbiterKind,
    Pin,
    encode_pin,
    version_of,
)
from holdfast.storage import LocalStore, ObjectStore, backend_of, open_store

URL_VARIABLE = "HOLDFAST_COMMIT_STORE_URL"
EMBEDDED = "sqlite"
"""As a commit store's URL: a SQLite file inside a table on local disk."""


def create_arbiter(
    url: str | Path,
    options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
) -> ConditionalPut | RecordedDecisions:
    """Tie the table at `url` to a way of deciding, for good, and return its arbiter.

    Safe to repeat: a table that is tied the same way already is simply opened.

    Args:
        url: where the table is, or will be.
        options: storage options.
        commit_store: a commit store's URL; `sqlite` for a file inside a local table; None
            for the object store's own put-if-absent, which is probed first.

    Raises:
        UnsafeStoreError: no commit store was given and the store failed the probe.
        PinMismatchError: the table is tied to something else.
        NotFoundError: the commit store is not set up.
        InvalidInputError: an unknown scheme or option.
    """
    store = open_store(url, options)
    ids = RandomIds()
    if commit_store is None:
        arbiter = _by_condition(url, options, store, None)
        arbiter.pin = pin_to_condition(store, arbiter, ids)
        return arbiter
    connected = _connect(commit_store, url, store)
    # An embedded file is pinned by its role, not its path: it moves with the table.
    pinned_url = EMBEDDED if commit_store == EMBEDDED else connected.url
    pin = pin_to_commit_store(store, connected, ids, pinned_url)
    return RecordedDecisions(store, connected, pin)


def open_arbiter(
    url: str | Path,
    options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
) -> ConditionalPut | RecordedDecisions:
    """Return the arbiter that the table at `url` is tied to.

    `commit_store` may give another address of the pinned commit store, with credentials,
    say; without it `HOLDFAST_COMMIT_STORE_URL` may; else the pinned one is used.

    Raises:
        NotFoundError: the table is not tied to one, or its commit store is not set up.
        PinMismatchError: the table was copied or moved, or the commit store is another one.
        UnsafeStoreError: the store no longer passes the probe.
    """
    store = open_store(url, options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError(
            "no Holdfast table is here: create or adopt one first", location=store.location
        )
    if pin.arbiter is ArbiterKind.CONDITIONAL_PUT:
        return _by_condition(url, options, store, pin)
    _check_location(pin, store)
    connected = _connect(commit_store or _address(pin), url, store)
    check_identity(pin, connected)
    return RecordedDecisions(store, connected, pin)


def repin(
    url: str | Path, options: Mapping[str, str] | None = None, *, copied: bool
) -> RecordedDecisions:
    """Tie a table to its commit store again after its files were moved or copied.

    A moved table goes on under its own id. A copy gets a new id, and what it holds counts as
    decided; so the original is not touched. Call it before anybody writes, from one process.

    Raises:
        NotFoundError: no Holdfast table is here.
        InvalidInputError: the table decides by its object store and needs no such step.
    """
    store = open_store(url, options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    if pin.arbiter is not ArbiterKind.COMMIT_STORE:
        raise InvalidInputError("this table decides by its object store: it may be moved freely")
    connected = _connect(_address(pin), url, store)
    check_identity(pin, connected)
    if pin.location == store.location:
        return RecordedDecisions(store, connected, pin)  # done before
    table_id = RandomIds().token() if copied else pin.table_id
    fresh = replace(pin, location=store.location, table_id=table_id)
    arbiter = RecordedDecisions(store, connected, fresh)
    if copied:
        versions = [version_of(info.path) for info in store.list("_versions")]
        arbiter.accept(VERSIONS_SERIES, max((v for v in versions if v is not None), default=0))
    store.put(PIN_PATH, encode_pin(fresh))
    return arbiter


def _by_condition(
    url: str | Path, options: Mapping[str, str] | None, store: ObjectStore, pin: Pin | None
) -> ConditionalPut:
    return ConditionalPut(store, verdict_of(url, options), pin=pin)


def _address(pin: Pin) -> str:
    """Return where the pinned commit store is reached; an embedded one is where it is."""
    pinned = str(pin.store_url)
    return pinned if pinned == EMBEDDED else os.environ.get(URL_VARIABLE) or pinned


def _connect(commit_store: str, url: str | Path, store: ObjectStore) -> CommitStore:
    embedded = commit_store == EMBEDDED
    connected = _embedded(store) if embedded else connect_commit_store(commit_store)
    local_only = getattr(connected, "local_only", False)
    single_host = getattr(connected, "single_host", False)
    if local_only and not single_host and backend_of(url) not in {"file", "memory"}:
        connected.close()
        raise UnsafeStoreError(
            "a SQLite file decides for one machine, but this table is on a remote store: two "
            "hosts would decide in two files. Use a database server, or say ?single_host=true "
            "if only this host will ever write",
            commit_store=connected.url,
            location=store.location,
        )
    return connected


def _embedded(store: ObjectStore) -> CommitStore:
    if not isinstance(store, LocalStore):
        raise InvalidInputError(
            "commit_store='sqlite' is for tables on local disk: give a URL",
            location=store.location,
        )
    file = store.root / EMBEDDED_PATH
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionDeniedError(
            f"cannot make the table's folder: {error.strerror}", location=store.location
        ) from error
    connected = connect_commit_store(f"sqlite:///{quote(str(file))}")
    connected.set_up()  # type: ignore[attr-defined]
    return connected


def _check_location(pin: Pin, store: ObjectStore) -> None:
    if pin.location == store.location:
        return
    raise PinMismatchError(
        "the table's files were moved or copied: decide which with "
        "`holdfast pin URI --moved` (the old place is gone) or `--copied` (both go on)",
        pinned=pin.location,
        location=store.location,
    )
