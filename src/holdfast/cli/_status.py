"""`holdfast status URI`: how a table is doing, or every table below a root."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict

from holdfast._clock import SystemClock
from holdfast.cli._declare import Target
from holdfast.cli._output import SESSION, Exit, age_text, print_result
from holdfast.cli._roots import run_for_all
from holdfast.cli._terminal import is_terminal, paint
from holdfast.cli._vacuum import parse_interval
from holdfast.table import open_table
from holdfast.upkeep import Schedule, ShardStatus, Status

_CLEAR = "\x1b[H\x1b[2J"


def run(target: Target, watch: str | None, *, check: bool, every_table: bool) -> Exit:
    """Show one table, or all below a root, once or again and again."""

    def show() -> Exit:
        if every_table:
            return run_for_all(target, lambda one: _show(one, _line, check=check))
        return _show(target, _text, check=check)

    if watch is None:
        return show()

    def work() -> None:
        if is_terminal(sys.stdout) and not SESSION.as_json:
            print(_CLEAR, end="")
        show()
        sys.stdout.flush()

    Schedule(parse_interval(watch, "--watch"), work, SystemClock()).run()
    return Exit.OK


def _show(target: Target, text_of: Callable[[Status], str], *, check: bool) -> Exit:
    opened = open_table(target.uri, target.options, commit_store=target.commit_store)
    with closing(opened) as table:
        status = table.status()
    print_result({**asdict(status), "ok": status.ok}, text_of(status))
    return Exit.OK if status.ok or not check else Exit.UNFIT


def _line(status: Status) -> str:
    """Return one line, for a list of tables."""
    lag = sum(shard.lag_entries for shard in status.shards)
    waiting = sum(shard.generations for shard in status.shards)
    kinds = ", ".join(sorted({one.kind.value for one in status.alerts}))
    state = paint("ok", "green") if status.ok else paint(kinds, "red")
    return (
        f"{status.uri}  version {status.version}  {status.rows} rows  "
        f"{status.fragments} fragments  log {lag} entries  {waiting} generations  "
        f"{len(status.wants)} wants  {state}"
    )


def _text(status: Status) -> str:
    """Return everything, for people."""
    size = f"{status.versions_bytes:,} bytes of manifests"
    lines = [
        ("version", f"{status.version}; {status.versions} kept, {size}"),
        ("rows", f"{status.rows} in {status.fragments} fragments"),
        ("decided by", status.commit_store or status.arbiter),
        ("table id", status.table_id or "-"),
    ]
    if status.newest_recorded is not None:
        ahead = f"recorded {status.newest_recorded}, in the store {status.newest_in_store}"
        lines.append(("newest", ahead))
    if status.unfinished:
        lines.append(("unfinished", _numbers(status.unfinished)))
    if status.foreign:
        lines.append(("foreign", f"{_numbers(status.foreign)}: see `holdfast doctor`"))
    if status.staged_objects:
        lines.append(("staged", f"{status.staged_objects} objects, {status.staged_bytes} bytes"))
    lines += [("shard", _shard(one)) for one in status.shards]
    for index in status.indexes or ():
        behind = f"{index.rows_behind} rows behind" if index.rows_behind else "up to date"
        lines.append(("index", f"{index.name} ({index.kind}): {behind}"))
    for want in status.wants:
        lines += [("wants", f"{want.what}: {want.cost}"), ("", f"$ {want.command}")]
    for alert in status.alerts:
        lines += [(alert.kind.value.upper(), alert.what), ("", f"$ {alert.command}")]
    return "\n".join(
        [
            paint(status.uri, "bold"),
            *(f"  {_title(name)} {value}".rstrip() for name, value in lines),
        ]
    )


def _title(name: str) -> str:
    """Return what stands before a line: an alert is red, what waits for upkeep yellow."""
    colour = "red" if name.isupper() else "yellow" if name == "wants" else ""
    return paint(f"{name:<11}", colour)


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
