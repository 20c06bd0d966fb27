"""`holdfast repair URI`: the one way back for a damaged table; plans until `--confirm`."""

from __future__ import annotations

from holdfast.arbiter import Repin
from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_result
from holdfast.cli._upkeep import finding_fields
from holdfast.upkeep import RepairResult, RepairState, RepairStep, repair


def run(
    target: Target,
    place: Repin | None,
    new_commit_store: str | None,
    *,
    conditional_put: bool,
    confirm: bool,
) -> Exit:
    """Plan or do a repair."""
    done = repair(
        target.uri,
        target.options,
        place=place,
        new_commit_store=new_commit_store,
        conditional_put=conditional_put,
        commit_store=target.commit_store,
        confirm=confirm,
    )
    shown = {
        "uri": done.uri,
        "version": done.version,
        "done": done.confirmed,
        "applied": done.applied,
        "whole": done.whole,
        "steps": [_step(one) for one in done.steps],
        "left": [finding_fields(one) for one in done.left],
        "elapsed_seconds": round(done.elapsed, 3),
    }
    print_result(shown, _text(done))
    return Exit.OK if done.whole else Exit.UNFIT


def _step(one: RepairStep) -> dict[str, object]:
    return {
        "kind": one.kind.value,
        "state": one.state.value,
        "what": one.what,
        "path": one.path,
        "loses": one.loses,
        "kept": list(one.kept),
        "commands": list(one.command),
    }


def _text(done: RepairResult) -> str:
    lines = []
    for one in done.steps:
        lines.append(str(one))
        lines += [f"         {one.path}"] if one.path else []
        lines += [f"         the bytes that were there: {path}" for path in one.kept]
        lines += [f"         $ {command}" for command in one.command]
    for finding in done.left:
        lines += [f"left     {finding.what}", f"         -> {finding.advice}"]
        lines += [f"         $ {finding.command}"] if finding.command else []
    if done.whole:
        lines.append("nothing is left to repair" if done.steps else "nothing to repair")
    elif any(one.state is RepairState.PLANNED for one in done.steps):
        lines.append("plan: stop all writers, then add --confirm to do it")
    return "\n".join(lines)
