"""The parser of the command line, and the one place where errors become exit codes."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from holdfast._version import __version__
from holdfast.cli._arguments import Parser
from holdfast.cli._output import MEANINGS, Exit, print_error
from holdfast.errors import HoldfastError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

# Which module has which commands. Most load Lance, which takes a second: only what is asked for.
_COMMANDS = {
    "_status": ("status",),
    "_create": ("create", "tables"),
    "_table": ("history", "adopt", "release"),
    "_ingest": ("ingest",),
    "_upkeep": ("doctor", "rescue"),
    "_repair": ("repair",),
    "_vacuum": ("vacuum",),
    "_maintain": ("maintain",),
    "_index": ("index",),
    "_probe": ("probe",),
    "_store": ("store",),
    "_pin": ("pin",),
    "_shard": ("shard",),
    "_spark_jar": ("spark-jar",),
    "_wal": ("wal",),
    "_serve": ("serve",),
}

_EPILOG = "exit codes:\n" + "\n".join(f"  {code.value:>2}  {MEANINGS[code]}" for code in Exit)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        try:
            return _run(_parser(sys.argv[1:] if argv is None else argv).parse_args(argv))
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


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog="holdfast",
        description="Safe concurrent writes to Lance tables, on any object store.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _modules(argv):
        importlib.import_module(f"holdfast.cli.{module}").add(verbs)
    return parser


def _modules(argv: Sequence[str]) -> Sequence[str]:
    """Return the modules to load: of the command that is asked for, or else of all."""
    asked = next((word for word in argv if not word.startswith("-")), None)
    return [name for name, verbs in _COMMANDS.items() if asked in verbs] or list(_COMMANDS)
