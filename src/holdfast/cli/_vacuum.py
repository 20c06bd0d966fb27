"""`holdfast vacuum URI`: show what nobody needs in a table; with `--confirm`, delete it."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.cli._table import add_commit_store
from holdfast.errors import InvalidInputError
from holdfast.upkeep import GRACE, Leftover, LeftoverKind, VacuumResult
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
        help=f"how old a leftover must be: 7d, 12h, 90m; {GRACE.days}d by default, 1h at least",
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
        "leftovers": [_shown(one) for one in done.leftovers],
        "listed": done.raised,
        "waiting": [_shown(one) for one in done.waiting],
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


def parse_interval(text: str) -> timedelta:
    """Return a time of at least a second: 30s, 1m, 1h.

    Raises:
        InvalidInputError: it is none.
    """
    if re.fullmatch("[1-9][0-9]{0,4}s", text):
        return timedelta(seconds=int(text[:-1]))
    return parse_duration(text, "a time")


def _shown(one: Leftover) -> dict[str, object]:
    return {
        "kind": one.kind.value,
        "path": one.path,
        "bytes": one.size,
        "age_seconds": int(one.age.total_seconds()),
        "reason": one.reason,
    }


def _text(done: VacuumResult) -> str:
    if not done.leftovers and not done.waiting:
        return "nothing to delete"
    lines: list[str] = []
    if done.leftovers:
        title = "deleted:" if done.applied else "plan: delete what nobody needs"
        lines += [title, *_summary(done.leftovers, named=not done.applied)]
    if done.waiting:
        lines += [_waiting_title(done), *_summary(done.waiting, named=not done.applied)]
        lines.append("  a later run deletes what was listed, once the grace period has passed")
    if not done.applied and (done.leftovers or done.raised):
        lines.append("Add --confirm to do it")
    return "\n".join(lines)


def _waiting_title(done: VacuumResult) -> str:
    if done.raised:
        return "listed:" if done.applied else "plan: list what a later run deletes"
    return "waiting for the grace period to pass since the last list:"


def _summary(leftovers: Sequence[Leftover], *, named: bool) -> list[str]:
    objects = Counter(one.kind for one in leftovers)
    sizes: Counter[LeftoverKind] = Counter()
    for one in leftovers:
        sizes[one.kind] += one.size
    lines = [f"  {kind:<13} {objects[kind]:>6} objects {sizes[kind]:>12} bytes" for kind in objects]
    if named:
        some = leftovers[:_SHOWN]
        lines += [f"  {one.path}: {one.reason}, {one.age.days} days old" for one in some]
        if len(leftovers) > _SHOWN:
            lines.append(f"  and {len(leftovers) - _SHOWN} more; --json lists them all")
    return lines
