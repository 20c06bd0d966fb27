"""Columns of changes that were made before a column was renamed, widened, dropped or made anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import InvalidInputError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("v", pa.string()),
        ("n", pa.int32()),
        ("s", pa.struct([("x", pa.int64()), ("y", pa.int64())])),
    ]
)
pytestmark = pytest.mark.requirement("S4")


@pytest.fixture
def table(tmp_path: Path) -> Iterator[holdfast.Table]:
    made = holdfast.create_table(tmp_path / "t.lance", SCHEMA, primary_key=["id"])
    made.append([row(1)])
    yield made
    made.close()


def row(number: int) -> dict[str, Any]:
    return {"id": number, "v": f"v{number}", "n": number, "s": {"x": number, "y": -number}}


def stock(table: holdfast.Table, version: int | None = None) -> Any:  # pylance is loosely typed
    """Return the table as somebody else changes it."""
    return lance.dataset(table.uri, version=version)


def told(table: holdfast.Table, since: Any, *names: str, **how: Any) -> list[tuple[Any, ...]]:
    found = table.changes(since, **how).to_table().to_pylist()
    return [(change["_change_type"], *(change[name] for name in names)) for change in found]


def test_a_renamed_column_has_its_values_in_older_changes(table: holdfast.Table) -> None:
    cursor = table.change_cursor()
    table.append([row(2)])
    stock(table).alter_columns({"path": "v", "name": "w"})
    table.update("id = 2", {"w": "'c'"})
    assert told(table, cursor, "id", "w") == [
        ("insert", 2, "v2"),
        ("update_preimage", 2, "v2"),
        ("update_postimage", 2, "c"),
    ]
    assert told(table, cursor, "w", columns=["w"])[0] == ("insert", "v2")


def test_two_columns_that_traded_names_keep_their_values(table: holdfast.Table) -> None:
    table.dataset().add_columns({"u": "'u'"})
    cursor = table.change_cursor()
    table.append([{**row(2), "u": "u2"}])
    for old, new in (("v", "t"), ("u", "v"), ("t", "u")):
        stock(table).alter_columns({"path": old, "name": new})
    assert told(table, cursor, "u", "v") == [("insert", "v2", "u2")]


def test_a_renamed_key_pairs_the_rows_of_an_update(table: holdfast.Table) -> None:
    cursor = table.change_cursor()
    table.update("id = 1", {"v": "'b'"})
    stock(table).alter_columns({"path": "id", "name": "k"})
    stock(table).update({"v": "'c'"})
    wanted = [
        ("update_preimage", 1, "v1"),
        ("update_postimage", 1, "b"),
        ("update_preimage", 1, "b"),
        ("update_postimage", 1, "c"),
    ]
    assert told(table, cursor, "k", "v") == wanted
    assert told(table, cursor, "v", columns=["v"]) == [(kind, v) for kind, _, v in wanted]


def test_a_part_of_a_struct_that_was_renamed_has_its_values(table: holdfast.Table) -> None:
    cursor = table.change_cursor()
    table.append([row(2)])
    stock(table).alter_columns({"path": "s.x", "name": "z"})
    assert told(table, cursor, "s") == [("insert", {"z": 2, "y": -2})]


@pytest.mark.parametrize("ours", [False, True])  # by Holdfast, the version is marked in a column
def test_a_widened_column_has_its_values_in_older_changes(
    table: holdfast.Table, *, ours: bool
) -> None:
    cursor = table.change_cursor()
    table.append([row(2)])
    dataset: Any = table.dataset() if ours else stock(table)
    dataset.alter_columns({"path": "n", "data_type": pa.int64()})
    assert told(table, cursor, "n", until=int(dataset.version) - 1) == [("insert", 2)]
    stock(table).alter_columns({"path": "n", "name": "m"})
    table.append([{"id": 3, "m": 2**40}])
    assert told(table, cursor, "id", "m") == [("insert", 2, 2), ("insert", 3, 2**40)]


def test_a_column_made_anew_has_no_values_of_the_dropped_one(table: holdfast.Table) -> None:
    cursor = table.change_cursor()
    table.append([row(2)])
    stock(table).drop_columns(["v"])
    stock(table).add_columns({"v": "'new'"})
    table.append([row(3)])
    assert told(table, cursor, "id", "v") == [("insert", 2, None), ("insert", 3, "v3")]


def test_a_column_that_was_cast_and_renamed_in_one_version_is_refused(
    table: holdfast.Table,
) -> None:
    cursor = table.change_cursor()
    table.append([row(2)])
    stock(table).alter_columns({"path": "n", "name": "m", "data_type": pa.int64()})
    with pytest.raises(InvalidInputError, match="nobody can tell") as told_of:
        table.changes(cursor)
    assert told_of.value.details["columns"] == "m"
    assert told(table, cursor, "v", columns=["v"]) == [("insert", "v2")]
    assert told(table, table.dataset().version, "m") == []


def test_ids_mean_nothing_across_an_overwrite(table: holdfast.Table) -> None:
    cursor = table.change_cursor()
    table.append([row(2)])
    schema = pa.schema([SCHEMA.field("id"), SCHEMA.field("n"), ("other", pa.string())])
    rows = pa.table({"id": [2], "n": [7], "other": ["x"]}, schema)
    lance.write_dataset(rows, table.uri, mode="overwrite")
    stock(table).alter_columns({"path": "n", "name": "m"})
    found = told(table, cursor, "id", "m", "other")
    assert found[0] == ("insert", 2, 2, None)
    assert ("delete", 1, 1, None) in found
    assert found[-1][1:] == (2, 7, "x")


def test_a_restored_version_brings_old_names_back(table: holdfast.Table) -> None:
    cursor, version = table.change_cursor(), int(table.dataset().version)
    stock(table).alter_columns({"path": "v", "name": "w"})
    table.append([{"id": 2, "w": "b"}])
    stock(table, version).restore()
    with pytest.raises(InvalidInputError, match="nobody can tell"):
        table.changes(cursor)  # an id may be another's after a restore: names must tell, too
    assert told(table, cursor, "id", columns=["id", "n"]) == [("insert", 2), ("delete", 2)]


def test_a_reading_with_an_end_has_todays_names(table: holdfast.Table) -> None:
    first = int(table.dataset().version)
    table.append([row(2)])
    stock(table).alter_columns({"path": "v", "name": "w"})
    table.append([{"id": 3, "w": "c"}])
    assert told(table, first, "w", until=first + 1) == [("insert", "v2")]
    assert told(table, first, "w", max_files=1) == [("insert", "v2")]


def test_rows_of_the_log_have_todays_names(table: holdfast.Table) -> None:
    cursor = table.change_cursor()
    with table.claim_writer("unsharded") as writer:
        writer.put([row(1) | {"v": "b"}, row(2)])
    table.merge_log()
    stock(table).alter_columns({"path": "v", "name": "w"})
    assert told(table, cursor, "id", "w") == [
        ("update_preimage", 1, "v1"),
        ("update_postimage", 1, "b"),
        ("insert", 2, "v2"),
    ]
