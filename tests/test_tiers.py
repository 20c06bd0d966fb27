"""What a test needs is derived from what its module reaches."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest

import s3_servers
import servers
import tiers


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("servers", "process"),
        ("model.decide_scenarios", "explore"),
        ("crash.forks", "process"),
        ("commits.table_worker", "process"),
    ],
)
def test_a_module_belongs_to_the_tier_of_what_it_reaches(name: str, tier: str) -> None:
    assert tier in set(tiers._tiers_of_module(importlib.import_module(name)))


def test_a_name_that_comes_from_a_helper_counts() -> None:
    module = types.ModuleType("made_up")
    assert set(tiers._tiers_of_module(module)) == set()
    module.__dict__["start"] = s3_servers.start_rclone
    assert set(tiers._tiers_of_module(module)) == {"server"}
    module.__dict__["running"] = servers
    assert set(tiers._tiers_of_module(module)) == {"server"}


def test_fixtures_count() -> None:
    assert tiers._tiers_of_fixtures(["tmp_path"]) == set()
    assert tiers._tiers_of_fixtures(["tmp_path", "postgres"]) == {"server"}
    assert tiers._tiers_of_fixtures(["faulty_s3_process"]) == {"process"}


class Made:
    """An item of a made-up test."""

    def __init__(self, nodeid: str, *markers: str) -> None:
        self.nodeid = nodeid
        self._markers = markers

    def iter_markers(self) -> list[pytest.Mark]:
        return [getattr(pytest.mark, name).mark for name in self._markers]


def test_groups_that_take_long_come_first_and_stay_together() -> None:
    items: list[Any] = [
        Made("tests/test_docs.py::page", "spark"),
        *(Made(f"tests/formats/test_many.py::{number}") for number in range(20)),
        Made("tests/lsm/test_storm.py::one", "process", "server"),
        Made("tests/lsm/test_storm.py::two", "process", "server"),
        *(Made(f"tests/spark/test_x.py::{number}", "spark") for number in range(3)),
        Made("tests/lsm/test_storm.py::three", "process"),
    ]
    tiers.put_long_groups_first(items)
    names = [item.nodeid for item in items]
    assert names[:4] == [
        "tests/test_docs.py::page",
        *(f"tests/spark/test_x.py::{n}" for n in range(3)),
    ]
    assert names[4:7] == [f"tests/lsm/test_storm.py::{name}" for name in ("one", "two", "three")]
    assert names[7:] == [f"tests/formats/test_many.py::{number}" for number in range(20)]
