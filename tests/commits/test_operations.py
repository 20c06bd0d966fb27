"""Operations that were built elsewhere: committed once, or a conflict that says what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import holdfast
from commits.table_worker import Place, rows, set_up
from holdfast.arbiter import ConditionalPut
from holdfast.commits._versions import Versions
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    InvalidInputError,
    NextStep,
    NotFoundError,
    StaleWorkError,
    UnavailableError,
)
from holdfast.formats import edit_config, read_config
from holdfast.table import Table
from holdfast.testing import FaultyS3

Make = Callable[[lance.LanceDataset], lance.LanceOperation.BaseOperation]
OPERATION = lance.LanceOperation


@pytest.fixture(scope="module")
def ignoring_s3() -> Iterator[FaultyS3]:
    with FaultyS3(conditions="ignoring") as server:
        yield server


@pytest.fixture(params=["conditional put", "commit store", "ignoring s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param != "ignoring s3":
        store = "sqlite" if request.param == "commit store" else None
        return Place(uri=str(tmp_path / "t.lance"), commit_store=store)
    server: FaultyS3 = request.getfixturevalue("ignoring_s3")
    url = set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true")
    uri = server.url("lake", f"{tmp_path.name}/t.lance")
    return Place(uri=uri, commit_store=url, options=dict(server.storage_options("lake")))


@pytest.fixture
def shared(tmp_path: Path) -> Place:
    return Place(uri=str(tmp_path / "t.lance"))


def filled(place: Place) -> Table:
    """A table with rows 1 and 2 in version 2, row 3 in version 3."""
    table = place.create()
    table.append(rows(1, 2))
    table.append(rows(3))
    return table


def brought(table: lance.LanceDataset, number: int) -> list[Any]:
    return list(write_fragments(rows(number), table, mode="append"))


def overwrite(table: lance.LanceDataset) -> lance.LanceOperation.BaseOperation:
    return OPERATION.Overwrite(table.schema, brought(table, 9))


def delete(table: lance.LanceDataset) -> lance.LanceOperation.BaseOperation:
    changed = table.get_fragments()[0].delete("id = 1")
    return OPERATION.Delete([changed] if changed else [], [], "id = 1")


def update(table: lance.LanceDataset) -> lance.LanceOperation.BaseOperation:
    gone = table.get_fragments()[1].fragment_id
    return OPERATION.Update(
        removed_fragment_ids=[gone], updated_fragments=[], new_fragments=brought(table, 9)
    )


def merge(table: lance.LanceDataset) -> lance.LanceOperation.BaseOperation:
    parts = [
        part.merge_columns(lambda batch: pa.record_batch({"twice": batch["id"]}), ["id"])
        for part in table.get_fragments()
    ]
    return OPERATION.Merge([part for part, _ in parts], parts[0][1])


def rewrite(table: lance.LanceDataset) -> lance.LanceOperation.BaseOperation:
    old = [part.metadata for part in table.get_fragments()]
    new = list(write_fragments(table.to_table(), table, mode="append"))
    return OPERATION.Rewrite([OPERATION.RewriteGroup(old, new)], [])


MAKERS: dict[str, tuple[Make, list[int]]] = {
    "append": (lambda table: OPERATION.Append(brought(table, 9)), [1, 2, 3, 9]),
    "overwrite": (overwrite, [9]),
    "delete": (delete, [2, 3]),
    "update": (update, [1, 2, 9]),
    "merge": (merge, [1, 2, 3]),
    "rewrite": (rewrite, [1, 2, 3]),
    "restore": (lambda _: OPERATION.Restore(2), [1, 2]),
    "project": (lambda table: OPERATION.Project(table.lance_schema), [1, 2, 3]),
}


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("kind", MAKERS)
def test_an_operation_is_committed_once(place: Place, kind: str) -> None:
    make, expected = MAKERS[kind]
    table = filled(place)
    operation = make(table.dataset())
    done = table.commit_operation(operation, read_version=3, txn=("job", 1))
    assert (done.version, done.applied, done.txn) == (4, True, ("job", 1))
    assert done.rows == (1 if 9 in expected else 0)
    assert place.ids() == expected
    for one in (table, place.open()):
        again = one.commit_operation(operation, read_version=3, txn=("job", 1))
        assert (again.version, again.applied, again.rows) == (4, False, 0)
    assert place.stock().version == 4
    assert table.applied([("job", 1)]) == [True]
    table.append(rows(50).append_column("twice", [[1]]) if kind == "merge" else rows(50))
    assert place.ids() == sorted([*expected, 50])


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("kind", ["overwrite", "update", "restore"])
def test_concurrent_repeats_are_committed_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Both have looked for the transaction in vain when they come to decide."""
    make, expected = MAKERS[kind]
    table = filled(place)
    operations = [make(table.dataset()), make(table.dataset())]
    both = threading.Barrier(2, timeout=60)
    waits = iter([both.wait, both.wait])
    decide = Versions.create

    def wait_for_the_other(self: Versions, *args: Any, **kwargs: Any) -> Any:
        next(waits, lambda: None)()
        return decide(self, *args, **kwargs)

    def commit(operation: lance.LanceOperation.BaseOperation) -> bool:
        return place.open().commit_operation(operation, read_version=3, txn="once").applied

    monkeypatch.setattr("holdfast.commits._queue.Queue.wait", lambda *_: None)
    monkeypatch.setattr(Versions, "create", wait_for_the_other)
    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(commit, operations))
    assert sorted(outcomes) == [False, True]
    assert place.stock().version == 4
    assert place.ids() == expected


