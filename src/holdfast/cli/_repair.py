"""`holdfast repair URI`: the one way back for a damaged table; plans until `--confirm`."""

from __future__ import annotations

import argparse

from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.cli._table import add_commit_store
from holdfast.cli._upkeep import finding_fields
from holdfast.upkeep import RepairResult, RepairState, RepairStep
from holdfast.upkeep import repair as run_repair

_PLACES = {
    "alias": "the same files, reached in another way: another endpoint, a mount",
    "moved": "the files are here now, and the old place is gone",
    "copied": "both go on: this one gets an id of its own",
}


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "repair",
        help="put right what is damaged: pin, address, commit store, objects, records, logs",
        description="Find what can be put right of a table, and say what it would do until "
        "--confirm is given. Stop all writers first. Exit code 0 when nothing is left to do, 1 "
        "when something is.",
        allow_abbrev=False,
    )
    add_table(parser)
    add_commit_store(parser)
    where = parser.add_mutually_exclusive_group()
    for word, text in _PLACES.items():
        where.add_argument(f"--{word}", dest="place", action="store_const", const=word, help=text)
    parser.add_argument(
        "--new-commit-store",
        metavar="URL",
        help="the table's commit store is lost for good: this one decides from now on",
    )
    parser.add_argument(
        "--conditional-put",
        action="store_true",
        help="for a damaged pin: this table decides by its object store",
    )
    parser.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    add_json(parser)
    parser.set_defaults(run=repair)


def repair(arguments: argparse.Namespace) -> Exit:
    """Plan or do a repair."""
    done = run_repair(
        arguments.uri,
        storage_options(arguments.option),
        place=arguments.place,
        new_commit_store=arguments.new_commit_store,
        conditional_put=arguments.conditional_put,
        commit_store=arguments.commit_store,
        confirm=arguments.confirm,
    )
    shown = {
        "uri": done.uri,
        "version": done.version,
        "done": done.confirmed,
        "applied": done.applied,
        "whole": done.whole,
        "steps": [_step(one) for one in done.steps],
        "left": [finding_fields(one) for one in done.left],
        "elapsed_seconds": round(done.elapsed, 3),
    }
    print_result(shown, _text(done), as_json=arguments.json)
    return Exit.OK if done.whole else Exit.UNFIT


def _step(one: RepairStep) -> dict[str, object]:
    return {
        "kind": one.kind.value,
        "state": one.state.value,
        "what": one.what,
        "path": one.path,
        "loses": one.loses,
        "kept": list(one.kept),
        "commands": list(one.command),
    }


def _text(done: RepairResult) -> str:
    lines = []
    for one in done.steps:
        lines.append(str(one))
        lines += [f"         {one.path}"] if one.path else []
        lines += [f"         the bytes that were there: {path}" for path in one.kept]
        lines += [f"         $ {command}" for command in one.command]
    for finding in done.left:
        lines += [f"left     {finding.what}", f"         -> {finding.advice}"]
        lines += [f"         $ {finding.command}"] if finding.command else []
    if done.whole:
        lines.append("nothing is left to repair" if done.steps else "nothing to repair")
    elif any(one.state is RepairState.PLANNED for one in done.steps):
        lines.append("plan: stop all writers, then add --confirm to do it")
    return "\n".join(lines)
