"""Bodies that leave the commit store, in every interleaving: no decided bytes are lost with them.

Two actors decide two or three names, so here every decision sheds all bodies below its own.
"""

from __future__ import annotations

import pytest

from holdfast.arbiter import _shedding
from holdfast.testing import Violation, explore, mutate
from model.decide_scenarios import Setup, append_again, inline, recorded_with

pytestmark = pytest.mark.requirement("C8", "P1")
SETUPS = [
    Setup(name="a crash", make=inline, crashes=1, honest=False),
    Setup(name="with a reader", make=inline, reader=True, honest=False),
    Setup(name="collected meanwhile", make=inline, collector=True, program=append_again),
]


@pytest.fixture
def sheds_at_every_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shedding, "LEAST", 1)
    monkeypatch.setattr(_shedding, "EVERY", 1)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_every_schedule_keeps_what_was_acknowledged(
    sheds_at_every_decision: None, setup: Setup
) -> None:
    report = explore(setup.scenario())
    assert not report.capped
    assert report.states > 100


@pytest.mark.mutant
def test_mutant_that_sheds_a_body_before_its_copy_is_killed(
    sheds_at_every_decision: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_shedding, "LEAST", 0)  # its own as well
    before = "            tail = self._complete("
    shed = "            shed_bodies(self._commit_store, self._series(name), name.number)"
    careless = mutate("holdfast.arbiter._recorded", (before, f"{shed}\n{before}"))
    setup = SETUPS[0].but(make=recorded_with(1 << 16, careless.RecordedDecisions))
    with pytest.raises(Violation):
        explore(setup.scenario())
