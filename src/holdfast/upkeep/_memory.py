"""What earlier runs of `vacuum` and `doctor` read of a table, in a file on this machine.

Manifests and transaction files never change, so a run needs to read only those that are new. The
file is in the user's cache folder (`$XDG_CACHE_HOME/holdfast/seen`); losing it costs time and
nothing else.

Bytes are remembered under the object's path, size, time and tag, and used only while a listing
shows the very same: a table that was made anew, overwritten, or restored has other tags, a copy
has another file. An object younger than a minute is not remembered, because two writes within one
tick of a store's clock may look alike. A file that is damaged, or that another user could have
written, counts as none. **Nothing is deleted because of what is remembered**: before `vacuum`
deletes what a version could show, it reads all versions from the store; see `_leftovers`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast._ids import RandomIds
from holdfast.formats import Pin
from holdfast.storage import ObjectInfo, ObjectStore

_FORMAT = 1
_SETTLED_SECONDS = 60.0
_MOST_BYTES = 128 << 20  # of the bytes that one table's file holds, before they are compressed
_LEVEL = 1
_OTHERS_MAY_WRITE = 0o022
_OWNER_ONLY = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One object as it was read.

    Attributes:
        size: its size.
        modified: its time, by the store.
        tag: what tells its content from another under the same path.
        body: its bytes; of a manifest, without the fragments that its parent has, too.
        parent: the version whose fragments were left out of it, and that one's tag.
        sha256: the checksum of the whole object, where one was needed.
    """

    size: int
    modified: float
    tag: str
    body: bytes
    parent: tuple[int, str] | None = None
    sha256: str | None = None

    def is_of(self, info: ObjectInfo) -> bool:
        """Tell whether an object in a listing is the very one that was read."""
        return (info.size, info.modified, info.tag) == (self.size, self.modified, self.tag)


class ReadMemory:
    """What was read of one table, by path.

    `now` is the store's time, or this machine's where nothing is deleted.
    """

    def __init__(self, file: Path | None, now: float) -> None:
        self._file = file
        self._now = now
        self._objects = {} if file is None else _load(file)
        self._changed = False

    def recall(self, info: ObjectInfo | None) -> Remembered | None:
        """Return what was read of an object, if it is still the same one."""
        if info is None or info.tag is None:
            return None
        kept = self._objects.get(info.path)
        return kept if kept is not None and kept.is_of(info) else None

    def can_keep(self, info: ObjectInfo | None) -> bool:
        """Tell whether an object may be remembered."""
        if self._file is None or info is None or info.tag is None:
            return False
        return info.modified <= self._now - _SETTLED_SECONDS

    def keep(
        self,
        info: ObjectInfo,
        body: bytes,
        *,
        parent: tuple[int, str] | None = None,
        sha256: str | None = None,
    ) -> None:
        """Remember an object, if it may be."""
        if not self.can_keep(info) or info.tag is None:
            return
        self._objects[info.path] = Remembered(
            size=info.size,
            modified=info.modified,
            tag=info.tag,
            body=body,
            parent=parent,
            sha256=sha256,
        )
        self._changed = True

    def save(self, there: Collection[str]) -> None:
        """Write what is remembered of the objects that are there. Never raises."""
        gone = self._objects.keys() - set(there)
        for path in gone:
            del self._objects[path]
        if self._file is None or not (self._changed or gone):
            return
        self._changed = False
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = self._file.with_name(f"{self._file.name}.{RandomIds().token()}")
            fresh.touch(mode=_OWNER_ONLY)
            fresh.write_bytes(_encode(self._objects))
            fresh.replace(self._file)


def open_memory(store: ObjectStore, pin: Pin | None, now: float) -> ReadMemory:
    """Return what is remembered of a table; of a table in memory only, nothing."""
    if store.location.startswith("memory:"):
        return ReadMemory(None, now)
    parts = [store.location, store.endpoint, "" if pin is None else str(pin.table_id)]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return ReadMemory(_folder() / f"{name}.bin", now)


def _folder() -> Path:
    """Return where memories are kept; without a home, a place where nothing can be kept."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "holdfast" / "seen"
    except RuntimeError:
        return Path(os.devnull)


def _load(file: Path) -> dict[str, Remembered]:
    """Return what a file holds: nothing, if it is damaged or others could have written it."""
    try:
        about = file.stat()
        if about.st_uid != os.geteuid() or about.st_mode & _OTHERS_MAY_WRITE:
            return {}
        return dict(_decode(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, zlib.error):
        return {}


def _encode(objects: dict[str, Remembered]) -> bytes:
    rows, bodies, size = [], [], 0
    for path, kept in objects.items():
        size += len(kept.body)
        if size > _MOST_BYTES:
            break
        about = (kept.size, kept.modified, kept.tag, kept.parent, kept.sha256, len(kept.body))
        rows.append((path, *about))
        bodies.append(kept.body)
    head = json.dumps({"v": _FORMAT, "objects": rows}, separators=(",", ":")).encode()
    packed = zlib.compress(b"\n".join((head, b"".join(bodies))), _LEVEL)
    return hashlib.sha256(packed).digest() + packed


def _decode(data: bytes) -> Iterator[tuple[str, Remembered]]:
    """Yield what was encoded.

    Raises:
        ValueError, KeyError, TypeError, zlib.error: these bytes are something else.
    """
    checksum, packed = data[:32], data[32:]
    if hashlib.sha256(packed).digest() != checksum:
        raise ValueError("the checksum differs")
    head, _, bodies = zlib.decompress(packed).partition(b"\n")
    read = json.loads(head)
    if read["v"] != _FORMAT:
        raise ValueError("another format")
    at = 0
    for path, size, modified, tag, parent, sha256, length in read["objects"]:
        yield (
            path,
            Remembered(
                size=size,
                modified=modified,
                tag=tag,
                body=bodies[at : at + length],
                parent=None if parent is None else (parent[0], parent[1]),
                sha256=sha256,
            ),
        )
        at += length
