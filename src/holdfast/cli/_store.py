"""`holdfast store init|check URL` and `holdfast store move URI --to URL`: commit stores."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

from holdfast.arbiter import (
    EMBEDDED,
    SupportsSetUp,
    check_identity,
    check_store,
    connect_commit_store,
    connect_store,
    move_commit_store,
    read_pin,
    redacted,
)
from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_result
from holdfast.cli._table import pinned_url
from holdfast.cli._terminal import paint
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import ArbiterKind
from holdfast.storage import open_store


def init(url: str) -> Exit:
    """Create what is missing."""
    with closing(connect_commit_store(url)) as store:
        if not isinstance(store, SupportsSetUp):
            raise InvalidInputError("this kind of commit store sets itself up", store=store.url)
        identity = store.set_up()
        print_result(
            {"store": store.url, "identity": identity},
            f"ready: {store.url}\nidentity {identity}",
        )
    return Exit.OK


def check(url: str) -> Exit:
    """Look at the server's settings, try the verbs, take times, and race for names."""
    report = check_store(lambda: connect_commit_store(url))
    may = ", ".join(verb for verb, allowed in report.privileges.items() if allowed)
    verdict = paint("unfit", "red") if report.problems else paint("fit", "green")
    lines = [f"{verdict}: {report.store}"]
    lines += [f"  - {problem}" for problem in report.problems]
    lines += [f"identity {report.identity}", f"may {may or 'nothing'}"]
    if report.decide_ms is not None:
        lines.append(f"median {report.decide_ms} ms to decide, {report.read_ms} ms to read")
        lines.append(f"raced for {report.races} names")
    print_result(asdict(report), "\n".join(lines))
    return Exit.UNFIT if report.problems else Exit.OK


def move(target: Target, new: str, old: str | None, *, confirm: bool) -> Exit:
    """Say what would be done, or move the table."""
    store = open_store(target.uri, target.options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    shown = {
        "done": confirm,
        "location": store.location,
        "from": pin.store_url,
        "to": redacted(new),
        "table_id": pin.table_id,
    }
    if not confirm:  # refuse what --confirm would refuse
        if pin.arbiter is not ArbiterKind.COMMIT_STORE:
            raise InvalidInputError(
                "this table decides by its object store: release it, and adopt it with a commit "
                "store"
            )
        with closing(
            connect_store(old or pinned_url(pin) or EMBEDDED, target.uri, store)
        ) as leaving:
            check_identity(pin, leaving)
        if new != EMBEDDED:
            with closing(connect_commit_store(new)) as other:
                other.identity()
        text = f"plan: {shown['to']} decides instead of {pin.store_url}; add --confirm to do it"
        print_result(shown, text)
        return Exit.OK
    moved = move_commit_store(target.uri, target.options, to=new, commit_store=old)
    shown |= {"to": moved.store_url, "table_id": moved.table_id}
    text = f"moved: {moved.store_url} decides now\ntable id {moved.table_id}"
    print_result(shown, text)
    return Exit.OK
