"""`holdfast pin URI`: what is a table tied to? And the way on after its files were moved."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from holdfast.arbiter import read_pin, repin
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.errors import NotFoundError
from holdfast.storage import open_store


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "pin",
        help="show what a table is tied to; tie it again after a move or a copy",
        description="Show the arbiter that a table is tied to. With --moved or --copied, and "
        "--confirm, tie a table whose files were moved or copied to its commit store again.",
        allow_abbrev=False,
    )
    add_table(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--moved", action="store_true", help="the old place is gone: same table")
    how.add_argument("--copied", action="store_true", help="both go on: this one gets a new id")
    parser.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Show the pin, or plan, or make the change."""
    options = storage_options(arguments.option)
    store = open_store(arguments.uri, options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    change = arguments.moved or arguments.copied
    if change and arguments.confirm:
        pin = repin(arguments.uri, options, copied=arguments.copied).pin
    shown = {"done": bool(change and arguments.confirm), "here": store.location, **asdict(pin)}
    lines = [f"{k}: {v}" for k, v in shown.items() if v is not None and (change or k != "done")]
    if change and not arguments.confirm:
        what = "get a new table id" if arguments.copied else "keep its table id"
        lines.append(f"plan: tie the table to {store.location} and {what}; add --confirm to do it")
    print_result(shown, "\n".join(lines), as_json=arguments.json)
    return Exit.OK
