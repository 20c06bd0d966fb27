"""`holdfast pin URI`: what is a table tied to? And the way on under an unknown address."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict

from holdfast.arbiter import Repin, address_of, check_repin, read_pin, repin
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.cli._table import add_commit_store
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import ArbiterKind
from holdfast.storage import open_store
from holdfast.upkeep import FindingKind, doctor

_HOW: dict[str, tuple[str, str]] = {
    "alias": (
        "the same files by another way: another endpoint, a mount",
        "let the table be opened from here as well",
    ),
    "moved": (
        "the files are here now, the old place is gone: same table",
        "let the table be opened from here, and from nowhere else any more",
    ),
    "copied": (
        "both go on: this one gets a new id",
        "give this copy an id of its own, and count what it holds as decided",
    ),
}


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "pin",
        help="show what a table is tied to; let it be opened under a new address",
        description="Show the arbiter that a table is tied to. With --alias, --moved or "
        "--copied, and --confirm, let a table be opened whose files are met under an address "
        "that its commit store does not know, and check that all files are here.",
        allow_abbrev=False,
    )
    add_table(parser)
    how = parser.add_mutually_exclusive_group()
    for word, text in _HOW.items():
        how.add_argument(f"--{word}", dest="how", action="store_const", const=word, help=text[0])
    parser.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    add_json(parser)
    add_commit_store(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Show the pin, or plan, or make the change."""
    options = storage_options(arguments.option)
    store = open_store(arguments.uri, options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    how: Repin | None = arguments.how
    if how and not arguments.confirm:
        check_repin(arguments.uri, options, commit_store=arguments.commit_store)
    if how and arguments.confirm:
        pin = repin(arguments.uri, options, how=how, commit_store=arguments.commit_store).pin
    address = None if pin.arbiter is ArbiterKind.CONDITIONAL_PUT else address_of(store)
    done = bool(how and arguments.confirm)
    shown = {"done": done, "here": store.location, "address": address, **asdict(pin)}
    lines = [f"{k}: {v}" for k, v in shown.items() if v is not None and (how or k != "done")]
    if how and not arguments.confirm:
        lines.append(f"plan: {_HOW[how][1]}; add --confirm to do it")
    missing = _missing_files(arguments.uri, options) if done and how != "alias" else []
    lines += [f"not here: {what}" for what in missing]
    if missing:
        lines.append("stop writers, copy again what is missing, then look with `holdfast doctor`")
    if done:
        shown["missing"] = missing
    print_result(shown, "\n".join(lines), as_json=arguments.json)
    return Exit.UNFIT if missing else Exit.OK


def _missing_files(uri: str, options: Mapping[str, str]) -> list[str]:
    """Return what the table's versions name and a copy of its files left behind."""
    try:
        findings = doctor(uri, options).findings
    except InvalidInputError:  # no manifests that it can read: nothing to miss
        return []
    return [
        finding.path or finding.what for finding in findings if finding.kind is FindingKind.MISSING
    ]
