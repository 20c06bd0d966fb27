"""What goes to stderr beside errors: nothing by default, events with `-v`, as lines or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

_LEVELS = (logging.ERROR, logging.INFO, logging.DEBUG)


def start_logging(verbose: int, log_format: str) -> None:
    """Send the events of Holdfast to stderr, as far as was asked for."""
    logger = logging.getLogger("holdfast")
    for before in [one for one in logger.handlers if isinstance(one, _Stderr)]:
        logger.removeHandler(before)
    handler = _Stderr()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    handler.setLevel(_LEVELS[min(verbose, len(_LEVELS) - 1)])
    logger.addHandler(handler)
    if verbose:
        logger.setLevel(handler.level)


class _Stderr(logging.StreamHandler[Any]):
    def __init__(self) -> None:
        super().__init__(sys.stderr)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"holdfast: {record.getMessage()}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(fields, sort_keys=True)
