"""`holdfast index VERB URI ...`: create, refresh, list, show, finalize and search indexes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.cli._declare import Target
from holdfast.cli._output import SESSION, Exit, print_result
from holdfast.cli._terminal import Bar, table_text
from holdfast.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from holdfast.index import Progress

_SHOWN_CHARS = 60


def create(
    target: Target,
    *,
    column: str,
    name: str | None,
    parameter: tuple[str, ...],
    tasks: int | None,
    memory_mb: int | None,
    replace: bool,
) -> Exit:
    """Index a column."""
    with _open_table(target) as table, Building() as progress:
        done = table.create_index(
            column,
            "fts",
            name=name,
            replace=replace,
            tasks=tasks,
            memory_mb=memory_mb,
            progress=progress,
            **_parameters(parameter),
        )
    return _print_built(done)


def refresh(target: Target, name: str, tasks: int | None, memory_mb: int | None) -> Exit:
    """Index what was added since."""
    with _open_table(target) as table, Building() as progress:
        done = table.refresh_index(
            name, tasks=1 if tasks is None else tasks, memory_mb=memory_mb, progress=progress
        )
    return _print_built(done)


def finalize(target: Target, build: str) -> Exit:
    """Bring a build to its end."""
    with _open_table(target) as table, Building() as progress:
        done = table.finalize_index(build, progress=progress)
    return _print_built(done)


def ls(target: Target) -> Exit:
    """List indexes and open builds."""
    with _open_table(target) as table:
        indexes = [asdict(info) for info in table.indexes()]
        builds = [asdict(info) for info in table.index_builds()]
    lines = [
        f"{one['name']}  {one['kind']} on {', '.join(one['columns'])}, {one['rows']} rows"
        + (f", {one['uncovered']} fragments to refresh" if one["uncovered"] else "")
        for one in indexes
    ]
    lines += [
        f"build {one['build_id']}  {one['index']} on {one['column']}, "
        f"{one['finished']} of {one['tasks']} tasks finished"
        for one in builds
    ]
    text = "\n".join(lines) or "no indexes, and no open builds"
    print_result({"indexes": indexes, "builds": builds}, text)
    return Exit.OK


def show(target: Target, name: str) -> Exit:
    """Show one index."""
    with _open_table(target) as table:
        index = next((one for one in table.indexes() if one.name == name), None)
    if index is None:
        raise NotFoundError("there is no index of this name", index=name)
    shown = asdict(index)
    lines = [index.name, *(f"  {key:<11} {_text(shown[key])}" for key in shown if key != "name")]
    print_result(shown, "\n".join(lines))
    return Exit.OK


def search(
    target: Target,
    *,
    column: str,
    query: str,
    limit: int,
    columns: str | None,
    condition: str | None,
) -> Exit:
    """Search a column."""
    wanted = None if columns is None else columns.split(",")
    with _open_table(target) as table:
        answer = table.search(column, query, limit, columns=wanted, filter=condition)
    rows: list[dict[str, Any]] = answer.to_pylist()  # Any: whatever the columns hold
    names = [name for name in answer.column_names if name != "_score"]
    cells = [[f"{row['_score']:.3f}", *(_short(row[name]) for name in names)] for row in rows]
    text = table_text(["score", *names], cells) if rows else "nothing found"
    print_result({"rows": json.loads(json.dumps(rows, default=str))}, text)
    return Exit.OK


@contextmanager
def _open_table(target: Target) -> Iterator[holdfast.Table]:
    opened = holdfast.open_table(target.uri, target.options, commit_store=target.commit_store)
    with closing(opened) as table:
        yield table


class Building(Bar):
    """Stages on stderr as they get on: a bar at a terminal, a line each elsewhere."""

    def __init__(self) -> None:
        super().__init__(quiet=SESSION.quiet)

    def __call__(self, progress: Progress) -> None:
        """Say how far a stage is."""
        if self.is_shown:
            self.show(progress.stage.value, progress.done, progress.total)
        elif progress.done == progress.total and not SESSION.quiet:
            text = f"{progress.stage.value:<7} {progress.done}/{progress.total}"
            print(text, file=sys.stderr, flush=True)


def _parameters(pairs: Sequence[str]) -> dict[str, Any]:  # Any: JSON
    """Return `KEY=VALUE` arguments; a value is JSON if it reads as such, else a text."""
    parameters: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidInputError("an index parameter is KEY=VALUE", given=repr(pair[:40]))
        try:
            parameters[key] = json.loads(value)
        except ValueError:
            parameters[key] = value
    return parameters


def _print_built(done: Any) -> Exit:  # noqa: ANN401 - IndexResult
    shown = {**asdict(done), "txn": None if done.txn is None else str(done.txn)}
    if done.applied:
        text = (
            f"{done.name}: {done.rows} documents in {done.partitions} parts, version "
            f"{done.version}" + (f"; {done.reused} tasks reused" if done.reused else "")
        )
    else:
        text = f"{done.name}: complete already, version {done.version}"
    if done.uncovered:
        text += f"\n{done.uncovered} fragments are not covered: `holdfast index refresh`"
    print_result(shown, text)
    return Exit.OK


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
