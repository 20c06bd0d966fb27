"""`holdfast status URI`: how a table is doing, or every table below a root."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from dataclasses import asdict

from holdfast._clock import SystemClock
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, age_text, print_result
from holdfast.cli._roots import add_all, run_for_all
from holdfast.cli._table import add_commit_store
from holdfast.cli._vacuum import parse_interval
from holdfast.options import StorageOptions
from holdfast.table import open_table
from holdfast.upkeep import Schedule, ShardStatus, Status

_CLEAR = "\x1b[H\x1b[2J"


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "status",
        help="show how a table is doing",
        description="Show how a table is doing: versions, shards, indexes, what waits for "
        "upkeep and what needs a person. Reads only.",
        allow_abbrev=False,
    )
    add_table(parser)
    add_commit_store(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit code 1 if something is foreign, regressed, missing, stuck or overdue",
    )
    add_all(parser)
    parser.add_argument(
        "--watch",
        metavar="TIME",
        nargs="?",
        const="2s",
        help="show it again and again until Ctrl-C, every 2s or as given",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Show one table, or all below a root, once or again and again."""
    if arguments.watch is None:
        return _show(arguments)

    def work() -> None:
        if sys.stdout.isatty() and not arguments.json:
            print(_CLEAR, end="")
        _show(arguments)
        sys.stdout.flush()

    Schedule(parse_interval(arguments.watch), work, SystemClock()).run()
    return Exit.OK


def _show(arguments: argparse.Namespace) -> Exit:
    options = storage_options(arguments.option)
    if arguments.all:
        return run_for_all(arguments, options, lambda uri: _one(arguments, options, uri))
    return _one(arguments, options, arguments.uri)


def _one(arguments: argparse.Namespace, options: StorageOptions, uri: str) -> Exit:
    opened = open_table(uri, options, commit_store=arguments.commit_store)
    with closing(opened) as table:
        found = table.status()
    shown = {**asdict(found), "ok": found.ok}
    text = status_line(found) if arguments.all else status_text(found)
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK if found.ok or not arguments.check else Exit.UNFIT


def status_line(found: Status) -> str:
    """Return one line, for a list of tables."""
    lag = sum(shard.lag_entries for shard in found.shards)
    waiting = sum(shard.generations for shard in found.shards)
    state = "ok" if found.ok else ", ".join(sorted({one.kind.value for one in found.alerts}))
    return (
        f"{found.uri}  version {found.version}  {found.rows} rows  {found.fragments} fragments  "
        f"log {lag} entries  {waiting} generations  {len(found.wants)} wants  {state}"
    )


def status_text(found: Status) -> str:
    """Return everything, for people."""
    size = f"{found.versions_bytes:,} bytes of manifests"
    lines = [
        ("version", f"{found.version}; {found.versions} kept, {size}"),
        ("rows", f"{found.rows} in {found.fragments} fragments"),
        ("decided by", found.commit_store or found.arbiter),
        ("table id", found.table_id or "-"),
    ]
    if found.newest_recorded is not None:
        ahead = f"recorded {found.newest_recorded}, in the store {found.newest_in_store}"
        lines.append(("newest", ahead))
    if found.unfinished:
        lines.append(("unfinished", _numbers(found.unfinished)))
    if found.foreign:
        lines.append(("foreign", f"{_numbers(found.foreign)}: see `holdfast doctor`"))
    if found.staged_objects:
        lines.append(("staged", f"{found.staged_objects} objects, {found.staged_bytes} bytes"))
    lines += [("shard", _shard(one)) for one in found.shards]
    for index in found.indexes or ():
        behind = f"{index.rows_behind} rows behind" if index.rows_behind else "up to date"
        lines.append(("index", f"{index.name} ({index.kind}): {behind}"))
    for want in found.wants:
        lines += [("wants", f"{want.what}: {want.cost}"), ("", f"$ {want.command}")]
    for alert in found.alerts:
        lines += [(alert.kind.value.upper(), alert.what), ("", f"$ {alert.command}")]
    return "\n".join([found.uri, *(f"  {name:<11} {value}".rstrip() for name, value in lines)])


def _shard(one: ShardStatus) -> str:
    if one.problem is not None:
        return f"{one.shard}: {one.problem}"
    parts = [f"{one.shard} epoch {one.epoch}"]
    parts.append(f"flushed to {one.flushed} of {one.newest}")
    if one.oldest_unflushed_seconds is not None:
        oldest = age_text(one.oldest_unflushed_seconds)
        parts.append(f"{one.lag_entries} entries wait, the oldest for {oldest}")
    if one.generations:
        parts.append(f"{one.generations} generations of {one.generation_rows} rows wait")
    if one.last_put_seconds is not None:
        parts.append(f"last written {age_text(one.last_put_seconds)} ago")
    parts += [f"by {one.owner}"] if one.owner else []
    parts += ["sealed"] if one.sealed else []
    return ", ".join(parts)


def _numbers(versions: tuple[int, ...]) -> str:
    return ", ".join(str(version) for version in versions)
