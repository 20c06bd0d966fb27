"""A real terminal for tests: a process whose input and output are a pseudo-terminal's."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

SECONDS = 100
BIN = str(Path(sys.executable).parent)
# Becomes the command, with the terminal as its own: so Ctrl-C reaches it as a signal.
_TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what runs behind
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """Runs a command at a terminal of 100 columns and keeps what it shows."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        kept = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS"}}
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**kept, "TERM": "xterm-256color", "PATH": path, **environment},
        )
        os.close(theirs)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, keys: str) -> None:
        """Press keys; `\\x03` is Ctrl-C, which the terminal makes a signal of."""
        os.write(self._ours, keys.encode())

    def see(self, what: str | Callable[[str], bool]) -> None:
        """Wait until something is shown."""
        is_there = what if callable(what) else lambda shown: what in shown
        while not is_there(self.shown):
            assert self._read(), f"not shown: {what}\n{self.shown}"

    def end(self) -> int:
        """Wait for the end and return the exit code."""
        while self._read():
            pass
        return self._process.wait(SECONDS)

    def _read(self) -> bool:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if not select.select([self._ours], [], [], 1)[0]:
                continue
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # Linux: the other end is closed
                return False
            self.shown += data.decode(errors="replace")
            return bool(data)
        return False


def run(*words: str, **environment: str) -> tuple[int, str]:
    """Run `holdfast` at a terminal to its end; return its exit code and what was shown."""
    with Terminal("holdfast", *words, **environment) as terminal:
        return terminal.end(), terminal.shown
