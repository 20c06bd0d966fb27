"""Both arbiters through every interleaving, fault and crash that the budgets allow."""

from __future__ import annotations

import functools
import os
import time

import pytest

from holdfast.testing import Exploration, Outcome, Scenario, explore, merge_outcomes, wander
from model.create_scenarios import creators
from model.decide_scenarios import (
    RushingClock,
    Setup,
    append,
    append_again,
    build_at_once,
    chain,
    conditional,
    in_order,
    in_turn,
    inline,
    line_up,
    log_append,
    log_holds,
    look_first,
    look_last,
    race,
    racing_with,
    recorded_with,
    staged,
    upon_each_other,
)
from model.help_scenarios import (
    FirstLook,
    Forgotten,
    LookedAhead,
    Removed,
    RemovedWhenSeen,
    SilentOnce,
)

SETUPS = [
    Setup(name="conditional put, 2 actors", make=conditional, faults=1, crashes=1),
    Setup(name="conditional put, 3 actors", make=conditional, actors=3, faults=1, crashes=1),
    *[
        Setup(
            name=f"racing, {actors} actors, the name is read {order}",
            make=racing_with(together),
            actors=actors,
            faults=1,
            crashes=crashes,
            preemptions=preemptions,
            program=race,
        )
        for order, together in (("first", look_first), ("last", look_last))
        for actors, preemptions, crashes in ((2, 3, 1), (3, 1, 0))
    ],
    Setup(
        name="racing beside one that is not",
        make=racing_with(look_first),
        programs=(race, append),
        faults=1,
        crashes=1,
    ),
    Setup(name="inline, honest store", make=inline, faults=1, crashes=1),
    Setup(name="inline, lying store", make=inline, faults=1, crashes=1, honest=False),
    Setup(name="staged, honest store, a crash", make=staged, crashes=1),
    Setup(name="staged, lying store", make=staged, faults=1, crashes=1, honest=False),
    Setup(name="inline, 3 actors", make=inline, actors=3, preemptions=2, honest=False),
    Setup(name="staged, 3 actors", make=staged, actors=3, preemptions=2, honest=False),
    Setup(name="inline with a reader", make=inline, reader=True, honest=False),
    Setup(name="staged with a collector", make=staged, collector=True, honest=False),
    Setup(name="collected, then rebuilt", make=inline, collector=True, program=append_again),
    Setup(
        name="one writer twice, collected, rebuilt",
        make=inline,
        twins=True,
        collector=True,
        honest=False,
        program=append_again,
    ),
    Setup(
        name="one writer, an answer lost, collected, rebuilt",
        make=inline,
        actors=1,
        faults=1,
        collector=True,
        honest=False,
        program=append_again,
    ),
    Setup(
        name="one token at two names",
        make=staged,
        faults=1,
        honest=False,
        preemptions=2,
        program=log_append,
        check=log_holds,
    ),
    Setup(
        name="one builds immediately on the other",
        make=inline,
        faults=1,
        honest=False,
        programs=(append, build_at_once),
    ),
    Setup(
        name="a reader and a collector",
        make=inline,
        actors=1,
        reader=True,
        collector=True,
        honest=False,
    ),
    Setup(name="staged, like S3", make=staged, crashes=1, honest=False, copies_if_absent=False),
    Setup(name="one writer twice, conditional", make=conditional, twins=True, faults=1, crashes=1),
    Setup(name="one writer twice, inline", make=inline, twins=True, faults=1, honest=False),
    Setup(name="one writer twice, staged", make=staged, twins=True, crashes=1, honest=False),
    Setup(name="forgetful, honest store", make=inline, forgets=1, crashes=1),
    Setup(name="forgetful, lying store", make=inline, forgets=1, honest=False),
    Setup(name="forgetful, staged", make=staged, forgets=1, honest=False),
    Setup(name="forgetful, staged, honest store", make=staged, forgets=1),
    Setup(
        name="forgetful, 3 actors",
        make=inline,
        actors=3,
        forgets=1,
        honest=False,
        preemptions=2,
    ),
]
CHAINS = [
    Setup(name="chain, lying store", make=inline, program=chain, honest=False, crashes=1),
    Setup(name="chain, honest store", make=inline, program=chain, crashes=1),
    Setup(name="chain, a fault", make=inline, program=chain, honest=False, faults=1),
    Setup(
        name="chain of three",
        make=recorded_with(1 << 16, most_unfinished=1),
        program=chain,
        actors=3,
        honest=False,
        preemptions=2,
        check=functools.partial(in_order, most_unfinished=1),
    ),
    Setup(
        name="chain of three, two may be unfinished, a crash",
        make=recorded_with(1 << 16, most_unfinished=2),
        program=chain,
        actors=3,
        honest=False,
        crashes=1,
        preemptions=0,
        check=functools.partial(in_order, most_unfinished=2),
    ),
    Setup(
        name="chain that waits",
        make=recorded_with(1 << 16, patience=1),
        program=chain,
        honest=False,
        crashes=1,
    ),
    Setup(name="chain, staged", make=staged, program=chain, honest=False),
    Setup(name="chain with a reader", make=inline, program=chain, reader=True, honest=False),
    Setup(
        name="chain and one that decides as ever",
        make=inline,
        programs=(chain, append, chain),
        actors=3,
        honest=False,
        preemptions=2,
    ),
    Setup(name="one writer twice, chain", make=inline, program=chain, twins=True, honest=False),
    Setup(name="forgetful, chain", make=inline, program=chain, forgets=1, honest=False),
    Setup(name="forgetful, chain, honest store", make=inline, program=chain, forgets=1),
    Setup(
        name="forgetful, chain of three",
        make=inline,
        program=chain,
        actors=3,
        forgets=1,
        honest=False,
        preemptions=2,
    ),
    Setup(
        name="forgetful, chain of three, each upon the one before",
        make=inline,
        program=functools.partial(chain, readable=True),
        actors=3,
        forgets=1,
        preemptions=2,
        check=upon_each_other,
    ),
    Setup(
        name="forgetful, chain of two twice, each upon the one before",
        make=inline,
        program=functools.partial(chain, times=2, readable=True),
        forgets=1,
        preemptions=2,
        check=upon_each_other,
    ),
]
IN_LINE = recorded_with(1 << 16, patience=1, clock=RushingClock)
TURNS = [
    Setup(
        name="in line, the first dies or sleeps",
        make=IN_LINE,
        program=line_up,
        actors=3,
        honest=False,
        crashes=1,
        preemptions=0,
        check=in_turn,
    ),
    Setup(
        name="in line, three",
        make=IN_LINE,
        program=line_up,
        actors=3,
        honest=False,
        preemptions=1,
        check=in_turn,
    ),
    Setup(
        name="in line, a fault",
        make=IN_LINE,
        program=line_up,
        honest=False,
        faults=1,
        preemptions=1,
        check=in_turn,
    ),
    Setup(
        name="in line beside one that is not",
        make=IN_LINE,
        programs=(line_up, chain),
        preemptions=3,
        check=in_turn,
    ),
]
TURNS += [
    Setup(
        name=f"in line, {unfinished} may be unfinished",
        make=recorded_with(1 << 16, most_unfinished=unfinished, patience=1, clock=RushingClock),
        program=line_up,
        actors=3,
        honest=False,
        preemptions=1,
        check=functools.partial(in_order, most_unfinished=unfinished),
    )
    for unfinished in (1, 2)
]
PATIENT = recorded_with(1 << 16, patience=1)
CHAINS += [
    Setup(
        name="forgetful, chain of three that waits",
        make=PATIENT,
        program=chain,
        actors=3,
        forgets=1,
        honest=False,
        preemptions=1,
    ),
]
SETUPS += CHAINS + TURNS
SCENARIOS: list[Scenario] = [
    *(setup.scenario() for setup in SETUPS),
    Forgotten(name="forgetful, helped", make=inline).scenario(),
    Removed(name="helped, the table is made anew", make=PATIENT).scenario(),
    LookedAhead(name="forgetful, looked ahead", make=inline).scenario(),
    FirstLook(name="waits, the table is made anew", make=PATIENT, store=RemovedWhenSeen).scenario(),
    FirstLook(name="waits, no answer", make=PATIENT, store=SilentOnce).scenario(),
    creators(stores=1),
    creators(stores=1, crashes=1),
    creators(stores=2, crashes=1),
    creators(stores=2, faults=1, honest=True),
]
REPORTS: list[Exploration] = []


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_every_schedule_keeps_what_was_acknowledged(scenario: Scenario) -> None:
    report = explore(scenario)
    print(report)
    assert not report.capped
    REPORTS.append(report)


