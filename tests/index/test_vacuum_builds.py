"""`vacuum` takes builds that nobody works on, as a whole, and never one that may be running."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import holdfast
from index.corpus import assert_equal_to_stock, make_table, stock_copy
from index.test_races import built

OLD_SECONDS = 30 * 24 * 3600


def age(uri: Path, *parts: str) -> None:
    """Let files below some folders look a month old."""
    then = time.time() - OLD_SECONDS
    for folder in parts:
        for path in (uri / folder).rglob("*"):
            os.utime(path, (then, then))


def taken(table: holdfast.Table, *, confirm: bool = True) -> set[str]:
    """Vacuum, and once more when the grace period has passed; return what went, or would."""
    found = table.vacuum(what=["indexes"], confirm=confirm)
    if found.raised and confirm:
        age(Path(table.uri), "_holdfast/vacuum")
        found = table.vacuum(what=["indexes"], confirm=True)
    return {one.path for one in (*found.leftovers, *(() if confirm else found.waiting))}


@pytest.mark.parametrize("commit_store", [None, "sqlite"])
def test_an_abandoned_build_is_taken_whole(tmp_path: Path, commit_store: str | None) -> None:
    uri = tmp_path / "t"
    table = make_table(uri, commit_store=commit_store)
    _, record = built(table)
    assert taken(table) == set()  # it is young
    age(uri, "_indices", "_holdfast/index")
    planned = taken(table, confirm=False)
    assert any(record.build_id in path for path in planned)
    assert any("/staging/part_" in path for path in planned)
    assert taken(table) == planned
    assert table.index_builds() == []
    assert not [path for path in (uri / "_indices").rglob("*") if path.is_file()]
    result = table.create_index("text", "fts", tasks=3, with_position=True)
    assert (result.applied, result.reused) == (True, 0)
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


def test_a_build_with_anything_young_is_left_alone(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    table = make_table(uri)
    _, record = built(table)
    age(uri, "_indices", "_holdfast/index")
    os.utime(uri / "_holdfast" / "index" / record.build_id / "tasks" / "00001.json")
    assert taken(table) == set()
    assert table.finalize_index(record.build_id).applied


def test_what_is_committed_stays(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    table = make_table(uri)
    result = table.create_index("text", "fts", tasks=3, with_position=True)
    age(uri, "_indices", "_holdfast/index")
    assert taken(table) == {f"_holdfast/index/{result.build_id}/plan.json"}
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


def test_a_folder_of_no_build_and_no_version(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    table = make_table(uri, fragments=1)
    table.dataset().create_index_uncommitted("text", "INVERTED", name="x", fragment_ids=[0])
    assert taken(table) == set()
    age(uri, "_indices")
    assert len(taken(table)) == 4
