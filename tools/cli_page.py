"""Keep docs/reference/cli.md true: synopses, options and exit codes come from the commands.

The words between them are written by hand. A heading such as "## `holdfast status ...`" gets the
command's synopsis; the table of its options stands between two comments below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli._declare import CONFIRM, Argument, Verb
from holdfast.cli._main import ROOT
from holdfast.cli._output import MEANINGS
from holdfast.cli._start import INTERRUPTED

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/cli.md"
SHARED = ("--option", "--commit-store", "--confirm", "--json")
"""What the beginning of the page explains for all commands."""
_OPTIONS = re.compile(r"<!-- options -->\n.*?<!-- /options -->\n\n?", re.DOTALL)
_CODES = re.compile(r"(?<=\| code \| meaning \|\n\|---\|---\|\n)(\|[^\n]*\n)+")


def cli_page() -> str:
    """Return the page as it should be."""
    page = _OPTIONS.sub("", PAGE.read_text())
    commands = {" ".join(path): command for path, command in leaves(ROOT)}
    parts = re.split(r"(?m)^(?=## )", page)
    written = [_section(part, commands) for part in parts]
    missing = set(commands) - {name for part in parts if (name := _name(part, commands))}
    if missing:
        raise SystemExit(f"docs/reference/cli.md has no section for: {', '.join(sorted(missing))}")
    codes = [f"| {code.value} | {meaning} |\n" for code, meaning in MEANINGS.items()]
    codes.append(f"| {INTERRUPTED} | interrupted with Ctrl-C |\n")
    return _CODES.sub(lambda _: "".join(codes), "".join(written))


def leaves(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], Verb]]:
    """Yield every command that does something, with its words."""
    if isinstance(command, Verb):
        yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, *path, name)


def _name(part: str, commands: dict[str, Verb]) -> str | None:
    """Return the command that a section is about: the longest name that begins its heading."""
    match = re.match(r"## `holdfast ([^`]*)`", part)
    words = match[1].split() if match else []
    names = (" ".join(words[:count]) for count in (2, 1))
    return next((name for name in names if name in commands), None)


def _section(part: str, commands: dict[str, Verb]) -> str:
    name = _name(part, commands)
    if name is None:
        return part
    heading, _, body = part.partition("\n")
    del heading
    command = commands[name]
    return f"## `holdfast {name}{_synopsis(command)}`\n\n{_table(command)}{body.lstrip()}"


def _synopsis(command: Verb) -> str:
    """Return the arguments and whether there are options: `URI SHARD [OPTIONS]`."""
    shown = [str(one.metavar) for one in command.params if isinstance(one, Argument)]
    return "".join(f" {word}" for word in [*shown, "[OPTIONS]"])


def _table(command: Verb) -> str:
    """Return a table of what only this command, or few, take; empty if there is nothing."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    own = [one for one in options if not {*SHARED} & {*one.opts} or _says_more(one)]
    if not own:
        return ""
    lines = ["<!-- options -->", "| option | meaning |", "|---|---|"]
    for one in own:
        value = "" if one.is_flag else f" {one.metavar}"
        names = ", ".join(f"`{name}{value}`" for name in one.opts)
        lines.append(f"| {_cell(names)} | {_cell(one.help or '')} |")
    return "\n".join([*lines, "<!-- /options -->", "", ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _says_more(one: click.Option) -> bool:
    """Tell whether a shared option means something of its own here."""
    return "--confirm" in one.opts and one.help != CONFIRM.help
