"""The parser of the command line, and the one place where errors become exit codes.

Only the module of the command that is asked for is loaded: most load Lance, which takes a second.
So the list of commands with their one line of help stands here; a test compares it.
"""

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
from holdfast.cli._logging import add_logging, start_logging
from holdfast.cli._output import MEANINGS, Exit, print_error
from holdfast.cli._patience import add_patience, await_answers
from holdfast.errors import HoldfastError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

# Which module has which command, and what it does.
COMMANDS: dict[str, tuple[str, str]] = {
    "create": ("_create", "create an empty table"),
    "tables": ("_create", "list the tables below a root"),
    "ingest": ("_ingest", "write rows from files into a table's shards"),
    "status": ("_status", "show how a table is doing"),
    "history": ("_table", "show a table's versions, newest first"),
    "doctor": ("_upkeep", "find what is wrong with a table, and appends that were lost"),
    "repair": (
        "_repair",
        "put right what is damaged: pin, address, commit store, objects, records, logs",
    ),
    "rescue": ("_upkeep", "bring back appends that stock writers lost"),
    "maintain": ("_maintain", "flush, merge, compact, refresh indexes; with --confirm, vacuum"),
    "vacuum": ("_vacuum", "show what nobody needs in a table; with --confirm, delete it"),
    "index": ("_index", "build, list and search full-text indexes"),
    "shard": ("_shard", "look at a table's shards"),
    "wal": ("_wal", "look into a shard's log"),
    "adopt": ("_table", "tie an existing Lance table to an arbiter"),
    "release": ("_table", "give a plain Lance table back"),
    "pin": ("_pin", "show what a table is tied to; let it be opened under a new address"),
    "copy": (
        "_copy",
        "copy a table to another bucket, endpoint or store, tie it there, and check it",
    ),
    "store": ("_store", "commit stores: set one up, check one, change a table's"),
    "probe": ("_probe", "find out whether a store enforces put-if-absent"),
    "serve": ("_serve", "let Lance clients commit, and anything send rows, over HTTP"),
    "spark-jar": ("_spark_jar", "print the path of the jar for Spark's class path"),
    "completion": ("_completion", "print the completion script of a shell"),
}

_EPILOG = (
    "`holdfast help COMMAND` tells more of a command.\n\nexit codes:\n"
    + "\n".join(f"  {code.value:>3}  {MEANINGS[code]}" for code in Exit)
    + f"\n  {INTERRUPTED:>3}  interrupted by Ctrl-C"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(make_parser(words).parse_args(_asking_for_help(words)))
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


def _asking_for_help(words: list[str]) -> list[str]:
    """Turn `help COMMAND ...` into `COMMAND ... --help`."""
    if words[:1] != ["help"]:
        return words
    return [*words[1:], "--help"]


def _run(arguments: argparse.Namespace) -> int:
    try:
        start_logging(arguments)
        await_answers(arguments)
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


def make_parser(words: Sequence[str], *, whole: bool = False) -> argparse.ArgumentParser:
    """Return the parser: of the command that is asked for, or of all of them if `whole`."""
    parser: argparse.ArgumentParser = Parser(
        prog="holdfast",
        description="Safe concurrent writes to Lance tables, on any object store.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    add_logging(parser)
    add_patience(parser)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    asked = [word for word in words if word in COMMANDS][:1]
    wanted = {module for module, _ in COMMANDS.values()} if whole else set()
    wanted |= {COMMANDS[name][0] for name in asked}
    for module in sorted(wanted):
        importlib.import_module(f"holdfast.cli.{module}").add(verbs)
    if not wanted:
        for name, (_, text) in COMMANDS.items():
            verbs.add_parser(name, help=text, allow_abbrev=False)
    return parser
