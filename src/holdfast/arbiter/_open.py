"""From a table's URL to its arbiter.

`create_arbiter` ties a table to a way of deciding; `open_arbiter` reads the pin and needs
no option. `HOLDFAST_COMMIT_STORE_URL` may give another address of the pinned commit store
(with credentials, say), never another commit store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from holdfast._ids import RandomIds
from holdfast.arbiter._addresses import check_address
from holdfast.arbiter._commit_store import CommitStore
from holdfast.arbiter._conditional import ConditionalPut
from holdfast.arbiter._pinning import (
    check_identity,
    pin_to_commit_store,
    pin_to_condition,
)
from holdfast.arbiter._place import read_pin
from holdfast.arbiter._recorded import RecordedDecisions
from holdfast.arbiter._verdict import Verdict
from holdfast.arbiter._verdicts import verdict_of
from holdfast.arbiter.stores._registry import connect_commit_store
from holdfast.errors import (
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnsafeStoreError,
)
from holdfast.formats import (
    EMBEDDED_PATH,
    ArbiterKind,
    Pin,
)
from holdfast.storage import (
    LocalStore,
    ObjectStore,
    SupportsDistrust,
    backend_of,
    open_store,
)

URL_VARIABLE = "HOLDFAST_COMMIT_STORE_URL"
EMBEDDED = "sqlite"
"""As a commit store's URL: a SQLite file inside a table on local disk."""


def create_arbiter(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
) -> ConditionalPut | RecordedDecisions:
    """Tie the table at `uri` to a way of deciding, for good, and return its arbiter.

    Safe to repeat: a table that is tied the same way already is simply opened.

    Args:
        uri: where the table is, or will be.
        storage_options: storage options.
        commit_store: a commit store's URL; `sqlite` for a file inside a local table; None
            for the object store's own put-if-absent, which is probed first.

    Raises:
        UnsafeStoreError: no commit store was given and the store failed the probe.
        PinMismatchError: the table is tied to something else.
        NotFoundError: the commit store is not set up.
        InvalidInputError: an unknown scheme or option.
    """
    store = open_store(uri, storage_options)
    ids = RandomIds()
    if commit_store is None:
        arbiter = _by_condition(uri, storage_options, store, None)
        arbiter.require_verdict()
        arbiter.pin = pin_to_condition(store, arbiter, ids)
        return arbiter
    connected = connect_store(commit_store, uri, store, create=True)
    # An embedded file is pinned by its role, not its path: it moves with the table.
    pinned_url = EMBEDDED if commit_store == EMBEDDED else connected.url
    pin = pin_to_commit_store(store, connected, ids, pinned_url)
    return RecordedDecisions(store, connected, pin)


def open_arbiter(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
) -> ConditionalPut | RecordedDecisions:
    """Return the arbiter that the table at `uri` is tied to. Writes nothing, probes nothing.

    `commit_store` may give another address of the pinned commit store, with credentials,
    say; without it `HOLDFAST_COMMIT_STORE_URL` may; else the pinned one is used.

    Raises:
        NotFoundError: the table is not tied to one, or its commit store is not set up.
        PinMismatchError: the table was copied or moved, or the commit store is another one.
    """
    store = open_store(uri, storage_options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError(
            "no Holdfast table is here: create or adopt one first", location=store.location
        )
    if pin.arbiter is ArbiterKind.CONDITIONAL_PUT:
        return _by_condition(uri, storage_options, store, pin)
    connected = connect_pinned(pin, uri, store, commit_store)
    check_identity(pin, connected)
    check_address(store, connected, pin)
    return RecordedDecisions(store, connected, pin)


def connect_pinned(
    pin: Pin, url: str | Path, store: ObjectStore, commit_store: str | None = None
) -> CommitStore:
    """Return the commit store that a pin names, by the address that is given or pinned."""
    return connect_store(commit_store or pinned_address(pin), url, store)


def _by_condition(
    uri: str | Path, storage_options: Mapping[str, str] | None, store: ObjectStore, pin: Pin | None
) -> ConditionalPut:
    return ConditionalPut(store, lambda: _verdict(uri, storage_options, store), pin=pin)


def _verdict(
    uri: str | Path, storage_options: Mapping[str, str] | None, store: ObjectStore
) -> Verdict:
    """Return whether a store may decide; asked before the first decision, never by readers."""
    if isinstance(store, SupportsDistrust):
        raise UnsafeStoreError(
            f"this store cannot decide names: {store.distrust}. Give the table a commit store "
            "(commit_store=...)",
            location=store.location,
        )
    return verdict_of(uri, storage_options)


def remember_store(commit_store: str | None) -> None:
    """Reach tables that are tied to this very commit store by this address from now on.

    A pin has the store's URL without credentials. Whoever serves many tables was given the
    whole address once: for a new table it is named, and this is for those that exist. What
    `env:NAME` stands for is not kept. `HOLDFAST_COMMIT_STORE_URL` goes first.
    """
    if commit_store is None or commit_store == EMBEDDED:
        return
    with suppress(HoldfastError):  # whoever uses it is told what is wrong with it
        connected = connect_commit_store(commit_store)
        _remembered[connected.url] = commit_store
        connected.close()


_remembered: dict[str, str] = {}  # by the URL without credentials


def pinned_address(pin: Pin) -> str:
    """Return where the pinned commit store is reached; an embedded one is where it is."""
    pinned = str(pin.store_url)
    if pinned == EMBEDDED:
        return pinned
    return os.environ.get(URL_VARIABLE) or _remembered.get(pinned, pinned)


def connect_store(
    commit_store: str, url: str | Path, store: ObjectStore, *, create: bool = False
) -> CommitStore:
    """Return the commit store at an address, for the table in `store`.

    With `create`, a file inside a local table is made if it is not there.

    Raises:
        NotFoundError: the file inside a local table is gone.
        UnsafeStoreError: a file of one machine for a table that other machines reach.
        InvalidInputError, MissingExtraError: as for `connect_commit_store`.
    """
    embedded = commit_store == EMBEDDED
    connected = (
        _open_embedded(store, create=create) if embedded else connect_commit_store(commit_store)
    )
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


def _open_embedded(store: ObjectStore, *, create: bool) -> CommitStore:
    if not isinstance(store, LocalStore):
        raise InvalidInputError(
            "commit_store='sqlite' is for tables on local disk: give a URL",
            location=store.location,
        )
    file = store.root / EMBEDDED_PATH
    if not create:
        if not file.exists():
            raise NotFoundError(
                "the table's commit store is gone: bring the file back from a backup. Without one, "
                "stop all writers, and let a new one decide from what the table holds: holdfast "
                "repair URI --new-commit-store sqlite --confirm",
                location=store.location,
                file=EMBEDDED_PATH,
            )
        return connect_commit_store(f"sqlite:///{quote(str(file))}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionDeniedError(
            f"cannot make the table's folder: {error.strerror}", location=store.location
        ) from error
    connected = connect_commit_store(f"sqlite:///{quote(str(file))}")
    connected.set_up()  # type: ignore[attr-defined]
    return connected
