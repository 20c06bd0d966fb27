"""A table made anew under a handle, in every schedule; and the rules taken out in turn."""

from __future__ import annotations

import functools

import pytest

from holdfast.arbiter._parallel import one_by_one
from holdfast.testing import StillClock, Violation, explore, mutate
from model.decide_scenarios import RETRY
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
