"""Tie a table to its arbiter: the pin is written once, at creation, and read at every open.

The pin is a guard, not an arbiter. On a store with a sound put-if-absent it is decided like
any name. Elsewhere it is decided in the commit store, under the table's location, so that
creators that use *one* commit store agree. Two creators with *two* commit stores on one
store that ignores conditions cannot be arbitrated by anybody: a creator therefore decides
its first version and then reads the pin again (`confirm_pin`) before it acknowledges. At
most one of them does; the others get `PinMismatchError`.
"""

from __future__ import annotations

from holdfast._ids import Ids
from holdfast.arbiter._addresses import (
    check_address,
    is_at_home,
    keep_address,
    location_series,
)
from holdfast.arbiter._commit_store import CommitStore, Key
from holdfast.arbiter._conditional import ConditionalPut
from holdfast.arbiter._decision import Won
from holdfast.arbiter._place import read_pin
from holdfast.errors import (
    AlreadyExistsError,
    PinMismatchError,
    StaleHandleError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.events import EventKind, emit
from holdfast.formats import (
    PIN_PATH,
    VERSIONS_SERIES,
    ArbiterKind,
    Name,
    Pin,
    decode_pin,
    encode_pin,
)
from holdfast.storage import ObjectStore

_PIN_TRIES = 5


def confirm_pin(store: ObjectStore, pin: Pin) -> None:
    """Make sure that the table is still tied as `pin` says.

    Raises:
        PinMismatchError: another creator was there.
    """
    there = read_pin(store)
    if there is None or there.table_id != pin.table_id:
        raise PinMismatchError(
            "the table was tied to another arbiter meanwhile: open it again",
            location=store.location,
            expected=pin.table_id,
            actual=there.table_id if there else None,
        )


def pin_to_condition(store: ObjectStore, arbiter: ConditionalPut, ids: Ids) -> Pin:
    """Tie a table to its store's own put-if-absent; return the pin that holds from now on.

    Raises:
        PinMismatchError: the table is tied to a commit store.
    """
    pin = Pin(table_id=ids.token(), arbiter=ArbiterKind.CONDITIONAL_PUT, location=store.location)
    decision = arbiter.decide(Name.single(PIN_PATH), encode_pin(pin), pin.table_id)
    if isinstance(decision, Won):
        return _report_pin(pin)
    there = decode_pin(decision.body)
    _check_kind(there, ArbiterKind.CONDITIONAL_PUT, store.location)
    return there


def pin_to_commit_store(
    store: ObjectStore, commit_store: CommitStore, ids: Ids, url: str | None = None
) -> Pin:
    """Tie a table to a commit store; return the pin that holds from now on. Safe to repeat.

    `url` is what the pin says to find the commit store by, instead of its own URL.

    Raises:
        PinMismatchError: the table is tied to something else.
    """
    # The pin in the table is looked at first: it may name another commit store, and then nothing
    # may be written into the one that was given.
    existing = read_pin(store)
    pin = existing or _put_pin(store, _agree(store, commit_store, ids, url))
    _check_kind(pin, ArbiterKind.COMMIT_STORE, store.location)
    check_identity(pin, commit_store)
    if existing is None:
        keep_address(store, commit_store, pin, alone=False)
    else:
        check_address(store, commit_store, pin)
    return pin


def check_identity(pin: Pin, commit_store: CommitStore) -> None:
    """Make sure that this is the commit store that the table is tied to.

    Raises:
        PinMismatchError: it is another one.
    """
    identity = commit_store.identity()
    if identity != pin.store_id:
        raise PinMismatchError(
            "this is not the commit store that the table is tied to: give that one's URL, here "
            "or in HOLDFAST_COMMIT_STORE_URL, or unset the variable if it names another",
            location=pin.location,
            pinned=pin.store_url,
            given=commit_store.url,
            expected=pin.store_id,
            actual=identity,
        )


def _agree(store: ObjectStore, commit_store: CommitStore, ids: Ids, url: str | None) -> Pin:
    """Decide, in the commit store, which pin this location gets."""
    series = location_series(store)
    newest = commit_store.scan(series, limit=1, newest_first=True)
    number = newest[0].number if newest else -1
    # Numbers of a location's series are the tables that were there one after the other.
    if newest:
        pin = decode_pin(newest[0].value)
        if not _is_used(pin, commit_store):
            return pin  # being created by somebody, or by somebody who died: the same table
        # Versions are decided after the pin is written, so a used pin that is not there
        # belongs to a table that was removed: the location gets a new one. First the old id
        # ends, so that no handle of the old table writes into the new one.
        there = read_pin(store)
        if there is not None:
            return there
        if _is_at_home(store, commit_store, pin):
            commit_store.retire(pin.table_id)
    mine = Pin(
        table_id=ids.token(),
        arbiter=ArbiterKind.COMMIT_STORE,
        location=store.location,
        store_id=commit_store.identity(),
        store_url=url or commit_store.url,
    )
    # Two creators that scanned at the same moment try the same number: one wins, both get its pin.
    winner = commit_store.put_if_absent(Key(series, number + 1), encode_pin(mine))
    return mine if winner is None else decode_pin(winner)


def keep_place(store: ObjectStore, commit_store: CommitStore, pin: Pin) -> None:
    """Note which table is in a place now, so that who makes another there ends this one's id.

    Raises:
        UnavailableError: others noted theirs each time first, or no answer.
    """
    series = location_series(store)
    for _ in range(_PIN_TRIES):
        newest = commit_store.scan(series, limit=1, newest_first=True)
        if newest and decode_pin(newest[0].value).table_id == pin.table_id:
            return
        number = newest[0].number + 1 if newest else 0
        if commit_store.put_if_absent(Key(series, number), encode_pin(pin)) is None:
            return
    raise UnavailableError("others tie this place: try again", location=store.location)


def _is_used(pin: Pin, commit_store: CommitStore) -> bool:
    series = f"{pin.table_id}/{VERSIONS_SERIES}"
    try:
        return bool(commit_store.scan(series, limit=1)) or commit_store.boundary(series) >= 0
    except StaleHandleError:
        return True  # another creator was here, and retired it


def _is_at_home(store: ObjectStore, commit_store: CommitStore, pin: Pin) -> bool:
    try:
        return is_at_home(store, commit_store, pin)
    except StaleHandleError:
        return True


def _put_pin(store: ObjectStore, pin: Pin) -> Pin:
    body = encode_pin(pin)
    for _ in range(_PIN_TRIES):
        try:
            store.put_if_absent(PIN_PATH, body)
        except AlreadyExistsError:
            there = read_pin(store)
            if there is None:
                continue  # a 409, just when a rival may be creating: never a plain put here
            return there
        except UnsupportedError:
            # Without a condition the last put would win. That is why the pin was agreed on in the
            # commit store first: all who use that one put the same bytes.
            store.put(PIN_PATH, body)
        # A creator with another commit store may have put its pin over ours, or the store may have
        # ignored the condition. Whoever reads its own pin back goes on; the other one is refused.
        confirm_pin(store, pin)
        return _report_pin(pin)
    raise UnavailableError("the store keeps refusing the pin: try again", location=store.location)


def _report_pin(pin: Pin) -> Pin:
    emit(
        EventKind.PINNED,
        location=pin.location,
        arbiter=pin.arbiter.value,
        table_id=pin.table_id,
    )
    return pin


def _check_kind(pin: Pin, wanted: ArbiterKind, location: str) -> None:
    if pin.arbiter is not wanted:
        raise PinMismatchError(
            f"the table is tied to {pin.arbiter.value}, not to {wanted.value}: open it as it is",
            location=location,
            pinned=pin.store_url,
        )
