"""Indexes of values and of vectors: one verb, built by Lance, committed through the arbiter."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import InvalidInputError, StaleHandleError

VECTORS = pa.list_(pa.float32(), 8)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    schema = pa.schema([("id", pa.int64()), ("tag", pa.string()), ("v", VECTORS)])
    table = holdfast.create_table(tmp_path / "t.lance", schema)
    values = np.random.default_rng(3).random((600, 8), np.float32)
    rows = {
        "id": range(600),
        "tag": [f"t{number % 4}" for number in range(600)],
        "v": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=VECTORS),
    }
    table.append(pa.table(rows, schema=schema))
    yield table
    table.close()


def test_an_index_of_each_kind_is_built_once(table: Any) -> None:
    made = table.create_index("id", "btree")
    assert made.applied and made.name == "id_idx" and made.rows == 600
    table.create_index("tag", "bitmap", name="tags")
    table.create_index("v", "ivf_flat", num_partitions=2, metric="cosine")
    again = table.create_index("id", "btree")
    assert not again.applied and again.version == int(table.dataset().version)
    kinds = {one.name: one.index_type for one in lance.dataset(table.uri).describe_indices()}
    assert {name: str(kind).upper() for name, kind in kinds.items()} == {
        "id_idx": "BTREE",
        "tags": "BITMAP",
        "v_idx": "IVF_FLAT",
    }
    assert "ScalarIndexQuery" in table.dataset().scanner(filter="id = 7").explain_plan()
    nearest = table.nearest("v", table.dataset().take([5], ["v"])["v"][0].as_py(), 1)
    assert nearest["id"].to_pylist() == [5]


@pytest.mark.parametrize(
    ("column", "kind", "given", "words"),
    [
        ("id", "tree", {}, "kind is one of"),
        ("no", "btree", {}, "no such column"),
        ("v", "btree", {}, "ivf_pq"),
        ("id", "ivf_pq", {}, "btree"),
        ("id", "btree", {"tasks": 2}, "for kind 'fts'"),
        ("id", "btree", {"colour": 2}, "parameter"),
    ],
)
def test_what_cannot_be_an_index_is_refused(
    table: Any, column: str, kind: str, given: dict[str, int], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        table.create_index(column, kind, **given)
    assert table.indexes() == []


def test_another_index_of_the_same_name_is_left_alone(table: Any) -> None:
    table.create_index("id", "btree", name="one")
    with pytest.raises(InvalidInputError, match="another index of this name"):
        table.create_index("tag", "bitmap", name="one")
    with pytest.raises(InvalidInputError, match="of the same column"):
        table.create_index("tag", "bitmap", name="one", replace=True)
    assert table.create_index("id", "bitmap", name="one", replace=True).applied
    (index,) = lance.dataset(table.uri).describe_indices()
    assert str(index.index_type).upper() == "BITMAP"


def test_an_index_of_an_empty_table_is_made(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", pa.schema([("id", pa.int64())]))
    made = table.create_index("id", "btree")
    assert made.applied and made.rows == 0 and made.version == 2
    assert not table.create_index("id", "btree").applied


def test_a_handle_of_a_table_that_was_made_anew_indexes_nothing(table: Any) -> None:
    shutil.rmtree(table.uri)
    schema = pa.schema([("id", pa.int64())])
    anew = holdfast.create_table(table.uri, schema)
    anew.append(pa.table({"id": [1]}, schema=schema))
    with pytest.raises(StaleHandleError):
        table.create_index("id", "btree")
    assert anew.indexes() == []
