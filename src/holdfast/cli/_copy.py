"""`holdfast copy URI --to URI`: a table at another place, with an id of its own."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing

from holdfast import adopt_table, open_table
from holdfast.arbiter import pinned_address, read_pin
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.errors import NotFoundError
from holdfast.formats import ArbiterKind, Pin
from holdfast.storage import open_store
from holdfast.upkeep import FindingKind, copy_files, doctor, plan_copy


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "copy",
        help="copy a table to another bucket, endpoint or store, tie it there, and check it",
        description="Copy a table's files to another place, tie the copy to its own way of "
        "deciding, and check that nothing is missing. The original stays as it is. Stop writers "
        "first; a table that was written meanwhile is noticed. Cut off, give the command again.",
        allow_abbrev=False,
    )
    add_table(parser)
    parser.add_argument("--to", required=True, metavar="URI", help="where the copy goes")
    parser.add_argument(
        "--to-option",
        metavar="KEY=VALUE",
        action="append",
        default=None,
        help="a storage option of the copy's place; without any, those of -o",
    )
    decider = parser.add_mutually_exclusive_group()
    decider.add_argument(
        "--commit-store",
        metavar="URL",
        help="what decides for the copy, or env:NAME; by default the store of the original",
    )
    decider.add_argument(
        "--conditional-put",
        action="store_true",
        help="let the copy's object store decide, whatever decides for the original",
    )
    parser.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Say what would be copied, or copy, tie and check."""
    options = storage_options(arguments.option)
    given = arguments.to_option
    target_options = options if given is None else storage_options(given)
    source, target = open_store(arguments.uri, options), open_store(arguments.to, target_options)
    pin = read_pin(source)
    if pin is None:
        raise NotFoundError(
            "no Holdfast table is here; copy a plain Lance table with the tool of your store, and "
            "adopt the copy",
            location=source.location,
        )
    decider = None if arguments.conditional_put else _decider(arguments.commit_store, pin)
    with closing(open_table(arguments.uri, storage_options=options)) as table:
        version = table.dataset().version  # finishes what somebody decided and left
    plan = plan_copy(source, target)
    shown: dict[str, object] = {
        "done": bool(arguments.confirm),
        "from": source.location,
        "to": target.location,
        "version": version,
        "files": plan.total_files,
        "bytes": plan.total_bytes,
        "copied": len(plan.files),
    }
    if not arguments.confirm:
        text = (
            f"plan: copy {len(plan.files)} of {plan.total_files} files ({plan.total_bytes:,} bytes "
            f"in all) to {target.location}; add --confirm to do it"
        )
        print_result(shown, text, as_json=arguments.json)
        return Exit.OK
    copy_files(source, target, plan)
    adopted = adopt_table(arguments.to, commit_store=decider, storage_options=target_options)
    with closing(adopted) as copy:
        shown["table_id"] = None if copy.pin is None else copy.pin.table_id
        shown["version"] = copy.dataset().version
    missing = _missing_files(arguments.to, target_options)
    shown["missing"] = missing
    lines = [f"copied version {shown['version']}: {plan.total_files} files at {target.location}"]
    lines += [f"not here: {path}" for path in missing] or ["checked: every file is there"]
    print_result(shown, "\n".join(lines), as_json=arguments.json)
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
