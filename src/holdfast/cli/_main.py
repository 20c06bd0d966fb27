"""The command line as a whole, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click
from click.shell_completion import shell_complete

from holdfast._version import __version__
from holdfast.cli import _other_commands, _part_commands, _table_commands
from holdfast.cli._declare import Noun, flag, value
from holdfast.cli._logging import start_logging
from holdfast.cli._output import MEANINGS, SESSION, Exit, Session, print_error, tell
from holdfast.cli._start import INTERRUPTED, INTERRUPTS
from holdfast.cli._terminal import has_colours
from holdfast.errors import HoldfastError, InvalidInputError

COMPLETE_VARIABLE = "_HOLDFAST_COMPLETE"
"""What a shell sets when it asks for completions."""


class Root(Noun):
    """`holdfast` itself; its help ends with the exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        del ctx
        formatter.write("\n`holdfast help COMMAND` tells more of a command.\n")
        with formatter.section("exit codes"):
            for code in Exit:
                formatter.write(f"  {code.value:>3}  {MEANINGS[code]}\n")
            formatter.write(f"  {INTERRUPTED:>3}  interrupted by Ctrl-C\n")


def _start(verbose: int, log_format: str, *, quiet: bool, timeout: float) -> None:
    if not timeout > 0:
        raise InvalidInputError("--timeout is a number of seconds above 0", given=timeout)
    SESSION.quiet, SESSION.timeout = quiet, timeout
    start_logging(verbose, log_format)


def _print_version(ctx: click.Context, _: click.Parameter, given: object) -> None:
    if given:
        print(f"holdfast {__version__}")
        ctx.exit()


ROOT = Root(
    "holdfast",
    "Safe concurrent writes to Lance tables, on any object store.",
    *_table_commands.ALL_COMMANDS,
    *_part_commands.ALL_COMMANDS,
    *_other_commands.TIES,
    _part_commands.STORE,
    *_other_commands.ALL_COMMANDS,
    callback=_start,
    params=[
        value("-v verbose", "", "tell on stderr what happens; -vv everything", count=True),
        flag("-q quiet", "no progress and no warnings on stderr"),
        value(
            "--log-format",
            "text|json",
            "how events are told with -v: lines for people, or one JSON object each",
            type=click.Choice(("text", "json")),
            default="text",
        ),
        value(
            "--timeout",
            "SECONDS",
            f"how long servers may be silent at the beginning; {Session.timeout:.0f} by default",
            type=float,
            default=Session.timeout,
        ),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            help="print the version",
            callback=_print_version,
        ),
    ],
)


def run_command(argv: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    if COMPLETE_VARIABLE in os.environ:
        asked = os.environ[COMPLETE_VARIABLE]
        return shell_complete(ROOT, {}, "holdfast", COMPLETE_VARIABLE, asked)
    words = list(argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        try:
            return _run(words)
        finally:
            if sys.stdout is not None:  # it is when started with stdout closed
                sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away; nothing more can be said there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)
    except KeyboardInterrupt:
        tell("interrupted")
        return INTERRUPTED


def _run(words: list[str]) -> int:
    vars(SESSION).update(vars(Session(as_json="--json" in words)))
    colour = has_colours(sys.stdout)
    try:
        with ROOT.make_context("holdfast", words, max_content_width=100, color=colour) as context:
            return int(ROOT.invoke(context))
    except click.exceptions.Exit as ended:  # after --help and --version
        return ended.exit_code
    except click.UsageError as error:
        return _print_usage_error(error)
    except HoldfastError as error:
        return int(print_error(error))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the last resort before a traceback
        if INTERRUPTS.came:  # in the midst of loading a library, which made another error of it
            raise KeyboardInterrupt from None
        # The text of a foreign error may hold a secret: only its kind and place are shown.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        defect = HoldfastError(f"a defect, please report it: {type(error).__name__} at {where}")
        return int(print_error(defect))


def _print_usage_error(error: click.UsageError) -> int:
    """Say how the command is used, and what was wrong, without what may hold a secret."""
    message = re.sub(r"(=|://)[^\s']+", r"\1...", error.format_message()).rstrip(".")
    if error.ctx is not None:
        print(error.ctx.get_usage(), file=sys.stderr)
        path = error.ctx.command_path.removeprefix("holdfast").strip()
        message += f"; see `holdfast help{path and ' '}{path}`"
    return int(print_error(InvalidInputError(message[:1].lower() + message[1:])))
