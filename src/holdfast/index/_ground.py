"""`Ground`: the stores, the clock and the ids that a build stands on, and nothing else.

Everything the protocol does to the world goes through here, so the explorer can run it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import Arbiter, Attempts, RetryPolicy
from holdfast.errors import CorruptError, HoldfastError, NotFoundError, UnavailableError
from holdfast.events import EventKind, emit
from holdfast.formats import Name
from holdfast.storage import ObjectInfo, ObjectStore, SupportsSync

T = TypeVar("T")

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One table's object store and arbiter, with a clock and ids."""

    store: ObjectStore
    arbiter: Arbiter
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def ask(self, path: str, step: str, call: Callable[[], T]) -> T:
        """Repeat a call that can be repeated without harm, until it answers.

        Raises:
            UnavailableError: it never did.
        """
        last: UnavailableError | None = None
        for attempt in Attempts(self.retry, self.clock, self.ids).of(path, step):
            try:
                return call()
            except UnavailableError as error:
                last, attempt.reason = error, str(error)
        raise last or UnavailableError("no attempt was made", path=path)

    def read(self, name: Name) -> bytes | None:
        """Return what was decided, or None."""
        return self.ask(name.path, "read", lambda: self.arbiter.read(name))

    def get(self, path: str) -> bytes | None:
        """Return the bytes of an object, or None."""
        try:
            return self.ask(path, "get", lambda: self.store.get(path))
        except NotFoundError:
            return None

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and checksum of an object, or None."""
        try:
            return self.ask(path, "head", lambda: self.store.head(path))
        except NotFoundError:
            return None

    def list(self, folder: str) -> list[ObjectInfo]:
        """Return what a listing shows below a folder: a hint, never the whole truth."""
        return list(self.ask(folder, "list", lambda: self.store.list(folder)))

    def md5(self, path: str, size: int) -> str:
        """Return the MD5 of an object, read in pieces.

        Raises:
            CorruptError: it is not `size` bytes long.
        """
        digest, seen = hashlib.md5(usedforsecurity=False), 0
        for start in range(0, max(size, 1), _CHUNK_BYTES):
            chunk = self._range(path, start)
            digest.update(chunk)
            seen += len(chunk)
        if seen != size:
            raise CorruptError("a staged file is not as long as it was", path=path, size=size)
        return digest.hexdigest()

    def _range(self, path: str, start: int) -> bytes:
        end = start + _CHUNK_BYTES
        return self.ask(path, "get", lambda: self.store.get(path, start=start, end=end))

    def make_durable(self, paths: Iterable[str]) -> None:
        """Fsync what Lance wrote to a local disk; other stores keep what they took."""
        if isinstance(self.store, SupportsSync):
            self.store.sync(paths)

    def remove(self, paths: Iterable[str]) -> bool:
        """Remove what nobody needs any more, in batches; tell whether that worked."""
        wanted = list(paths)
        if not wanted:
            return True
        try:
            self.store.delete(wanted)
        except HoldfastError as error:
            emit(EventKind.LEFT_BEHIND, path=wanted[0], reason=error.kind.value)
            return False
        return True
