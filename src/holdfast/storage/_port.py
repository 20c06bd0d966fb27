"""What the rest of Holdfast asks of an object store: eight calls, and what their failures mean.

Paths are relative to the store's root, checked by `formats.names.check_path`. Every call
may raise `UnavailableError` (no usable answer: applied or not, nobody knows) and
`PermissionDeniedError`. Protocol code touches storage only through this port; that is what
lets the simulated world run it through every interleaving.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a listing tells of one object; `md5` only where the store reports something like it."""

    path: str
    size: int
    modified: float
    md5: str | None = None


class ObjectStore(Protocol):
    """A flat map from paths to immutable-by-convention bytes."""

    @property
    def location(self) -> str:
        """Return the root as a URL without credentials or endpoint; for people and pins."""
        ...

    @property
    def copies_if_absent(self) -> bool:
        """Tell whether `copy(..., if_absent=True)` is enforced by the store itself."""
        ...

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes, or those in [start, end); beyond the last byte there are none.

        Raises:
            NotFoundError: nothing is there.
            InvalidInputError: a negative start or end.
        """
        ...

    def head(self, path: str) -> ObjectInfo:
        """Return size and time.

        Raises:
            NotFoundError: nothing is there.
        """
        ...

    def put(self, path: str, body: bytes) -> None:
        """Store the bytes, replacing what is there. All of them land or none; durable on return."""
        ...

    def put_if_absent(self, path: str, body: bytes) -> None:
        """Ask the store to keep the bytes unless something is there; durable on return.

        Raises:
            AlreadyExistsError: perhaps another writer's object, perhaps our own after a
                hidden retry, perhaps nothing at all (HTTP 409). Read back to learn which.
            UnsupportedError: the store does not know conditions.
        """
        ...

    def list(self, prefix: str = "", *, after: str = "") -> Sequence[ObjectInfo]:
        """Return the objects below the folder `prefix`, sorted by path, beyond the path `after`."""
        ...

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> None:
        """Copy to a new name; the source stays. Server-side where the store can.

        Raises:
            NotFoundError: no source.
            AlreadyExistsError: with `if_absent`, something has the target's name.
        """
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects in batches; one that is not there is fine."""
        ...


def check_range(start: int, end: int | None) -> None:
    """Refuse a range that no object has.

    Raises:
        InvalidInputError: a negative start or end.
    """
    if start < 0 or (end is not None and end < 0):
        raise InvalidInputError("a range of bytes starts and ends at 0 or above")
