"""`holdfast store init|check URL`: set a commit store up; is it fit to decide?"""

from __future__ import annotations

import argparse
from contextlib import closing

from holdfast.arbiter import SupportsSetUp, connect_commit_store
from holdfast.cli._arguments import add_json
from holdfast.cli._output import Exit, print_result
from holdfast.errors import InvalidInputError


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    noun = verbs.add_parser("store", help="commit stores: set one up, check one")
    parts = noun.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for verb, run, text in (
        ("init", init, "create the schema and the store's identity; safe to repeat"),
        ("check", check, "tell whether the store is set up and its server fit to decide"),
    ):
        parser = parts.add_parser(verb, help=text, description=text, allow_abbrev=False)
        parser.add_argument(
            "url",
            metavar="URL",
            help="sqlite:, postgresql:, mysql:, redis: or env:NAME to keep it out of sight",
        )
        add_json(parser)
        parser.set_defaults(run=run)


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
    """Look at the server's settings and the schema."""
    with closing(connect_commit_store(arguments.url)) as store:
        problems = list(store.check()) if isinstance(store, SupportsSetUp) else []
        identity = store.identity()
        lines = [f"unfit: {store.url}", *(f"  - {p}" for p in problems)]
        print_result(
            {"store": store.url, "identity": identity, "problems": problems},
            "\n".join(lines) if problems else f"fit: {store.url}\nidentity {identity}",
            as_json=arguments.json,
        )
    return Exit.UNFIT if problems else Exit.OK
