"""Time and ids for simulated worlds: a clock that stands still, ids that repeat on replay."""

from __future__ import annotations


class StillClock:
    """A clock that never moves: in a simulated world, waiting is the explorer's choice."""

    def now(self) -> float:
        """Return the same moment, always."""
        return 0.0

    def elapsed(self) -> float:
        """Return the same moment, always."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Return immediately."""


class CountedIds:
    """Ids made of their owner's number and a count."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._count = 0

    def token(self) -> str:
        """Return the owner's next token."""
        self._count += 1
        return f"hf-{self._owner:08x}{self._count:024x}"

    def jitter(self) -> float:
        """Return no jitter."""
        return 0.0
