"""What a test needs is derived from what its module reaches."""

from __future__ import annotations

import importlib
import types

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
