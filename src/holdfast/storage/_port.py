"""What the rest of Holdfast asks of an object store: eight calls, and what their failures mean.

Paths are relative to the store's root; `check_path` refuses those that are none. Every call
may raise `UnavailableError` (no usable answer: applied or not, nobody knows) and
`PermissionDeniedError`. Protocol code touches storage only through this port; that is what
lets the simulated world run it through every interleaving.

What only some stores can do is a small protocol beside it (`Supports...`): a store offers it
by having the method. `register_object_store` makes a store of your own known by its scheme,
and `holdfast.testing.ObjectStoreSuite` shows whether it keeps these promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from holdfast.errors import CommitUnknownError, InvalidInputError, UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a listing tells of one object; `md5` only where the store reports something like it.

    `tag` tells the content of a path from an earlier or later one (an ETag; on a disk the file's
    number and time of change), where the store has something like it.
    """

    path: str
    size: int
    modified: float
    md5: str | None = None
    tag: str | None = None


class NotDurableError(CommitUnknownError):
    """A name is there and reads back, and the disk failed to make it durable: stop.

    The system forgets a failed fsync once it told of it, so nothing that succeeds later
    proves that the name would survive a power cut.
    """


class FullDiskError(UnavailableError):
    """The disk is full, and this call stored nothing: known, not guessed."""


class ObjectStore(Protocol):
    """A flat map from paths to immutable-by-convention bytes."""

    @property
    def location(self) -> str:
        """Return the root as a URL without credentials or endpoint; for people and pins."""
        ...

    @property
    def endpoint(self) -> str:
        """Return which server or host the location is on; two of them are two places.

        A name to compare, without credentials. Empty where the location alone says it.
        """
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
            NotDurableError: it is there; reading back tells nothing more.
            FullDiskError: nothing was stored.
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


@runtime_checkable
class SupportsFolders(Protocol):
    """A store that tells what is directly below a folder without listing all that is deeper."""

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below the folder `prefix`, sorted."""
        ...


@runtime_checkable
class SupportsFirstNames(Protocol):
    """A store that tells which names in a folder come first for less than a whole listing."""

    def first_names(self, folder: str) -> Sequence[str]:
        """Return names of objects in a folder, in any order; the smallest is among them.

        One request, where the store lists in order; all names where it does not.
        """
        ...


@runtime_checkable
class SupportsFirstObjects(Protocol):
    """A store that tells of the objects whose names come first, for less than a whole listing."""

    def first_objects(self, folder: str) -> Sequence[ObjectInfo]:
        """Return objects of a folder, in any order; the one with the smallest name is among them.

        One request, where the store lists in order; all objects where it does not.
        """
        ...


@runtime_checkable
class SupportsFileIds(Protocol):
    """A store on a file system."""

    def file_id(self, path: str) -> str | None:
        """Return what tells the file at a path from any copy of it; None where nothing does.

        Raises:
            NotFoundError: nothing is there.
        """
        ...


@runtime_checkable
class SupportsSync(Protocol):
    """A store whose files another library may write without making them durable."""

    def sync(self, paths: Iterable[str]) -> None:
        """Make files that are there durable, and the folders that name them.

        Raises:
            NotFoundError: a file is not there.
            UnavailableError: it failed, now or before: the files must be written again.
        """
        ...


@runtime_checkable
class SupportsLocalFiles(Protocol):
    """Its objects are files of this machine, and their folders outlive them.

    A folder is read in several steps: what is renamed meanwhile may not show.
    """

    @property
    def root(self) -> Path:
        """Return the folder of the store."""
        ...


@runtime_checkable
class SupportsReadAhead(Protocol):
    """A store where several reads at the same time take about as long as one."""

    @property
    def reads_ahead(self) -> bool:
        """Tell whether reading ahead of the caller, in threads, pays off."""
        ...


@runtime_checkable
class SupportsDistrust(Protocol):
    """A store whose put-if-absent is known to be unsafe in ways that no probe can rule out."""

    @property
    def distrust(self) -> str:
        """Return why the store must never decide, whatever a probe finds."""
        ...


@runtime_checkable
class SupportsLanceAddress(Protocol):
    """A store that Lance's own client reaches by another address than the store's URL."""

    @property
    def lance_address(self) -> str:
        """Return the root as Lance takes it: a path, or a URL of a scheme that Lance knows."""
        ...


def check_range(start: int, end: int | None) -> None:
    """Refuse a range that no object has.

    Raises:
        InvalidInputError: a negative start or end.
    """
    if start < 0 or (end is not None and end < 0):
        raise InvalidInputError("a range of bytes starts and ends at 0 or above")
