"""`holdfast maintain URI`: do what a table needs now; delete only with `--confirm`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields
from datetime import timedelta
from typing import Any

from holdfast._clock import SystemClock
from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_error, print_result
from holdfast.cli._roots import run_for_all
from holdfast.cli._vacuum import parse_duration, parse_interval
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.table import open_table
from holdfast.upkeep import MaintainResult, Policy, Schedule, StepState


def run(
    target: Target,
    settings: tuple[str, ...],
    every: str | None,
    *,
    dry_run: bool,
    confirm: bool,
    every_table: bool,
) -> Exit:
    """Maintain a table, or all below a root, once or again and again."""
    policy = parse_policy(settings)

    def maintain(one: Target) -> Exit:
        opened = open_table(one.uri, one.options, commit_store=one.commit_store)
        with closing(opened) as table:
            done = table.maintain(policy, dry_run=dry_run, confirm=confirm)
        return _print_done(one.uri if every_table else None, table.uri, done)

    def maintain_all() -> Exit:
        return run_for_all(target, maintain) if every_table else maintain(target)

    if every is None:
        return maintain_all()
    if not every_table:  # wrong from the beginning is told, and ends it
        open_table(target.uri, target.options, commit_store=target.commit_store).close()

    def work() -> None:  # a run that fails is told, and does not end it
        try:
            maintain_all()
        except HoldfastError as error:
            print_error(error)
        sys.stdout.flush()

    Schedule(parse_interval(every, "--every"), work, SystemClock()).run()
    return Exit.OK


def _print_done(title: str | None, uri: str, done: MaintainResult) -> Exit:
    shown = {
        "uri": uri,
        "version": done.version,
        "rows": done.rows,
        "applied": done.applied,
        "steps": [
            {
                "kind": one.kind.value,
                "target": one.target,
                "reason": one.reason,
                "state": one.state.value,
                "outcome": one.outcome,
            }
            for one in done.steps
        ],
    }
    steps = "\n".join(str(step) for step in done.steps) or "nothing to do"
    print_result(shown, steps if title is None else f"{title}:\n{steps}")
    failed = any(one.state is StepState.FAILED for one in done.steps)
    return Exit.UNFIT if failed else Exit.OK


def parse_policy(settings: Sequence[str]) -> Policy:
    """Return a policy with these settings.

    Raises:
        InvalidInputError: one is unknown, or its value is none.
    """
    known = {one.name: one for one in fields(Policy)}
    given: dict[str, Any] = {}  # Any: numbers and times, by name
    for text in settings:
        name, _, value = text.partition("=")
        if name not in known:
            raise InvalidInputError("no such setting", name=name[:40], known=", ".join(known))
        if known[name].default is None or isinstance(known[name].default, timedelta):
            given[name] = parse_duration(value)
        elif value.isdecimal():
            given[name] = int(value)
        else:
            raise InvalidInputError("this setting is a number", name=name, value=value[:40])
    return Policy(**given)
