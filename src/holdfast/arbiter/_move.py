"""Move a table from one commit store to another. Rows and files stay where they are.

The move is decided in the commit store that the table leaves, and that one is closed before the
other decides anything. The steps, and what a crash after each leaves:

| step                                          | left behind by a crash                     |
|-----------------------------------------------|--------------------------------------------|
| 1 the other store is there, and is another one | nothing                                   |
| 2 put the move into the old store, if absent:  | the table works on; only this move can be |
|   where to, and the table's next id: **decided** | made now                                |
| 3 retire the table's id in the old store:      | handles are refused, and told to open     |
|   nothing is decided there any more            | again; opening says that it is moving     |
| 4 finish what was decided and not copied, in   | the same                                  |
|   order                                        |                                           |
| 5 what is there counts as decided in the new   | the same                                  |
|   store, under the next id                     |                                           |
| 6 put the pin                                  | moved; its address is kept by whoever     |
|                                                | opens it first                            |
| 7 keep the table's address and its place       | nothing                                   |

Every step can be run again, by anybody: the same call finishes a move that was left, and two at
the same time do the same. A decision that was acknowledged has its bytes at its name (see
`RecordedDecisions`), so steps 4 and 5 lose none. A handle that was stalled before its copy writes
the bytes that step 4 wrote. Before step 3 the newest names are read as any reader would: a
foreign version or a store that forgot stops the move while the table still works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from holdfast._ids import Ids, RandomIds
from holdfast.arbiter._accept import accept_everything, newest_names
from holdfast.arbiter._addresses import keep_address, location_series
from holdfast.arbiter._commit_store import CommitStore, Key
from holdfast.arbiter._moving import Move, decode_move, encode_move, move_key, read_move
from holdfast.arbiter._open import EMBEDDED, connect_pinned, connect_store
from holdfast.arbiter._pinning import check_identity, keep_place
from holdfast.arbiter._place import read_pin
from holdfast.arbiter._recorded import RecordedDecisions
from holdfast.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PinMismatchError,
    StaleHandleError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.formats import PIN_PATH, ArbiterKind, Pin, Record, decode_record, encode_pin
from holdfast.storage import ObjectStore, open_store

MakeArbiter = Callable[[ObjectStore, CommitStore, Pin], RecordedDecisions]


def move_commit_store(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    to: str,
    commit_store: str | None = None,
) -> Pin:
    """Let another commit store decide for a table from now on. Safe to repeat.

    Writers need not be stopped: from step 3 on they get `StaleHandleError`, and a table that
    is opened again decides in the new store. What they repeat with a transaction id is there
    once.

    Args:
        uri: where the table is.
        storage_options: storage options.
        to: the URL of the other commit store, which is set up already; `sqlite` for a file
            inside a local table.
        commit_store: another address of the one that it leaves, with credentials, say.

    Raises:
        NotFoundError: no Holdfast table is here, or the other store is not set up.
        InvalidInputError: the table decides by its object store.
        PinMismatchError: another move was begun and not finished, or these files are a copy.
        UnavailableError, PermissionDeniedError: a store did not do its part; call again.
    """
    store = open_store(uri, storage_options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    if pin.arbiter is not ArbiterKind.COMMIT_STORE:
        raise InvalidInputError(
            "this table decides by its object store: release it, and adopt it with a commit store"
        )
    target = connect_store(to, uri, store, create=True)
    # An embedded file is pinned by its role, not its path: it moves with the table.
    pinned_url = EMBEDDED if to == EMBEDDED else target.url
    try:
        if target.identity() == pin.store_id:  # moved before, or tied to it from the beginning
            _open_again(store, target, pin, RecordedDecisions, {})
            return pin
        old = connect_pinned(pin, uri, store, commit_store)
        try:
            check_identity(pin, old)
            return move_between(store, old, target, pin, pinned_url)
        finally:
            old.close()
    finally:
        target.close()


def move_between(
    store: ObjectStore,
    old: CommitStore,
    target: CommitStore,
    pin: Pin,
    url: str,
    *,
    ids: Ids | None = None,
    make_arbiter: MakeArbiter = RecordedDecisions,
) -> Pin:
    """Take steps 2 to 7; return the pin that holds from now on."""
    wanted = Pin(
        table_id=(ids or RandomIds()).token(),
        arbiter=ArbiterKind.COMMIT_STORE,
        location=store.location,
        store_id=target.identity(),
        store_url=url,
    )
    move = _decide(store, old, target, pin, wanted)
    floors = _close(store, old, pin, make_arbiter)
    _open_again(store, target, move.pin, make_arbiter, floors)
    return move.pin


def _decide(
    store: ObjectStore, old: CommitStore, target: CommitStore, pin: Pin, wanted: Pin
) -> Move:
    """Decide where the table goes; return what was decided, now or before."""
    move = read_move(old, pin)
    if move is None:
        mine = Move(pin=wanted, place=location_series(store))
        _refuse_retired(old, pin)
        winner = old.put_if_absent(move_key(pin), encode_move(mine))
        move = mine if winner is None else decode_move(winner)
    if move.place != location_series(store):
        raise PinMismatchError(
            "these are copied or restored files of a table that moved to another commit store: "
            "give them an id of their own with `holdfast pin URI --copied`",
            location=store.location,
            moved_to=move.pin.store_url,
        )
    if move.pin.store_id != target.identity():
        raise PinMismatchError(
            "a move to another commit store was begun before: finish it with that one's URL",
            begun=move.pin.store_url,
            given=target.url,
        )
    return move


def _refuse_retired(old: CommitStore, pin: Pin) -> None:
    """Begin no move of a table whose id was ended: released, or made anew since."""
    try:
        old.boundary(f"{pin.table_id}/addresses")
    except StaleHandleError as error:
        raise PinMismatchError(
            "these are files of a table that was released, or in whose place another one was "
            "made since: give them an id of their own with `holdfast pin URI --copied`",
            table_id=pin.table_id,
        ) from error


def _close(
    store: ObjectStore, old: CommitStore, pin: Pin, make_arbiter: MakeArbiter
) -> dict[str, int]:
    """End the table's id in the old store, then finish what was decided there.

    Returns:
        Up to which number each series was decided. The objects of a log may all be collected:
        then only the old store knows where it goes on.
    """
    # Foreign bytes and a store that forgot are an operator's affair: found while the table
    # still works. `StaleHandleError`: a move that was cut off ended the id before.
    with suppress(StaleHandleError):
        _look_for_trouble(store, make_arbiter(store, old, pin))
    old.retire(pin.table_id)
    floors = {}
    for newest in newest_names(store):
        series = f"{pin.table_id}/{newest.series}"
        # Copies are made in order, so nothing below the newest object is missing.
        number = max(newest.number, old.boundary(series, retired=True) + 1)
        while (value := old.get(Key(series, number), retired=True)) is not None:
            _finish(store, decode_record(value))
            number += 1
        floors[newest.series] = max(newest.number, number - 1)
    return floors


def _look_for_trouble(store: ObjectStore, arbiter: RecordedDecisions) -> None:
    """Read the newest object of each series, as any reader would."""
    for newest in newest_names(store):
        if newest.number:
            arbiter.read_finished(newest)


def _finish(store: ObjectStore, record: Record) -> None:
    """Give a decision's bytes their name."""
    there = _object(store, record.path)
    if there is None:
        _copy(store, record)
        there = _object(store, record.path)
    if there is None:  # refused for no reason (HTTP 409), or removed since
        raise UnavailableError("a decision was not copied: call again", path=record.path)
    if not record.matches(there):
        raise CorruptError("the bytes at this name are not the decided ones", path=record.path)


def _copy(store: ObjectStore, record: Record) -> None:
    if record.body is not None:
        try:
            store.put_if_absent(record.path, record.body)
        except AlreadyExistsError:
            pass
        except UnsupportedError:
            store.put(record.path, record.body)
    elif record.staged is not None:
        with suppress(NotFoundError):  # somebody finished, and removed it since
            store.copy(record.staged, record.path)


def _object(store: ObjectStore, path: str) -> bytes | None:
    try:
        return store.get(path)
    except NotFoundError:
        return None


def _open_again(
    store: ObjectStore,
    target: CommitStore,
    pin: Pin,
    make_arbiter: MakeArbiter,
    floors: Mapping[str, int],
) -> None:
    """Let the new store decide from what is there, and say so in the pin."""
    there = read_pin(store)
    if there is None or there.table_id != pin.table_id:
        arbiter = make_arbiter(store, target, pin)
        for series, through in floors.items():
            if through > 0:
                arbiter.accept(series, through)
        accept_everything(store, arbiter)
        store.put(PIN_PATH, encode_pin(pin))
    keep_address(store, target, pin, alone=True)
    keep_place(store, target, pin)
