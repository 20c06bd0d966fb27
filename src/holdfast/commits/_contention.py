"""How writers of one table let each other go first where nobody gives turns.

By put-if-absent each version has one winner, and the others put theirs again. A loser has the
winner's bytes and puts the next version immediately, with a look at that name beside the put
(`meets_others`): so it learns of its next loss and of the next winner in one round trip, and the
chain of versions grows by one in each. Two or three writers that try keep it busy; more of them
only cost requests and processors. So the others wait:

- A writer that lost eight times makes room, for up to three times as long as that took, and then
  lists the versions. Where more try than the processors can serve, rounds take longer, and so
  does this.
- A new append waits for as long as the last one took, but for the last six rounds of it: then it
  comes up again when its turn would be if all took turns. Of what it waits it forgets a part each
  time, so who waits longer than others comes nearer to them. Who was away for longer than that
  does not wait: its turn has passed.

For fairness and speed alone: nothing here decides anything, and no time is compared with another
process's.
"""

from __future__ import annotations

from holdfast._clock import Clock
from holdfast._ids import Ids

_LOSSES_IN_A_ROW = 8
_ROOM = 3  # times what so many losses took, at most
_ROUNDS_BEFORE = 6  # how many rounds before its turn a writer begins to try
_KEPT = 0.85
_LEAST_WAIT_SECONDS = 0.002
_LONGEST_WAIT_SECONDS = 2.0
_SHORT_ABSENCE_SECONDS = 0.5  # between two appends one writes the data files of the next


class Contention:
    """What one process knows of the others that write to a table."""

    def __init__(self, clock: Clock, ids: Ids) -> None:
        self._clock = clock
        self._ids = ids
        self._wait = 0.0  # before the next append begins to try
        self._before = 0  # losses of the last append, halved by each that had none
        self._losses = 0
        self._begun = 0.0
        self._ended = 0.0  # when the last append had its version
        self._waited = 0.0  # in this append
        self._tries_since = 0.0  # without a wait

    @property
    def meets_others(self) -> bool:
        """Tell whether somebody else is likely to want the same version."""
        return bool(self._losses or self._before)

    def begin(self) -> None:
        """Begin an append: let those go first whose turn it is."""
        self._losses, self._waited = 0, 0.0
        self._begun = self._tries_since = self._clock.elapsed()
        away = self._begun - self._ended
        if self._wait and away < max(self._wait, _SHORT_ABSENCE_SECONDS):
            self._sleep(self._wait * (0.75 + self._ids.jitter() / 2))

    def lose(self) -> bool:
        """Take note of a loss; tell whether the versions are to be listed, after a wait."""
        self._losses += 1
        if self._losses % _LOSSES_IN_A_ROW:
            return False  # the winner's version is at hand, and likely the newest
        tried = self._clock.elapsed() - self._tries_since
        self._sleep(min(_ROOM * tried, _LONGEST_WAIT_SECONDS) * self._ids.jitter())
        return True

    def win(self) -> None:
        """End an append that has its version: learn from it when the next one will be due."""
        self._ended = self._clock.elapsed()
        took = self._ended - self._begun
        if self._losses:
            one_round = (took - self._waited) / (self._losses + 1)
            wait = _KEPT * (took - _ROUNDS_BEFORE * one_round)
        else:
            wait = self._wait * _KEPT / 2
        self._wait = min(wait, _LONGEST_WAIT_SECONDS) if wait >= _LEAST_WAIT_SECONDS else 0.0
        self._before = self._losses or self._before // 2

    def _sleep(self, seconds: float) -> None:
        self._waited += seconds
        self._clock.sleep(seconds)
        self._tries_since = self._clock.elapsed()
