"""No interleaving of threads loses an item, writes two groups together or acknowledges too much."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from shard.interleavings import MUTANTS, SCENARIOS

TESTS = Path(__file__).resolve().parent.parent
FRONTRUN = Path(sysconfig.get_path("scripts")) / "frontrun"


def explore(name: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(FRONTRUN), sys.executable, "-m", "shard.interleavings", name],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_interleaving_holds(name: str) -> None:
    code, told = explore(name)
    print(told)
    assert code == 0, told
    assert "holds=True" in told


@pytest.mark.mutant
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_broken_queue_is_noticed(name: str) -> None:
    code, told = explore(name)
    assert code == 1, told
    assert "holds=True" not in told
