"""Upkeep now and then: one scheduler for a command, and for servers that share a root.

Servers take turns by a lease, a small object below the root that says who looks after the
tables and until when. It saves work and decides nothing: `maintain` is safe in any number of
places at the same time, so a clock that is wrong, or two holders, cost time and nothing else.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from holdfast._clock import Clock
from holdfast.errors import NotFoundError
from holdfast.formats import UPKEEP_LEASE_PATH
from holdfast.storage import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who looks after the tables of a root, until when (seconds since 1970)."""

    holder: str
    until: float


class Schedule:
    """Does some work every so often until it is ended.

    The next run begins `interval` after the last one began, or when that has ended if it took
    longer: runs of one schedule never overlap.
    """

    def __init__(self, interval: timedelta, work: Callable[[], object], clock: Clock) -> None:
        self._seconds = interval.total_seconds()
        self._work = work
        self._clock = clock
        self._ended = threading.Event()

    @property
    def ended(self) -> bool:
        """Tell whether it was ended; long work looks at it between its parts."""
        return self._ended.is_set()

    def run(self) -> None:
        """Work until ended. What the work raises ends it, too."""
        while not self._ended.is_set():
            begun = self._clock.elapsed()
            self._work()
            self._ended.wait(max(0.0, self._seconds - (self._clock.elapsed() - begun)))

    def end(self) -> None:
        """Let no further run begin."""
        self._ended.set()


def read_lease(store: ObjectStore) -> Lease | None:
    """Return the lease below a root; None when there is none, or nobody can read it.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    try:
        fields = json.loads(store.get(UPKEEP_LEASE_PATH))
        return Lease(holder=str(fields["holder"]), until=float(fields["until"]))
    except NotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None


def take_lease(store: ObjectStore, holder: str, lasts: timedelta, clock: Clock) -> bool:
    """Take or renew the lease, unless another holds it; tell whether we have it.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell, or not take it.
    """
    lease, now = read_lease(store), clock.now()
    if lease is not None and lease.holder != holder and now < lease.until:
        return False
    until = now + lasts.total_seconds()
    store.put(UPKEEP_LEASE_PATH, json.dumps({"holder": holder, "until": until}).encode())
    return True
