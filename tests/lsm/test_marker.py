"""The marker in the manifest that is decided: stock reads it, and keeps to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments
from lance.mem_wal import CompactedSsTable

import holdfast
from holdfast.errors import ConflictError, CorruptError, InvalidInputError
from holdfast.formats import version_name
from holdfast.formats._mem_wal_details import read_details
from holdfast.formats._mem_wal_marker import MergedAlreadyError, mark_merged
from lsm.tables import SCHEMA, make_table, merged_of, new_shard, rows_of

pytestmark = pytest.mark.requirement("W13")


def manifest_of(table: Any) -> bytes:
    body = table.core.arbiter.read(version_name(int(table.dataset().version)))
    assert isinstance(body, bytes)
    return body


def merge_by_stock(table: Any, shard: str, generation: int, rows: dict[str, list[Any]]) -> None:
    merge = table.dataset().merge_insert("k").when_matched_update_all()
    merge = merge.when_not_matched_insert_all()
    merge.mark_sstables_as_compacted([CompactedSsTable(shard, generation)]).execute(
        pa.table(rows, schema=table.schema)
    )


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(4)])


def test_rows_and_marker_are_one_commit_that_stock_reads_and_keeps_to(table: Any) -> None:
    shard, base = new_shard(), table.dataset()
    rows = pa.table({"k": [1, 9], "v": ["new", "new"]}, schema=base.schema)
    operation = lance.LanceOperation.Update(
        updated_fragments=[base.get_fragment(0).delete_rows([1])],
        new_fragments=write_fragments(rows, base, mode="append"),
    )
    done = table.writes.commit_operation(
        operation, read_version=base.version, edit=lambda body: mark_merged(body, {shard: 3})
    )
    assert rows_of(table) == {0: "base", 1: "new", 2: "base", 3: "base", 9: "new"}
    assert merged_of(table) == {shard: 3}
    assert [one.name for one in lance.dataset(table.uri).describe_indices()] == ["__lance_mem_wal"]

    for stale in (1, 3):
        with pytest.raises(OSError, match="Stale SSTable compaction"):
            merge_by_stock(table, shard, stale, {"k": [1], "v": ["stale"]})
    assert lance.dataset(table.uri).version == done.version
    merge_by_stock(table, shard, 4, {"k": [1], "v": ["newer"]})
    assert rows_of(table)[1] == "newer"
    assert merged_of(table) == {shard: 4}


@pytest.mark.parametrize("again", [1, 2])
def test_a_generation_that_is_marked_is_refused_and_nothing_is_decided(
    table: Any, again: int
) -> None:
    shard, before = new_shard(), int(table.dataset().version)
    merge_by_stock(table, shard, 2, {"k": [1], "v": ["stock"]})
    with pytest.raises(MergedAlreadyError, match="already"):
        table.writes.commit_operation(
            lance.LanceOperation.Update(),
            read_version=before + 1,
            edit=lambda body: mark_merged(body, {shard: again}),
        )
    assert int(table.dataset().version) == before + 1


def test_marking_keeps_the_other_shards_and_all_else(table: Any) -> None:
    table.dataset().create_scalar_index("k", "BTREE")
    one, other = new_shard(), new_shard()
    first = mark_merged(manifest_of(table), {one: 7})
    second = mark_merged(first, {other: 1, one: 8})
    details, before = read_details(second), read_details(manifest_of(table))
    assert details is not None
    assert before is not None
    assert details.compacted == {one: 8, other: 1}
    assert details.maintain_all_indexes == before.maintain_all_indexes
    with pytest.raises(MergedAlreadyError):
        mark_merged(second, {other: 1})
    table.writes.commit_operation(
        lance.LanceOperation.Update(),
        read_version=int(table.dataset().version),
        edit=lambda body: mark_merged(body, {one: 7}),
    )
    dataset = lance.dataset(table.uri)
    assert dataset.scanner(filter="k = 3").explain_plan().count("ScalarIndexQuery") == 1
    table.append([{"k": 50, "v": "later"}])
    assert merged_of(table) == {one: 7}
    assert rows_of(table)[50] == "later"


def test_a_table_without_a_log_and_bytes_that_are_no_manifest_are_refused(tmp_path: Path) -> None:
    plain = holdfast.create_table(tmp_path / "plain", SCHEMA, primary_key=["k"])
    with pytest.raises(InvalidInputError, match="no log"):
        mark_merged(manifest_of(plain), {new_shard(): 1})
    plain.append([{"k": 1, "v": "x"}])
    plain.dataset().create_scalar_index("k", "BTREE")
    with pytest.raises(InvalidInputError, match="no log"):
        mark_merged(manifest_of(plain), {new_shard(): 1})
    for broken in (b"", b"x" * 100, manifest_of(plain)[:-20] + manifest_of(plain)[-16:]):
        with pytest.raises((CorruptError, ConflictError)):
            mark_merged(broken, {new_shard(): 1})
