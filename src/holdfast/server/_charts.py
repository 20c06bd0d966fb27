"""Small charts as SVG: bars and lines, in the page's own colours, readable without a mouse."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 560, 132
_LEFT, _BOTTOM, _TOP = 44, 20, 8
_WIDEST = 36


def bars(
    values: Sequence[float], *, title: str, unit: str, start: str, end: str, peak: str | None = None
) -> str:
    """Return a chart of one bar per value, oldest first.

    Args:
        values: how high the bars are.
        title: what is shown, for those who do not see it.
        unit: what is counted.
        start: what stands below the first bar.
        end: what stands below the last bar.
        peak: what stands at the top; the highest value by default.
    """
    highest = max(values, default=0.0)
    wide = min((WIDTH - _LEFT) / max(len(values), 1), _WIDEST)
    drawn = "".join(
        f'<rect class="bar" x="{_LEFT + number * wide + 0.5:.1f}" y="{_y(value, highest):.1f}" '
        f'width="{max(wide - 1, 0.5):.1f}" height="{_base() - _y(value, highest):.1f}">'
        f"<title>{_shown(value)} {escape(unit)}</title></rect>"
        for number, value in enumerate(values)
        if value > 0
    )
    top = peak or _shown(highest)
    if highest <= 0:
        middle = (_LEFT + WIDTH) / 2
        drawn = f'<text class="axis" x="{middle}" y="64" text-anchor="middle">none yet</text>'
    return _framed(drawn, title=title, top=top, unit=unit, start=start, end=end)


def _framed(drawn: str, *, title: str, top: str, unit: str, start: str, end: str) -> str:
    base = _base()
    lines = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        for y in (_TOP, (_TOP + base) / 2, base)
    )
    texts = (
        f'<text class="axis" x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{escape(top)}</text>'
        f'<text class="axis" x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>'
        f'<text class="axis" x="{_LEFT}" y="{HEIGHT - 4}">{escape(start)}</text>'
        f'<text class="axis" x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">{escape(end)}</text>'
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: at most {escape(top)} {escape(unit)}">'
        f"{lines}{drawn}{texts}</svg>"
    )


def _base() -> float:
    return HEIGHT - _BOTTOM


def _y(value: float, highest: float) -> float:
    share = value / highest if highest > 0 else 0.0
    return _base() - share * (_base() - _TOP)


def _shown(value: float) -> str:
    if value >= 100 or value == int(value):  # noqa: PLR2004 - no digits behind large numbers
        return f"{value:,.0f}"
    return f"{value:.2g}" if value < 1 else f"{value:.1f}"
