"""Fields inside columns are paired by id at every depth: renamed, traded, dropped, made anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import InvalidInputError

INSIDE = pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.int64())])
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("st", pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.int64()),
                                  pa.field("deep", INSIDE)])),
        pa.field("many", pa.list_(INSIDE)),
        pa.field("big", pa.large_list(INSIDE)),
        pa.field("named", pa.map_(pa.string(), INSIDE)),
    ]
)  # fmt: skip

pytestmark = [pytest.mark.requirement("P5"), pytest.mark.requirement("W13")]


def row(number: int, x: str = "x", y: str = "y") -> dict[str, Any]:
    """Return a row with all columns, its nested fields under these names."""
    inside = {x: number * 10 + 1, y: number * 10 + 2}
    return {
        "k": number,
        "st": {**inside, "deep": inside},
        "many": [inside, None, inside],
        "big": [inside],
        "named": [("a", inside), ("b", inside)],
    }


EMPTY: dict[str, Any] = {"k": 9, "st": None, "many": None, "big": [], "named": []}


def rename(table: holdfast.Table, **names: str) -> None:
    changes: list[Any] = [
        {"path": path, "name": names[path.rsplit(".", 1)[-1]]}
        for path in (
            "st.x", "st.y", "st.deep.x", "st.deep.y", "many.item.x", "many.item.y",
            "big.item.x", "big.item.y",
            "named.entries.value.x", "named.entries.value.y",
        )
        if path.rsplit(".", 1)[-1] in names
    ]  # fmt: skip
    table.dataset().alter_columns(*changes)


def renamed(table: holdfast.Table) -> dict[str, str]:
    rename(table, x="xx")
    return {"x": "xx", "y": "y"}


def traded(table: holdfast.Table) -> dict[str, str]:
    rename(table, x="z")
    rename(table, y="x")
    table.dataset()
    changes = {"z": "y"}
    rename_from(table, changes)
    return {"x": "y", "y": "x"}


def rename_from(table: holdfast.Table, names: dict[str, str]) -> None:
    for path in ("st", "st.deep", "many.item", "big.item", "named.entries.value"):
        for old, new in names.items():
            change: Any = {"path": f"{path}.{old}", "name": new}
            table.dataset().alter_columns(change)


@pytest.mark.parametrize("change", [renamed, traded], ids=["renamed", "traded"])
@pytest.mark.parametrize("flushed", [False, True], ids=["log", "sstable"])
def test_nested_fields_keep_their_values_under_other_names(
    tmp_path: Path, change: Callable[[holdfast.Table], dict[str, str]], flushed: bool
) -> None:
    table = holdfast.create_table(tmp_path / "t", SCHEMA, primary_key=["k"])
    table.append([row(0)])
    writer = table.claim_writer("unsharded")
    writer.put([row(1), EMPTY])
    if flushed:
        writer.flush()
    names = change(table)
    writer.put([row(2)])  # by its old names: the writer is older than the change
    wanted = [row(number, **names) for number in (0, 1, 2)] + [EMPTY]

    def check() -> None:
        rows = sorted(table.to_table().to_pylist(), key=lambda one: int(one["k"]))
        assert rows == wanted
        assert table.lookup([1, 2]).to_pylist() == wanted[1:3]

    check()
    writer.close(flush=False)
    with table.claim_writer("unsharded") as again:  # replays in the columns of today
        again.put([row(3, **names)])
        wanted.insert(3, row(3, **names))
        check()
    check()
    table.compact_lsm()
    check()


def test_a_nested_field_made_anew_does_not_get_the_old_values(tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA.field("k"), pa.field("st", INSIDE)])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 1, "st": {"x": 1, "y": 2}}])
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 2, "st": {"x": 1, "y": 2}}])
        writer.close(flush=False)
    table.dataset().drop_columns(["st.x"])
    table.dataset().add_columns(pa.field("st", pa.struct([pa.field("x", pa.int64())])))
    rows = sorted(table.to_table().to_pylist(), key=lambda one: int(one["k"]))
    assert rows == [{"k": k, "st": {"y": 2, "x": None}} for k in (1, 2)]
    with pytest.raises(InvalidInputError, match=r"replaced.*st\.x"):
        table.compact_lsm()


@pytest.mark.parametrize("flushed", [False, True], ids=["log", "sstable"])
@pytest.mark.parametrize("nested", [False, True], ids=["column", "field"])
def test_an_id_that_lance_gives_again_is_another_column(
    tmp_path: Path, flushed: bool, nested: bool
) -> None:
    """Where no file shows a column, Lance gives its id to the next one that is added."""
    schema = pa.schema([SCHEMA.field("k"), pa.field("st", INSIDE)])
    if not nested:
        schema = schema.append(pa.field("old", pa.int32()))
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    row: dict[str, Any] = {"k": 1, "st": {"x": 1, "y": 7}}
    if not nested:
        row["old"] = 7
    writer = table.claim_writer("unsharded")
    writer.put([row])
    if flushed:
        writer.flush()
    before = ids_of(table)
    if nested:
        table.dataset().drop_columns(["st.y"])
        table.dataset().add_columns(pa.field("st", pa.struct([pa.field("new", pa.int64())])))
    else:
        table.dataset().drop_columns(["old"])
        table.dataset().add_columns(pa.field("new", pa.int64()))
    assert ids_of(table) == before, "the id was given again"
    writer.put([{**row, "k": 2}])  # the writer is older than the change
    wanted: list[dict[str, Any]] = [
        {"k": k, "st": {"x": 1, "new": None}}
        if nested
        else {"k": k, "st": {"x": 1, "y": 7}, "new": None}
        for k in (1, 2)
    ]

    def check() -> None:
        assert table.to_table().sort_by("k").to_pylist() == wanted

    check()
    writer.close()
    check()
    with table.claim_writer("unsharded") as again:
        third: dict[str, Any] = {**wanted[0], "k": 3, "st": {**wanted[0]["st"]}}
        (third["st"] if nested else third)["new"] = 9
        wanted.append(third)
        again.put([third])
        check()
    rename: Any = {"path": "st.new" if nested else "new", "name": "newer"}
    table.dataset().alter_columns(rename)
    for one in wanted:
        inside = one["st"] if nested else one
        inside["newer"] = inside.pop("new")
    check()
    table.compact_lsm()
    check()


def ids_of(table: holdfast.Table) -> list[int]:
    found, waiting = [], list(table.dataset().lance_schema.fields())
    while waiting:
        one = waiting.pop()
        found.append(int(one.id()))
        waiting.extend(one.children())
    return sorted(found)


def test_names_traded_with_a_new_column_do_not_stop_a_merge(tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA.field("k"), pa.field("a", pa.int64())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 1, "a": 5}])
    table.dataset().add_columns(pa.field("b", pa.int64()))
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        change: Any = {"path": old, "name": new}
        table.dataset().alter_columns(change)
    wanted = [{"k": 1, "b": 5, "a": None}]
    assert table.to_table().to_pylist() == wanted
    table.compact_lsm()
    assert table.to_table().to_pylist() == wanted
