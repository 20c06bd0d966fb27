"""`holdfast vacuum URI`: show what nobody needs in a table; with `--confirm`, delete it."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from datetime import timedelta

from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.cli._table import add_commit_store
from holdfast.errors import InvalidInputError
from holdfast.upkeep import GRACE, LeftoverKind, VacuumResult
from holdfast.upkeep import vacuum as run_vacuum

_UNITS = {"d": "days", "h": "hours", "m": "minutes"}
_SHOWN = 20


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "show what nobody needs in a table; with --confirm, delete it"
    parser = verbs.add_parser("vacuum", help=text, description=text, allow_abbrev=False)
    add_table(parser)
    parser.add_argument(
        "--what",
        metavar="KIND",
        action="append",
        help=f"only leftovers of this kind: {', '.join(LeftoverKind)}; repeat for more",
    )
    parser.add_argument(
        "--older-than",
        metavar="TIME",
        default=f"{GRACE.days}d",
        help=f"how old a leftover must be: 7d, 12h, 90m; {GRACE.days}d unless told, 1h at least",
    )
    parser.add_argument(
        "--keep-versions-for",
        metavar="TIME",
        help="let go of versions, too: those that a newer one replaced longer ago than this; 7d "
        "at least; tagged ones stay. Without it all versions stay",
    )
    parser.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    add_json(parser)
    add_commit_store(parser)
    parser.set_defaults(run=vacuum)


def vacuum(arguments: argparse.Namespace) -> Exit:
    """Plan, or delete."""
    done = run_vacuum(
        arguments.uri,
        storage_options(arguments.option),
        what=arguments.what,
        grace=parse_duration(arguments.older_than),
        keep_versions_for=_kept(arguments.keep_versions_for),
        confirm=arguments.confirm,
        commit_store=arguments.commit_store,
    )
    shown = {
        "done": done.applied,
        "uri": arguments.uri,
        "version": done.version,
        "objects": len(done.leftovers),
        "bytes": done.size,
        "leftovers": [
            {
                "kind": one.kind.value,
                "path": one.path,
                "bytes": one.size,
                "age_seconds": int(one.age.total_seconds()),
                "reason": one.reason,
            }
            for one in done.leftovers
        ],
    }
    print_result(shown, _text(done), as_json=arguments.json)
    return Exit.OK


def _kept(text: str | None) -> timedelta | None:
    return None if text is None else parse_duration(text, "--keep-versions-for")


def parse_duration(text: str, option: str = "--older-than") -> timedelta:
    """Return the time behind `7d`, `12h` or `90m`.

    Raises:
        InvalidInputError: it is none.
    """
    match = re.fullmatch("([0-9]{1,5})([dhm])", text.strip())
    if match is None:
        raise InvalidInputError(f"{option} is a time such as 7d, 12h or 90m", given=text[:40])
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _text(done: VacuumResult) -> str:
    if not done.leftovers:
        return "nothing to delete"
    objects = Counter(one.kind for one in done.leftovers)
    sizes: Counter[LeftoverKind] = Counter()
    for one in done.leftovers:
        sizes[one.kind] += one.size
    lines = [f"  {kind:<13} {objects[kind]:>6} objects {sizes[kind]:>12} bytes" for kind in objects]
    if done.applied:
        return "\n".join(["deleted:", *lines])
    some = done.leftovers[:_SHOWN]
    lines += [f"  {one.path}: {one.reason}, {one.age.days} days old" for one in some]
    if len(done.leftovers) > _SHOWN:
        lines.append(f"  and {len(done.leftovers) - _SHOWN} more; --json lists them all")
    return "\n".join(["plan: delete what nobody needs", *lines, "Add --confirm to do it"])
