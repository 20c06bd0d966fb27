"""`holdfast doctor|rescue URI`: what is wrong with a table, and the way back for lost appends."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, is_quiet, print_result
from holdfast.cli._roots import add_all, run_for_all
from holdfast.cli._table import add_commit_store
from holdfast.options import StorageOptions
from holdfast.upkeep import (
    Candidate,
    Diagnosis,
    Finding,
    Rescued,
    RescueResult,
    Severity,
    doctor,
    rescue,
)

_QUIET_OBJECTS = 200  # fewer are read before anybody wonders
_STEP = 50


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    examine = verbs.add_parser(
        "doctor",
        help="find what is wrong with a table, and appends that were lost",
        description="Examine a table, Holdfast's or a plain Lance table; changes nothing. Exit "
        "code 0 when there is nothing but notes, 1 when somebody should look.",
        allow_abbrev=False,
    )
    bring = verbs.add_parser(
        "rescue",
        help="bring back appends that stock writers lost",
        description="Commit lost appends again, each exactly once. Says what it would do until "
        "--confirm is given.",
        allow_abbrev=False,
    )
    for parser in (examine, bring):
        add_table(parser)
        add_commit_store(parser)
        add_json(parser)
    add_all(examine)
    which = bring.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--id",
        metavar="UUID",
        action="append",
        default=[],
        help="a candidate that doctor named; repeat for more",
    )
    which.add_argument(
        "--all", action="store_true", help="all candidates that nothing speaks against"
    )
    bring.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    examine.set_defaults(run=run_doctor)
    bring.set_defaults(run=run_rescue)


def run_doctor(arguments: argparse.Namespace) -> Exit:
    """Examine a table, or all below a root."""
    options = storage_options(arguments.option)
    if arguments.all:
        return run_for_all(arguments, options, lambda uri: _examine(arguments, options, uri))
    return _examine(arguments, options, arguments.uri)


def _examine(arguments: argparse.Namespace, options: StorageOptions, uri: str) -> Exit:
    progress = Progress()
    found = doctor(
        uri,
        options,
        commit_store=arguments.commit_store,
        progress=progress,
    )
    progress.end()
    print_result(_diagnosis(found), _diagnosis_text(found), as_json=arguments.json)
    return Exit.OK if found.healthy else Exit.UNFIT


def run_rescue(arguments: argparse.Namespace) -> Exit:
    """Plan or do a rescue."""
    progress = Progress()
    done = rescue(
        arguments.uri,
        storage_options(arguments.option),
        ids="all" if arguments.all else arguments.id,
        confirm=arguments.confirm,
        commit_store=arguments.commit_store,
        progress=progress,
    )
    progress.end()
    print_result(_rescue(done), _rescue_text(done), as_json=arguments.json)
    return Exit.OK


class Progress:
    """One line on stderr, for tables that take long enough to wonder."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, done: int, total: int) -> None:
        """Say how far it is, now and then."""
        if is_quiet() or total < _QUIET_OBJECTS or done < self._said + _STEP:
            return
        self._said = done
        if sys.stderr.isatty():
            print(f"\rreading {done} of {total} objects", end="", file=sys.stderr, flush=True)
        elif done == total or done // _STEP % 20 == 0:
            print(f"reading {done} of {total} objects", file=sys.stderr)

    def end(self) -> None:
        """Leave the line."""
        if self._said and sys.stderr.isatty():
            print(file=sys.stderr)


def _candidate(one: Candidate) -> dict[str, object]:
    return {
        "id": one.id,
        "rows": one.rows,
        "bytes": one.size,
        "files": list(one.files),
        "read_version": one.read_version,
        "time": one.time.isoformat(),
        "seen_in": one.seen_in,
        "doubt": None if one.doubt is None else one.doubt.value,
        "maybe_retried": one.maybe_retried,
        "known": one.known,
    }


def finding_fields(one: Finding) -> dict[str, object]:
    return {
        "kind": one.kind.value,
        "severity": one.severity.value,
        "what": one.what,
        "advice": one.advice,
        "command": one.command,
        "since": None if one.since is None else one.since.isoformat(),
        "path": one.path,
        "version": one.version,
        "shard": one.shard,
        "candidate": None if one.candidate is None else _candidate(one.candidate),
    }


def _diagnosis(found: Diagnosis) -> dict[str, object]:
    return {
        "uri": found.uri,
        "arbiter": found.arbiter,
        "version": found.version,
        "versions_read": found.versions,
        "transactions_read": found.transactions,
        "healthy": found.healthy,
        "findings": [finding_fields(one) for one in found.findings],
        "elapsed_seconds": round(found.elapsed, 3),
    }


def _diagnosis_text(found: Diagnosis) -> str:
    kind = found.arbiter or "plain Lance table"
    read = f"{found.versions} versions and {found.transactions} transactions read"
    lines = [f"{found.uri}: version {found.version}, {kind}; {read}"]
    for one in found.findings:
        lines.append(f"{one.severity.value.upper():<8} {one.what}")
        place = one.candidate.id if one.candidate is not None else one.path
        since = "" if one.since is None else f"since {one.since:%Y-%m-%d %H:%M:%S} UTC"
        lines += [f"         {'  '.join(filter(None, (place, since)))}"] if place or since else []
        lines.append(f"         -> {one.advice}")
        lines += [f"         $ {one.command}"] if one.command else []
    counts = [
        f"{number} {severity.value}{'' if number == 1 else 's'}"
        for severity in reversed(Severity)
        if (number := sum(one.severity is severity for one in found.findings))
    ]
    verdict = "healthy" if found.healthy else "somebody should look"
    lines.append(f"{verdict}: {', '.join(counts) or 'nothing found'}")
    return "\n".join(lines)


def _rescue(done: RescueResult) -> dict[str, object]:
    return {
        "done": done.confirmed,
        "planned": [_candidate(one) for one in done.planned],
        "skipped": [_candidate(one) for one in done.skipped],
        "rescued": [asdict(one) for one in done.rescued],
        "rows": done.rows,
        "elapsed_seconds": round(done.elapsed, 3),
    }


def _rescue_text(done: RescueResult) -> str:
    if done.confirmed:
        lines = [_rescued_line(one) for one in done.rescued]
        count = sum(one.applied for one in done.rescued)
        lines.append(f"rescued {_appends(count)}, {_rows(done.rows)}")
    else:
        lines = [f"plan  {one.id}  {_rows(one.rows)}  {one.known}" for one in done.planned]
        rows = sum(one.rows for one in done.planned)
        more = "; add --confirm to do it" if done.planned else ""
        lines.append(f"plan: bring back {_appends(len(done.planned))}, {_rows(rows)}{more}")
    if done.skipped:
        lines += [f"skip  {one.id}  {_rows(one.rows)}  {one.known}" for one in done.skipped]
        lines.append(f"{_appends(len(done.skipped))} left out; name them with --id to take them")
    return "\n".join(lines)


def _rescued_line(one: Rescued) -> str:
    state = "rescued" if one.applied else "is there"
    return f"{state}  {one.id}  {_rows(one.rows)}  version {one.version}"


def _appends(count: int) -> str:
    return f"{count} append{'' if count == 1 else 's'}"


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
