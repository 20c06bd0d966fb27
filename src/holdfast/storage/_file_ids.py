"""What tells a file from any copy of it: its inode, with the generation where there is one.

Neither changes when the file is renamed, linked, given another owner or seen through another
mount, and a copy gets its own. The device's number takes no part: it may change with every
boot and differs between the clients of a network file system.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION of Linux; a new number each time an inode is used
_MOUNTS = Path("/proc/self/mountinfo")
# These number files anew with every mount, so a number says nothing of the file.
_NUMBERED_ANEW = ("fuse", "9p", "virtiofs", "vboxsf", "drvfs", "prl_fs")


def file_id(file: str) -> str | None:
    """Return what tells a file from its copies; None where its file system has no such thing.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if _kind(status.st_dev).startswith(_NUMBERED_ANEW):
            return None
        generation = bytearray(struct.calcsize("l"))
        with suppress(OSError):  # not every file system has one
            fcntl.ioctl(descriptor, _GET_GENERATION, generation)
        return f"{status.st_ino}.{int.from_bytes(generation, 'little')}"
    finally:
        os.close(descriptor)


def _kind(device: int) -> str:
    """Return the kind of a file system by its device; empty where nobody tells."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2:3] == [number]:
                return after.split(maxsplit=1)[0]
    return ""
