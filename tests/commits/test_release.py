"""Which releases of pylance are taken, tried with a warning, or refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from holdfast.commits._release import check_release
from holdfast.errors import UnsupportedError
from holdfast.formats import CHECKED_RELEASE, SUPPORTED_PYLANCE, is_supported

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def forget() -> None:
    check_release.cache_clear()


def test_supported_releases_pass_without_a_word() -> None:
    for release in ("14.0.0", CHECKED_RELEASE, "14.3.1b2"):
        check_release(release)


def test_an_older_release_is_refused_with_what_to_install() -> None:
    with pytest.raises(UnsupportedError, match="too old: install 'pylance>=14,<15'"):
        check_release("13.9.9")


def test_a_newer_release_is_tried_with_one_warning() -> None:
    with pytest.warns(RuntimeWarning, match=r"pylance 15\.0\.0 is newer"):
        check_release("15.0.0")
    check_release("15.0.0")  # once


@pytest.mark.parametrize("release", ["15.0.0", "13.0.0", "", "x.1"])
def test_manifests_are_made_here_for_supported_releases_only(release: str) -> None:
    assert not is_supported(release)


def test_the_package_asks_for_the_same_releases() -> None:
    wanted = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    assert f"pylance>={SUPPORTED_PYLANCE[0]},<{SUPPORTED_PYLANCE[-1] + 1}" in wanted
