"""`LocalStore`: a folder on a local disk, durable when a call returns.

A put writes a temporary file under `_holdfast/temporary`, fsyncs it, gives it its name (by
`link`, which refuses a taken name, or by `replace`), and fsyncs the folder. Readers never
see half a file, and a power cut after the return loses nothing. `fsync=False` is for tests.

| the disk fails, or the process dies    | what is there                                       |
|-----------------------------------------|-----------------------------------------------------|
| at the temporary file, or its fsync     | nothing of that name; a file that `vacuum` takes    |
| at the name                             | nothing of that name, or a durable file             |
| at the fsync of the folder              | a name that a power cut may take: an unknown outcome |

The system reports a failed fsync once and forgets it: a later one that succeeds proves nothing,
and reading back shows memory, not the disk. So after a failed fsync of a folder this store
makes no name in it and confirms none; a file of another library whose fsync failed is refused
for as long as the process lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from holdfast._ids import Ids, RandomIds
from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.formats import check_path, temporary_path
from holdfast.storage._endpoint import host
from holdfast.storage._file_ids import file_id
from holdfast.storage._handle import Handle
from holdfast.storage._port import FullDiskError, NotDurableError, ObjectInfo, check_range

_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_ABSENT = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR}
_MISPLACED = {errno.EISDIR, errno.ENOTDIR}
_WRITES = {"write", "create"}
_CHUNK_BYTES = 1 << 20

# Files whose fsync failed, with their inodes: they must be written again, under other names.
_not_durable: set[tuple[str, int, int]] = set()


class LocalStore(Handle):
    """Objects as files below one folder. Safe for concurrent threads and processes."""

    copies_if_absent = True

    def __init__(self, root: Path, *, fsync: bool = True, ids: Ids | None = None) -> None:
        if not root.is_absolute():
            raise InvalidInputError("a local store needs an absolute folder", root=str(root))
        self._root = root
        self._prefix = str(root).rstrip("/") + "/"
        self._fsync = fsync
        self._ids = ids or RandomIds()
        # Folders whose own names were fsynced by this store, each with the inode it was then.
        self._settled: dict[str, tuple[int, int]] = {}
        # Folders whose fsync failed: nobody knows which of their names are durable.
        self._suspect: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalStore({self.location})"

    @property
    def root(self) -> Path:
        """Return the folder."""
        return self._root

    @property
    def location(self) -> str:
        """Return the folder as a `file://` URL, which opens this very folder again."""
        return self._root.as_uri()

    @property
    def lance_address(self) -> str:
        """Return the folder as a path."""
        return str(self._root)

    @property
    def endpoint(self) -> str:
        """Return this host: the same folder of another one is another place."""
        return host()

    def file_id(self, path: str) -> str | None:
        """Return what tells the file at a path from any copy of it; None where nothing does."""
        with _translated("look at", path):
            return file_id(self._file(path))

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes, or those in [start, end)."""
        check_range(start, end)
        file = self._file(path)
        with _translated("read", path):
            return _read(file, start, end)

    def head(self, path: str) -> ObjectInfo:
        """Return size and time."""
        with _translated("look at", path):
            file = Path(self._file(path))
            if file.is_dir():
                raise FileNotFoundError(errno.ENOENT, "a folder")
            stat = file.stat()
        return _info(path, stat)

    def put(self, path: str, body: bytes) -> None:
        """Store the bytes, replacing what is there."""
        target = self._file(path)
        with _translated("write", path):
            self._keep(body, target, os.replace)

    def put_if_absent(self, path: str, body: bytes) -> None:
        """Store the bytes unless something has the name."""
        target = self._file(path)
        with _translated("create", path):
            self._keep(body, target, os.link)

    def list(self, prefix: str = "", *, after: str = "") -> Sequence[ObjectInfo]:
        """Return the files below the folder `prefix`, sorted by path, beyond `after`."""
        waiting = [f"{check_path(prefix)}/"] if prefix else [""]
        if after:
            check_path(after)
        infos = []
        with _translated("list", prefix or "."):
            while waiting:
                files, folders = _scan(self._prefix, waiting.pop())
                infos += [info for info in files if info.path > after]
                waiting += folders
        return sorted(infos, key=lambda info: info.path)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below `prefix`, sorted."""
        with _translated("list", prefix or "."):
            _, paths = _scan(self._prefix, f"{check_path(prefix)}/" if prefix else "")
        return sorted(posixpath.basename(folder.rstrip("/")) for folder in paths)

    def first_names(self, folder: str) -> Sequence[str]:
        """Return all names in a folder: the system lists them without order."""
        path = self._file(folder)
        with contextlib.suppress(NotFoundError), _translated("list", folder):
            return os.listdir(path)  # noqa: PTH208 - strings
        return ()

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> None:
        """Copy the bytes to a new file; never a hard link to the source."""
        name = os.link if if_absent else os.replace
        here, there = self._file(source), self._file(target)
        with (
            _translated("copy", source),
            _open(here) as origin,
            _translated("create", target),
        ):
            self._keep(origin, there, name)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files; one that is not there is fine."""
        for path in paths:
            # Not made durable: a file that comes back after a power cut is one more leftover, never
            # a loss.
            with contextlib.suppress(NotFoundError), _translated("delete", path):
                os.unlink(self._file(path))  # noqa: PTH108

    def sync(self, paths: Iterable[str]) -> None:
        """Make files that another library wrote durable, and the folders that name them.

        Lance fsyncs nothing: call this before a decision makes its files visible.

        Raises:
            UnavailableError: the disk failed, now or when these very files were synced
                before: they must be written again.
            NotFoundError: a file is not there.
        """
        folders: dict[str, str] = {}
        for path in paths:
            file = self._file(path)
            with _translated("sync", path):
                self._sync_file(file)
            folders[_parent(file)] = path
        for folder, path in folders.items():
            with _translated("sync", path):
                self._sync_folder(folder)

    # Plain text, not `Path`: every put and get comes through here.
    def _file(self, path: str) -> str:
        return self._prefix + check_path(path)

    def _keep(
        self, content: bytes | BinaryIO, target: str, name: Callable[[str, str], None]
    ) -> None:
        """Write a temporary file and give it its name, both durably; no temporary file stays."""
        temporary = self._prefix + temporary_path(self._ids.token())
        folder = _parent(target)
        try:
            # A loser of a race would write and fsync its bytes for nothing; `link` decides in any
            # case.
            if name is os.link and os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, "taken")  # so writing would be in vain
            aside = _parent(temporary)
            self._in_folder(aside, lambda: self._write_aside(temporary, content, target))
            self._in_folder(folder, lambda: name(temporary, target))
        except FileExistsError:
            # Whoever reads this answer builds on the other's file: its name must be durable.
            self._confirm_name(target)
            raise
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
        # The name is there, so others may see it; that it is not durable must not look like a
        # refusal, or the caller would take the decision for not made.
        if name is os.link:
            self._confirm_name(target)
        else:
            self._sync_folder(folder)

    def _confirm_name(self, target: str) -> None:
        """Make a name durable that is there now.

        Raises:
            NotDurableError: it may or may not survive a power cut.
        """
        try:
            self._sync_folder(_parent(target))
        except OSError as error:
            raise NotDurableError(
                "the name is there, and the disk failed to make it durable: check the disk, then "
                "open the table again and repeat it with the same txn",
                path=target.removeprefix(self._prefix),
                reason=error.strerror or type(error).__name__,
            ) from error

    def _in_folder(self, folder: str, call: Callable[[], None]) -> None:
        try:
            call()
        except FileNotFoundError:
            self._make_folder(Path(folder))
            call()

    def _write_aside(self, temporary: str, content: bytes | BinaryIO, target: str) -> None:
        """Write a temporary file of what is to have the name `target`.

        Raises:
            FullDiskError: there is no room for it; it has no name that counts yet.
        """
        try:
            self._write(temporary, content)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise FullDiskError(
                f"cannot create: the disk is full ({error.strerror}): make room, then do it again",
                path=target.removeprefix(self._prefix),
            ) from error

    def _write(self, temporary: str, content: bytes | BinaryIO) -> None:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            if isinstance(content, bytes | bytearray | memoryview):
                _write_all(fd, content)
            else:
                while chunk := content.read(_CHUNK_BYTES):
                    _write_all(fd, chunk)
            if self._fsync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _make_folder(self, folder: Path) -> None:
        missing = [f for f in (folder, *folder.parents) if not f.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:
            self._sync_names(str(made.parent))

    def _sync_folder(self, folder: str) -> None:
        """Make the names in a folder durable, and at the first time the folder's own name.

        Another process may have made the folder a moment ago and not fsynced its parent yet.
        """
        identity = self._sync_names(folder)
        if not self._fsync or self._settled.get(folder) == identity:
            return
        # A folder's own name lies in its parent. A power cut would otherwise take the whole folder,
        # with every durable file in it.
        for above in Path(folder).parents:
            with contextlib.suppress(PermissionError):  # above the root we may not be let in
                self._sync_names(str(above))
            if not above.is_relative_to(self._root):
                break
        self._settled[folder] = identity

    def _sync_names(self, folder: str) -> tuple[int, int]:
        """Fsync a folder; return which one it was: another library may make it anew."""
        if not self._fsync:
            return 0, 0
        # Linux reports a failed write-back to the first fsync after it and then forgets it: the
        # next fsync succeeds although the names may be lost.
        if folder in self._suspect:
            raise OSError(errno.EIO, "an earlier fsync of this folder failed")
        with _open_file(folder) as fd:
            stat = os.fstat(fd)
            try:
                os.fsync(fd)
            except OSError:
                self._suspect.add(folder)
                raise
        return stat.st_dev, stat.st_ino

    def _sync_file(self, file: str) -> None:
        if not self._fsync:
            return
        with _open_file(file) as fd:
            # By inode as well: the same name written again is another file, which may be good.
            stat = os.fstat(fd)
            this = file, stat.st_dev, stat.st_ino
            if this in _not_durable:
                raise OSError(errno.EIO, "an earlier fsync of this file failed: write it again")
            try:
                os.fsync(fd)
            except OSError:
                _not_durable.add(this)
                raise


@contextlib.contextmanager
def _open_file(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


# Plain text, not `Path`: logs have thousands of files.
def _scan(root: str, below: str) -> tuple[list[ObjectInfo], list[str]]:
    """Return the files and the folders of a folder; what vanished is left out."""
    files: list[ObjectInfo] = []
    folders: list[str] = []
    try:
        entries = list(os.scandir(root + below))
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return files, folders
    for entry in entries:
        path = below + entry.name
        if not entry.is_dir():
            with contextlib.suppress(FileNotFoundError):
                files.append(_info(path, entry.stat()))
        elif not entry.is_symlink():
            folders.append(f"{path}/")
    return files, folders


def _info(path: str, stat: os.stat_result) -> ObjectInfo:
    # Nobody can set the time of change back, as `touch` and `cp -p` do with the other one.
    tag = f"{stat.st_ino:x}-{stat.st_ctime_ns:x}"
    return ObjectInfo(path=path, size=stat.st_size, modified=stat.st_mtime, tag=tag)


def _read(file: str, start: int, end: int | None) -> bytes:
    """Return the bytes of a file in [start, end). Files are immutable: the size stays."""
    fd = os.open(file, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        wanted = max(0, (size if end is None else min(end, size)) - start)
        body = os.pread(fd, wanted, start)
        while len(body) < wanted and (more := os.pread(fd, wanted - len(body), start + len(body))):
            body += more
    finally:
        os.close(fd)
    return body


def _open(file: str) -> BinaryIO:
    return open(file, "rb")  # noqa: PTH123 - the caller closes it


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _write_all(fd: int, content: bytes | bytearray | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


class _translated:  # noqa: N801 - a context manager; a class, since every call comes through it
    """Turn operating-system errors into ours, in this one place."""

    __slots__ = ("_action", "_path")

    def __init__(self, action: str, path: str) -> None:
        self._action = action
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, HoldfastError):
            raise _meaning(self._action, self._path, error) from error


def _meaning(action: str, path: str, error: OSError) -> HoldfastError:
    if isinstance(error, FileExistsError):
        return AlreadyExistsError("something has this name", path=path)
    if error.errno in _MISPLACED and action in _WRITES:
        return InvalidInputError(
            f"cannot {action}: a file and a folder would share a name", path=path
        )
    if error.errno in _ABSENT:
        return NotFoundError(f"cannot {action}: nothing is there", path=path)
    reason = error.strerror or type(error).__name__
    if error.errno in _REFUSED:
        return PermissionDeniedError(f"cannot {action}: {reason}", path=path)
    if error.errno in _FULL:
        return UnavailableError(
            f"cannot {action}: the disk is full ({reason}): make room, then do it again", path=path
        )
    return UnavailableError(f"cannot {action}: {reason}", path=path)


def sync_file(file: Path) -> None:
    """Make one file of this machine durable that another library wrote.

    Raises:
        UnavailableError, NotFoundError, PermissionDeniedError: as for `LocalStore.sync`.
    """
    LocalStore(file.parent).sync([file.name])
