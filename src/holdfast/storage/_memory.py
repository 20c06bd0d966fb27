"""`MemoryStore`: objects in this process's memory, for tests and examples.

Two stores opened by the same `memory://` URL are two clients of one map.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from holdfast.errors import AlreadyExistsError, NotFoundError
from holdfast.formats import check_path
from holdfast.storage._handle import Handle
from holdfast.storage._port import ObjectInfo, check_range

_lock = threading.Lock()  # guards _worlds and every map in it
_worlds: dict[str, dict[str, bytes]] = {}


class MemoryStore(Handle):
    """A map from paths to bytes that ends with the process."""

    copies_if_absent = True

    def __init__(self, location: str) -> None:
        self._location = location
        with _lock:
            self._objects = _worlds.setdefault(location, {})

    def __repr__(self) -> str:
        return f"MemoryStore({self._location})"

    @property
    def location(self) -> str:
        """Return the URL."""
        return self._location

    @property
    def endpoint(self) -> str:
        """Return nothing: it is in this process."""
        return ""

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes, or those in [start, end)."""
        check_range(start, end)
        with _lock:
            return self._get_object(path)[start:end]

    def head(self, path: str) -> ObjectInfo:
        """Return the size."""
        with _lock:
            return ObjectInfo(path=path, size=len(self._get_object(path)), modified=0.0)

    def put(self, path: str, body: bytes) -> None:
        """Store the bytes, replacing what is there."""
        with _lock:
            self._objects[check_path(path)] = bytes(body)

    def put_if_absent(self, path: str, body: bytes) -> None:
        """Store the bytes unless something has the name."""
        with _lock:
            if check_path(path) in self._objects:
                raise AlreadyExistsError("something has this name", path=path)
            self._objects[path] = bytes(body)

    def list(self, prefix: str = "", *, after: str = "") -> Sequence[ObjectInfo]:
        """Return the objects below the folder `prefix`, sorted by path, beyond `after`."""
        folder = f"{check_path(prefix)}/" if prefix else ""
        if after:
            check_path(after)
        with _lock:
            return [
                ObjectInfo(path=path, size=len(body), modified=0.0)
                for path, body in sorted(self._objects.items())
                if path.startswith(folder) and path > after
            ]

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below `prefix`, sorted."""
        start = len(prefix) + 1 if prefix else 0
        below = {info.path[start:].partition("/") for info in self.list(prefix)}
        return sorted({name for name, slash, _ in below if slash})

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> None:
        """Copy to a new name."""
        body = self.get(source)
        if if_absent:
            self.put_if_absent(target, body)
        else:
            self.put(target, body)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects; one that is not there is fine."""
        with _lock:
            for path in paths:
                self._objects.pop(check_path(path), None)

    def _get_object(self, path: str) -> bytes:
        try:
            return self._objects[check_path(path)]
        except KeyError:
            raise NotFoundError("nothing is there", path=path) from None
