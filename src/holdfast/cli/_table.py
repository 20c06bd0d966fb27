"""`holdfast history|adopt|release URI`: look at a table, take it over, give it back."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_result
from holdfast.cli._terminal import paint, table_text
from holdfast.commits import VersionInfo, require_versions
from holdfast.errors import InvalidInputError, NotFoundError, PinMismatchError
from holdfast.formats import ArbiterKind, Pin
from holdfast.storage import ObjectStore, open_store


def history(target: Target, limit: int) -> Exit:
    """Show versions."""
    opened = holdfast.open_table(target.uri, target.options, commit_store=target.commit_store)
    with closing(opened) as table:
        versions: list[VersionInfo] = table.history(limit)
    shown = [{**asdict(one), "time": one.time.isoformat()} for one in versions]
    print_result({"versions": shown}, _history_text(versions))
    return Exit.OK


def adopt(target: Target, accept: int | None, *, confirm: bool) -> Exit:
    """Tie a table, or say how it would be tied."""
    options: Mapping[str, str] = target.options
    uri, rows = target.uri, None
    if uri.startswith(STOCK_DYNAMODB):
        rows = StockRows(uri, options)
        uri, options = rows.uri, rows.options
    store = open_store(uri, options)
    pin = read_pin(store)
    commit_store = target.commit_store or pinned_url(pin)
    newest = max(require_versions(store)) if rows is None else rows.newest()
    if accept is not None and accept != newest:
        raise InvalidInputError(
            "accept the newest version that is there", newest=newest, accept=accept
        )
    if confirm:
        adopted = holdfast.adopt_table(
            target.uri,
            commit_store=commit_store,
            storage_options=target.options,
            accept=accept,
        )
        with closing(adopted):
            pin = adopted.pin
    else:
        _check_adoption(uri, store, pin, commit_store)
    by = _printable_address(commit_store)
    shown = {
        "done": confirm,
        "uri": uri,
        "version": newest,
        "accept": accept,
        "arbiter": ArbiterKind.CONDITIONAL_PUT.value
        if commit_store is None
        else ArbiterKind.COMMIT_STORE.value,
        "commit_store": by,
        "table_id": None if pin is None else pin.table_id,
    }
    decider = by or "the store's own put-if-absent"
    if confirm:
        text = f"adopted: what comes after version {newest} is decided by {decider}"
    else:
        text = (
            f"plan: let {decider} decide what comes after version {newest}.\n"
            "Stop all writers that do not go through Holdfast, then add --confirm to do it"
        )
    print_result(shown, text)
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


def release(target: Target, *, confirm: bool) -> Exit:
    """Give a table back, or say what that would mean."""
    uri, options, commit_store = target.uri, target.options, target.commit_store
    store = open_store(uri, options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    if not confirm:  # refuse what --confirm would refuse
        open_arbiter(uri, options, commit_store=commit_store).close()
    newest = (
        holdfast.release_table(uri, options, commit_store=commit_store)
        if confirm
        else max(require_versions(store))
    )
    shown = {
        "done": confirm,
        "uri": uri,
        "version": newest,
        "arbiter": pin.arbiter.value,
        "commit_store": pin.store_url,
        "table_id": pin.table_id,
    }
    plan = (
        f"plan: finish what is unfinished and untie the table from {pin.store_url or pin.arbiter}."
        "\nStop all writers first, then add --confirm to do it"
    )
    text = f"released: a plain Lance table, version {newest}" if confirm else plan
    print_result(shown, text)
    return Exit.OK


def _printable_address(commit_store: str | None) -> str | None:
    """Return a commit store as it may be shown."""
    if commit_store is None or commit_store == EMBEDDED:
        return commit_store
    return redacted(commit_store)


def pinned_url(pin: Pin | None) -> str | None:
    """Return where the commit store is that a table is tied to."""
    if pin is None or pin.store_url is None or pin.store_url == EMBEDDED:
        return None if pin is None else pin.store_url
    return os.environ.get(URL_VARIABLE) or pin.store_url


def _history_text(versions: list[VersionInfo]) -> str:
    head = ("version", "time (UTC)", "operation", "rows", "fragments", "decided by", "txns")
    lines = [
        (
            one.version,
            f"{one.time:%Y-%m-%d %H:%M:%S}",
            one.operation,
            one.rows,
            one.fragments,
            one.decided_by or (paint("FOREIGN", "red") if one.foreign else "-"),
            " ".join(one.txns),
        )
        for one in versions
    ]
    return table_text(head, lines)
