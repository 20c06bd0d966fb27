"""Run a function in a process and keep what it raised; imports nothing that forks would pay for."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path


def tell_errors(file: str, target: Callable[..., object], *args: object) -> None:
    """Call `target`; write the traceback of what it raises into `file`, and raise it."""
    try:
        target(*args)
    except BaseException:
        Path(file).write_text(traceback.format_exc())
        raise
