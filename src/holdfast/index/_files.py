"""`BuildFiles`: the files of an index build; each request is repeated until it is answered.

Everything the protocol does to the world goes through here and its `TableCore`, so the explorer
can run it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from holdfast.core import TableCore
from holdfast.errors import CorruptError, HoldfastError, NotFoundError
from holdfast.events import EventKind, emit
from holdfast.formats import Name
from holdfast.storage import ObjectInfo, SupportsSync

_CHUNK_BYTES = 8 << 20


class BuildFiles:
    """Reads, fsyncs and removes files of one table's index builds."""

    def __init__(self, core: TableCore) -> None:
        self.core = core

    def read(self, name: Name) -> bytes | None:
        """Return what was decided, or None."""
        return self.core.retry(name.path, "read", lambda: self.core.arbiter.read(name))

    def get(self, path: str) -> bytes | None:
        """Return the bytes of an object, or None."""
        try:
            return self.core.retry(path, "get", lambda: self.core.store.get(path))
        except NotFoundError:
            return None

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and checksum of an object, or None."""
        try:
            return self.core.retry(path, "head", lambda: self.core.store.head(path))
        except NotFoundError:
            return None

    def list(self, folder: str) -> list[ObjectInfo]:
        """Return what a listing shows below a folder: a hint, never the whole truth."""
        return list(self.core.retry(folder, "list", lambda: self.core.store.list(folder)))

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
        return self.core.retry(path, "get", lambda: self.core.store.get(path, start=start, end=end))

    def make_durable(self, paths: Iterable[str]) -> None:
        """Fsync what Lance wrote to a local disk; other stores keep what they took."""
        if isinstance(self.core.store, SupportsSync):
            self.core.store.sync(paths)

    def remove(self, paths: Iterable[str]) -> bool:
        """Remove what nobody needs any more, in batches; tell whether that worked."""
        wanted = list(paths)
        if not wanted:
            return True
        try:
            self.core.store.delete(wanted)
        except HoldfastError as error:
            emit(EventKind.LEFT_BEHIND, path=wanted[0], reason=error.kind.value)
            return False
        return True
