"""`holdfast maintain URI`: do what a table needs now; delete only with `--confirm`."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from dataclasses import fields
from datetime import timedelta
from typing import Any

from holdfast._clock import SystemClock
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_error, print_result
from holdfast.cli._roots import add_all, run_for_all
from holdfast.cli._table import add_commit_store
from holdfast.cli._vacuum import parse_duration, parse_interval
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.options import StorageOptions
from holdfast.table import Table, open_table
from holdfast.upkeep import MaintainResult, Policy, Schedule, StepState


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "maintain",
        help="flush, merge, compact, refresh indexes; with --confirm, vacuum",
        description="Do what a table needs now. Safe anywhere, at any time, in several places "
        "at once. Exit code 1 when a step failed; steps that wait are done by the next run.",
        allow_abbrev=False,
    )
    add_table(parser)
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of the policy, such as generations=2 or log_age=10m: "
        + ", ".join(one.name for one in fields(Policy)),
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument("--confirm", action="store_true", help="let vacuum delete")
    parser.add_argument(
        "--every",
        metavar="TIME",
        help="go on: again so long after each run began, such as 30s or 5m, until Ctrl-C",
    )
    add_all(parser)
    add_json(parser)
    add_commit_store(parser)
    parser.set_defaults(run=maintain)


def maintain(arguments: argparse.Namespace) -> Exit:
    """Maintain a table."""
    policy = parse_policy(arguments.set)
    options = storage_options(arguments.option)
    if arguments.every is not None:
        return _go_on(arguments, options, policy)
    return _run(arguments, options, policy)


def _run(arguments: argparse.Namespace, options: StorageOptions, policy: Policy) -> Exit:
    if arguments.all:
        return run_for_all(
            arguments, options, lambda uri: _maintain_one(arguments, options, policy, uri)
        )
    return _maintain_one(arguments, options, policy, arguments.uri)


def _maintain_one(
    arguments: argparse.Namespace, options: StorageOptions, policy: Policy, uri: str
) -> Exit:
    opened = open_table(uri, options, commit_store=arguments.commit_store)
    with closing(opened) as table:
        return _run_once(arguments, table, policy)


def _go_on(arguments: argparse.Namespace, options: StorageOptions, policy: Policy) -> Exit:
    """Maintain until interrupted; a run that fails is told, and does not end it."""
    if not arguments.all:  # wrong from the beginning is told, and ends it
        open_table(arguments.uri, options, commit_store=arguments.commit_store).close()

    def work() -> None:
        try:
            _run(arguments, options, policy)
        except HoldfastError as error:
            print_error(error, as_json=arguments.json)
        sys.stdout.flush()

    Schedule(parse_interval(arguments.every), work, SystemClock()).run()
    return Exit.OK


def _run_once(arguments: argparse.Namespace, table: Table, policy: Policy) -> Exit:
    done = table.maintain(policy, dry_run=arguments.dry_run, confirm=arguments.confirm)
    shown = {
        "uri": table.uri,
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
    where = f"{table.uri}:\n" if arguments.all else ""
    print_result(shown, where + _text(done), as_json=arguments.json)
    failed = any(one.state is StepState.FAILED for one in done.steps)
    return Exit.UNFIT if failed else Exit.OK


def parse_policy(settings: list[str]) -> Policy:
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


def _text(done: MaintainResult) -> str:
    if not done.steps:
        return "nothing to do"
    return "\n".join(str(step) for step in done.steps)
