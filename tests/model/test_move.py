"""A table moves to another commit store, in every schedule; and the rules taken out in turn."""

from __future__ import annotations

import pytest

from holdfast.testing import Violation, explore, mutate
from model.move_scenarios import Moving, name_of_entry

SCENARIOS = [
    Moving(name="a writer"),
    Moving(name="a writer, a crash", crashes=1, preemptions=1),
    Moving(name="a writer, a lost or late answer", faults=1, preemptions=0),
    Moving(name="three wait for their copies", waiting=3, preemptions=1),
    Moving(name="two movers", movers=2, preemptions=1),
    Moving(name="a collected log", collected=True, crashes=1, preemptions=0, name_of=name_of_entry),
]
MOVE = "holdfast.arbiter._move"
pytestmark = pytest.mark.requirement("O2", "P1")


@pytest.mark.parametrize("moving", SCENARIOS, ids=lambda moving: moving.name)
def test_nothing_is_lost_in_a_move(moving: Moving) -> None:
    report = explore(moving.scenario())
    print(report)
    assert not report.capped


def explore_with(moving: Moving, *replacements: tuple[str, str]) -> None:
    careless = mutate(MOVE, *replacements)
    explore(moving.but(move=careless.move_between).scenario(), max_states=200_000)


@pytest.mark.mutant
def test_mutant_the_old_store_is_not_closed() -> None:
    with pytest.raises(Violation, match=r"TWICE|LOST|STOPPED"):
        explore_with(Moving(name="m"), ("    old.retire(pin.table_id)\n", ""))


@pytest.mark.mutant
def test_mutant_the_old_store_is_closed_after_what_was_decided_there_is_finished() -> None:
    retire = "    old.retire(pin.table_id)\n"
    with pytest.raises(Violation, match=r"TWICE|LOST|STOPPED"):
        explore_with(
            Moving(name="m"),
            (retire, ""),
            ("    return floors\n", f"{retire}    return floors\n"),
            ("old.boundary(series, retired=True) + 1", "old.boundary(series) + 1"),
        )


@pytest.mark.mutant
def test_mutant_what_waits_is_not_finished() -> None:
    with pytest.raises(Violation, match=r"TWICE|LOST|STOPPED"):
        explore_with(Moving(name="m"), ("_finish(store, decode_record(value))", "pass"))


@pytest.mark.mutant
def test_mutant_only_the_newest_is_finished() -> None:
    finish = "            _finish(store, decode_record(value))\n            number += 1\n"
    late = "            last = value\n            number += 1\n"
    last = "        _finish(store, decode_record(last))"
    after = "        floors[newest.series] = "
    with pytest.raises(Violation, match=r"MISSING|LOST|BROKEN|STOPPED"):
        explore_with(
            Moving(name="m", waiting=3),
            (finish, late),
            (after, f"        if number > newest.number + 1:\n    {last}\n{after}"),
        )


@pytest.mark.mutant
def test_mutant_the_new_store_starts_from_nothing() -> None:
    with pytest.raises(Violation, match=r"STOPPED|LOST|BROKEN"):
        explore_with(
            Moving(name="m"),
            ("                arbiter.accept(series, through)\n", "                pass\n"),
            ("        accept_everything(store, arbiter)\n", ""),
        )


@pytest.mark.mutant
def test_mutant_the_pin_changes_before_the_new_store_knows_what_is_there() -> None:
    put = "        store.put(PIN_PATH, encode_pin(pin))\n"
    with pytest.raises(Violation, match=r"STOPPED|LOST|BROKEN"):
        explore_with(
            Moving(name="m"),
            (put, ""),
            ("        for series, through in", f"{put}        for series, through in"),
        )


@pytest.mark.mutant
def test_mutant_a_collected_log_starts_again() -> None:
    moving = Moving(name="m", collected=True, crashes=1, preemptions=1, name_of=name_of_entry)
    with pytest.raises(Violation, match=r"TWICE|LOST|STOPPED"):
        explore_with(moving, ("old.boundary(series, retired=True) + 1", "0"))


@pytest.mark.mutant
def test_mutant_each_mover_goes_its_own_way() -> None:
    with pytest.raises(Violation):
        explore_with(
            Moving(name="m", movers=2),
            ("move = mine if winner is None else decode_move(winner)", "move = mine"),
            ("    if move is None:\n", "    if True:\n"),
        )
