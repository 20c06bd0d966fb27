"""An index built in tasks answers as one built by stock Lance in one process: bit by bit."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.query import MatchQuery

import holdfast
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.index._finalize import Finalizer
from holdfast.testing import FaultyS3
from index.corpus import (
    SCHEMA,
    assert_equal_to_stock,
    hits,
    make_table,
    multi,
    rows,
    stock_copy,
)
from index.test_races import built


def indexed_files(table: lance.LanceDataset, uri: Path, segment: str) -> set[str]:
    return {path.name for path in (uri / "_indices" / segment).iterdir()}


@pytest.mark.requirement("F1", "F5", "F8")
def test_equal_to_one_process_on_local_disk(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    result = table.create_index("text", "fts", tasks=4, with_position=True)
    assert (result.applied, result.partitions, result.reused, result.uncovered) == (True, 4, 0, 0)
    table.create_index("title", "fts", tasks=2, with_position=True)
    stock = stock_copy(table, tmp_path, with_position=True)
    ours = lance.dataset(tmp_path / "t")  # stock pylance reads it
    assert_equal_to_stock(ours, stock, ("text", "title"))
    assert hits(ours, multi(["text", "title"])) == hits(stock, multi(["text", "title"]))
    parts = {f"part_{n}_{f}.lance" for n in range(4) for f in ("tokens", "invert", "docs")}
    assert result.build_id is not None
    assert indexed_files(ours, tmp_path / "t", result.build_id) == {*parts, "metadata.lance"}


@pytest.mark.requirement("F3", "C6")
@pytest.mark.parametrize("with_commit_store", [False, True])
def test_equal_to_one_process_on_s3(
    faulty_s3: Callable[..., FaultyS3], tmp_path: Path, with_commit_store: bool
) -> None:
    server = faulty_s3(conditions="ignoring" if with_commit_store else "honest")
    commit_store = None
    if with_commit_store:
        commit_store = f"sqlite:///{tmp_path}/decisions.db?single_host=true"
        store = holdfast.arbiter.connect_commit_store(commit_store)
        store.set_up()  # type: ignore[attr-defined]
        store.close()
    table = make_table(
        server.url("holdfast", "t"),
        storage_options=server.storage_options(),
        commit_store=commit_store,
        fragments=3,
    )
    result = table.create_index("text", "fts", tasks=3, with_position=True)
    assert (result.applied, result.partitions) == (True, 3)
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


@pytest.mark.requirement("F3")
def test_the_finalizer_moves_no_part_through_its_process(
    faulty_s3: Callable[..., FaultyS3],
) -> None:
    """On S3 the server copies the parts, and its checksums are compared with the tasks'."""
    server = faulty_s3()
    table = make_table(
        server.url("holdfast", "t"), storage_options=server.storage_options(), fragments=2
    )
    _, record = built(table)
    server.requests.clear()
    assert table.finalize_index(record.build_id).applied
    parts = [one for one in server.requests.all() if "/part_" in one.key]
    assert {one.operation for one in parts} <= {"copy", "head", "delete"}
    assert sum(one.operation == "copy" for one in parts) == 6
    listed = [info for info in table.core.store.list("_indices") if "/part_" in info.path]
    assert listed and all(info.md5 for info in listed)


def test_a_final_part_with_other_bytes_of_the_same_length_is_repaired(
    faulty_s3: Callable[..., FaultyS3], tmp_path: Path
) -> None:
    server = faulty_s3()
    table = make_table(
        server.url("holdfast", "t"), storage_options=server.storage_options(), fragments=2
    )
    indexes, record = built(table)
    finalizer = Finalizer(indexes.files)
    finalizer.complete(finalizer.freeze(record.build_id))
    path = f"_indices/{record.build_id}/part_1_docs.lance"
    table.core.store.put(path, b"x" * table.core.store.head(path).size)
    assert table.finalize_index(record.build_id).applied
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


