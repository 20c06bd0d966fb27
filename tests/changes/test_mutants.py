"""Rules of reading changes, each taken out: a reader that follows a busy table notices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from changes.model import Busy
from changes.test_model import follow
from holdfast.testing import mutate

pytestmark = [pytest.mark.requirement("S4"), pytest.mark.mutant]

SEEDS = 8
PLAN, COMPARE = "holdfast.changes._plan", "holdfast.changes._compare"
PLANS, COMPARES = "holdfast.changes._changes.plan_changes", "holdfast.changes._read.compare"
MERGED = "        if self._fresh and before.version and dict(look.merged) != dict(before.merged):\n"
GONE = "gone = np.flatnonzero(_unmatched_rows(codes[:first], codes[first:]))"
CAME = "came = np.flatnonzero(_unmatched_rows(codes[first:], codes[:first])) + first"


@dataclass(frozen=True)
class Mutant:
    """A module with one rule taken out, and who uses it."""

    name: str
    module: str
    user: str
    changed: tuple[tuple[str, str], ...]


MUTANTS = [
    Mutant(
        "entries are not read before the merge that took them in",
        PLAN,
        PLANS,
        (("if not self._read_logs(self._needed_positions(following)) or not", "if not"),),
    ),
    Mutant("a merge is not quiet", PLAN, PLANS, ((MERGED, "        if False:\n"),)),
    Mutant(
        "rows that the log hides are told",
        PLAN,
        PLANS,
        (("        return self._fresh and look.keyed\n", "        return False\n"),),
    ),
    Mutant(
        "equal rows do not cancel each other",
        COMPARE,
        COMPARES,
        ((GONE, "gone = np.arange(first)"), (CAME, "came = np.arange(first, len(codes))")),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_rule_of_changes_taken_out_is_noticed(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = mutate(mutant.module, *mutant.changed)
    monkeypatch.setattr(mutant.user, getattr(broken, mutant.user.rpartition(".")[2]))
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            follow(Busy(folder, seed, keyed=True), seed, steps=40)
        except AssertionError as error:
            print(f"seed {seed}: {error}"[:300])
            return
    pytest.fail("nobody noticed")
