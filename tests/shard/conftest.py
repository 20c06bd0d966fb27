"""Fixtures of the shard tests."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from shard.levels import (
    KEYED,
)


@pytest.fixture
def table(tmp_path: Path) -> holdfast.Table:
    return holdfast.create_table(tmp_path / "t", KEYED)
