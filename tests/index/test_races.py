"""What others do to the table, or to the build's files, between its first and its last step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction

import holdfast
from holdfast.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from holdfast.formats import BuildRecord, TaskManifest, decode_task, encode_index_record, task_name
from holdfast.index._indexes import Indexes
from holdfast.index._task import TaskDone
from index.corpus import SCHEMA, assert_equal_to_stock, make_table, rows, stock_copy

Deed = Callable[[holdfast.Table], object]


def build_around(table: holdfast.Table, deed: Deed, **parameters: Any) -> Any:
    """Build an index, and let something happen when its tasks have finished."""
    indexes: Indexes = Indexes(table.versions)

    def runner(record: BuildRecord) -> Iterator[TaskDone]:
        yield from indexes.run_here(record)
        deed(table)

    return indexes.create(
        "text", tasks=3, runner=runner, parameters={"with_position": True, **parameters}
    )


def rewrite_text(table: holdfast.Table) -> None:
    """Replace the texts of fragment 1 in place."""
    ours = table.dataset()
    fragment = ours.get_fragment(1)
    assert fragment is not None
    new = pa.table({"id": list(range(60, 120)), "text": ["a sea of word7, naive 東京"] * 60})
    changed, fields = fragment.update_columns(new, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
    )
    table.commit_operation(operation, read_version=ours.version)


DEEDS: dict[str, Deed] = {
    "append": lambda table: table.append(rows(5000, 40)),
    "delete": lambda table: table.dataset().delete("id % 5 = 1"),
    "update": lambda table: table.dataset().update({"text": "'storm'"}, where="id % 11 = 3"),
    "rewrite in place": rewrite_text,
    "compact some": lambda table: compact(table, [0, 1]),
    "index another column": lambda table: table.create_index("title", "fts", name="other"),
    "an index of another kind": lambda table: table.dataset().create_scalar_index("id", "BTREE"),
}


def compact(table: holdfast.Table, fragments: list[int]) -> None:
    ours = table.dataset()
    plan = Compaction.plan(ours, {"target_rows_per_fragment": 120})
    tasks = [
        task for task in plan.tasks if {f.id for f in task.fragments} <= set(fragments)
    ] or plan.tasks[:1]
    Compaction.commit(ours, [task.execute(ours) for task in tasks])


@pytest.mark.requirement("F9", "F12")
@pytest.mark.parametrize("deed", DEEDS)
def test_the_index_is_right_whatever_happened_meanwhile(tmp_path: Path, deed: str) -> None:
    table = make_table(tmp_path / "t")
    result = build_around(table, DEEDS[deed])
    assert result.applied
    # Part of the table may be without an index: then scores differ, rows never do.
    stock = stock_copy(table, tmp_path, with_position=True)
    assert_equal_to_stock(lance.dataset(tmp_path / "t"), stock, scores=False)
    if table.refresh_index("text_idx").applied:
        assert_equal_to_stock(table.dataset(), stock, scores=False)
    assert next(i for i in table.indexes() if i.name == "text_idx").uncovered == 0


def overwrite(table: holdfast.Table) -> None:
    holdfast.write_table(rows(9000, 300), table.uri, mode="overwrite")


@pytest.mark.requirement("F9")
@pytest.mark.parametrize(
    "deed",
    [
        pytest.param(lambda table: table.dataset().optimize.compact_files(), id="compact all"),
        pytest.param(overwrite, id="overwrite"),
    ],
)
def test_an_index_that_would_cover_nothing_is_refused_with_advice(
    tmp_path: Path, deed: Deed
) -> None:
    table = make_table(tmp_path / "t")
    with pytest.raises(ConflictError, match="Build again"):
        build_around(table, deed)
    assert table.indexes() == []
    result = table.create_index("text", "fts", tasks=2, with_position=True)  # a build of its own
    assert (result.applied, result.reused) == (True, 0)
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


def test_a_dropped_column_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    with pytest.raises((ConflictError, InvalidInputError), match="column"):
        build_around(table, lambda table: table.dataset().drop_columns(["text"]))


def test_a_version_that_is_gone(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")

    def expire(table: holdfast.Table) -> None:
        table.append(rows(5000, 5))
        table.dataset().cleanup_old_versions(older_than=timedelta(0), delete_unverified=False)

    with pytest.raises(NotFoundError, match="build again"):
        build_around(table, expire)
    assert table.indexes() == []
    assert table.create_index("text", "fts", tasks=1).reused == 0


def test_two_builds_of_one_index_at_once(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    result = build_around(
        table, lambda table: table.create_index("text", "fts", with_position=True)
    )
    assert len(table.indexes()[0].segments) == 1
    assert table.indexes()[0].uncovered == 0
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))
    assert result.name == "text_idx"


def test_an_index_with_other_parameters_was_committed_meanwhile(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")

    def another(table: holdfast.Table) -> None:
        table.append(rows(5000, 40))
        table.create_index("text", "fts", stem=False)

    with pytest.raises(ConflictError):
        build_around(table, another)
    assert table.indexes()[0].parameters["stem"] is False


# Where stock's own finalize destroys or hides something.


def built(table: holdfast.Table) -> tuple[Indexes, BuildRecord]:
    """Return a build whose tasks have finished, and nothing more."""
    indexes: Indexes = Indexes(table.versions)
    seen: list[BuildRecord] = []

    class Halt(Exception):  # noqa: N818
        pass

    def runner(record: BuildRecord) -> Iterator[TaskDone]:
        yield from indexes.run_here(record)
        seen.append(record)
        raise Halt

    with pytest.raises(Halt):
        indexes.create("text", tasks=3, runner=runner, parameters={"with_position": True})
    return indexes, seen[0]


@pytest.mark.requirement("F6")
@pytest.mark.parametrize("body", [b"", b"garbage", b"x" * 4096 + b"LANC"], ids=len)
def test_a_garbage_marker_is_an_error_and_destroys_nothing(tmp_path: Path, body: bytes) -> None:
    table = make_table(tmp_path / "t")
    _, record = built(table)
    marker = tmp_path / "t" / "_indices" / record.build_id / "metadata.lance"
    marker.parent.mkdir()
    marker.write_bytes(body)
    with pytest.raises(CorruptError, match="is no such file"):
        table.finalize_index(record.build_id)
    marker.unlink()  # nothing staged was lost
    assert table.finalize_index(record.build_id).applied
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


@pytest.mark.requirement("F6", "F7")
def test_a_missing_or_torn_final_part_is_repaired_while_it_is_staged(tmp_path: Path) -> None:
    from holdfast.index._finalize import Finalizer

    table = make_table(tmp_path / "t")
    indexes, record = built(table)
    finalizer = Finalizer(indexes._files)
    finalizer.complete(finalizer.freeze(record.build_id))
    folder = tmp_path / "t" / "_indices" / record.build_id
    (folder / "part_1_docs.lance").unlink()
    (folder / "part_2_invert.lance").write_bytes(b"torn")
    assert table.finalize_index(record.build_id).applied
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


@pytest.mark.requirement("F6", "F10")
def test_a_part_that_is_gone_for_good_is_an_error_and_commits_nothing(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    _, record = built(table)
    manifest = task_of(table, record, 1)
    gone = manifest.parts[0].path(manifest.parts[0].files[2])
    (tmp_path / "t" / gone).unlink()
    with pytest.raises(CorruptError, match="gone"):
        table.finalize_index(record.build_id)
    assert table.indexes() == []


def task_of(table: holdfast.Table, record: BuildRecord, task: int) -> TaskManifest:
    body = table.core.arbiter.read(task_name(record.build_id, task))
    assert body is not None
    return decode_task(body)


def test_tasks_with_different_parameters_are_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    _, record = built(table)
    manifest = task_of(table, record, 1)
    params = manifest.properties["params"].replace('"stem":true', '"stem":false')
    object.__setattr__(manifest, "properties", {**manifest.properties, "params": params})
    path = tmp_path / "t" / task_name(record.build_id, 1).path
    path.write_bytes(encode_index_record(manifest))
    with pytest.raises(InvalidInputError, match="different parameters"):
        table.finalize_index(record.build_id)
    assert table.indexes() == []


@pytest.mark.requirement("F8")
def test_stray_files_are_not_committed(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    _, record = built(table)
    folder = tmp_path / "t" / "_indices" / record.build_id
    for stray in ("part_9_tokens.lance", "sub/z.bin", "staging/part_7_metadata.lance"):
        (folder / stray).parent.mkdir(parents=True, exist_ok=True)
        (folder / stray).write_bytes(b"stray")
    result = table.finalize_index(record.build_id)
    assert (result.applied, result.partitions) == (True, 3)
    manifest = table.core.arbiter.read(holdfast.formats.version_name(result.version))
    assert manifest is not None
    assert b"part_2_docs.lance" in manifest
    assert b"part_9_tokens" not in manifest and b"z.bin" not in manifest
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))


@pytest.mark.requirement("F12")
def test_a_repeated_task_with_other_parts_does_not_count_twice(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    indexes, record = built(table)
    again = indexes.run_task(record.build_id, 1)
    assert again.reused
    assert table.finalize_index(record.build_id).applied
    late = indexes.run_task(record.build_id, 2)  # a zombie, after everything
    assert late.reused
    assert_equal_to_stock(table.dataset(), stock_copy(table, tmp_path, with_position=True))
    assert not table.finalize_index(record.build_id).applied


def test_a_later_commit_replaced_the_index(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", fragments=2)
    first = table.create_index("text", "fts", tasks=2)
    table.append(rows(1000, 20))
    table.refresh_index("text_idx")
    assert first.build_id is not None
    again = table.finalize_index(first.build_id)  # a finalizer that slept through it
    assert not again.applied
    assert first.build_id not in table.indexes()[0].segments
    assert SCHEMA.names == table.schema.names


def test_a_sweep_that_fails_does_not_undo_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", fragments=2)
    _, record = built(table)

    def refuse(*_: object, **__: object) -> None:
        raise UnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.index._publish._sweep", refuse)
        assert table.finalize_index(record.build_id).applied
    assert [info.build_id for info in table.index_builds()] == [record.build_id]
    assert not table.create_index("text", "fts", tasks=2, with_position=True).applied
    assert table.index_builds() == []  # the next run swept
