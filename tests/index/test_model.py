"""The production finalize, tasks and sweep under every schedule; and their mutants."""

from __future__ import annotations

import pytest

from holdfast.testing import Violation, explore, mutate
from index.build_scenarios import (
    Builds,
    Code,
    begun,
    final_part_missing,
    finalizer,
    first_task_done,
    garbage_marker,
    job,
    late_attempt,
    marked,
    staged_part_missing,
    straggler,
)
from model.decide_scenarios import inline, staged

WITH_STRAGGLER = Builds(
    name="two finalizers and a straggling task",
    programs=[finalizer, finalizer, late_attempt],
    preemptions=1,
)
SCENARIOS = [
    Builds(name="two finalizers", programs=[finalizer] * 2, crashes=1, preemptions=1),
    Builds(name="two finalizers, a fault", programs=[finalizer] * 2, faults=1, preemptions=0),
    Builds(name="three finalizers", programs=[finalizer] * 3, preemptions=1),
    Builds(name="one finalizer, a fault, a crash", programs=[finalizer], faults=1, crashes=1),
    WITH_STRAGGLER,
    Builds(
        name="two attempts of a task, a crash",
        programs=[straggler] * 2,
        prepare=first_task_done,
        crashes=1,
        preemptions=1,
    ),
    Builds(
        name="two attempts of a task, a fault",
        programs=[straggler] * 2,
        prepare=first_task_done,
        faults=1,
        preemptions=0,
    ),
    Builds(name="two jobs", programs=[job] * 2, prepare=begun, crashes=1, preemptions=0),
    Builds(name="two concurrent jobs", programs=[job] * 2, prepare=begun, preemptions=1),
    Builds(name="a job, a fault", programs=[job], prepare=begun, faults=1),
    Builds(name="differing list views", programs=[finalizer] * 2, lagging=1, preemptions=1),
    Builds(name="a marked index", programs=[finalizer] * 2, prepare=marked, preemptions=1),
    Builds(
        name="a final part is missing",
        programs=[finalizer] * 2,
        prepare=final_part_missing,
        half_made=True,
        preemptions=1,
    ),
    Builds(
        name="a staged part is missing",
        programs=[finalizer],
        prepare=staged_part_missing,
        broken=True,
    ),
    Builds(name="a garbage marker", programs=[finalizer], prepare=garbage_marker, broken=True),
    Builds(
        name="commit store, two finalizers",
        programs=[finalizer] * 2,
        make=inline,
        honest=False,
        preemptions=1,
    ),
    Builds(
        name="commit store, a fault",
        programs=[finalizer],
        make=staged,
        honest=False,
        faults=1,
    ),
    Builds(
        name="commit store, a straggler",
        programs=[finalizer, straggler],
        make=staged,
        honest=False,
        preemptions=1,
    ),
    Builds(
        name="commit store, two jobs",
        programs=[job] * 2,
        prepare=begun,
        make=inline,
        honest=False,
        preemptions=0,
    ),
]


@pytest.mark.requirement("F5", "F6", "F7", "F9", "F10", "F12")
@pytest.mark.parametrize("builds", SCENARIOS, ids=lambda b: b.name)
def test_every_schedule_ends_in_one_complete_index(builds: Builds) -> None:
    report = explore(builds.scenario())
    print(report)
    assert not report.capped


def finalize(*changes: tuple[str, str]) -> Code:
    return Code(finalize=mutate("holdfast.index._finalize", *changes))


COPY_THEN_MARK = """\
            self._copy(plan, self._copies(plan))
            self._verify(plan)
            body = self._mark(plan)
"""
MARK_THEN_COPY = """\
            body = self._mark(plan)
            self._copy(plan, self._copies(plan))
            self._verify(plan)
"""
DECIDE_PLAN = """\
        decision = self._files.core.arbiter.decide(name, encode_index_record(plan), plan.token)
        return plan if isinstance(decision, Won) else decode_plan(decision.body)"""
PUT_PLAN = """\
        self._files.core.store.put(name.path, encode_index_record(plan))
        return plan"""
ASK_TO_COPY = """\
        try:
            self._files.core.retry(
                copy.target, """
