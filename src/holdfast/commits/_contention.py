"""How writers of one table let each other go first where nobody gives turns.

By put-if-absent each version has one winner, and the others put theirs again. Two things would
let one of them starve. It reads the winner's version and tries the next one; but the others are as
fast as it is, so who is some versions behind stays behind: from its second loss on it lists the
versions instead. And who has just won is as likely to win again as one that lost ten times: so a
writer that lost waits, the less the more often it lost, and a new append of one that met others a
moment ago waits before its first try.

For fairness and speed alone: nothing here decides anything, and no time is compared with another
process's. All waits are a random share of some round trips, as long as the last listing took.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast._clock import Clock
from holdfast._ids import Ids

_WAIT_TRIPS = 16  # after a loss; divided by how many there were
_YIELD_TRIPS = 2  # before a new append, for each loss of the last one
_MOST_TRIPS = 32
_LONGEST_TRIP_SECONDS = 0.1


class Contention:
    """What one process knows of the others that write to a table."""

    def __init__(self, clock: Clock, ids: Ids) -> None:
        self._clock = clock
        self._ids = ids
        self._trip = 0.0  # how long the last listing took
        self._before = 0  # losses of the last append, halved by each that had none
        self._losses = 0

    def begin(self) -> None:
        """Begin an append: let those go first who lost already."""
        self._losses = 0
        self._wait(min(_YIELD_TRIPS * self._before, _MOST_TRIPS))

    def lose(self) -> bool:
        """Take note of a loss, and wait; tell whether the versions are to be listed then.

        After the first loss the winner's version is at hand, and likely the newest.
        """
        self._losses += 1
        if self._losses == 1:
            return False
        self._wait(_WAIT_TRIPS / self._losses)
        return True

    def end(self) -> None:
        """End an append, whatever came of it."""
        self._before = self._losses or self._before // 2

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Learn how long a listing takes."""
        begun = self._clock.elapsed()
        yield
        self._trip = min(self._clock.elapsed() - begun, _LONGEST_TRIP_SECONDS)

    def _wait(self, trips: float) -> None:
        if trips and self._trip:
            self._clock.sleep(trips * self._trip * self._ids.jitter())
