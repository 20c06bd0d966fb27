"""Sets of numbers as text: `0-41,43,50-60`. Exact, and short while there are few gaps."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable

_RANGE = re.compile(r"(0|[1-9][0-9]{0,18})(?:-([1-9][0-9]{0,18}))?")


class Ranges:
    """A set of numbers from 0, kept as the ranges that it is made of."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges = list(ranges)  # first and last, ascending, with a gap between any two

    @classmethod
    def parse(cls, text: str) -> Ranges:
        """Return the set behind a text.

        Raises:
            ValueError: it is not how a set is written.
        """
        matches = [_RANGE.fullmatch(part) for part in text.split(",")]
        ranges = [(int(m[1]), int(m[2] or m[1])) for m in matches if m is not None]
        ends = [number for first, last in ranges for number in (first, last + 1)]
        single = any(m is not None and m[2] is not None and m[1] == m[2] for m in matches)
        if len(ranges) < len(matches) or ends != sorted(set(ends)) or single:
            raise ValueError(text[:80])
        return cls(ranges)

    def __contains__(self, number: int) -> bool:
        at = bisect.bisect_right(self._ranges, number, key=_first) - 1
        return at >= 0 and number <= self._ranges[at][1]

    def __len__(self) -> int:
        """Return of how many ranges it is made."""
        return len(self._ranges)

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self._ranges)

    def with_range(self, first: int, last: int) -> Ranges:
        """Return the set with the numbers from `first` to `last` in it, too."""
        before = [one for one in self._ranges if one[1] < first - 1]
        after = [one for one in self._ranges if one[0] > last + 1]
        touched = self._ranges[len(before) : len(self._ranges) - len(after)]
        if touched:
            first, last = min(first, touched[0][0]), max(last, touched[-1][1])
        return Ranges([*before, (first, last), *after])


def _first(numbers: tuple[int, int]) -> int:
    return numbers[0]
