"""`holdfast vacuum URI`: show what nobody needs in a table; with `--confirm`, delete it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_result
from holdfast.cli._upkeep import ReadingProgress
from holdfast.errors import InvalidInputError
from holdfast.upkeep import Leftover, LeftoverKind, VacuumResult, vacuum

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SHOWN = 20


def run(
    target: Target,
    what: tuple[str, ...],
    older_than: str,
    keep_versions_for: str | None,
    *,
    confirm: bool,
) -> Exit:
    """Plan, or delete."""
    kept = keep_versions_for and parse_duration(keep_versions_for, "--keep-versions-for")
    with ReadingProgress() as progress:
        done = vacuum(
            target.uri,
            target.options,
            what=what or None,
            grace=parse_duration(older_than),
            keep_versions_for=kept or None,
            confirm=confirm,
            commit_store=target.commit_store,
            progress=progress,
        )
    shown = {
        "done": done.applied,
        "uri": target.uri,
        "version": done.version,
        "objects": len(done.leftovers),
        "bytes": done.size,
        "leftovers": [_leftover_fields(one) for one in done.leftovers],
        "listed": done.raised,
        "waiting": [_leftover_fields(one) for one in done.waiting],
    }
    print_result(shown, _text(done))
    return Exit.OK


def parse_duration(text: str, option: str = "--older-than") -> timedelta:
    """Return the time behind `7d`, `12h` or `90m`.

    Raises:
        InvalidInputError: it is none.
    """
    match = re.fullmatch("([0-9]{1,5})([dhm])", text.strip())
    if match is None:
        raise InvalidInputError(f"{option} is a time such as 7d, 12h or 90m", given=text[:40])
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def parse_interval(text: str, option: str) -> timedelta:
    """Return a time of at least a second: 30s, 1m, 1h.

    Raises:
        InvalidInputError: it is none.
    """
    match = re.fullmatch("0*([1-9][0-9]{0,4})([smhd])", text.strip())
    if match is None:
        raise InvalidInputError(f"{option} is a time such as 30s, 5m or 1h", given=text[:40])
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _leftover_fields(one: Leftover) -> dict[str, object]:
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
