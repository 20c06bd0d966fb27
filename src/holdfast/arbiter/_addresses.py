"""Under which addresses a table is known: a copy of its files must not decide in its name.

A copy has the original's pin in it. So the commit store keeps, with the table's records, the
addresses from which the table may be opened, and an unknown one is refused until an operator
says what it is (`repin`). The address of a remote table is its location and endpoint; of a
local one its path and the identity of the pin's own file, which no copy can have and every
mount and container sees alike. On file systems that number files anew (FUSE, 9p), it is the
path and the host.

The first address is kept when the table is tied, or by whoever opens it first if its creator
died before that. No clock and no name of a process takes part.

With each address goes its place, the location with its endpoint or host. Who makes a new table
in a place ends the id of the one that was there, unless that one was moved elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from holdfast.arbiter._commit_store import CommitStore, Key
from holdfast.arbiter._moving import read_move
from holdfast.errors import (
    CorruptError,
    PermissionDeniedError,
    PinMismatchError,
    StaleHandleError,
    UnavailableError,
)
from holdfast.formats import PIN_PATH, Pin
from holdfast.storage import ObjectStore, SupportsFileIds

_TRIES = 10


def address_of(store: ObjectStore) -> str:
    """Return by which address this process reaches the table whose pin is in `store`.

    Raises:
        NotFoundError: no pin is there.
    """
    file_id = store.file_id(PIN_PATH) if isinstance(store, SupportsFileIds) else None
    if file_id is not None:
        return f"{store.location} file {file_id}"
    return f"{store.location} at {store.endpoint}" if store.endpoint else store.location


def check_address(store: ObjectStore, commit_store: CommitStore, pin: Pin) -> None:
    """Return if the table may be opened from here.

    Raises:
        PinMismatchError: the table is known under other addresses only, or was retired.
        CorruptError: the known addresses cannot be read.
        UnavailableError: the commit store did not tell.
    """
    here = address_of(store)
    try:
        known = _stored_addresses(commit_store, pin)
        if known is None:
            known = _keep_first(commit_store, pin, here, location_series(store))
    except StaleHandleError as error:
        move = read_move(commit_store, pin)
        if move is not None and move.place == location_series(store):
            raise UnavailableError(
                "the table is moving to another commit store: open it again in a moment. If it "
                "stays so, the move was cut off: run the same `holdfast store move` again",
                location=store.location,
                to=move.pin.store_url,
            ) from error
        raise PinMismatchError(
            "these are files of a table that was released, or in whose place another one was "
            "made since: give them an id of their own with `holdfast pin URI --copied`",
            location=store.location,
            table_id=pin.table_id,
        ) from error
    if here not in known:
        raise PinMismatchError(
            "the table is not known under this address: say with `holdfast pin URI` whether "
            "these are the same files by another way (--alias: another endpoint, a mount), or "
            "they were moved or restored here (--moved: the old place is gone), or copied "
            "(--copied: both go on)",
            address=here,
            known=", ".join(known),
        )


def keep_address(store: ObjectStore, commit_store: CommitStore, pin: Pin, *, alone: bool) -> None:
    """Let the table be opened from here; with `alone`, from nowhere else any more.

    Raises:
        UnavailableError: others changed the addresses each time first, or no answer.
        StaleHandleError: the table was retired.
    """
    here, key = address_of(store), _key(pin)
    for _ in range(_TRIES):
        value = commit_store.get(key)
        known = {} if value is None or alone else _decode(value)
        wanted = _encode({**known, here: location_series(store)})
        if value is None:
            if commit_store.put_if_absent(key, wanted) is None:
                return
        elif commit_store.compare_and_set(key, value, wanted):
            return
    raise UnavailableError("others change this table's addresses: try again", address=here)


def is_at_home(store: ObjectStore, commit_store: CommitStore, pin: Pin) -> bool:
    """Tell whether a table belongs in this place, as far as anybody knows.

    Raises:
        StaleHandleError: the table was retired.
        CorruptError: the known addresses cannot be read.
        UnavailableError: the commit store did not tell.
    """
    known = _stored_addresses(commit_store, pin)
    return known is None or location_series(store) in known.values()


def location_series(store: ObjectStore) -> str:
    """Return the commit-store series in which the pins of a place are decided.

    The endpoint or host is part of the place: a table at the same path elsewhere is another.
    """
    place = f"{store.location} {store.endpoint}"
    return f"location/{hashlib.sha256(place.encode()).hexdigest()}"


def _stored_addresses(commit_store: CommitStore, pin: Pin) -> Mapping[str, str] | None:
    value = commit_store.get(_key(pin))
    return None if value is None else _decode(value)


def _keep_first(commit_store: CommitStore, pin: Pin, here: str, place: str) -> Mapping[str, str]:
    try:
        there = commit_store.put_if_absent(_key(pin), _encode({here: place}))
    except PermissionDeniedError:
        return {here: place}  # a reader that may not write; the next writer keeps it
    return {here: place} if there is None else _decode(there)


def _key(pin: Pin) -> Key:
    return Key(f"{pin.table_id}/addresses", 0)


def _encode(addresses: Mapping[str, str]) -> bytes:
    return json.dumps({"addresses": addresses}, indent=1).encode()


def _decode(value: bytes) -> Mapping[str, str]:
    """Return the places of a table by its addresses."""
    try:
        addresses = json.loads(value)["addresses"]
        return {str(address): str(place) for address, place in addresses.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError("the table's known addresses cannot be read") from error
