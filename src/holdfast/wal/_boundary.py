"""`Boundary`: up to which number a shard's log entries or manifests may be gone.

A boundary is the presence of an object whose name holds the number; the highest counts, so a
boundary never goes back, whoever raises it. It is raised before anything is deleted. Whoever
creates a name at or below it has created nothing: the name was decided long ago.

Creating is only checked against the boundary after `CHECK_AFTER` without any proof of life,
because what a shorter sleep could reach is never deleted: fences stay until the boundary above
them is `RETENTION` old by the store's own stamps.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

from holdfast._ids import Ids
from holdfast.errors import HoldfastError
from holdfast.formats._wal_names import (
    BoundaryKind,
    boundary_folder,
    boundary_of,
    boundary_path,
    boundary_stamp_path,
)
from holdfast.storage import ObjectInfo, ObjectStore

RETENTION = timedelta(days=7)
"""How long a boundary must have stood before a fence below it goes."""
CHECK_AFTER = RETENTION / 4
"""A writer that was silent for longer looks at the boundary before it acknowledges."""
NOTHING = -1


class Boundary:
    """The boundary of one kind of names of one shard."""

    def __init__(self, store: ObjectStore, shard_id: str, kind: BoundaryKind) -> None:
        self._store = store
        self._shard_id = shard_id
        self._kind = kind

    def read(self) -> int:
        """Return the boundary; -1 when there is none.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        return max((through for through, _ in self._all()), default=NOTHING)

    def raise_to(self, through: int) -> None:
        """Raise the boundary, durably; a lower number changes nothing.

        Raises:
            UnavailableError, PermissionDeniedError: it may or may not be raised.
        """
        if through > self.read():
            path = boundary_path(self._shard_id, self._kind, through)
            self._store.put(path, b"%d\n" % through)

    def settled(self, now: float) -> int:
        """Return the highest boundary that was `RETENTION` old at `now`, a stamp of the store."""
        limit = now - RETENTION.total_seconds()
        return max((n for n, info in self._all() if info.modified <= limit), default=NOTHING)

    def _all(self) -> list[tuple[int, ObjectInfo]]:
        found = []
        for info in self._store.list(boundary_folder(self._shard_id)):
            parsed = boundary_of(info.path)
            if parsed is not None and parsed[0] is self._kind:
                found.append((parsed[1], info))
        return found


def store_time(store: ObjectStore, shard_id: str, ids: Ids) -> float:
    """Return what time it is for the store, by the stamp of an object made now.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    path = boundary_stamp_path(shard_id, ids.token())
    store.put(path, b"")
    now = store.head(path).modified
    with contextlib.suppress(HoldfastError):
        store.delete([path])
    return now
