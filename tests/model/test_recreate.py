"""A table made anew under a handle, in every schedule; and the rules taken out in turn."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from holdfast.arbiter._parallel import one_by_one
from holdfast.testing import StillClock, Violation, explore, mutate
from model.decide_scenarios import RETRY
from model.recreate_conditional import Remade
from model.recreate_scenarios import Recreation

SCENARIOS = [
    Recreation(name="a stale reader, lying store", writes=False),
    Recreation(name="a stale reader, honest store", writes=False, honest=True),
    Recreation(name="a stale writer, lying store", writes=True),
    Recreation(name="a stale writer, honest store, a crash", writes=True, honest=True, crashes=1),
]
RECORDED = "holdfast.arbiter._recorded"
PINNING = "holdfast.arbiter._pinning"


@pytest.mark.requirement("P1", "P2")
@pytest.mark.parametrize("recreation", SCENARIOS, ids=lambda r: r.name)
def test_a_stale_handle_does_no_harm_to_a_table_made_anew(recreation: Recreation) -> None:
    report = explore(recreation.scenario())
    print(report)
    assert not report.capped


@pytest.mark.mutant
@pytest.mark.requirement("P1")
def test_mutant_the_old_id_is_not_retired() -> None:
    careless = mutate(PINNING, ("commit_store.retire(pin.table_id)", "pass"))
    recreation = Recreation(name="m", writes=True, pin_to=careless.pin_to_commit_store)
    with pytest.raises(Violation, match="INVISIBLE"):
        explore(recreation.scenario(), max_states=50_000)


@pytest.mark.mutant
@pytest.mark.requirement("P1", "P2")
@pytest.mark.parametrize("writes", [False, True], ids=["reader", "writer"])
def test_mutant_a_late_copy_is_not_told_from_a_forgotten_decision(writes: bool) -> None:
    careless = mutate(RECORDED, ("lambda: is_stale_copy(", "lambda: False and is_stale_copy("))
    opened = functools.partial(
        careless.RecordedDecisions, clock=StillClock(), retry=RETRY, together=one_by_one
    )
    recreation = Recreation(
        name="m",
        writes=writes,
        opened=lambda store, commit_store, pin, ids: opened(store, commit_store, pin, ids=ids),
    )
    with pytest.raises(Violation, match=r"unreadable|STOPPED"):
        explore(recreation.scenario(), max_states=50_000)


REMADE = [
    Remade(name="made anew with more versions", old=1, new=2),
    Remade(name="with as many", old=2, new=2),
    Remade(name="with fewer", old=3, new=2),
    Remade(name="under a handle that remembers", old=1, new=2, remembers=True, preemptions=2),
    Remade(name="where listings tell no MD5", old=2, new=2, tells_md5=False),
]
VERSIONS = "holdfast.commits._versions"
CARELESS = {
    "nobody looks what it built on": (
        "looked or (isinstance(upon, AppendBase) and self._is_ours(upon))",
        "looked or isinstance(upon, AppendBase)",
    ),
    "nobody looks at what lies below": (
        "if not base.has_md5(newest.md5_of(base.version)):",
        "if False:",
    ),
    "what a listing does not tell is taken for the same": (
        "if not base.has_md5(newest.md5_of(base.version)):",
        "if newest.md5_of(base.version) and not base.has_md5(newest.md5_of(base.version)):",
    ),
}


@pytest.mark.requirement("P1", "P2")
@pytest.mark.parametrize("remade", REMADE, ids=lambda one: one.name)
def test_a_stale_append_does_no_harm_where_put_if_absent_decides(remade: Remade) -> None:
    report = explore(remade.scenario())
    print(report)
    assert not report.capped


@pytest.mark.mutant
@pytest.mark.requirement("P1")
@pytest.mark.parametrize("rule", CARELESS)
def test_mutant_of_a_stale_append_is_killed(rule: str) -> None:
    careless = mutate(VERSIONS, CARELESS[rule])
    found = []
    for remade in REMADE:
        try:
            explore(replace(remade, versions=careless.Versions).scenario(), max_states=50_000)
        except Violation as violation:
            found.append(violation.message)
            break
    assert found, "no world shows the harm"
