"""The parser of the command line, and the one place where errors become exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from holdfast._version import __version__
from holdfast.cli import (
    _index,
    _ingest,
    _maintain,
    _pin,
    _probe,
    _shard,
    _store,
    _table,
    _upkeep,
    _vacuum,
    _wal,
)
from holdfast.cli._arguments import Parser
from holdfast.cli._output import MEANINGS, Exit, print_error
from holdfast.errors import HoldfastError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

_EPILOG = "exit codes:\n" + "\n".join(f"  {code.value:>2}  {MEANINGS[code]}" for code in Exit)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        try:
            return _run(_parser().parse_args(argv))
        finally:
            if sys.stdout is not None:  # it is when started with stdout closed
                sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away; nothing more can be said there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)
    except KeyboardInterrupt:
        print("holdfast: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    try:
        return int(arguments.run(arguments))
    except HoldfastError as error:
        return int(print_error(error, as_json=arguments.json))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the last resort before a traceback
        # The text of a foreign error may hold a secret: only its kind and place are shown.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        defect = HoldfastError(f"a defect, please report it: {type(error).__name__} at {where}")
        return int(print_error(defect, as_json=arguments.json))


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog="holdfast",
        description="Safe concurrent writes to Lance tables, on any object store.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _table.add(verbs)
    _ingest.add(verbs)
    _upkeep.add(verbs)
    _vacuum.add(verbs)
    _maintain.add(verbs)
    _index.add(verbs)
    _probe.add(verbs)
    _store.add(verbs)
    _pin.add(verbs)
    _shard.add(verbs)
    _wal.add(verbs)
    return parser
