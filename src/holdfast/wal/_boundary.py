"""`Boundary`: up to which number a shard's log entries or manifests may be gone.

A boundary is the presence of an object whose name holds the number; the highest counts, so a
boundary never goes back, whoever raises it. It is raised before anything is deleted. Whoever
creates a name at or below it has created nothing: the name was decided long ago.

Log entries need no look at it: in the place of a writer's next entry lies a fence of whoever
claimed the shard after it, and fences are never deleted. Shard manifests do; see `ShardManifests`.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

from holdfast._ids import Ids
from holdfast.errors import HoldfastError
from holdfast.formats import (
    BoundaryKind,
    boundary_folder,
    boundary_of,
    boundary_path,
    boundary_stamp_path,
)
from holdfast.storage import ObjectStore

RETENTION = timedelta(days=7)
"""How old a shard manifest is before it goes, so that stock and slow readers find what they
read a while ago. A courtesy: nothing is lost where clocks lie."""
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
        # The highest name counts, so two collectors that raise it at the same time cannot lower it,
        # and no condition of the store is needed.
        infos = self._store.list(boundary_folder(self._shard_id))
        boundaries = (boundary_of(info.path) for info in infos)
        return max((one[1] for one in boundaries if one and one[0] is self._kind), default=NOTHING)

    def raise_to(self, through: int) -> None:
        """Raise the boundary, durably; a lower number changes nothing.

        Raises:
            UnavailableError, PermissionDeniedError: it may or may not be raised.
        """
        if through > self.read():
            path = boundary_path(self._shard_id, self._kind, through)
            self._store.put(path, b"%d\n" % through)


def store_time(store: ObjectStore, shard_id: str, ids: Ids) -> float:
    """Return what time it is for the store, by the stamp of an object made now.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    # The age of objects is measured by the clock that stamped them: that of this machine may differ
    # by hours, and would delete what a reader still needs.
    path = boundary_stamp_path(shard_id, ids.token())
    store.put(path, b"")
    now = store.head(path).modified
    with contextlib.suppress(HoldfastError):
        store.delete([path])
    return now
