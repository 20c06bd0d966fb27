"""Ray and lance-ray, the real ones: the script of #6595 on a store that ignores conditions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commits.table_worker import set_up
from holdfast.testing import FaultyS3Process

TESTS = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.timeout(600)  # a busy machine takes minutes to start Ray


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a Ray driver once, for all tests: starting Ray takes some seconds."""
    folder = tmp_path_factory.mktemp("ray")
    commit_store = set_up(f"sqlite:///{folder}/decisions.db?single_host=true")
    with FaultyS3Process(conditions="ignoring") as server:
        options = json.dumps(dict(server.storage_options("lake")))
        done = subprocess.run(
            [
                *(sys.executable, TESTS / "commits" / "ray_driver.py"),
                *(server.url("lake", "t.lance"), options, commit_store),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(TESTS), "XDG_CACHE_HOME": str(folder / "cache")},
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.requirement("C1", "C9")
def test_five_workers_on_an_ignoring_store(told: dict[str, Any]) -> None:
    assert told["issue"]["acknowledged"] == [True] * 5
    assert told["issue"]["committed"] == 2
    assert told["issue"]["present"] == [0, 1, 2, 3, 4, 100, 101]


def test_the_page_on_ray_is_true(told: dict[str, Any]) -> None:
    assert len(told["page"]) == 4
    assert all(shown == printed for shown, printed in told["page"])
    assert told["stock"] == 15


@pytest.mark.requirement("C9")
def test_the_own_commits_of_lance_ray(told: dict[str, Any]) -> None:
    """On a conditional-put table they are as good as any; a commit store never heard of them."""
    assert told["welcome"] == {"error": None, "foreign": [], "present": [1, 2, 3]}
    assert told["foreign"]["error"] == "foreign_version"
    assert told["foreign"]["foreign"] == [3]
    assert told["foreign"]["present"] == [1, 2]
