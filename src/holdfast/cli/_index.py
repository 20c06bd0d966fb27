"""`holdfast index VERB URI ...`: create, refresh, list, show, finalize and search indexes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.cli._table import add_commit_store
from holdfast.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from holdfast.index import Progress, Watch

_SHOWN_CHARS = 60


def add(nouns: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "build, list and search full-text indexes"
    noun = nouns.add_parser("index", help=text, description=text, allow_abbrev=False)
    verbs = noun.add_subparsers(title="commands", metavar="COMMAND", required=True)

    parser = _command(verbs, "create", create, "index a text column")
    parser.add_argument("column", metavar="COLUMN", help="a column of text")
    parser.add_argument("--name", metavar="NAME", help="COLUMN_idx by default")
    parser.add_argument("--replace", action="store_true", help="replace one built otherwise")
    parser.add_argument(
        "-p",
        "--parameter",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="how text becomes words, by Lance's name: with_position=true; repeat for more",
    )
    _add_build(parser)

    parser = _command(verbs, "refresh", refresh, "index what was added since")
    parser.add_argument("name", metavar="NAME", help="the index")
    _add_build(parser)

    parser = _command(verbs, "finalize", finalize, "bring a build to its end")
    parser.add_argument("build", metavar="BUILD", help="the build's id, from `index ls`")
    _add_progress(parser)

    _command(verbs, "ls", ls, "list indexes and open builds")
    parser = _command(verbs, "show", show, "show one index")
    parser.add_argument("name", metavar="NAME", help="the index")

    parser = _command(verbs, "search", search, "search a text column")
    parser.add_argument("column", metavar="COLUMN", help="where to look")
    parser.add_argument("query", metavar="QUERY", help='words with AND, OR, NOT, "phrases"')
    parser.add_argument("-n", "--limit", metavar="N", type=int, default=10, help="how many rows")
    parser.add_argument("--columns", metavar="A,B", help="which columns; all by default")
    parser.add_argument("--filter", metavar="SQL", help="a condition that rows must meet, too")


def _command(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    verb: str,
    run: Callable[[argparse.Namespace], Exit],
    text: str,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(verb, help=text, description=text, allow_abbrev=False)
    add_table(parser)
    add_json(parser)
    add_commit_store(parser)
    parser.set_defaults(run=run)
    return parser


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", metavar="N", type=int, help="build in N steps, resumable")
    parser.add_argument("--memory-mb", metavar="MIB", type=int, help="what a step may build with")
    _add_progress(parser)


def _add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def create(arguments: argparse.Namespace) -> Exit:
    """Index a column."""
    with _opened(arguments) as table, _progress(arguments) as watch:
        done = table.create_index(
            arguments.column,
            "fts",
            name=arguments.name,
            replace=arguments.replace,
            tasks=arguments.tasks,
            memory_mb=arguments.memory_mb,
            progress=watch,
            **_parameters(arguments.parameter),
        )
    return _print_built(arguments, done)


def refresh(arguments: argparse.Namespace) -> Exit:
    """Index what was added since."""
    with _opened(arguments) as table, _progress(arguments) as watch:
        done = table.refresh_index(
            arguments.name,
            tasks=1 if arguments.tasks is None else arguments.tasks,
            memory_mb=arguments.memory_mb,
            progress=watch,
        )
    return _print_built(arguments, done)


def finalize(arguments: argparse.Namespace) -> Exit:
    """Bring a build to its end."""
    with _opened(arguments) as table, _progress(arguments) as watch:
        done = table.finalize_index(arguments.build, progress=watch)
    return _print_built(arguments, done)


def ls(arguments: argparse.Namespace) -> Exit:
    """List indexes and open builds."""
    with _opened(arguments) as table:
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
    print_result({"indexes": indexes, "builds": builds}, text, as_json=arguments.json)
    return Exit.OK


def show(arguments: argparse.Namespace) -> Exit:
    """Show one index."""
    with _opened(arguments) as table:
        found = next((one for one in table.indexes() if one.name == arguments.name), None)
    if found is None:
        raise NotFoundError("there is no index of this name", index=arguments.name)
    shown = asdict(found)
    lines = [found.name, *(f"  {key:<11} {_text(shown[key])}" for key in shown if key != "name")]
    print_result(shown, "\n".join(lines), as_json=arguments.json)
    return Exit.OK


def search(arguments: argparse.Namespace) -> Exit:
    """Search a column."""
    columns = None if arguments.columns is None else arguments.columns.split(",")
    with _opened(arguments) as table:
        found = table.search(
            arguments.column,
            arguments.query,
            arguments.limit,
            columns=columns,
            filter=arguments.filter,
        )
    rows: list[dict[str, Any]] = found.to_pylist()  # Any: whatever the columns hold
    lines = [
        f"{row['_score']:8.3f}  "
        + "  ".join(_short(value) for key, value in row.items() if key != "_score")
        for row in rows
    ]
    plain = json.loads(json.dumps(rows, default=str))
    print_result({"rows": plain}, "\n".join(lines) or "nothing found", as_json=arguments.json)
    return Exit.OK


@contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[holdfast.Table]:
    options = storage_options(arguments.option)
    opened = holdfast.open_table(arguments.uri, options, commit_store=arguments.commit_store)
    with closing(opened) as table:
        yield table


@contextmanager
def _progress(arguments: argparse.Namespace) -> Iterator[Watch | None]:
    """Show stages on stderr as they get on: one line in a terminal, a line each elsewhere."""
    if arguments.quiet:
        yield None
        return
    live = sys.stderr.isatty()

    def show_progress(progress: Progress) -> None:
        text = f"{progress.stage.value:<7} {progress.done}/{progress.total}"
        if live:
            print(f"\r{text:<30}", end="", file=sys.stderr, flush=True)
        elif progress.done == progress.total:
            print(text, file=sys.stderr, flush=True)

    try:
        yield show_progress
    finally:
        if live:
            print(file=sys.stderr)


def _parameters(pairs: list[str]) -> dict[str, Any]:  # Any: JSON
    """Return `KEY=VALUE` arguments; a value is JSON if it reads as such, else a text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidInputError("an index parameter is KEY=VALUE", given=repr(pair[:40]))
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def _print_built(arguments: argparse.Namespace, done: Any) -> Exit:  # noqa: ANN401 - IndexResult
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
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