DELETE_AND_COPY = f"""\
        self._files.core.store.delete([copy.target])
{ASK_TO_COPY}"""
ALL_TASKS = "[self._manifest(record, task) for task in range(len(record.tasks))]"
LISTED_TASKS = """[
            decode_task(self._files.get(info.path) or b"")
            for info in self._files.list(f"_holdfast/index/{build_id}/tasks")
        ]"""
COMPLETE = "        complete = finalizer.complete(plan)\n"
SWEEP_AND_COMPLETE = f"        sweep(files, plan)\n{COMPLETE}"
BAD_MARKER = """\
            error.details["build_id"] = plan.build_id
            raise"""
IS_LATER = """\
            if not self._is_there(copy, self._files.head(copy.target)):
                differing.append(copy)"""
TRUSTED_LISTING = """\
            differing.append(copy)"""

TWO = SCENARIOS[0].but(crashes=0)
RACE = WITH_STRAGGLER.but(preemptions=2)
ATTEMPTS = Builds(
    name="two attempts, then a finalizer",
    programs=[straggler, straggler, finalizer],
    prepare=first_task_done,
    preemptions=2,
)

MUTANTS = {
    "overwrites copies without a plan": (
        RACE.but(code=finalize((DECIDE_PLAN, "        return plan"))),
        "CHANGED|STUCK|MIXED",
    ),
    "puts the plan, not decides it": (
        RACE.but(
            code=finalize(
                (
                    DECIDE_PLAN,
                    PUT_PLAN,
                )
            )
        ),
        "CHANGED|STUCK|MIXED",
    ),
    "deletes a final name before the copy": (
        TWO.but(code=finalize((ASK_TO_COPY, DELETE_AND_COPY))),
        "INCOMPLETE",
    ),
    "marks first": (TWO.but(code=finalize((COPY_THEN_MARK, MARK_THEN_COPY))), "INCOMPLETE"),
    "plans what a listing shows": (
        Builds(
            name="a straggling task",
            programs=[finalizer, straggler],
            prepare=first_task_done,
            code=finalize((ALL_TASKS, LISTED_TASKS)),
        ),
        "INCOMPLETE",
    ),
    "shares the attempts' folder": (
        ATTEMPTS.but(
            code=Code(
                task=mutate(
                    "holdfast.index._task",
                    (
                        "attempt = index_id(files.core.ids.token())",
                        "attempt = index_id('hf-' + 'e' * 31 + str(task))",
                    ),
                )
            )
        ),
        "MIXED|STUCK|FAILED",
    ),
    "trusts a garbage marker": (
        Builds(
            name="a garbage marker",
            programs=[finalizer],
            prepare=garbage_marker,
            broken=True,
            code=finalize((BAD_MARKER, "            return")),
        ),
        "INCOMPLETE",
    ),
    "does not verify": (
        Builds(
            name="a staged part is missing",
            programs=[finalizer],
            prepare=staged_part_missing,
            broken=True,
            code=finalize(("        if differing:\n", "        if False:\n")),
        ),
        "INCOMPLETE",
    ),
    "believes a listing": (
        Builds(
            name="differing list views",
            programs=[finalizer],
            lagging=1,
            code=finalize((IS_LATER, TRUSTED_LISTING)),
        ),
        "FAILED",
    ),
    "repairs nothing": (
        Builds(
            name="a final part is missing",
            programs=[finalizer],
            prepare=final_part_missing,
            half_made=True,
            code=finalize(("            self._copy(plan, self._differing_files(plan))\n", "")),
        ),
        "FAILED|INCOMPLETE",
    ),
    "sweeps the plan": (
        RACE.but(
            code=Code(
                publish=mutate(
                    "holdfast.index._publish", ("if is_task_path(path)]", "if '/att' not in path]")
                )
            )
        ),
        "CHANGED|STUCK|MIXED",
    ),
    "sweeps before the parts are final": (
        TWO.but(
            code=Code(publish=mutate("holdfast.index._publish", (COMPLETE, SWEEP_AND_COMPLETE)))
        ),
        "STUCK|FAILED|INCOMPLETE",
    ),
}


@pytest.mark.mutant
@pytest.mark.requirement("F9", "F12")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    builds, says = MUTANTS[name]
    with pytest.raises(Violation, match=says) as caught:
        explore(builds.scenario(), max_states=300_000)
    print(caught.value)
