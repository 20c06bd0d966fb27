"""Small charts as SVG: bars and lines, in the page's own colours, readable without a mouse."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 560, 132
_LEFT, _BOTTOM, _TOP = 44, 20, 8
_WIDEST = 36

_PAGE, _LABELS, _ROOM, _THICK, _GAP, _HEAD = 760, 290, 340, 18, 10, 40
_STYLE = (
    'text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2933; } '
    ".head { font-size: 15px; font-weight: 600; } .bar0 { fill: #1b7f5c; } "
    ".bar1 { fill: #5a67d8; } .bar2 { fill: #b7791f; } "
    "@media (prefers-color-scheme: dark) { text { fill: #e4e7eb; } .bar0 { fill: #3ebd93; } "
    ".bar1 { fill: #8f9bff; } .bar2 { fill: #ecc94b; } }"
)


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
        f"<title>{_format_number(value)} {escape(unit)}</title></rect>"
        for number, value in enumerate(values)
        if value > 0
    )
    top = peak or _format_number(highest)
    if highest <= 0:
        middle = (_LEFT + WIDTH) / 2
        drawn = f'<text class="axis" x="{middle}" y="64" text-anchor="middle">none yet</text>'
    return _frame_chart(drawn, title=title, top=top, unit=unit, start=start, end=end)


def comparison_chart(
    rows: Sequence[tuple[str, Sequence[float]]], *, title: str, unit: str, series: Sequence[str]
) -> str:
    """Return a chart that stands alone: bars from left to right, one group per row.

    Args:
        rows: what each group is called, and how long its bars are, in the order of `series`.
        title: what is shown.
        unit: what is counted.
        series: what the bars of a group are; one name for charts with one bar per row.
    """
    highest = max((value for _, values in rows for value in values), default=0.0)
    group = _THICK * len(series) + _GAP
    legend = _GAP if len(series) == 1 else _THICK + _GAP
    height = _HEAD + legend + group * len(rows)
    drawn = []
    for number, name in enumerate(series if len(series) > 1 else ()):
        x = 12 + number * 200
        drawn.append(
            f'<rect class="bar{number}" x="{x}" y="{_HEAD - 6}" width="12" height="12"/>'
            f'<text class="small" x="{x + 18}" y="{_HEAD + 4}">{escape(name)}</text>'
        )
    for place, (label, values) in enumerate(rows):
        top = _HEAD + legend + place * group
        middle = top + _THICK * len(values) / 2 + 4
        drawn.append(f'<text class="small" x="12" y="{middle:.1f}">{escape(label)}</text>')
        for number, value in enumerate(values):
            wide = value / highest * _ROOM if highest > 0 else 0.0
            y = top + number * _THICK
            drawn.append(
                f'<rect class="bar{number}" x="{_LABELS}" y="{y}" width="{max(wide, 1):.1f}" '
                f'height="{_THICK - 3}"/><text class="small" x="{_LABELS + wide + 6:.1f}" '
                f'y="{y + _THICK - 6}">{_format_number(value)} {escape(unit)}</text>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_PAGE} {height}" role="img" '
        f'aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<text class="head" x="12" y="22">{escape(title)}</text>{"".join(drawn)}</svg>\n'
    )


def _frame_chart(drawn: str, *, title: str, top: str, unit: str, start: str, end: str) -> str:
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


def _format_number(value: float) -> str:
    if value >= 100 or value == int(value):  # noqa: PLR2004 - no digits behind large numbers
        return f"{value:,.0f}"
    return f"{value:.2g}" if value < 1 else f"{value:.1f}"
