"""Pins: a snapshot that keeps its files until it is released, or `max_pin_age` has passed.

A pin is put *before* the snapshot is taken, without saying yet what it needs, and then put
again with the names. Whoever deletes files does it in this order:

1. find out what nothing names any more;
2. `read_pins`, and stop if one is still being taken;
3. delete what is neither named by a pin nor by the table.

A pin that step 2 does not see was put after step 1; its snapshot came later still, and holds
nothing that was garbage by then. So no clock is needed, except to forget pins whose owner died:
`read_pins` leaves out those that are older than `max_pin_age` by the store's own stamps.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from holdfast.errors import CorruptError, HoldfastError, NotFoundError
from holdfast.events import EventKind, emit
from holdfast.formats import (
    SNAPSHOT_PINS_FOLDER,
    SnapshotRecord,
    decode_snapshot,
    encode_snapshot,
    snapshot_pin_of,
    snapshot_pin_path,
)
from holdfast.read._snapshot import Snapshot
from holdfast.storage import ObjectStore

log = logging.getLogger("holdfast.read")

MAX_PIN_AGE = timedelta(days=1)
"""How long a pin counts unless its owner releases it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPin:
    """A pin that was found.

    Attributes:
        token: its name.
        modified: when it was put, by the store's stamp.
        record: what it keeps; None while its snapshot is being taken, or if that cannot be
            read: keep everything.
    """

    token: str
    modified: float
    record: SnapshotRecord | None


def take_pinned(store: ObjectStore, token: str, take: Callable[[], Snapshot]) -> Snapshot:
    """Take a snapshot whose files stay. Writes one object, twice; `release` removes it.

    Raises:
        Whatever `take` raises; the pin is gone again then.
        UnavailableError, PermissionDeniedError: the pin could not be put.
    """
    path = snapshot_pin_path(token)
    try:
        # An empty pin first, which keeps everything: between taking the snapshot and naming its
        # files a vacuum could delete some of them.
        store.put(path, encode_snapshot(None))
        snapshot = take()
        store.put(path, encode_snapshot(snapshot.record))
    except Exception:
        # Not for a process that is killed or interrupted: such a pin ages away after a day.
        release(store, token)
        raise
    return snapshot


def release(store: ObjectStore, token: str) -> None:
    """Let the files of a pinned snapshot go; best effort, a pin ages away too."""
    path = snapshot_pin_path(token)
    try:
        store.delete([path])
    except HoldfastError as error:
        emit(EventKind.LEFT_BEHIND, path=path, reason=error.kind.value)


def read_pins(
    store: ObjectStore, now: float, max_pin_age: timedelta = MAX_PIN_AGE
) -> list[SnapshotPin]:
    """Return the pins that count. Call it after finding out what is garbage, not before.

    Args:
        store: the table's store.
        now: what time it is for the store: the stamp of an object made just now.
        max_pin_age: older pins do not count.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    oldest = now - max_pin_age.total_seconds()
    return [pin for pin in _list_pins(store) if pin.modified >= oldest]


def _list_pins(store: ObjectStore) -> Iterator[SnapshotPin]:
    for info in store.list(SNAPSHOT_PINS_FOLDER):
        token = snapshot_pin_of(info.path)
        if token is None:
            continue
        with contextlib.suppress(NotFoundError):  # released meanwhile
            yield SnapshotPin(token=token, modified=info.modified, record=_read(store, info.path))


def _read(store: ObjectStore, path: str) -> SnapshotRecord | None:
    """Return what a pin keeps; None if it does not say, so everything stays until it is old."""
    try:
        return decode_snapshot(store.get(path))
    except CorruptError as error:
        log.warning("a snapshot's pin cannot be read: everything stays until it is old: %s", error)
        return None
