"""Processes repeat each other's strings while they move them to files: each is applied once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import holdfast
from commits.table_worker import Place, rows, set_up, spawned
from holdfast.formats import _ledger, older_files
from holdfast.testing import FaultyS3Process

WORKERS = 3
STRINGS = 12

pytestmark = [pytest.mark.requirement("P3", "C8"), pytest.mark.timeout(300)]


def repeat_all(table: holdfast.Table, seed: int) -> int:
    """Apply every string, in an order of one's own; return how many were not applied before."""
    _ledger._KEPT.update(dict.fromkeys(_ledger._KEPT, 2))
    order = random.Random(seed).sample(range(STRINGS), STRINGS)
    return sum(table.append(rows(n), txn=f"run {n}").applied for n in order)


def check(place: Place) -> None:
    table = place.create()
    with spawned(WORKERS) as pool:
        made = list(pool.map(repeat_all, [table] * WORKERS, range(WORKERS)))
    assert sum(made) == STRINGS
    assert place.ids() == list(range(STRINGS))
    assert older_files(table.dataset().config())
    assert table.applied([f"run {n}" for n in range(STRINGS + 1)]) == [True] * STRINGS + [False]


def test_on_local_disk(tmp_path: Path) -> None:
    check(Place(uri=str(tmp_path / "t.lance")))


def test_on_a_store_that_ignores_conditions(tmp_path: Path) -> None:
    server = FaultyS3Process(conditions="ignoring")
    try:
        url = server.url("lake", f"{tmp_path.name}/t.lance")
        commit_store = set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true")
        options = dict(server.storage_options("lake"))
        check(Place(uri=url, commit_store=commit_store, options=options))
    finally:
        server.stop()