@pytest.mark.requirement("F2")
def test_one_process_writes_final_files_directly(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    result = table.create_index("text", "fts", with_position=True)
    assert (result.applied, result.rows > 0, result.uncovered) == (True, True, 0)
    assert not (tmp_path / "t" / "_holdfast" / "index").exists()
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))
    again = table.create_index("text", "fts", with_position=True)
    assert (again.applied, again.build_id) == (False, result.build_id)


def test_deleted_and_updated_rows_are_left_out(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    table.dataset().delete("id % 7 = 3")
    table.dataset().update({"text": "'a quiet sea, no storm'"}, where="id % 9 = 4")
    table.create_index("text", "fts", tasks=3, with_position=True)
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


PARAMETERS: list[dict[str, Any]] = [
    {"base_tokenizer": "icu"},
    {"base_tokenizer": "ngram"},
    {"stem": False},
    {"block_size": 256},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_lists_of_text_and_other_parameters(tmp_path: Path, parameters: dict[str, Any]) -> None:
    texts = [["old town", "storm"], [], None, ["gale", "old harbour"]]
    data = pa.table({"id": range(4), "tags": pa.array(texts, pa.list_(pa.string()))})
    holdfast.write_table(data, tmp_path / "t", mode="create")
    table = holdfast.open_table(tmp_path / "t")
    table.append(data)
    table.create_index("tags", "fts", tasks=2, **parameters)
    stock = lance.write_dataset(table.dataset().to_table(), tmp_path / "s")
    stock.create_scalar_index("tags", "INVERTED", **parameters)
    for words in ("old", "harbour", "gale storm"):
        query = MatchQuery(words, "tags")
        scores = [
            sorted(one.to_table(columns=["_score"], full_text_query=query)["_score"].to_pylist())
            for one in (table.dataset(), stock)
        ]
        assert scores[0] == scores[1] and scores[0]


def test_a_table_without_any_word(tmp_path: Path) -> None:
    data = pa.table({"id": [1, 2], "text": pa.array([None, ""], pa.string())})
    holdfast.write_table(data, tmp_path / "t", mode="create")
    table = holdfast.open_table(tmp_path / "t")
    result = table.create_index("text", "fts", tasks=1)
    assert (result.applied, result.partitions, result.rows) == (True, 0, 0)
    assert table.search("text", "storm").num_rows == 0
    table.append(pa.table({"id": [3], "text": ["storm"]}))
    assert table.refresh_index("text_idx").partitions == 1
    assert table.search("text", "storm")["id"].to_pylist() == [3]


@pytest.mark.requirement("F4")
def test_refresh_builds_only_what_is_new(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    table.create_index("text", "fts", tasks=2, with_position=True)
    table.append(rows(1000, 50))
    table.append(rows(2000, 50))
    result = table.refresh_index("text_idx", tasks=2)
    assert (result.applied, result.partitions, result.uncovered) == (True, 4, 0)
    assert result.rows <= 100
    assert result.txn is not None
    assert table.applied([result.txn, str(result.txn)]) == [True, False]  # no user's string
    (info,) = table.indexes()
    assert len(info.segments) == 1
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))
    again = table.refresh_index("text_idx")
    assert (again.applied, again.version) == (False, result.version)


@pytest.mark.requirement("F4")
def test_refresh_leaves_a_segment_alone_whose_rows_were_rewritten(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    first = table.create_index("text", "fts", tasks=2, with_position=True)
    table.dataset().delete("id < 60")  # the whole first fragment
    table.append(rows(1000, 50))
    result = table.refresh_index("text_idx")
    assert result.applied
    (info,) = table.indexes()
    assert info.uncovered == 0
    assert first.build_id in info.segments and len(info.segments) == 2
    stock = stock_copy(table, tmp_path, with_position=True)
    assert_equal_to_stock(table.dataset(), stock, scores=False)


def test_refresh_after_stock_built_the_index(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", fragments=2)
    table.dataset().create_scalar_index("text", "INVERTED", with_position=True, stem=False)
    table.append(rows(1000, 50))
    assert table.refresh_index("text_idx").applied
    stock = stock_copy(table, tmp_path, with_position=True, stem=False)
    assert_equal_to_stock(table.dataset(), stock)


def test_stock_goes_on_with_what_we_built(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", fragments=3)
    table.create_index("text", "fts", tasks=3, with_position=True)
    table.append(rows(1000, 50))
    ours = table.dataset()
    ours.optimize.optimize_indices()
    assert {info.uncovered for info in table.indexes()} == {0}
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


def test_an_index_with_other_parameters_is_replaced_only_when_told(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", fragments=2)
    table.create_index("text", "fts", tasks=2)
    with pytest.raises(InvalidInputError, match="replace=True"):
        table.create_index("text", "fts", tasks=2, with_position=True)
    result = table.create_index("text", "fts", tasks=2, with_position=True, replace=True)
    assert result.applied
    assert len(table.indexes()) == 1
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))
    again = table.create_index("text", "fts", tasks=2, with_position=True, replace=True)
    assert not again.applied


BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"column": "nothing"}, "no such column"),
    ({"column": "id"}, "cannot be indexed"),
    ({"column": "text", "kind": "btree"}, "for kind 'fts'"),
    ({"column": "text", "with_positions": True}, "did you mean 'with_position'"),
    ({"column": "text", "base_tokenizer": "nonsense"}, "nonsense"),
    ({"column": "text", "stem": object()}, "plain value"),
    ({"column": "text", "tasks": 0}, "at least one task"),
    ({"column": "text", "memory_mb": 1}, "at least 16 MiB"),
]


