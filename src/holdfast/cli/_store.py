"""`holdfast store init|check URL` and `holdfast store move URI --to URL`: commit stores."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import asdict

from holdfast.arbiter import (
    EMBEDDED,
    SupportsSetUp,
    check_store,
    connect_commit_store,
    move_commit_store,
    read_pin,
    redacted,
)
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import ArbiterKind
from holdfast.storage import open_store


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    noun = verbs.add_parser("store", help="commit stores: set one up, check one, change a table's")
    parts = noun.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for verb, run, text in (
        ("init", init, "create the schema and the store's identity; safe to repeat"),
        (
            "check",
            check,
            "tell whether the store is set up and fit to decide: settings, rights, times, races",
        ),
    ):
        parser = parts.add_parser(verb, help=text, description=text, allow_abbrev=False)
        parser.add_argument(
            "url",
            metavar="URL",
            help="sqlite:, postgresql:, mysql:, redis:, dynamodb: or env:NAME to keep it out of "
            "sight",
        )
        add_json(parser)
        parser.set_defaults(run=run)
    _add_move(parts)


def _add_move(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "let another commit store decide for a table; its files stay where they are"
    parser = parts.add_parser("move", help=text, description=text, allow_abbrev=False)
    add_table(parser)
    parser.add_argument("--to", required=True, metavar="URL", help="the other store, or env:NAME")
    parser.add_argument(
        "--from",
        dest="old",
        metavar="URL",
        help="another address of the store that it leaves, with credentials, say; or env:NAME",
    )
    parser.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    add_json(parser)
    parser.set_defaults(run=move)


def init(arguments: argparse.Namespace) -> Exit:
    """Create what is missing."""
    with closing(connect_commit_store(arguments.url)) as store:
        if not isinstance(store, SupportsSetUp):
            raise InvalidInputError("this kind of commit store sets itself up", store=store.url)
        identity = store.set_up()
        print_result(
            {"store": store.url, "identity": identity},
            f"ready: {store.url}\nidentity {identity}",
            as_json=arguments.json,
        )
    return Exit.OK


def check(arguments: argparse.Namespace) -> Exit:
    """Look at the server's settings, try the verbs, take times, and race for names."""
    report = check_store(lambda: connect_commit_store(arguments.url))
    may = ", ".join(verb for verb, allowed in report.privileges.items() if allowed)
    lines = [f"{'unfit' if report.problems else 'fit'}: {report.store}"]
    lines += [f"  - {problem}" for problem in report.problems]
    lines += [f"identity {report.identity}", f"may {may or 'nothing'}"]
    if report.decide_ms is not None:
        lines.append(f"median {report.decide_ms} ms to decide, {report.read_ms} ms to read")
        lines.append(f"raced for {report.races} names")
    print_result(asdict(report), "\n".join(lines), as_json=arguments.json)
    return Exit.UNFIT if report.problems else Exit.OK


def move(arguments: argparse.Namespace) -> Exit:
    """Say what would be done, or move the table."""
    options = storage_options(arguments.option)
    store = open_store(arguments.uri, options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    shown = {
        "done": bool(arguments.confirm),
        "location": store.location,
        "from": pin.store_url,
        "to": redacted(arguments.to),
        "table_id": pin.table_id,
    }
    if not arguments.confirm:  # refuse what --confirm would refuse
        if pin.arbiter is not ArbiterKind.COMMIT_STORE:
            raise InvalidInputError(
                "this table decides by its object store: release it, and adopt it with a commit "
                "store"
            )
        if arguments.to != EMBEDDED:
            with closing(connect_commit_store(arguments.to)) as target:
                target.identity()
        text = f"plan: {shown['to']} decides instead of {pin.store_url}; add --confirm to do it"
        print_result(shown, text, as_json=arguments.json)
        return Exit.OK
    moved = move_commit_store(arguments.uri, options, to=arguments.to, commit_store=arguments.old)
    shown |= {"to": moved.store_url, "table_id": moved.table_id}
    text = f"moved: {moved.store_url} decides now\ntable id {moved.table_id}"
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK
