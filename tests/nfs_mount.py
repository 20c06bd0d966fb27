"""`python nfs_mount.py FOLDER NFS_PORT MOUNT_PORT SECONDS`: an NFS client of its own, as a mount.

For kernels without NFS: libnfs speaks NFSv3 to the server, and FUSE makes a folder of it. SECONDS
is how long the kernel may answer from memory, as an NFS client does (`acregmin`, 3 by default).
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_uint64, c_void_p
from typing import Any

from fuse import FUSE, FuseOSError, Operations

_SHOWN = ("mode", "ino", "nlink", "uid", "gid")
_TIMES = "atime mtime ctime atime_nsec mtime_nsec ctime_nsec"


class _Stat(ctypes.Structure):
    _fields_ = [
        (name, c_uint64)
        for name in f"dev ino mode nlink uid gid rdev size blksize blocks {_TIMES} used".split()
    ]


class _Url(ctypes.Structure):
    _fields_ = [("server", c_char_p), ("path", c_char_p), ("file", c_char_p)]


class _Entry(ctypes.Structure):
    _fields_ = [("next", c_void_p), ("name", c_char_p), ("inode", c_uint64)]


class Mount(Operations):  # type: ignore[misc]  # the module has no types
    """One connection to the server; every call is one or two requests."""

    def __init__(self, nfs_port: int, mount_port: int) -> None:
        self._nfs: Any = ctypes.CDLL("libnfs.so.13")  # Any: C functions
        self._nfs.nfs_init_context.restype = c_void_p
        self._nfs.nfs_get_error.restype = c_char_p
        self._nfs.nfs_parse_url_dir.restype = POINTER(_Url)
        self._nfs.nfs_readdir.restype = POINTER(_Entry)
        self._context = c_void_p(self._nfs.nfs_init_context())
        ports = f"nfsport={nfs_port}&mountport={mount_port}"
        address = f"nfs://127.0.0.1/lake?version=3&{ports}".encode()
        url = self._nfs.nfs_parse_url_dir(self._context, address)
        if not url or self._call("mount", url.contents.server, url.contents.path):
            sys.exit(self._nfs.nfs_get_error(self._context).decode())

    def _call(self, verb: str, *arguments: object) -> int:
        return int(getattr(self._nfs, f"nfs_{verb}")(self._context, *arguments))

    def _ask(self, verb: str, *arguments: object) -> int:
        code = self._call(verb, *arguments)
        if code < 0:
            raise FuseOSError(-code)
        return code

    def _open(self, path: str, flags: int, mode: int) -> int | None:
        handle = c_void_p()
        self._ask("open2", path.encode(), flags, mode & 0o777, byref(handle))
        return handle.value

    # What FUSE calls, by its names.

    def getattr(self, path: str, _fh: int | None = None) -> dict[str, float]:
        found = _Stat()
        self._ask("lstat64", path.encode(), byref(found))
        shown = {f"st_{name}": getattr(found, name) for name in _SHOWN}
        modified = found.mtime + found.mtime_nsec / 1e9
        return {**shown, "st_size": found.size, "st_mtime": modified, "st_ctime": found.ctime}

    def readdir(self, path: str, _fh: int) -> list[str]:
        folder = c_void_p()
        self._ask("opendir", path.encode(), byref(folder))
        names = []
        while entry := self._nfs.nfs_readdir(self._context, folder):
            names.append(entry.contents.name.decode())
        self._call("closedir", folder)
        return names

    def open(self, path: str, flags: int) -> int | None:
        return self._open(path, flags & ~os.O_CREAT, 0)

    def create(self, path: str, mode: int, _fi: object = None) -> int | None:
        return self._open(path, os.O_RDWR | os.O_CREAT, mode)

    def read(self, _path: str, size: int, offset: int, fh: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        place = (c_void_p(fh), c_uint64(offset), c_uint64(size))
        length = self._ask("pread", *place, buffer)
        return buffer.raw[:length]

    def write(self, _path: str, data: bytes, offset: int, fh: int) -> int:
        return self._ask("pwrite", c_void_p(fh), c_uint64(offset), c_uint64(len(data)), data)

    def fsync(self, _path: str, _datasync: int, fh: int) -> int:
        return self._ask("fsync", c_void_p(fh))

    def fsyncdir(self, _path: str, _datasync: int, _fh: int) -> int:
        return 0  # an NFS server answers when a change of a folder is on its disk

    def release(self, _path: str, fh: int) -> int:
        return self._call("close", c_void_p(fh))

    def truncate(self, path: str, length: int, _fh: int | None = None) -> int:
        return self._ask("truncate", path.encode(), c_uint64(length))

    def link(self, target: str, source: str) -> int:
        return self._ask("link", source.encode(), target.encode())

    def unlink(self, path: str) -> int:
        return self._ask("unlink", path.encode())

    def rename(self, old: str, new: str) -> int:
        return self._ask("rename", old.encode(), new.encode())

    def mkdir(self, path: str, _mode: int) -> int:
        return self._ask("mkdir", path.encode())

    def rmdir(self, path: str) -> int:
        return self._ask("rmdir", path.encode())

    def chmod(self, path: str, mode: int) -> int:
        return self._ask("chmod", path.encode(), mode & 0o777)

    def utimens(self, _path: str, _times: object = None) -> int:
        return 0


def main(folder: str, nfs_port: str, mount_port: str, seconds: str) -> None:
    timeouts = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), float(seconds))
    mount = Mount(int(nfs_port), int(mount_port))
    FUSE(mount, folder, foreground=True, nothreads=True, use_ino=True, big_writes=True, **timeouts)


if __name__ == "__main__":
    main(*sys.argv[1:])
