"""`holdfast history|adopt|release URI`: look at a table, take it over, give it back."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict

import holdfast
from holdfast.arbiter import (
    EMBEDDED,
    STOCK_DYNAMODB,
    URL_VARIABLE,
    StockRows,
    check_identity,
    connect_store,
    open_arbiter,
    read_pin,
    redacted,
)
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.commits import VersionInfo, require_versions
from holdfast.errors import InvalidInputError, NotFoundError, PinMismatchError
from holdfast.formats import ArbiterKind, Pin
from holdfast.storage import ObjectStore, open_store

_SHOWN_VERSIONS = 20


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    history_parser = _command(verbs, "history", history, "show a table's versions, newest first")
    history_parser.add_argument(
        "-n",
        "--limit",
        metavar="N",
        type=int,
        default=_SHOWN_VERSIONS,
        help=f"how many versions, {_SHOWN_VERSIONS} by default",
    )
    adopt_parser = _command(verbs, "adopt", adopt, "tie an existing Lance table to an arbiter")
    adopt_parser.add_argument(
        "--accept", metavar="N", type=int, help="take foreign versions up to N as decided"
    )
    release_parser = _command(verbs, "release", release, "give a plain Lance table back")
    for parser in (adopt_parser, release_parser):
        parser.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    for parser in (history_parser, adopt_parser, release_parser):
        add_commit_store(parser)


def _command(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    verb: str,
    run: Callable[[argparse.Namespace], Exit],
    text: str,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(verb, help=text, description=text, allow_abbrev=False)
    add_table(parser)
    add_json(parser)
    parser.set_defaults(run=run)
    return parser


def add_commit_store(parser: argparse.ArgumentParser) -> None:
    """Add `--commit-store`."""
    parser.add_argument(
        "--commit-store",
        metavar="URL",
        help="the commit store; env:NAME keeps it out of sight",
    )


def history(arguments: argparse.Namespace) -> Exit:
    """Show versions."""
    options = storage_options(arguments.option)
    opened = holdfast.open_table(arguments.uri, options, commit_store=arguments.commit_store)
    with closing(opened) as table:
        found: list[VersionInfo] = table.history(arguments.limit)
    shown = [{**asdict(one), "time": one.time.isoformat()} for one in found]
    print_result({"versions": shown}, _history_text(found), as_json=arguments.json)
    return Exit.OK


def adopt(arguments: argparse.Namespace) -> Exit:
    """Tie a table, or say how it would be tied."""
    options: Mapping[str, str] = storage_options(arguments.option)
    uri, rows = arguments.uri, None
    if arguments.uri.startswith(STOCK_DYNAMODB):
        rows = StockRows(arguments.uri, options)
        uri, options = rows.uri, rows.options
    store = open_store(uri, options)
    pin = read_pin(store)
    commit_store = arguments.commit_store or _pinned(pin)
    newest = max(require_versions(store)) if rows is None else rows.newest()
    if arguments.accept is not None and arguments.accept != newest:
        raise InvalidInputError(
            "accept the newest version that is there", newest=newest, accept=arguments.accept
        )
    if arguments.confirm:
        adopted = holdfast.adopt_table(
            arguments.uri,
            commit_store=commit_store,
            storage_options=storage_options(arguments.option),
            accept=arguments.accept,
        )
        with closing(adopted):
            pin = adopted.pin
    else:
        _check_adoption(uri, store, pin, commit_store)
    by = _shown(commit_store)
    shown = {
        "done": arguments.confirm,
        "uri": uri,
        "version": newest,
        "accept": arguments.accept,
        "arbiter": ArbiterKind.CONDITIONAL_PUT.value
        if commit_store is None
        else ArbiterKind.COMMIT_STORE.value,
        "commit_store": by,
        "table_id": None if pin is None else pin.table_id,
    }
    decider = by or "the store's own put-if-absent"
    if arguments.confirm:
        text = f"adopted: what comes after version {newest} is decided by {decider}"
    else:
        text = (
            f"plan: let {decider} decide what comes after version {newest}.\n"
            "Stop all writers that do not go through Holdfast, then add --confirm to do it"
        )
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK


def _check_adoption(
    uri: str, store: ObjectStore, pin: Pin | None, commit_store: str | None
) -> None:
    """Refuse what `--confirm` would refuse, without writing: whether a store may decide is probed.

    Raises:
        PinMismatchError: the table is tied to something else.
        NotFoundError: the commit store is not set up.
        HoldfastError: it cannot be reached.
    """
    if pin is not None and (pin.arbiter is ArbiterKind.COMMIT_STORE) != (commit_store is not None):
        raise PinMismatchError(
            f"the table is tied to {pin.arbiter.value} already", location=store.location
        )
    if commit_store is None or (commit_store == EMBEDDED and pin is None):
        return
    with closing(connect_store(commit_store, uri, store)) as connected:
        if pin is not None:
            check_identity(pin, connected)
        connected.identity()


def release(arguments: argparse.Namespace) -> Exit:
    """Give a table back, or say what that would mean."""
    options = storage_options(arguments.option)
    store = open_store(arguments.uri, options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    done = bool(arguments.confirm)
    if not done:  # refuse what --confirm would refuse
        open_arbiter(arguments.uri, options, commit_store=arguments.commit_store).close()
    newest = (
        holdfast.release_table(arguments.uri, options, commit_store=arguments.commit_store)
        if done
        else max(require_versions(store))
    )
    shown = {
        "done": done,
        "uri": arguments.uri,
        "version": newest,
        "arbiter": pin.arbiter.value,
        "commit_store": pin.store_url,
        "table_id": pin.table_id,
    }
    plan = (
        f"plan: finish what is unfinished and untie the table from {pin.store_url or pin.arbiter}."
        "\nStop all writers first, then add --confirm to do it"
    )
    text = f"released: a plain Lance table, version {newest}" if done else plan
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK


def _shown(commit_store: str | None) -> str | None:
    """Return a commit store as it may be shown."""
    if commit_store is None or commit_store == EMBEDDED:
        return commit_store
    return redacted(commit_store)


def _pinned(pin: Pin | None) -> str | None:
    """Return where the commit store is that a table is tied to."""
    if pin is None or pin.store_url is None or pin.store_url == EMBEDDED:
        return None if pin is None else pin.store_url
    return os.environ.get(URL_VARIABLE) or pin.store_url


def _history_text(found: list[VersionInfo]) -> str:
    head = ("version", "time (UTC)", "operation", "rows", "fragments", "decided by", "txns")
    lines = [
        (
            f"{one.version}",
            f"{one.time:%Y-%m-%d %H:%M:%S}",
            one.operation,
            f"{one.rows}",
            f"{one.fragments}",
            one.decided_by or ("FOREIGN" if one.foreign else "-"),
            " ".join(one.txns),
        )
        for one in found
    ]
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *lines)
    )
