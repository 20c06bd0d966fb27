"""`VersionsBoundary`: up to which version the manifests of a table may be gone.

The presence of an object whose name holds the number; the highest counts, so a boundary never
goes back. `vacuum` raises it before it deletes a manifest. Whoever creates a version at or below
it has created nothing: the name was decided long ago. A commit store refuses such a name by
itself; put-if-absent does not, so whoever wins a name by it lists the versions afterwards. On
local disk, where a folder is not read in one moment, the boundary is looked at, too
(`holdfast.commits._newest`).
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.formats import (
    BOUNDARY_FOLDER,
    versions_boundary_of,
    versions_boundary_path,
)
from holdfast.storage import ObjectStore

KEPT_AT_LEAST = timedelta(days=7)
"""How long a version stays at least after a newer one came, for those who read it."""


class VersionsBoundary:
    """The boundary of one table's versions."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def read(self) -> int:
        """Return the boundary; 0 when there is none.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        boundaries = (versions_boundary_of(info.path) for info in self._store.list(BOUNDARY_FOLDER))
        return max((number for number in boundaries if number is not None), default=0)

    def raise_to(self, through: int) -> None:
        """Raise the boundary, durably; a lower number changes nothing.

        Raises:
            UnavailableError, PermissionDeniedError: it may or may not be raised.
        """
        if through > self.read():
            self._store.put(versions_boundary_path(through), b"%d\n" % through)
