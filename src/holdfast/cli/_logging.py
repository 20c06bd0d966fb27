"""What goes to stderr beside errors: nothing by default, events with `-v`, as lines or as JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

from holdfast.cli._output import set_quiet

_LEVELS = (logging.ERROR, logging.INFO, logging.DEBUG)


def add_logging(parser: argparse.ArgumentParser) -> None:
    """Add `-v`, `-q` and `--log-format`; they stand before the command."""
    parser.add_argument(
        "-v",
        dest="verbose",
        action="count",
        default=0,
        help="tell on stderr what happens; -vv everything",
    )
    parser.add_argument(
        "-q", dest="quiet", action="store_true", help="no progress and no warnings on stderr"
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="how events are told with -v: lines for people, or one JSON object each",
    )


def start_logging(arguments: argparse.Namespace) -> None:
    """Send the events of Holdfast to stderr, as far as was asked for."""
    set_quiet(quiet=arguments.quiet)
    logger = logging.getLogger("holdfast")
    for handler in [one for one in logger.handlers if isinstance(one, _Stderr)]:
        logger.removeHandler(handler)
    handler = _Stderr()
    handler.setFormatter(_Json() if arguments.log_format == "json" else _Text())
    handler.setLevel(_LEVELS[min(arguments.verbose, len(_LEVELS) - 1)])
    logger.addHandler(handler)
    if arguments.verbose:
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
