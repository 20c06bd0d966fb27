"""A real NFS server (nfs-ganesha) and clients of it, for `./run explore --servers`.

Debian: `nfs-ganesha nfs-ganesha-vfs rpcbind libnfs13 fuse libfuse2`; PyPI: `fusepy`. Root only.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import servers

_SECONDS = 30.0
_CLIENT = Path(__file__).with_name("nfs_mount.py")
_CONFIG = """
NFS_CORE_PARAM {{ NFS_Port = {nfs}; MNT_Port = {mount}; Bind_addr = 127.0.0.1; Protocols = 3, 4;
    Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = true; }}
NFSv4 {{ Graceless = true; RecoveryRoot = {folder}/recovery; }}
EXPORT {{ Export_Id = 1; Path = {folder}/export; Pseudo = /lake; Access_Type = RW;
    Squash = No_Root_Squash; SecType = sys; Protocols = 3, 4; FSAL {{ Name = VFS; }} }}
"""


def missing() -> str | None:
    """Say what keeps NFS from running here; None when it can."""
    for program in ("ganesha.nfsd", "rpcbind", "fusermount"):
        if servers.find_program(program) is None:
            return f"{program} is not installed"
    if not Path("/dev/fuse").exists() or os.geteuid() != 0:
        return "mounting needs root and /dev/fuse"
    if importlib.util.find_spec("fuse") is None or ctypes.util.find_library("nfs") is None:
        return "fusepy or libnfs is not installed"
    return None


class Nfs:
    """An NFS server that exports one folder, and as many clients as are asked for."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-nfs-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._mounts: list[Path] = []
        for name in ("export", "recovery"):
            (self._folder / name).mkdir(mode=0o777)
        self._ports = (servers.free_port(), servers.free_port())
        config = self._folder / "ganesha.conf"
        nfs, mount = self._ports
        config.write_text(_CONFIG.format(nfs=nfs, mount=mount, folder=self._folder))
        try:
            if not _is_open(111):
                self._start([str(servers.find_program("rpcbind")), "-f", "-w"])
                _await(lambda: _is_open(111))
            command = [str(servers.find_program("ganesha.nfsd")), "-F", "-f", str(config)]
            log, pid = self._folder / "ganesha.log", self._folder / "ganesha.pid"
            self._start([*command, "-L", str(log), "-p", str(pid), "-N", "NIV_CRIT"])
            _await(lambda: all(_is_open(port) for port in self._ports))
        except BaseException:
            self.stop()
            raise

    def mount(self, *, cache_seconds: float) -> Path:
        """Return a folder that is a client of its own."""
        folder = self._folder / f"client-{len(self._mounts)}"
        folder.mkdir()
        arguments = [str(folder), *map(str, self._ports), str(cache_seconds)]
        self._start([sys.executable, str(_CLIENT), *arguments])
        self._mounts.append(folder)
        _await(folder.is_mount)
        return folder

    def stop(self) -> None:
        for folder in self._mounts:
            subprocess.run(["fusermount", "-u", "-z", str(folder)], check=False)
        for process in reversed(self._processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS)
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, command: list[str]) -> None:
        with (self._folder / "output").open("ab") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("NFS did not start")
        time.sleep(0.05)
