"""`holdfast probe URI`: may this store decide?"""

from __future__ import annotations

import argparse
import sys

from holdfast.arbiter import ProbeReport, Verdict, probe, remember
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.storage import open_store

_ADVICE = {
    Verdict.ENFORCED: "This store may decide: its put-if-absent passed the probe.",
    Verdict.IGNORED: "Acknowledged writes would vanish here. Use a commit store.",
    Verdict.RACY: "Right one by one, wrong at once: writes would vanish. Use a commit store.",
    Verdict.UNSUPPORTED: "The store refuses conditional requests. Use a commit store.",
    Verdict.INCONCLUSIVE: "The store did not answer well enough to tell. Try again.",
}
_EXITS = {Verdict.ENFORCED: Exit.OK, Verdict.INCONCLUSIVE: Exit.UNAVAILABLE}


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "probe",
        help="find out whether a store enforces put-if-absent",
        description="Create objects under _holdfast/probe in several ways, look at what the "
        "store makes of it, and remove them. Takes some eighty requests.",
        allow_abbrev=False,
    )
    add_table(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Probe, and remember the verdict."""
    options = storage_options(arguments.option)
    location = open_store(arguments.uri, options).location
    if not arguments.json:
        print(f"probing {location} ...", file=sys.stderr)
    report = remember(arguments.uri, options, probe(arguments.uri, options))
    print_result(_as_json(report), _as_text(report), as_json=arguments.json)
    return _EXITS.get(report.verdict, Exit.UNFIT)


def _as_json(report: ProbeReport) -> dict[str, object]:
    return {
        "location": report.location,
        "verdict": report.verdict.value,
        "evidence": list(report.evidence),
        "requests": report.requests,
        "elapsed_seconds": round(report.elapsed, 3),
        "left_behind": list(report.left_behind),
    }


def _as_text(report: ProbeReport) -> str:
    lines = [
        f"{report.verdict.value.upper()}  {report.location}",
        *(f"  - {line}" for line in report.evidence),
        f"  {report.requests} requests, {report.elapsed:.2f} s",
        _ADVICE[report.verdict],
    ]
    if report.left_behind:
        lines.append("Could not be removed (no delete rights?): " + ", ".join(report.left_behind))
    return "\n".join(lines)
