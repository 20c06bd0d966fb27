"""The way on for a table whose files are met under an address that nobody knows.

| how      | what the operator says                              | what it does               |
|----------|-----------------------------------------------------|----------------------------|
| `alias`  | the same files, reached in another way              | one more known address     |
| `moved`  | the files are here now, and nowhere else            | the only known address     |
| `copied` | the original goes on, and so does this copy         | a new table id; what is    |
|          |                                                     | here counts as decided     |

A crash leaves the table refused or done; the same call again finishes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from holdfast._ids import RandomIds
from holdfast.arbiter._accept import accept_everything
from holdfast.arbiter._addresses import keep_address
from holdfast.arbiter._commit_store import CommitStore
from holdfast.arbiter._open import connect_pinned
from holdfast.arbiter._pinning import check_identity, keep_place
from holdfast.arbiter._place import read_pin
from holdfast.arbiter._recorded import RecordedDecisions
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import PIN_PATH, ArbiterKind, Pin, encode_pin
from holdfast.storage import ObjectStore, open_store

Repin = Literal["alias", "moved", "copied"]


def repin(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    how: Repin,
    commit_store: str | None = None,
) -> RecordedDecisions:
    """Let a table be opened from here: as an alias, after a move, or as a copy of its own.

    Call it before anybody writes, from one process. `commit_store` may be another address of
    the table's commit store, with credentials, say.

    Raises:
        NotFoundError: no Holdfast table is here.
        InvalidInputError: the table decides by its object store and needs no such step.
        PinMismatchError: its commit store is another one.
        StaleHandleError: the table's id was retired: it can only be a copy.
        UnavailableError, PermissionDeniedError: a store did not do its part; call again.
    """
    store = open_store(uri, storage_options)
    pin, connected = _connect(store, uri, commit_store)
    if how == "copied":
        pin = replace(pin, location=store.location, table_id=RandomIds().token())
        accept_everything(store, RecordedDecisions(store, connected, pin))
    elif how == "moved":
        pin = replace(pin, location=store.location)
        keep_address(store, connected, pin, alone=True)  # refuses a retired id
    if how != "alias":
        store.put(PIN_PATH, encode_pin(pin))
    keep_address(store, connected, pin, alone=how != "alias")
    keep_place(store, connected, pin)
    return RecordedDecisions(store, connected, pin)


def check_repin(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
) -> None:
    """Return if `repin` could be called; for plans. Writes nothing.

    Raises:
        HoldfastError: as for `repin`.
    """
    _, connected = _connect(open_store(uri, storage_options), uri, commit_store)
    connected.close()


def _connect(
    store: ObjectStore, url: str | Path, commit_store: str | None
) -> tuple[Pin, CommitStore]:
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    if pin.arbiter is not ArbiterKind.COMMIT_STORE:
        raise InvalidInputError("this table decides by its object store: it may be moved freely")
    connected = connect_pinned(pin, url, store, commit_store)
    check_identity(pin, connected)
    return pin, connected
