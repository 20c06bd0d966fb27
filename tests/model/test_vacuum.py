"""Vacuum beside work that takes its time, under every schedule; and without each of its rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.commits import _history, _versions
from holdfast.errors import StaleWorkError
from holdfast.testing import Violation, explore, mutate
from holdfast.upkeep import _vacuum
from model import vacuum_scenarios
from model.vacuum_scenarios import (
    NoThreads,
    Vacuums,
    recorded,
    restore,
    restore_past_us,
    vacuum,
    vacuum_twice,
    write,
    write_undated,
)

pytestmark = pytest.mark.requirement("P1", "C8")


@pytest.fixture(autouse=True)
def in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greenlets do not cross threads."""
    monkeypatch.setattr(_history, "ThreadPoolExecutor", NoThreads)


LOOK = """\
    due = read_due(contents, mark)
    contents.look_again()
"""
RAISE_ONLY = """\
        raise_number(contents, touch)
        contents.mark = contents.mark.next(0, contents.mark.listed)
"""
LONG_WORK = Vacuums(
    name="a writer outlasts two vacuums",
    actors={"writer": write, "vacuum": vacuum_twice},
)
TWO_VACUUMS = Vacuums(
    name="two vacuums at the same time, and a writer",
    actors={"writer": write, "one": vacuum, "other": vacuum},
    before=1,
    preemptions=1,
)
RESTORED = Vacuums(
    name="a restore between two vacuums",
    actors={"writer": write, "vacuum": vacuum_twice, "restore": restore},
    preemptions=1,
    restores=True,
)
RESTORED_BY_STOCK = Vacuums(
    name="a restore by stock, and a commit upon it, between two vacuums",
    actors={"writer": write, "vacuum": vacuum_twice, "stock": restore_past_us},
    preemptions=1,
    restores=True,
)
UNDATED = Vacuums(
    name="files of which nobody knows when they were written",
    actors={"writer": write_undated, "vacuum": vacuum},
    before=1,
)
SCENARIOS = [
    LONG_WORK,
    replace(
        LONG_WORK, name="the same, by a commit store", make=recorded, honest=False, preemptions=1
    ),
    replace(LONG_WORK, name="a vacuum dies at any step", crashes=1, preemptions=1),
    replace(
        LONG_WORK,
        name="an answer gets lost",
        actors={"writer": write, "vacuum": vacuum},
        before=1,
        faults=1,
        preemptions=1,
    ),
    TWO_VACUUMS,
    RESTORED,
    RESTORED_BY_STOCK,
    replace(
        RESTORED_BY_STOCK,
        name="the same beside files of which nobody knows when they were written",
        actors={"writer": write_undated, "vacuum": vacuum, "stock": restore_past_us},
        before=1,
    ),
    UNDATED,
]


@pytest.mark.parametrize("setup", SCENARIOS, ids=lambda one: one.name)
def test_no_version_shows_a_file_that_vacuum_took(setup: Vacuums) -> None:
    report = explore(setup.scenario())
    print(report)
    assert not report.capped


FLOOR, NUMBERS, VACUUM = (
    "holdfast.commits._floor",
    "holdfast.upkeep._numbers",
    "holdfast.upkeep._vacuum",
)
MUTANTS: dict[str, tuple[Any, ...]] = {
    "the floor is not looked at": (
        LONG_WORK,
        FLOOR,
        ("if mark.floor and (begun_on is None or begun_on < mark.floor):", "if False:"),
    ),
    "the floor is one version too low": (
        LONG_WORK,
        FLOOR,
        ("begun_on < mark.floor)", "begun_on < mark.floor - 1)"),
    ),
    "a restore takes the number back": (
        RESTORED,
        FLOOR,
        (
            "max(read_mark(config), above, key=lambda one: one.number)",
            "read_mark(config)",
        ),
    ),
    "a restore by stock takes the number back": (
        RESTORED_BY_STOCK,
        FLOOR,
        ("    if not version or is_made_here(config, version):", "    if True:"),
    ),
    "only the version below a foreign one is asked": (
        RESTORED_BY_STOCK,
        FLOOR,
        ("if is_made_here(config_there, below) or below == 1:", "if True:"),
    ),
    "deletes by the list that the newest number closed": (
        LONG_WORK,
        NUMBERS,
        ("path = mark.listed if rising else mark.due", "path = mark.listed"),
    ),
    "deletes what was not listed": (
        LONG_WORK,
        VACUUM,
        ("[p for p in others if p.path in due or not is_numbered(p.path)]", "others"),
    ),
    "versions are not read once more": (
        LONG_WORK,
        VACUUM,
        (LOOK, "    due = read_due(contents, mark)\n"),
        ("        contents.read_all_again()  # what was remembered is for plans\n", ""),
        ("        raise_number(contents, touch)\n        contents.look_again()\n", RAISE_ONLY),
    ),
    "undated files are not looked for": (
        UNDATED,
        FLOOR,
        ("if path in due or not _is_there(store.head, path):", "if False:"),
    ),
    "undated files are looked for, but not on the list": (
        UNDATED,
        FLOOR,
        (
            "if path in due or not _is_there(store.head, path):",
            "if not _is_there(store.head, path):",
        ),
    ),
}


def install(module: str, mutant: Any, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put a mutant in the place of its module; return what a scenario takes of it."""
    if module == FLOOR:
        mutant.StaleWorkError = StaleWorkError
        patch.setattr(_versions, "check_floor", mutant.check_floor)
        patch.setattr(_versions, "carried_mark", mutant.carried_mark)
        patch.setattr(_versions, "mark_above", mutant.mark_above)
        patch.setattr(vacuum_scenarios, "check_not_due", mutant.check_not_due)
    elif module == NUMBERS:
        patch.setattr(_vacuum, "raise_number", mutant.raise_number)
        patch.setattr(_vacuum, "read_due", mutant.read_due)
    else:
        mutant.LeftoverKind = _vacuum.LeftoverKind
        return {"take": mutant.take_leftovers}
    return {}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup, module, *changes = MUTANTS[name]
    given = install(module, mutate(module, *changes), monkeypatch)
    with pytest.raises(Violation) as caught:
        explore(replace(setup, name=name, **given).scenario())
    print(caught.value)
    assert "GONE" in caught.value.message
