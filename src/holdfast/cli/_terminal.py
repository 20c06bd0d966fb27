"""What only a terminal gets: colours, tables with lines, bars. Elsewhere it is plain text.

rich is loaded here, and only for a terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from io import StringIO
from types import TracebackType
from typing import Any, Self, TextIO

_CODES = {"bold": "1", "red": "1;31", "green": "32", "yellow": "33"}


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether somebody looks at a stream."""
    return stream is not None and stream.isatty()


def has_colours(stream: TextIO | None) -> bool:
    """Tell whether colours are wanted there: https://no-color.org, and no dumb terminal."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and is_terminal(stream)


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return a text in a colour where its stream shows colours, stdout by default."""
    if colour not in _CODES or not has_colours(stream or sys.stdout):
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def table_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table for stdout; numbers stand right, the last column takes what is left."""
    if is_terminal(sys.stdout):
        return _rich_table(columns, rows)
    cells = [tuple(columns), *(tuple(str(cell) for cell in row) for row in rows)]
    widths = [max(len(row[number]) for row in cells) for number in range(len(columns))]
    return "\n".join(
        "  ".join(
            f"{cell:>{width}}" if right else f"{cell:<{width}}"
            for cell, width, right in zip(row, widths, _are_numbers(rows, columns), strict=True)
        ).rstrip()
        for row in cells
    )


def _are_numbers(rows: Sequence[Sequence[object]], columns: Sequence[str]) -> list[bool]:
    return [
        bool(rows) and all(isinstance(row[number], int) for row in rows)
        for number in range(len(columns))
    ]


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - only for a terminal
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, right in zip(columns, _are_numbers(rows, columns), strict=True):
        shown.add_column(Text(column), justify="right" if right else "left", overflow="fold")
    for row in rows:
        # Text.from_ansi keeps our colours, and no other escape reaches the terminal.
        shown.add_row(*(Text.from_ansi(str(cell)) for cell in row))
    colours: Any = "auto" if has_colours(sys.stdout) else None  # Any: rich's own words
    width = shutil.get_terminal_size().columns
    console = Console(file=StringIO(), force_terminal=True, width=width, color_system=colours)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


class Bar:
    """A line on stderr that moves, at a terminal; elsewhere nothing at all."""

    def __init__(self, *, quiet: bool) -> None:
        self.is_shown = is_terminal(sys.stderr) and not quiet
        self._progress: Any = None  # rich's
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def show(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Show how far something is; without a total, that it goes on."""
        if not self.is_shown:
            return
        if self._progress is None:
            self._progress = self._start()
            self._task = self._progress.add_task(text, total=total)
        self._progress.update(self._task, description=text, completed=done, total=total)

    def close(self) -> None:
        """Leave the line as it is; further calls do nothing."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @staticmethod
    def _start() -> Any:  # noqa: ANN401 - rich's
        from rich.console import Console  # noqa: PLC0415 - only for a terminal
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        progress = Progress(
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            redirect_stdout=False,
            redirect_stderr=False,
        )
        progress.start()
        return progress
