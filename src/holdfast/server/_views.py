"""What the pages show, made from looks at tables: numbers with units, times with ages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast._clock import Clock
from holdfast.server._charts import bars
from holdfast.server._metrics import Commit

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_BARS = 60
_MIN_SPAN = 60.0
_MAX_CELL = 120


def size(count: float) -> str:
    """Return bytes with a unit."""
    value = float(count)
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:  # noqa: PLR2004 - the next unit
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def number(count: float) -> str:
    """Return a number with thousands apart."""
    return f"{count:,.0f}"


def count(many: float, noun: str) -> str:
    """Return how many there are of something."""
    return f"{number(many)} {noun}" if many == 1 else f"{number(many)} {noun}s"


def age(seconds: float) -> str:
    """Return how long ago something was."""
    return "just now" if seconds < 1 else f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """Return a length of time, in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def utc(at: datetime | float) -> str:
    """Return a time in UTC."""
    moment = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else at.astimezone(UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def seconds_of(at: datetime | float) -> float:
    """Return a time in seconds since 1970."""
    return float(at) if isinstance(at, int | float) else at.timestamp()


def cell(value: Any) -> str:  # noqa: ANN401 - any value of a column
    """Return a value as a short text."""
    if isinstance(value, bytes):
        text = f"{len(value)} bytes"
    elif isinstance(value, list) and len(value) > 8:  # noqa: PLR2004 - vectors are long
        text = f"[{', '.join(cell(one) for one in value[:4])}, … {len(value)} values]"
    elif isinstance(value, float):
        text = f"{value:g}"
    else:
        text = str(value)
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"


def charts(commits: Sequence[Commit], started: float, clock: Clock) -> dict[str, str]:
    """Return the charts of commits per second and of their latency, since this server started."""
    now = clock.now()
    span = max(now - started, _MIN_SPAN)
    if commits and len(commits) == getattr(commits, "maxlen", None):
        span = max(now - commits[0].at, _MIN_SPAN)  # older ones are forgotten
    counts = [0] * _BARS
    slowest = [0.0] * _BARS
    for commit in commits:
        place = min(int((commit.at - (now - span)) / span * _BARS), _BARS - 1)
        if place >= 0:
            counts[place] += 1
            slowest[place] = max(slowest[place], commit.seconds * 1000)
    width = span / _BARS
    start = age(span)
    return {
        "commits": bars(
            [count / width for count in counts],
            title="Commits per second",
            unit="commits/s",
            start=start,
            end="now",
        ),
        "latency": bars(slowest, title="Slowest commit", unit="ms", start=start, end="now"),
    }


def fragments_chart(fragment_sizes: Sequence[int]) -> str:
    """Return the sizes of fragments, largest first."""
    sizes = sorted(fragment_sizes, reverse=True)
    shown = sizes[:200]
    return bars(
        shown,
        title="Fragments by size",
        unit="bytes",
        start="largest",
        end="smallest" if len(shown) == len(sizes) else f"and {len(sizes) - len(shown)} smaller",
        peak=size(max(sizes, default=0)),
    )
