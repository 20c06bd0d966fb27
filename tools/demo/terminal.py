"""What the demo prints: chapters, lines, one progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.demo.ledger import Count

_BAR = 40


def chapter(number: int, title: str) -> None:
    """Begin a chapter."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{number}. {title}{plain}", flush=True)


def line(text: str) -> None:
    """Print one line of a chapter."""
    print(f"   {text}", flush=True)


def bar(done: int, total: int, text: str) -> None:
    """Redraw one line on a terminal; elsewhere, print it once it is full."""
    drawn = f"   [{'#' * (_BAR * done // total):<{_BAR}}] {text}"
    if sys.stdout.isatty():
        print(f"\r{drawn}", end="\n" if done >= total else "", flush=True)
    elif done >= total:
        print(drawn, flush=True)


def show_count(found: Count) -> None:
    """Print what the independent reader found."""
    line(
        f"an independent reader finds: acknowledged {found.acknowledged}, present {found.present}, "
        f"lost {found.lost}, doubled {found.doubled}"
    )


@contextmanager
def errors_into(file: Path) -> Iterator[None]:
    """Send what Spark and Lance log of the deaths to a file; they are part of the story."""
    sys.stderr.flush()
    kept = os.dup(2)
    with file.open("w") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
