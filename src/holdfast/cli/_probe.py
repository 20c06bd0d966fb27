"""`holdfast probe URI`: may this store decide?"""

from __future__ import annotations

import sys

from holdfast.arbiter import ProbeReport, Verdict, probe, remember
from holdfast.cli._declare import Target
from holdfast.cli._output import SESSION, Exit, print_result
from holdfast.cli._terminal import paint
from holdfast.storage import open_store

_ADVICE = {
    Verdict.ENFORCED: "This store may decide: its put-if-absent passed the probe.",
    Verdict.IGNORED: "Acknowledged writes would vanish here. Use a commit store.",
    Verdict.RACY: "Right one by one, wrong concurrently: writes would vanish. Use a commit store.",
    Verdict.UNSUPPORTED: "The store refuses conditional requests. Use a commit store.",
    Verdict.INCONCLUSIVE: "The store did not answer well enough to tell. Try again.",
}
_EXITS = {Verdict.ENFORCED: Exit.OK, Verdict.INCONCLUSIVE: Exit.UNAVAILABLE}


def run(target: Target) -> Exit:
    """Probe, and remember the verdict."""
    location = open_store(target.uri, target.options).location
    if not (SESSION.as_json or SESSION.quiet):
        print(f"probing {location} ...", file=sys.stderr)
    report = remember(target.uri, target.options, probe(target.uri, target.options))
    print_result(_as_json(report), _as_text(report))
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
    colour = "green" if report.verdict is Verdict.ENFORCED else "red"
    lines = [
        f"{paint(report.verdict.value.upper(), colour)}  {report.location}",
        *(f"  - {line}" for line in report.evidence),
        f"  {report.requests} requests, {report.elapsed:.2f} s",
        _ADVICE[report.verdict],
    ]
    if report.left_behind:
        lines.append("Could not be removed (no delete rights?): " + ", ".join(report.left_behind))
    return "\n".join(lines)
