"""Waiting for a file lock that another process holds, and saying who it is.

A lock is let go when its holder's work is done or the holder dies. One that was stopped (a
debugger, `kill -STOP`, a suspended job) keeps it for as long as it stays so. `LockWatch` gives
such a lock up after seconds and names the holder, as far as the system tells (Linux).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from holdfast._clock import SystemClock

LONGEST_WAIT = timedelta(seconds=60)
"""How long a lock is waited for while others take it in turn."""

HELD_TOO_LONG = timedelta(seconds=10)
"""How long it is waited for while one and the same process has it at every look."""

LOOK_EVERY = timedelta(seconds=1)
_CLOCK = SystemClock()  # only bounds waiting
_LOCKS = Path("/proc/locks")
_LOCK = re.compile(r"\d+: (?:POSIX|FLOCK) +\w+ +WRITE (\d+) [0-9a-f]+:[0-9a-f]+:(\d+) (\d+) ")
_STOPPED = {"T", "t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    name: str
    stopped: bool

    def __str__(self) -> str:
        state = ", stopped" if self.stopped else ""
        return f"process {self.pid} ({self.name}{state})"


def find_holder(file: Path, first_byte: int) -> Holder | None:
    """Return who has the exclusive lock of a file that begins at a byte; None if nobody tells."""
    try:
        inode, lines = file.stat().st_ino, _LOCKS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        match = _LOCK.match(line)
        if match and (int(match[2]), int(match[3])) == (inode, first_byte) and int(match[1]):
            return _describe(int(match[1]))
    return None


def _describe(pid: int) -> Holder:
    name, state = "unknown", ""
    with suppress(OSError):
        # `pid (name) state ...`; a name may hold spaces and brackets.
        text = Path(f"/proc/{pid}/stat").read_text()
        name, _, rest = text.partition("(")[2].rpartition(")")
        state = rest.split()[0]
    return Holder(pid=pid, name=name, stopped=state in _STOPPED)


class LockWatch:
    """One wait for a lock: call `waits_on` after each look at it that found it taken."""

    def __init__(self, file: Path, first_byte: int, longest: timedelta = LONGEST_WAIT) -> None:
        self._file = file
        self._first_byte = first_byte
        self._longest = longest.total_seconds()
        self._begun = self._since = _CLOCK.elapsed()
        self.holder: Holder | None = None

    def waits_on(self) -> bool:
        """Tell whether it makes sense to wait on; `holder` says who has the lock."""
        now = _CLOCK.elapsed()
        before = self.holder
        self.holder = find_holder(self._file, self._first_byte) or self.holder
        if self.holder is None or before is None or before.pid != self.holder.pid:
            self._since = now
        stuck = before is not None and before.stopped and before == self.holder
        too_long = self.holder is not None and now - self._since >= HELD_TOO_LONG.total_seconds()
        mine = self.holder is not None and self.holder.pid == os.getpid()
        return not stuck and not (too_long and not mine) and now - self._begun < self._longest
