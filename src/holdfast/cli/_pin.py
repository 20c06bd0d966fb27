"""`holdfast pin URI`: what is a table tied to? And the way on under an unknown address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from holdfast.arbiter import Repin, address_of, check_repin, read_pin, repin
from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_result
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import ArbiterKind
from holdfast.storage import open_store
from holdfast.upkeep import FindingKind, doctor

_PLANS = {
    "alias": "let the table be opened from here as well",
    "moved": "let the table be opened from here, and from nowhere else any more",
    "copied": "give this copy an id of its own, and count what it holds as decided",
}


def run(target: Target, how: Repin | None, *, confirm: bool) -> Exit:
    """Show the pin, or plan, or make the change."""
    uri, options, commit_store = target.uri, target.options, target.commit_store
    store = open_store(uri, options)
    pin = read_pin(store)
    if pin is None:
        raise NotFoundError("no Holdfast table is here", location=store.location)
    if how and not confirm:
        check_repin(uri, options, commit_store=commit_store)
    if how and confirm:
        pin = repin(uri, options, how=how, commit_store=commit_store).pin
    address = None if pin.arbiter is ArbiterKind.CONDITIONAL_PUT else address_of(store)
    done = bool(how and confirm)
    shown = {"done": done, "here": store.location, "address": address, **asdict(pin)}
    lines = [f"{k}: {v}" for k, v in shown.items() if v is not None and (how or k != "done")]
    if how and not confirm:
        lines.append(f"plan: {_PLANS[how]}; add --confirm to do it")
    missing = _missing_files(uri, options) if done and how != "alias" else []
    lines += [f"not here: {what}" for what in missing]
    if missing:
        lines.append("stop writers, copy again what is missing, then look with `holdfast doctor`")
    if done:
        shown["missing"] = missing
    print_result(shown, "\n".join(lines))
    return Exit.UNFIT if missing else Exit.OK


def _missing_files(uri: str, options: Mapping[str, str]) -> list[str]:
    """Return what the table's versions name and a copy of its files left behind."""
    try:
        findings = doctor(uri, options).findings
    except InvalidInputError:  # no manifests that it can read: nothing to miss
        return []
    return [
        finding.path or finding.what for finding in findings if finding.kind is FindingKind.MISSING
    ]
