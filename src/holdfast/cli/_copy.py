"""`holdfast copy URI --to URI`: a table at another place, with an id of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import click

from holdfast import adopt_table, open_table
from holdfast.arbiter import pinned_address, read_pin
from holdfast.cli._declare import Target, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.errors import NotFoundError
from holdfast.formats import ArbiterKind, Pin
from holdfast.storage import open_store
from holdfast.upkeep import FindingKind, copy_files, doctor, plan_copy


def run(
    target: Target,
    to: str,
    to_option: tuple[str, ...],
    decider: str | None,
    *,
    conditional_put: bool,
    confirm: bool,
) -> Exit:
    """Say what would be copied, or copy, tie and check."""
    if conditional_put and decider is not None:
        raise click.UsageError(
            "--conditional-put cannot be given with --commit-store", click.get_current_context()
        )
    copy_options = storage_options(to_option) if to_option else target.options
    source, goal = open_store(target.uri, target.options), open_store(to, copy_options)
    pin = read_pin(source)
    if pin is None:
        raise NotFoundError(
            "no Holdfast table is here; copy a plain Lance table with the tool of your store, and "
            "adopt the copy",
            location=source.location,
        )
    url = None if conditional_put else _decider(decider, pin)
    with closing(open_table(target.uri, storage_options=target.options)) as table:
        version = table.dataset().version  # finishes what somebody decided and left
    plan = plan_copy(source, goal)
    shown: dict[str, object] = {
        "done": confirm,
        "from": source.location,
        "to": goal.location,
        "version": version,
        "files": plan.total_files,
        "bytes": plan.total_bytes,
        "copied": len(plan.files),
    }
    if not confirm:
        text = (
            f"plan: copy {len(plan.files)} of {plan.total_files} files ({plan.total_bytes:,} bytes "
            f"in all) to {goal.location}; add --confirm to do it"
        )
        print_result(shown, text)
        return Exit.OK
    copy_files(source, goal, plan)
    adopted = adopt_table(to, commit_store=url, storage_options=copy_options)
    with closing(adopted) as copy:
        shown["table_id"] = None if copy.pin is None else copy.pin.table_id
        shown["version"] = copy.dataset().version
    missing = _missing_files(to, copy_options)
    shown["missing"] = missing
    lines = [f"copied version {shown['version']}: {plan.total_files} files at {goal.location}"]
    lines += [f"not here: {path}" for path in missing] or ["checked: every file is there"]
    print_result(shown, "\n".join(lines))
    return Exit.UNFIT if missing else Exit.OK


def _decider(url: str | None, pin: Pin) -> str | None:
    """Return the commit store of the copy: the one that was named, or the original's."""
    if url is not None or pin.arbiter is not ArbiterKind.COMMIT_STORE:
        return url
    return pinned_address(pin)


def _missing_files(uri: str, options: Mapping[str, str]) -> list[str]:
    findings = doctor(uri, options).findings
    return [
        finding.path or finding.what for finding in findings if finding.kind is FindingKind.MISSING
    ]
