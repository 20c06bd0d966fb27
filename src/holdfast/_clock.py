"""The one source of time: waiting, measuring and the wall clock come from a `Clock`.

No safety decision anywhere depends on it: a clock that jumps makes Holdfast wait or probe
again, never decide differently.
"""

from __future__ import annotations

import time
from typing import Protocol

# Linux's monotonic clock stands still while the machine sleeps; elsewhere it does not.
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Tells time and waits."""

    def now(self) -> float:
        """Return seconds since 1970 by the wall clock; may jump."""
        ...

    def elapsed(self) -> float:
        """Return seconds since an arbitrary start; never goes back, and counts sleep, too."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        """Return the wall clock."""
        return time.time()

    def elapsed(self) -> float:
        """Return the clock that goes on while the machine sleeps."""
        return time.clock_gettime(_SINCE_BOOT)

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)
