"""`Table`: what users get from create, open, append, commit, adopt and release."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata, write_fragments

import holdfast
from commits.table_worker import (
    SCHEMA,
    Place,
    append_one,
    create_or_lose,
    rows,
    set_up,
    spawned,
)
from holdfast.arbiter import create_arbiter
from holdfast.commits._versions import Versions
from holdfast.errors import (
    AlreadyExistsError,
    CommitStoreRegressedError,
    ConflictError,
    ForeignVersionError,
    HoldfastError,
    InvalidInputError,
    NextStep,
    NotFoundError,
    PermissionDeniedError,
    PinMismatchError,
)
from holdfast.formats import version_name
from holdfast.testing import Fault, FaultyS3

LOCAL = {"conditional put": None, "commit store": "sqlite"}


@pytest.fixture(scope="module")
def ignoring_s3() -> Iterator[FaultyS3]:
    with FaultyS3(conditions="ignoring") as server:
        yield server


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with spawned(4) as pool:
        yield pool


@pytest.fixture(params=["conditional put", "commit store", "ignoring s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param != "ignoring s3":
        return Place(uri=str(tmp_path / "t.lance"), commit_store=LOCAL[request.param])
    server: FaultyS3 = request.getfixturevalue("ignoring_s3")
    url = set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true")
    uri = server.url("lake", f"{tmp_path.name}/t.lance")
    return Place(uri=uri, commit_store=url, options=dict(server.storage_options("lake")))


@pytest.fixture(params=LOCAL, ids=list(LOCAL))
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(uri=str(tmp_path / "t.lance"), commit_store=LOCAL[request.param])


@pytest.fixture
def shared(tmp_path: Path) -> Place:
    """A place on conditional put, where stock writers are welcome."""
    return Place(uri=str(tmp_path / "t.lance"))


@pytest.fixture
def recorded(tmp_path: Path) -> Place:
    """A place with a commit store in a file of its own."""
    return Place(
        uri=str(tmp_path / "t.lance"), commit_store=set_up(f"sqlite:///{tmp_path}/decisions.db")
    )


# --- what a write returns ---------------------------------------------------------------------


def test_results_and_stock_reads_every_version(place: Place) -> None:
    table = place.create()
    for number in range(1, 5):
        result = table.append(rows(number, -number), txn=("job", number))
        assert (result.version, result.rows, result.applied) == (number + 1, 2, True)
        assert result.txn == ("job", number)
        assert 0 < result.elapsed < 30
    assert table.append([{"id": 9, "text": "nine"}]).txn is None
    assert table.schema == SCHEMA
    for version in range(1, 6):
        kept = range(1, version)
        assert place.ids(version) == sorted([*kept, *(-n for n in kept)])
    assert place.ids() == sorted([*place.ids(5), 9])
    assert table.dataset(3).count_rows() == 4
    with pytest.raises(NotFoundError):
        table.dataset(99)


def test_fragments_written_elsewhere(place: Place) -> None:
    table = place.create()
    parts = [
        part
        for number in (1, 2)
        for part in write_fragments(rows(number), place.uri, storage_options=place.options or None)
    ]
    result = table.commit(parts, txn="engine", read_version=1)
    assert (result.version, result.rows, result.applied) == (2, 2, True)
    assert not table.commit(parts, txn="engine").applied
    assert place.ids() == [1, 2]


def test_data_in_many_shapes(shared: Place) -> None:
    table = shared.create()
    table.append(rows(1))
    table.append(rows(2).to_batches()[0])
    table.append(rows(3).to_reader())
    table.append([{"id": 4, "text": "four"}])
    table.append(rows(5).select(["text", "id"]))
    table.append(pa.table({"text": ["no id"]}))
    found = shared.stock().to_table().to_pylist()
    assert [row["id"] for row in found] == [1, 2, 3, 4, 5, None]
    assert [row["text"] for row in found][4:] == ["row 5", "no id"]


@pytest.mark.parametrize("arbiter", LOCAL)
@pytest.mark.parametrize("how", ["relative", "dots", "slash", "link", "url", "path", "spaces"])
def test_a_table_has_one_address_however_it_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, arbiter: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    folder = tmp_path / ("wide open.lance" if how == "spaces" else "t.lance")
    uri: str | Path = {
        "relative": "t.lance",
        "dots": f"./x/../{folder.name}",
        "slash": f"{folder}/",
        "link": str(tmp_path / "link" / "t.lance"),
        "url": folder.as_uri(),
        "spaces": str(folder),
    }.get(how, folder)
    table = holdfast.create_table(uri, SCHEMA, commit_store=LOCAL[arbiter])
    table.append(rows(1))
    monkeypatch.chdir("/")
    table.append(rows(2))
    table.dataset().delete("id = 1")
    assert table.uri == str(folder)
    assert holdfast.open_table(table.uri).append(rows(3)).version == 5
    assert lance.dataset(str(folder)).count_rows() == 2


# --- exactly once -----------------------------------------------------------------------------


@pytest.mark.requirement("C8", "P3")
def test_a_repeat_is_told_so_and_adds_nothing(place: Place) -> None:
    table = place.create()
    for number in (5, 4, 0):  # in any order
        assert table.append(rows(number + 10), txn=("job", number)).applied
    table.append(rows(2), txn="once")
    before = place.stock().version
    for txn in (("job", 5), ("job", 4), ("job", 0), "once"):
        again = table.append(rows(99), txn=txn)
        assert (again.applied, again.rows, again.version) == (False, 0, before)
    assert table.append(rows(3), txn=("job", 6)).applied
    assert table.append(rows(4), txn=("other", 5)).applied
    assert table.append(rows(5), txn="Once").applied
    assert table.applied([("job", 6), ("job", 7), "once", "twice"]) == [True, False, True, False]
    assert table.applied([]) == []
    assert place.ids() == [2, 3, 4, 5, 10, 14, 15]


@pytest.mark.requirement("C8")
def test_a_repeat_from_another_process(place: Place, processes: ProcessPoolExecutor) -> None:
    table = place.create()
    table.append(rows(1), txn=("job", 1))
    assert not processes.submit(append_one, table, 1, ("job", 1)).result()
    assert processes.submit(append_one, table, 2, ("job", 2)).result()
    assert not table.append(rows(2), txn=("job", 2)).applied
    assert place.ids() == [1, 2]


@pytest.mark.requirement("C8")
def test_concurrent_retries_of_one_transaction(
    place: Place, processes: ProcessPoolExecutor
) -> None:
    table = place.create()
    for number in range(3):
        txn = ("job", number) if number else "once"
        waiting = [processes.submit(append_one, table, number, txn) for _ in range(4)]
        with ThreadPoolExecutor(8) as threads:
            here = list(threads.map(lambda _: append_one(place.open(), number, txn), range(4)))  # noqa: B023
            here += threads.map(lambda _: append_one(table, number, txn), range(8))  # noqa: B023
        assert sum([*here, *(one.result() for one in waiting)]) == 1
        assert place.ids() == list(range(number + 1))


@pytest.mark.requirement("C8")
def test_transactions_survive_what_stock_writers_do(shared: Place) -> None:
    table = shared.create()
    table.append(rows(1), txn=("job", 1))
    table.append(rows(2), txn="once")
    lance.write_dataset(rows(3), shared.uri, mode="append")
    shared.stock().delete("id = 1")
    shared.stock().create_scalar_index("id", "BTREE")
    shared.stock().optimize.compact_files()
    assert table.applied([("job", 1), "once"]) == [True, True]
    lance.write_dataset(rows(4), shared.uri, mode="overwrite")
    shared.stock().cleanup_old_versions(older_than=timedelta(0))
    assert table.applied([("job", 1), "once", ("job", 2)]) == [True, True, False]
    assert not table.append(rows(1), txn=("job", 1)).applied
    assert table.append(rows(5), txn=("job", 2)).applied
    assert shared.ids() == [4, 5]


@pytest.mark.requirement("C8")
def test_transactions_survive_what_a_dataset_does(place: Place) -> None:
    table = place.create()
    table.append(rows(1, 2), txn=("job", 1))
    dataset = table.dataset()  # kept while others write: its next commit must not forget them
    table.append(rows(3), txn="once")
    dataset.delete("id = 1")
    dataset.insert(rows(4))
    dataset.add_columns({"double": "id * 2"})
    assert table.applied([("job", 1), "once"]) == [True, True]
    lance.write_dataset(rows(9), table.dataset(), mode="overwrite")
    table.dataset().cleanup_old_versions(older_than=timedelta(0))
    assert table.applied([("job", 1), "once"]) == [True, True]
    assert not table.append(rows(1), txn=("job", 1)).applied
    assert place.ids() == [9]


@pytest.mark.requirement("C8")
def test_restore_takes_transactions_back_with_their_rows(place: Place) -> None:
    table = place.create()
    table.append(rows(1), txn=("job", 1))
    table.append(rows(2), txn=("job", 2))
    older: Any = table.dataset(2)
    older.restore()
    assert place.ids() == [1]
    assert table.applied([("job", 1), ("job", 2)]) == [True, False]
    assert table.append(rows(2), txn=("job", 2)).applied
    assert place.ids() == [1, 2]


# --- creating, adopting, releasing ------------------------------------------------------------


def test_two_processes_create_one_table(local: Place, processes: ProcessPoolExecutor) -> None:
    for attempt in range(3):
        here = Place(uri=f"{local.uri}-{attempt}", commit_store=local.commit_store)
        waiting = [processes.submit(create_or_lose, here) for _ in range(3)]
        assert sorted(one.result() for one in waiting) == ["created", "exists", "exists"]
        assert here.open().append(rows(1)).version == 2
        assert here.ids() == [1]


def test_the_loser_of_a_race_to_create_changes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)
    decide = Versions.create

    def wait_for_the_other(self: Versions, *args: Any, **kwargs: Any) -> Any:
        both.wait(60)
        return decide(self, *args, **kwargs)

    monkeypatch.setattr(Versions, "create", wait_for_the_other)
    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(create_or_lose, [place, place]))
    monkeypatch.undo()
    assert sorted(outcomes) == ["created", "exists"]
    assert place.stock().version == 1
    with pytest.raises(AlreadyExistsError):
        place.create()


def test_the_next_creates_a_table_whose_creator_died_half_way(local: Place) -> None:
    create_arbiter(local.uri, commit_store=local.commit_store).close()
    staged = Path(local.uri, f"{version_name(1).path}-58a340b0-0277-4b59-9079-4f07e234bd95")
    staged.parent.mkdir()
    staged.write_bytes(b"staged by the one who died")
    assert create_or_lose(local) == "created"
    assert local.open().append(rows(1)).version == 2
    assert local.ids() == [1]


def test_write_table(place: Place) -> None:
    settings: dict[str, Any] = {
        "commit_store": place.commit_store,
        "storage_options": place.options,
    }
    made = holdfast.write_table(rows(1), place.uri, mode="create", txn="first", **settings)
    assert (made.version, made.rows, made.applied) == (2, 1, True)
    assert holdfast.write_table(rows(2), place.uri, **settings).version == 3
    again = holdfast.write_table(rows(1), place.uri, txn="first", **settings)
    assert not again.applied
    with pytest.raises(AlreadyExistsError):
        holdfast.write_table(rows(1), place.uri, mode="create", **settings)
    assert place.ids() == [1, 2]


def test_adopt_and_release(place: Place) -> None:
    options = place.options or None
    for number in (1, 2):
        lance.write_dataset(rows(number), place.uri, storage_options=options, mode="append")
    table = holdfast.adopt_table(
        place.uri, commit_store=place.commit_store, storage_options=options
    )
    assert table.append(rows(3), txn="once").version == 3
    assert place.open().append(rows(4)).version == 4
    assert [place.ids(version) for version in (1, 2, 3)] == [[1], [1, 2], [1, 2, 3]]
    assert table.dataset(1).count_rows() == 1
    assert holdfast.release_table(place.uri, options) == 4
    with pytest.raises(NotFoundError, match="adopt"):
        holdfast.open_table(place.uri, options)
    lance.write_dataset(rows(5), place.uri, storage_options=options, mode="append")
    again = holdfast.adopt_table(
        place.uri, commit_store=place.commit_store, storage_options=options
    )
    assert not again.append(rows(3), txn="once").applied
    again.append(rows(6))
    assert place.ids() == [1, 2, 3, 4, 5, 6]


def test_adopting_what_is_tied_already(tmp_path: Path) -> None:
    here = Place(uri=str(tmp_path / "t.lance"), commit_store="sqlite")
    here.create().append(rows(1))
    assert holdfast.adopt_table(here.uri, commit_store="sqlite").append(rows(2)).version == 3
    with pytest.raises(PinMismatchError):
        holdfast.adopt_table(here.uri)


# --- versions behind our back -----------------------------------------------------------------


def manifests(place: Place) -> dict[str, bytes]:
    folder = Path(place.uri) / "_versions"
    return {file.name: file.read_bytes() for file in folder.glob("*.manifest")}


@pytest.mark.parametrize("strangers", [1, 2])
def test_a_foreign_version_is_reported_until_it_is_accepted(
    recorded: Place, strangers: int
) -> None:
    table = recorded.create()
    table.append(rows(1), txn=("job", 1))
    for number in range(strangers):
        lance.write_dataset(rows(100 + number), recorded.uri, mode="append")
    newest, before = recorded.stock().version, manifests(recorded)
    for one in (table, recorded.open(), table):
        with pytest.raises(ForeignVersionError) as caught:
            one.append(rows(2), txn=("job", 2))
        assert caught.value.number == newest
    assert manifests(recorded) == before
    with pytest.raises(InvalidInputError, match="newest"):
        holdfast.adopt_table(recorded.uri, commit_store=recorded.commit_store, accept=newest - 1)
    holdfast.adopt_table(recorded.uri, commit_store=recorded.commit_store, accept=newest)
    assert table.append(rows(2), txn=("job", 2)).version == newest + 1
    assert recorded.open().append(rows(3)).version == newest + 2
    assert recorded.ids() == [1, 2, 3, *range(100, 100 + strangers)]


def test_a_commit_store_that_was_set_back(recorded: Place, tmp_path: Path) -> None:
    table = recorded.create()
    table.append(rows(1), txn=("job", 1))
    table.close()
    shutil.copy(tmp_path / "decisions.db", tmp_path / "old.db")
    table = recorded.open()
    table.append(rows(2), txn=("job", 2))
    table.append(rows(3), txn=("job", 3))
    table.close()
    for file in tmp_path.glob("decisions.db*"):
        file.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "decisions.db")
    before = manifests(recorded)
    table = recorded.open()
    for _ in range(2):
        with pytest.raises(CommitStoreRegressedError):
            table.append(rows(4), txn=("job", 4))
    assert manifests(recorded) == before
    holdfast.adopt_table(recorded.uri, commit_store=recorded.commit_store, accept=4)
    assert table.append(rows(4), txn=("job", 4)).version == 5
    assert recorded.ids() == [1, 2, 3, 4]


# --- travelling -------------------------------------------------------------------------------


def test_a_table_travels(place: Place, processes: ProcessPoolExecutor) -> None:
    table = place.create()
    assert processes.submit(append_one, table, 1).result()
    assert pickle.loads(pickle.dumps(table)).append(rows(2)).version == 3
    assert place.ids() == [1, 2]


def test_a_dataset_refuses_to_travel(place: Place) -> None:
    table = place.create()
    table.append(rows(1, 2))
    dataset = table.dataset()
    dataset.insert(rows(3))
    held: list[Any] = [
        dataset,
        dataset.checkout_version(2),
        copy.copy(dataset),
        dataset.get_fragments()[0],
        table.dataset(2),
    ]
    for one in held:
        with pytest.raises(TypeError, match=r"holdfast\.open_table"):
            pickle.dumps(one)
    assert dataset.checkout_version(2).count_rows() == 2
    assert copy.copy(dataset).count_rows() == 3
    assert dataset.to_table(filter="id > 1").num_rows == 2


# --- what is refused --------------------------------------------------------------------------


BAD_DATA: dict[str, tuple[Any, str]] = {
    "wrong type": (pa.table({"id": ["x"]}), "column 'id' is string, the table has int64"),
    "unexpected": (rows(1).append_column("more", [[1]]), "unexpected column 'more'"),
    "unexpected key": ([{"id": 1, "more": 2}], "unexpected column 'more'"),
    "twice": (pa.table([[1], [2]], names=["id", "id"]), "same name"),
    "no column": (pa.table({"other": [1]}), "unexpected column 'other'"),
    "empty table": (SCHEMA.empty_table(), "no rows"),
    "empty list": ([], "no rows"),
    "number": (7, "Arrow table"),
    "nothing": (None, "Arrow table"),
    "text": ("rows", "Arrow table"),
    "dict": ({"id": [1]}, "Arrow table"),
    "list of numbers": ([1, 2], "cannot be read"),
    "bad value": ([{"id": "x"}], "cannot be read"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data(shared: Place, name: str) -> None:
    data, expected = BAD_DATA[name]
    table = shared.create()
    with pytest.raises(InvalidInputError, match=expected):
        table.append(data, txn="kept for a better try")
    assert shared.stock().version == 1
    assert table.append(rows(1), txn="kept for a better try").applied


def broken_stream() -> Iterator[pa.RecordBatch]:
    yield rows(1).to_batches()[0]
    raise RuntimeError("the source broke")


def test_a_stream_that_breaks(shared: Place) -> None:
    table = shared.create()
    with pytest.raises(InvalidInputError, match="the source broke"):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, broken_stream()))
    assert shared.stock().version == 1


def test_a_null_in_the_key(shared: Place) -> None:
    table = shared.create(primary_key=["id"])
    with pytest.raises(InvalidInputError, match="missing column 'id'"):
        table.append(pa.table({"text": ["x"]}))
    for data in ([{"id": None, "text": "x"}], pa.table({"id": pa.array([None], pa.int64())})):
        with pytest.raises(InvalidInputError, match="null"):
            table.append(data)
    assert shared.stock().version == 1
    assert table.append(rows(1)).version == 2


@pytest.mark.parametrize("txn", [True, "", ("job",), ("job", -1), ("job", 1, 2), "a\nb", 7])
def test_a_malformed_txn_writes_nothing(shared: Place, txn: Any) -> None:
    table = shared.create()
    calls: list[Callable[[], object]] = [
        lambda: table.append(rows(1), txn=txn),
        lambda: table.commit([], txn=txn),
        lambda: table.applied(["fine", txn]),
        lambda: holdfast.write_table(rows(1), shared.uri, txn=txn),
        lambda: holdfast.write_table(rows(1), f"{shared.uri}-new", mode="create", txn=txn),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError):
            call()
    assert shared.stock().version == 1
    assert not list((Path(shared.uri) / "data").glob("*"))
    assert not Path(f"{shared.uri}-new").exists()


def test_no_table(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("no table")
    (tmp_path / "file").write_text("no table")
    for name in ("nowhere", "folder", "file"):
        uri = str(tmp_path / name)
        for call in (holdfast.open_table, holdfast.adopt_table, holdfast.release_table):
            with pytest.raises(NotFoundError):
                call(uri)
        with pytest.raises(NotFoundError):
            holdfast.write_table(rows(1), uri)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["notes.txt"]
    with pytest.raises(InvalidInputError):
        holdfast.create_table(tmp_path / "file", SCHEMA)


def test_a_stock_table_is_not_created_over(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(rows(1), uri)
    with pytest.raises(AlreadyExistsError, match="adopt"):
        holdfast.create_table(uri, SCHEMA)
    assert lance.dataset(uri).count_rows() == 1
    assert not (tmp_path / "t.lance" / "_holdfast").exists()


def test_malformed_creations(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    bad: list[tuple[Any, Any]] = [
        (pa.schema([]), ()),
        ({"id": "int64"}, ()),
        (None, ()),
        (SCHEMA, ["nope"]),
        (SCHEMA, "id"),
    ]
    for schema, key in bad:
        with pytest.raises(InvalidInputError):
            holdfast.create_table(uri, schema, primary_key=key)
    nothing: list[Any] = [[], SCHEMA.empty_table(), 7, pa.table({})]
    for data in nothing:
        with pytest.raises(InvalidInputError):
            holdfast.write_table(data, uri, mode="create")
    mode: Any = "replace"
    with pytest.raises(InvalidInputError, match="append"):
        holdfast.write_table(rows(1), uri, mode=mode)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arbiter", LOCAL)
def test_a_table_with_the_old_manifest_names(tmp_path: Path, arbiter: str) -> None:
    uri = str(tmp_path / "old.lance")
    lance.write_dataset(rows(1), uri, enable_v2_manifest_paths=False)
    with pytest.raises(InvalidInputError, match="migrate_manifest_paths_v2"):
        holdfast.adopt_table(uri, commit_store=LOCAL[arbiter])
    assert not (tmp_path / "old.lance" / "_holdfast").exists()
    stock: Any = lance.dataset(uri)
    stock.migrate_manifest_paths_v2()
    assert holdfast.adopt_table(uri, commit_store=LOCAL[arbiter]).append(rows(2)).version == 2


@pytest.mark.requirement("C2")
def test_a_table_on_s3_ddb_is_refused_clearly() -> None:
    uri = "s3+ddb://bucket/t.lance?ddbTableName=commits"
    with pytest.raises(InvalidInputError, match="DynamoDB"):
        holdfast.open_table(uri)
    with pytest.raises(InvalidInputError, match="ddbTableName"):
        holdfast.adopt_table("s3+ddb://bucket/t.lance", commit_store="sqlite")
    with pytest.raises(InvalidInputError, match="adopt_table"):
        holdfast.create_table(uri, SCHEMA)


@pytest.mark.parametrize("place", ["ignoring s3"], indirect=True)  # on disk root may write
def test_a_read_only_store(place: Place, ignoring_s3: FaultyS3) -> None:
    table = place.create()
    table.append(rows(1))
    ignoring_s3.faults.add(Fault(kind="status_before", method="PUT", status=403, times=None))
    try:
        with pytest.raises(PermissionDeniedError):
            table.append(rows(2), txn="later")
    finally:
        ignoring_s3.faults.clear()
    assert table.append(rows(2), txn="later").applied
    assert place.ids() == [1, 2]


# --- columns that change under a writer -------------------------------------------------------


CHANGES: dict[str, Callable[[Any], object]] = {
    "overwritten": lambda d: lance.write_dataset(
        pa.table({"other": ["x"], "number": [1.5]}), d, mode="overwrite"
    ),
    "dropped": lambda d: d.drop_columns(["text"]),
    "cast": lambda d: d.alter_columns({"path": "id", "data_type": pa.int32()}),
    "renamed": lambda d: lance.write_dataset(
        pa.table({"number": [1], "word": ["x"]}), d, mode="overwrite"
    ),
}
DIFFERENCES = {
    "overwritten": "column 'id' .int64. is now 'other' .string.",
    "dropped": "column 'text' .string. is gone",
    "cast": "column 'id' was int64, is now int32",
    "renamed": "column 'id' .int64. is now 'number'",
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_written_for_other_columns_are_not_added(
    place: Place, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    table = place.create()
    table.append(rows(1))

    def write_then_change(*args: Any, **kwargs: Any) -> Any:
        parts = write_fragments(*args, **kwargs)
        CHANGES[change](place.open().dataset())
        return parts

    monkeypatch.setattr("holdfast.commits._writes.write_fragments", write_then_change)
    with pytest.raises(ConflictError, match=DIFFERENCES[change]):
        table.append(rows(2), txn="once")
    monkeypatch.undo()
    assert place.stock().to_table().num_rows == 1  # and it can be read
    assert table.applied(["once"]) == [False]


@pytest.mark.parametrize("how", ["append", "commit", "commit_operation"])
@pytest.mark.parametrize("change", CHANGES)
def test_columns_that_change_before_the_decision(
    place: Place, monkeypatch: pytest.MonkeyPatch, change: str, how: str
) -> None:
    """Somebody is faster: the rows are to be put upon his version, which has other columns."""
    table = place.create()
    table.append(rows(1))
    parts = write_fragments(rows(2), table.dataset(), mode="append")
    changes = iter([CHANGES[change]])
    decide = Versions._decide

    def change_first(self: Versions, *args: Any, **kwargs: Any) -> Any:
        if self is table.versions:
            next(changes, lambda _: None)(place.open().dataset())
        return decide(self, *args, **kwargs)

    def commit() -> object:
        if how == "append":
            return table.append(rows(2), txn="once")
        if how == "commit":
            return table.commit(parts, txn="once", read_version=2)
        operation = lance.LanceOperation.Append(parts)
        return table.writes.commit_operation(
            operation, read_version=2, txn="once", edit=lambda m: m
        )

    monkeypatch.setattr(Versions, "_decide", change_first)
    with pytest.raises(ConflictError) as caught:
        commit()
    monkeypatch.undo()
    if how != "commit_operation":
        caught.match(DIFFERENCES[change])
        assert caught.value.next_step is NextStep.NEVER
    assert place.stock().to_table().num_rows == 1
    assert table.applied(["once"]) == [False]


def test_columns_added_before_the_decision(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = place.create()
    table.append(rows(1))
    changes = iter([lambda d: d.add_columns({"double": "id * 2"})])
    decide = Versions._decide

    def change_first(self: Versions, *args: Any, **kwargs: Any) -> Any:
        if self is table.versions:
            next(changes, lambda _: None)(place.open().dataset())
        return decide(self, *args, **kwargs)

    monkeypatch.setattr(Versions, "_decide", change_first)
    assert table.append(rows(2)).version == 4
    assert place.stock().to_table()["double"].to_pylist() == [2, None]


def test_a_column_added_meanwhile_is_null(place: Place) -> None:
    table = place.create()
    parts = write_fragments(rows(1), table.dataset(), mode="append")
    table.dataset().add_columns({"double": "id * 2"})
    table.commit(parts, read_version=1)
    assert place.stock().to_table()["double"].to_pylist() == [None]


def test_fragments_that_do_not_belong(local: Place) -> None:
    table = local.create()
    table.append(rows(1))
    parts = write_fragments(rows(2), local.uri, mode="append")
    described = parts[0].to_json()
    described["files"][0]["fields"] = [17, 18]
    strange = FragmentMetadata.from_json(json.dumps(described))
    with pytest.raises(InvalidInputError, match="columns"):
        table.commit([strange])
    wrong: list[Any] = ["x", object(), parts]
    for one in wrong:
        with pytest.raises(InvalidInputError, match="write_fragments"):
            table.commit([one])
    with pytest.raises(InvalidInputError, match="no rows"):
        table.commit([])
    (Path(local.uri) / "data" / parts[0].files[0].path).unlink()
    with pytest.raises(HoldfastError):
        table.commit(parts)
    assert local.ids() == [1]
    assert local.stock().version == 2


# Rows of several callers as one version


def test_rows_of_several_callers_become_one_fragment(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", pa.schema([("id", pa.int64())]))
    items: list[tuple[Any, Any]] = [([{"id": n}], ("app", n)) for n in range(5)]
    done = table.append_all(items)
    assert [one.applied for one in done if isinstance(one, holdfast.CommitResult)] == [True] * 5
    assert {one.version for one in done if isinstance(one, holdfast.CommitResult)} == {2}
    assert table.status().fragments == 1
    assert set(table.history(1)[0].txns) == {f"app:{n}" for n in range(5)}


@pytest.mark.requirement("C8", "P3")
def test_each_of_several_callers_has_its_own_outcome(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", pa.schema([("id", pa.int64())]))
    table.append([{"id": 0}], txn=("app", 0))
    items: list[tuple[Any, Any]] = [
        ([{"id": 0}], ("app", 0)),  # there already
        ([{"id": 1}], ("app", 1)),
        ([{"wrong": 1}], ("app", 2)),
        ([{"id": 3}], ("app", 1)),  # the same transaction twice in one call
        ([{"id": 4}], None),
        ([], ("app", 5)),
    ]
    done = table.append_all(items)
    assert [getattr(one, "applied", type(one)) for one in done] == [
        False,
        True,
        InvalidInputError,
        False,
        True,
        InvalidInputError,
    ]
    assert sorted(table.to_table()["id"].to_pylist()) == [0, 1, 4]


@pytest.mark.requirement("C8", "P3")
def test_a_transaction_that_another_process_commits_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", pa.schema([("id", pa.int64())]))
    table.append([{"id": 0}])
    other = holdfast.open_table(tmp_path / "t.lance")
    real = write_fragments

    def write(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        other.append([{"id": 1}], txn=("app", 1))  # between the look and the decision
        return real(*arguments, **options)

    monkeypatch.setattr("holdfast.commits._writes.write_fragments", write)
    done = table.append_all([([{"id": n}], ("app", n)) for n in (1, 2, 3)])
    assert [getattr(one, "applied", one) for one in done] == [False, True, True]
    assert sorted(table.to_table()["id"].to_pylist()) == [0, 1, 2, 3]


def test_no_address_and_no_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that is not set made a table in a folder `None`."""
    monkeypatch.chdir(tmp_path)
    schema = pa.schema([("id", pa.int64())])
    for wrong in (None, 5, b"t.lance", ["t.lance"]):
        address: Any = wrong
        calls: list[Callable[[], object]] = [
            lambda: holdfast.create_table(address, schema),  # noqa: B023 - called here
            lambda: holdfast.open_table(address),  # noqa: B023
            lambda: holdfast.adopt_table(address),  # noqa: B023
            lambda: holdfast.write_table(pa.table({"id": [1]}), address, mode="create"),  # noqa: B023
        ]
        for call in calls:
            with pytest.raises(InvalidInputError):
                call()
    options: Any = "aws_region=x"
    with pytest.raises(InvalidInputError, match="dict"):
        holdfast.create_table("t.lance", schema, storage_options=options)
    url: Any = 5
    with pytest.raises(InvalidInputError, match="URL"):
        holdfast.create_table("t.lance", schema, commit_store=url)
    assert list(tmp_path.iterdir()) == []
