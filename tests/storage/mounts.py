"""Small file systems in memory: to fill, and to make read-only."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import skip_without

_CAP_SYS_ADMIN = 21


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a small file system, or skip and say why; who may mount and cannot fails on CI."""
    capable = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    if capable is None or not int(capable[1], 16) >> _CAP_SYS_ADMIN & 1:
        pytest.skip("needs root with CAP_SYS_ADMIN, to mount a small file system")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    skip_without(f"cannot mount here: {done.stderr.strip()}" if done.returncode else None)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)