def test_the_explorations_were_large_enough_and_every_kind_of_fault_was_on_offer() -> None:
    if len(REPORTS) < len(SCENARIOS):
        pytest.skip("only part of the scenarios was selected")
    states = sum(report.states for report in REPORTS)
    print(f"{states:,} states in {sum(r.seconds for r in REPORTS):.0f} s")
    assert states >= 100_000
    offered = merge_outcomes(REPORTS)
    assert all(offered.get(outcome, 0) >= 100 for outcome in Outcome), offered


WANDERERS = [
    Setup(
        name=f"{kind}, 3 actors, many faults",
        make=make,
        actors=3,
        faults=4,
        crashes=2,
        honest=honest,
    )
    for kind, make, honest in [
        ("conditional put", conditional, True),
        ("inline", inline, False),
        ("staged", staged, False),
    ]
]


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("setup", WANDERERS, ids=lambda s: s.name)
def test_random_schedules_with_many_faults(setup: Setup) -> None:
    first = int(os.environ.get("HOLDFAST_SEED", "0"))
    report = wander(setup.scenario(), seeds=range(first, first + 300))
    print(report)
    assert report.ends == 300


def test_a_time_limit_is_kept_and_said() -> None:
    setup = Setup(name="large", make=staged, actors=3, faults=2, crashes=2, honest=False)
    report = explore(setup.scenario(), until=time.monotonic() + 1)
    assert report.capped
    assert report.states > 0
