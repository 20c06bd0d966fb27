"""`holdfast doctor|rescue URI`: what is wrong with a table, and the way back for lost appends."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from holdfast.cli._declare import Target
from holdfast.cli._output import SESSION, Exit, print_result
from holdfast.cli._roots import run_for_all
from holdfast.cli._terminal import Bar, paint
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
_COLOURS = {Severity.PROBLEM: "red", Severity.WARNING: "yellow"}


def run_doctor(target: Target, *, every_table: bool) -> Exit:
    """Examine a table, or all below a root."""
    return run_for_all(target, _examine) if every_table else _examine(target)


def _examine(target: Target) -> Exit:
    with ReadingProgress() as progress:
        diagnosis = doctor(
            target.uri, target.options, commit_store=target.commit_store, progress=progress
        )
    print_result(_diagnosis(diagnosis), _diagnosis_text(diagnosis))
    return Exit.OK if diagnosis.healthy else Exit.UNFIT


def run_rescue(target: Target, ids: tuple[str, ...], *, everything: bool, confirm: bool) -> Exit:
    """Plan or do a rescue."""
    if everything == bool(ids):
        raise click.UsageError("either --id or --all is needed", click.get_current_context())
    with ReadingProgress() as progress:
        done = rescue(
            target.uri,
            target.options,
            ids="all" if everything else list(ids),
            confirm=confirm,
            commit_store=target.commit_store,
            progress=progress,
        )
    print_result(_rescue(done), _rescue_text(done))
    return Exit.OK


class ReadingProgress(Bar):
    """How many objects are read, for tables that take long enough to wonder."""

    def __init__(self) -> None:
        super().__init__(quiet=SESSION.quiet)
        self._said = 0

    def __call__(self, done: int, total: int) -> None:
        """Say how far it is, now and then."""
        if SESSION.quiet or total < _QUIET_OBJECTS or done < self._said + _STEP:
            return
        self._said = done
        text = f"reading {done} of {total} objects"
        if self.is_shown:
            self.show(text, done, total)
        elif done == total or done // _STEP % 20 == 0:
            print(text, file=sys.stderr)


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


def _diagnosis(diagnosis: Diagnosis) -> dict[str, object]:
    return {
        "uri": diagnosis.uri,
        "arbiter": diagnosis.arbiter,
        "version": diagnosis.version,
        "versions_read": diagnosis.versions,
        "transactions_read": diagnosis.transactions,
        "healthy": diagnosis.healthy,
        "findings": [finding_fields(one) for one in diagnosis.findings],
        "elapsed_seconds": round(diagnosis.elapsed, 3),
    }


def _diagnosis_text(diagnosis: Diagnosis) -> str:
    kind = diagnosis.arbiter or "plain Lance table"
    read = f"{diagnosis.versions} versions and {diagnosis.transactions} transactions read"
    lines = [f"{diagnosis.uri}: version {diagnosis.version}, {kind}; {read}"]
    for one in diagnosis.findings:
        word = f"{one.severity.value.upper():<8}"
        lines.append(f"{paint(word, _COLOURS.get(one.severity, ''))} {one.what}")
        place = one.candidate.id if one.candidate is not None else one.path
        since = "" if one.since is None else f"since {one.since:%Y-%m-%d %H:%M:%S} UTC"
        lines += [f"         {'  '.join(filter(None, (place, since)))}"] if place or since else []
        lines.append(f"         -> {one.advice}")
        lines += [f"         $ {one.command}"] if one.command else []
    counts = [
        f"{number} {severity.value}{'' if number == 1 else 's'}"
        for severity in reversed(Severity)
        if (number := sum(one.severity is severity for one in diagnosis.findings))
    ]
    verdict = (
        paint("healthy", "green") if diagnosis.healthy else paint("somebody should look", "red")
    )
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
