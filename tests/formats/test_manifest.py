"""Editing a manifest's config leaves everything else as Lance wrote it."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from holdfast.errors import CorruptError
from holdfast.formats import edit_config, read_config, shown_files, version_name


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.lance"
    rows = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"], "vec": [[0.5, 1.5]] * 3})
    dataset = lance.write_dataset(rows, str(path))
    dataset.update_config({"kept": "yes"})
    return path


def manifest_of(table: Path, version: int) -> Path:
    return table / version_name(version).path


def test_stock_lance_reads_an_edited_manifest(table: Path) -> None:
    file = manifest_of(table, 2)
    before = lance.dataset(str(table)).to_table()
    file.write_bytes(edit_config(file.read_bytes(), {"holdfast.token": "hf-1", "more": "ü"}))
    dataset = lance.dataset(str(table))
    assert dataset.config() == {"kept": "yes", "holdfast.token": "hf-1", "more": "ü"}
    assert dataset.to_table() == before
    lance.write_dataset(before, str(table), mode="append")
    assert lance.dataset(str(table)).config()["holdfast.token"] == "hf-1"


def test_entries_are_set_replaced_and_removed(table: Path) -> None:
    body = manifest_of(table, 2).read_bytes()
    once = edit_config(body, {"a": "1", "b": "2"})
    twice = edit_config(once, {"a": "3", "b": None, "never": None})
    assert read_config(body) == {"kept": "yes"}
    assert read_config(twice) == {"kept": "yes", "a": "3"}
    assert read_config(edit_config(twice, {"a": None})) == {"kept": "yes"}


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 40])
def test_bytes_that_are_no_manifest_are_refused(table: Path, cut: int) -> None:
    body = manifest_of(table, 2).read_bytes()
    for broken in (body[:cut], body[cut:-1], b"\xff" * 64, body[:-4] + b"LAN?"):
        with pytest.raises(CorruptError):
            edit_config(broken, {"a": "1"})


def test_unknown_fields_and_indexes_survive(table: Path) -> None:
    dataset = lance.dataset(str(table))
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 2")
    version = lance.dataset(str(table)).version
    file = manifest_of(table, version)
    edited = edit_config(file.read_bytes(), {"a": "1"})
    assert edit_config(edited, {"a": None}) == edit_config(file.read_bytes(), {})
    file.write_bytes(edited)
    again = lance.dataset(str(table))
    assert [index.name for index in again.describe_indices()] == ["id_idx"]
    assert again.to_table(filter="id = 3")["text"].to_pylist() == ["c"]
    assert again.count_rows() == 2


def test_shown_files_are_the_files_that_are_there(table: Path) -> None:
    dataset = lance.dataset(str(table))
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 2")
    latest = lance.dataset(str(table)).version
    shown = shown_files(manifest_of(table, latest).read_bytes())
    assert {path.split("/")[0] for path in shown} == {
        "data",
        "_deletions",
        "_indices",
        "_transactions",
    }
    assert all((table / path).exists() for path in shown)
