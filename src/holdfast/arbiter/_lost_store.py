"""Let a new commit store decide for a table whose old one is lost for good, or put its pin back.

Unlike a move (`_move`) nobody can close the old store: all writers must be stopped, and the old
one must never come back. The table gets a new id, so handles of the old one find another pin and
are refused. The steps of `replace_commit_store`, and what a crash after each leaves:

| step                                           | left behind by a crash                    |
|------------------------------------------------|-------------------------------------------|
| 1 the old store does not answer as the pinned  | nothing                                   |
| 2 a damaged file inside the table is set aside,| a new, empty file; the table is refused   |
|   and a new one set up                         | as before                                 |
| 3 put the table's next pin into the new store, | the same; every later run takes this pin  |
|   if absent, under its old id: **decided**     |                                           |
| 4 what is there counts as decided in the new   | the same                                  |
|   store, under the next id                     |                                           |
| 5 put the pin                                  | the table goes on; its address is kept by |
|                                                | whoever opens it first                    |
| 6 keep the table's address and its place       | nothing                                   |

`put_pin_back` finds the pin of a place in the commit store, where it was decided:

| step                                           | left behind by a crash                    |
|------------------------------------------------|-------------------------------------------|
| 1 set damaged bytes aside                      | a copy that nobody needs                  |
| 2 put the pin                                  | refused as moved, until step 3 is run     |
| 3 keep the table's address and its place       | nothing                                   |
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast._ids import TOKEN_PATTERN, Ids, RandomIds
from holdfast.arbiter._accept import accept_everything
from holdfast.arbiter._addresses import (
    check_address,
    is_at_home,
    keep_address,
    location_series,
)
from holdfast.arbiter._commit_store import CommitStore, Key, SupportsSetUp
from holdfast.arbiter._open import EMBEDDED, connect_pinned, connect_store
from holdfast.arbiter._pinning import check_identity, keep_place
from holdfast.arbiter._place import read_pin
from holdfast.arbiter._recorded import RecordedDecisions
from holdfast.errors import (
    BusyError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PinMismatchError,
    StaleHandleError,
    UnavailableError,
)
from holdfast.formats import (
    EMBEDDED_PATH,
    PIN_PATH,
    ArbiterKind,
    Pin,
    decode_pin,
    encode_pin,
    set_aside_path,
)
from holdfast.storage import LocalStore, ObjectStore, open_store


def replace_commit_store(
    url: str | Path, options: Mapping[str, str] | None = None, *, to: str
) -> Pin:
    """Let the commit store at `to` decide for a table whose own is lost. Safe to repeat.

    Warning:
        Stop all writers first, and never start the old commit store again: what was decided
        in it and not copied is given up, and a writer that still reached it could write past
        the new one.

    Raises:
        NotFoundError: no pin is here, or the new commit store is not set up.
        InvalidInputError: the table decides by its object store, or its commit store answers.
        UnavailableError, PermissionDeniedError: a store did not do its part; call again.
    """
    store = open_store(url, options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    if pin.arbiter is not ArbiterKind.COMMIT_STORE:
        raise InvalidInputError("this table decides by its object store, not by a commit store")
    if to == EMBEDDED and not isinstance(store, LocalStore):
        raise InvalidInputError("commit_store='sqlite' is for tables on local disk: give a URL")
    if _finish_tied(pin, to, url, store):
        return pin
    refuse_living(pin, url, store, is_lost=True)
    if to == EMBEDDED and not _is_sound(to, url, store):
        _set_file_aside(store)
    target = connect_store(to, url, store, create=True)
    try:
        pinned_url = EMBEDDED if to == EMBEDDED else target.url
        return tie_to_new_store(store, target, pin, pinned_url, RandomIds())
    finally:
        target.close()


def refuse_living(pin: Pin, url: str | Path, store: ObjectStore, *, is_lost: bool) -> None:
    """Return if the commit store of a table is lost, or another one answers in its place.

    With `is_lost`, one that gives no answer is taken for lost: somebody said so.

    Raises:
        InvalidInputError: it answers, and is the right one.
        UnavailableError: it gives no answer, so it may come back.
    """
    try:
        old = connect_pinned(pin, url, store)
        try:
            check_identity(pin, old)
            if _is_damaged(old):
                return
        finally:
            old.close()
    except BusyError:
        raise  # somebody has its file open
    except UnavailableError as error:
        if is_lost:
            return
        raise UnavailableError(
            "the table's commit store gives no answer; it may come back: start it. Only if it "
            "is lost for good, say so: holdfast repair URI --new-commit-store URL",
            store=pin.store_url,
        ) from error
    except (NotFoundError, CorruptError, PinMismatchError):
        return
    raise InvalidInputError(
        "the table's commit store is there: to let another one decide, `holdfast store move`",
        store=pin.store_url,
    )


def _finish_tied(pin: Pin, to: str, url: str | Path, store: ObjectStore) -> bool:
    """Finish step 6 of a table whose pin names the new store already; tell whether it does."""
    try:
        target = connect_store(to, url, store)
    except (NotFoundError, CorruptError):
        return False
    try:
        if target.identity() != pin.store_id or _is_damaged(target):
            return False
        if target.get(Key(f"{pin.table_id}/instead", 0)) is None:
            return False  # it was its commit store all the time
        check_address(store, target, pin)
        keep_place(store, target, pin)
    except (NotFoundError, CorruptError):
        return False
    finally:
        target.close()
    return True


def _is_sound(to: str, url: str | Path, store: ObjectStore) -> bool:
    try:
        connected = connect_store(to, url, store)
    except NotFoundError:
        return True  # there is none, which is as good as a new one
    try:
        connected.identity()
        return not _is_damaged(connected)
    except NotFoundError:
        return True
    except CorruptError:
        return False
    finally:
        connected.close()


def _is_damaged(commit_store: CommitStore) -> bool:
    """Tell whether a file of a commit store is damaged although parts of it can be read."""
    if not isinstance(commit_store, SupportsSetUp):
        return False
    try:
        return any("damaged" in problem for problem in commit_store.check())
    except CorruptError:
        return True


def _set_file_aside(store: ObjectStore) -> None:
    """Move a damaged file out of the way, with what SQLite keeps beside it."""
    assert isinstance(store, LocalStore)  # noqa: S101 - looked at before
    file = store.root / EMBEDDED_PATH
    if not file.exists() or not file.stat().st_size:
        return
    aside = store.root / set_aside_path(EMBEDDED_PATH, RandomIds().token())
    aside.parent.mkdir(parents=True, exist_ok=True)
    file.rename(aside)
    for end in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            file.with_name(f"{file.name}{end}").rename(aside.with_name(f"{aside.name}{end}"))


def tie_to_new_store(store: ObjectStore, target: CommitStore, pin: Pin, url: str, ids: Ids) -> Pin:
    """Do steps 3 to 6: decide the next pin in `target`, take what is there, put the pin.

    Raises:
        UnavailableError, PermissionDeniedError: a store did not do its part; call again.
    """
    mine = Pin(
        table_id=ids.token(),
        arbiter=ArbiterKind.COMMIT_STORE,
        location=store.location,
        store_id=target.identity(),
        store_url=url,
    )
    place = location_series(store)
    # Outside the scope of both ids, and of this place: files that were copied since are others.
    key = Key(f"instead/{pin.table_id}/{place}", 0)
    winner = target.put_if_absent(key, encode_pin(mine))
    wanted = mine if winner is None else decode_pin(winner)
    accept_everything(store, RecordedDecisions(store, target, wanted))
    target.put_if_absent(Key(f"{wanted.table_id}/instead", 0), pin.table_id.encode())
    store.put(PIN_PATH, encode_pin(wanted))
    keep_address(store, target, wanted, alone=True)
    keep_place(store, target, wanted)
    return wanted


def find_pin(store: ObjectStore, commit_store: CommitStore) -> Pin:
    """Return the pin of the table that lives in this place, as its commit store knows it.

    Raises:
        NotFoundError: it knows none here.
        PinMismatchError: that table was released, made anew or moved elsewhere since.
        CorruptError: it cannot be read.
        UnavailableError, PermissionDeniedError: the commit store did not tell.
    """
    newest = commit_store.scan(location_series(store), limit=1, newest_first=True)
    if not newest:
        raise NotFoundError(
            "this commit store knows no table in this place: is it the right one?",
            location=store.location,
            store=commit_store.url,
        )
    pin = decode_pin(newest[0].value)
    try:
        at_home = is_at_home(store, commit_store, pin)
    except StaleHandleError:
        at_home = False
    if not at_home:
        raise PinMismatchError(
            "the table of this place was released, made anew or moved elsewhere: tie what is "
            "here with `holdfast adopt`",
            location=store.location,
            table_id=pin.table_id,
        )
    return pin


def put_pin_back(store: ObjectStore, commit_store: CommitStore, pin: Pin) -> None:
    """Put a table's pin where it belongs, and let the table be opened by it. Safe to repeat.

    Raises:
        UnavailableError, PermissionDeniedError: a store did not do its part; call again.
    """
    set_pin_aside(store)
    store.put(PIN_PATH, encode_pin(pin))
    keep_address(store, commit_store, pin, alone=False)
    keep_place(store, commit_store, pin)


def make_pin_anew(store: ObjectStore, ids: Ids | None = None) -> Pin:
    """Put a new pin of a table that decides by its object store; the damaged one is set aside.

    Its id is kept if the damaged bytes still tell it.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not do its part; call again.
    """
    damaged = b""
    with suppress(NotFoundError):
        damaged = store.get(PIN_PATH)
    known = set(TOKEN_PATTERN.findall(damaged))
    table_id = known.pop().decode() if len(known) == 1 else (ids or RandomIds()).token()
    pin = Pin(table_id=table_id, arbiter=ArbiterKind.CONDITIONAL_PUT, location=store.location)
    set_pin_aside(store)
    store.put(PIN_PATH, encode_pin(pin))
    return pin


def set_pin_aside(store: ObjectStore) -> None:
    """Keep a copy of a pin that cannot be read."""
    try:
        read_pin(store)
    except HoldfastError:
        store.copy(PIN_PATH, set_aside_path(PIN_PATH, RandomIds().token()))