def test_an_index_built_elsewhere(place: Place) -> None:
    table = filled(place)
    table.dataset().create_scalar_index("id", "BTREE")
    dataset: Any = table.dataset()
    made = dataset.read_transaction(4).operation
    assert isinstance(made, OPERATION.CreateIndex)
    dataset.checkout_version(3).restore()
    assert not table.dataset().describe_indices()
    assert table.commit_operation(made, read_version=5, txn="index").version == 6
    assert len(table.dataset().describe_indices()) == 1
    assert place.stock().to_table(filter="id = 3").num_rows == 1


# --- conflicts --------------------------------------------------------------------------------


def change_rows(table: Table) -> None:
    table.dataset().update({"text": "'changed'"}, where="id in (1, 3)")


def replace_all(table: Table) -> None:
    dataset: Any = table.dataset(2)
    dataset.restore()


@pytest.mark.parametrize("change", [change_rows, replace_all])
@pytest.mark.parametrize("kind", ["delete", "update", "rewrite"])
def test_a_conflict_tells_whether_to_try_again(
    place: Place, kind: str, change: Callable[[Table], None]
) -> None:
    make, _ = MAKERS[kind]
    table = filled(place)
    operation = make(table.dataset())
    change(place.open())
    before = place.stock().to_table().to_pylist()
    with pytest.raises(ConflictError) as caught:
        table.commit_operation(operation, read_version=3, txn="once")
    assert caught.value.next_step is (NextStep.REBUILD if change is change_rows else NextStep.NEVER)
    assert place.stock().version == 4
    assert place.stock().to_table().to_pylist() == before
    assert table.applied(["once"]) == [False]
    if change is change_rows:
        again = make(table.dataset())
        assert table.commit_operation(again, read_version=4, txn="once").applied
        assert place.stock().version == 5