@pytest.mark.parametrize(("call", "says"), BAD_CALLS)
def test_a_wrong_call_is_refused_before_anything_is_written(
    tmp_path: Path, call: dict[str, Any], says: str
) -> None:
    table = make_table(tmp_path / "t", fragments=1)
    before = table.dataset().version
    with pytest.raises(InvalidInputError, match=says):
        table.create_index(**{"tasks": 1, **call})
    assert table.dataset().version == before
    assert not (tmp_path / "t" / "_indices").exists()
    assert not (tmp_path / "t" / "_holdfast" / "index").exists()


def test_names_that_are_not_there(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", fragments=1)
    with pytest.raises(NotFoundError, match="no full-text index"):
        table.refresh_index("nothing")
    with pytest.raises(NotFoundError, match="no such index build"):
        table.finalize_index(str(uuid.uuid4()))
    with pytest.raises(InvalidInputError, match="build id"):
        table.finalize_index("../../etc")
    table.dataset().create_scalar_index("id", "BTREE", name="text_idx")
    with pytest.raises(InvalidInputError, match="another name"):
        table.create_index("text", "fts", tasks=1)


def test_an_empty_table(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", SCHEMA)
    with pytest.raises(InvalidInputError, match="nothing to index"):
        table.create_index("text", "fts", tasks=1)


@pytest.mark.requirement("F11")
def test_progress_by_stage_and_a_callback_that_fails(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", fragments=2)
    seen: list[tuple[str, int, int]] = []

    def watch(progress: Any) -> None:
        seen.append((progress.stage.value, progress.done, progress.total))
        raise RuntimeError("a careless callback")

    assert table.create_index("text", "fts", tasks=2, progress=watch).applied
    assert [stage for stage, done, total in seen if done == total] == [
        "build",
        "copy",
        "commit",
        "clean",
    ]
    assert ("build", 1, 2) in seen and ("copy", 3, 6) in seen


def test_nothing_is_left_but_the_plan(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", fragments=3)
    result = table.create_index("text", "fts", tasks=3)
    ours = [path for path in (tmp_path / "t" / "_holdfast" / "index").rglob("*") if path.is_file()]
    assert [path.name for path in ours] == ["plan.json"]
    files = [path for path in (tmp_path / "t" / "_indices").rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {result.build_id}
    assert table.index_builds() == []