@pytest.mark.parametrize("kind", ["overwrite", "update"])
def test_others_that_were_merely_faster_are_waited_for(
    shared: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Lance gives up after some tries; the same operation is then tried again as it is."""
    make, _ = MAKERS[kind]
    table = filled(shared)
    operation = make(table.dataset())
    other = shared.open()
    decide = Versions.create
    faster = iter(range(100, 105))

    def lose(self: Versions, *args: Any, **kwargs: Any) -> Any:
        number = next(faster, None) if self is table.versions else None
        if number is not None:
            other.append(rows(number))
        return decide(self, *args, **kwargs)

    monkeypatch.setattr("holdfast.commits._queue.Queue.wait", lambda *_: None)
    monkeypatch.setattr("lance.LanceDataset.commit", _hasty(lance.LanceDataset.commit))
    monkeypatch.setattr(Versions, "create", lose)
    assert table.commit_operation(operation, read_version=3, txn="once").applied
    assert next(faster, None) is None
    assert shared.ids().count(9) == 1


def _hasty(commit: Callable[..., Any]) -> Callable[..., Any]:
    """Let Lance give up sooner: its waits between tries grow."""
    return lambda *args, **kwargs: commit(*args, max_retries=2, **kwargs)


# --- edits of the manifest ---------------------------------------------------------------------


def test_an_edit_is_decided_with_the_operation(place: Place) -> None:
    table = filled(place)
    seen: list[bytes] = []

    def mark(manifest: bytes) -> bytes:
        seen.append(manifest)
        return edit_config(manifest, {"merged": "7"})

    for number, kind in enumerate(("append", "update"), 3):
        operation = MAKERS[kind][0](table.dataset())
        table.writes.commit_operation(
            operation, read_version=number, txn=("job", number), edit=mark
        )
    assert place.stock().config()["merged"] == "7"
    assert table.applied([("job", 4)]) == [True]
    assert place.ids() == [1, 2, 9, 9]
    assert len(seen) == 2


def test_an_edit_may_refuse(place: Place) -> None:
    table = filled(place)

    def refuse(manifest: bytes) -> bytes:
        assert "holdfast.token" in read_config(manifest)
        raise UnavailableError("not now")

    operation = overwrite(table.dataset())
    for _ in range(2):
        with pytest.raises(UnavailableError, match="not now"):
            table.writes.commit_operation(operation, read_version=3, txn="once", edit=refuse)
    assert place.ids() == [1, 2, 3]
    assert table.commit_operation(operation, read_version=3, txn="once").applied
    assert place.ids() == [9]


def test_an_edit_sees_what_lance_rebased(shared: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conflict makes another manifest, and the edit is asked again."""
    table = filled(shared)
    other = shared.open()
    seen: list[str | None] = []
    decide = Versions.create

    def lose_once(self: Versions, *args: Any, **kwargs: Any) -> Any:
        if self is table.versions and not seen:
            other.append(rows(4), txn="theirs")
        return decide(self, *args, **kwargs)

    def look(manifest: bytes) -> bytes:
        seen.append(read_config(manifest).get("holdfast.txn.recent"))
        return manifest

    monkeypatch.setattr("holdfast.commits._queue.Queue.wait", lambda *_: None)
    monkeypatch.setattr(Versions, "create", lose_once)
    table.writes.commit_operation(update(table.dataset()), read_version=3, edit=look)
    assert len(seen) == 2
    assert seen[0] is None
    assert seen[1]


# --- unknown outcomes and bad input -------------------------------------------------------------


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("lands", [True, False])
def test_an_unknown_outcome_deletes_nothing_and_can_be_repeated(
    shared: Place, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    table = filled(shared)
    operation = overwrite(table.dataset())
    decide = ConditionalPut.decide

    def silent(self: ConditionalPut, *args: Any) -> Any:
        if lands:
            decide(self, *args)
        raise CommitUnknownError("no answer")

    monkeypatch.setattr(ConditionalPut, "decide", silent)
    monkeypatch.setattr(Versions, "describe", _no_answer)
    files = set(Path(shared.uri, "data").iterdir())
    with pytest.raises(CommitUnknownError):
        table.commit_operation(operation, read_version=3, txn="once")
    monkeypatch.undo()
    assert set(Path(shared.uri, "data").iterdir()) == files
    again = shared.open().commit_operation(operation, read_version=3, txn="once")
    assert again.applied is not lands
    assert shared.ids() == [9]
    assert shared.stock().version == 4


def _no_answer(*_: object) -> Any:
    raise UnavailableError("no answer")


def test_bad_operations(shared: Place) -> None:
    table = filled(shared)
    wrong: list[Any] = [None, "append", object(), OPERATION.Append]
    for operation in wrong:
        with pytest.raises(InvalidInputError, match=r"lance\.LanceOperation"):
            table.commit_operation(operation, read_version=3)
    clone = OPERATION.Clone(True, None, 3, shared.uri, None)
    with pytest.raises(InvalidInputError, match="clone"):
        table.commit_operation(clone, read_version=3)
    good = overwrite(table.dataset())
    versions: list[Any] = [0, -1, True, "3", None, 2.0]
    for version in versions:
        with pytest.raises(InvalidInputError, match="version"):
            table.commit_operation(good, read_version=version)
    with pytest.raises(NotFoundError, match="not there"):
        table.commit_operation(good, read_version=4)
    with pytest.raises(InvalidInputError):
        table.commit_operation(good, read_version=3, txn=("job", -1))
    assert shared.stock().version == 3


def test_a_file_that_is_not_there(shared: Place) -> None:
    table = filled(shared)
    operation = update(table.dataset())
    Path(shared.uri, "data", operation.new_fragments[0].files[0].path).unlink()  # type: ignore[attr-defined]
    with pytest.raises(StaleWorkError):
        table.commit_operation(operation, read_version=3)
    assert shared.ids() == [1, 2, 3]


# --- overwrite in one call ----------------------------------------------------------------------


def overwritten(place: Place, data: Any, **more: Any) -> holdfast.CommitResult:
    return holdfast.write_table(
        data,
        place.uri,
        mode="overwrite",
        commit_store=place.commit_store,
        storage_options=place.options,
        **more,
    )


@pytest.mark.requirement("C8")
def test_overwrite_replaces_rows_and_columns_once(place: Place) -> None:
    table = place.create(primary_key=["id"])
    table.append(rows(1, 2), txn=("job", 1))
    data = pa.table({"number": [1.5, 2.5], "id": pa.array([7, 8], pa.int64())})
    done = overwritten(place, data, txn=("job", 2))
    assert (done.version, done.rows, done.applied) == (3, 2, True)
    assert not overwritten(place, data, txn=("job", 2)).applied
    assert not table.append(rows(1), txn=("job", 1)).applied
    assert place.stock().to_table().to_pydict() == {"number": [1.5, 2.5], "id": [7, 8]}
    assert place.ids(2) == [1, 2]
    assert table.schema.field("id").metadata
    assert table.append(pa.table({"id": [9], "number": [0.0]})).version == 4
    with pytest.raises(InvalidInputError, match="primary key"):
        overwritten(place, pa.table({"number": [1.0]}))
    with pytest.raises(InvalidInputError, match="null"):
        overwritten(place, pa.table({"id": pa.array([None], pa.int64())}))
    with pytest.raises(InvalidInputError, match="no rows"):
        overwritten(place, data.slice(0, 0))
    assert place.ids() == [7, 8, 9]


def test_overwrites_at_once_leave_one_whole(place: Place) -> None:
    place.create()
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda n: overwritten(place, rows(n, n + 10)), range(1, 5)))
    last = max(range(4), key=lambda index: done[index].version) + 1
    assert place.ids() == [last, last + 10]
    assert sorted(one.version for one in done) == [2, 3, 4, 5]


def test_overwrite_needs_a_table(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        holdfast.write_table(rows(1), tmp_path / "t.lance", mode="overwrite")
    assert list(tmp_path.iterdir()) == []
