"""`holdfast.Namespace` as LanceDB and other catalogues use it: list, describe, drop."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lance_namespace as models
import lancedb
import pytest

import holdfast
from commits.table_worker import rows
from holdfast.commits import _drop
from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
)
from holdfast.formats import PIN_PATH, ArbiterKind, version_name
from holdfast.options import StorageOptions
from holdfast.testing import FaultyS3

pytestmark = pytest.mark.requirement("C9")


@pytest.fixture(params=[{}, {"commit_store": "sqlite"}], ids=["conditional put", "commit store"])
def properties(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    return {"root": str(tmp_path), **request.param}


@pytest.fixture
def tables(properties: dict[str, str]) -> Any:
    return models.connect("holdfast.Namespace", properties)


def write(tables: Any, table_id: list[str], *ids: int, mode: str = "create") -> lance.LanceDataset:
    return lance.write_dataset(rows(*ids), namespace_client=tables, table_id=table_id, mode=mode)


def read(tables: Any, table_id: list[str]) -> list[int]:
    found = lance.dataset(namespace_client=tables, table_id=table_id).to_table()["id"]
    return sorted(found.to_pylist())


def listed(tables: Any, *namespace: str) -> list[str]:
    names = tables.list_tables(models.ListTablesRequest(id=list(namespace))).tables
    return list(names)


def children(tables: Any, *namespace: str) -> list[str]:
    request = models.ListNamespacesRequest(id=list(namespace))
    return list(tables.list_namespaces(request).namespaces)


def test_lancedb_works_through_it(properties: dict[str, str], tmp_path: Path) -> None:
    db: Any = lancedb.connect_namespace("holdfast.Namespace", properties)
    table = db.create_table("t", rows(1, 2))
    table.add(rows(3))
    table.update(where="id = 1", values={"text": "changed"})
    table.delete("id = 2")
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows(3, 9))
    table.optimize()
    assert [v["version"] for v in table.list_versions()][:5] == [1, 2, 3, 4, 5]
    table.tags.create("first", 1)
    with pytest.raises(RuntimeError, match="does not exist"):
        table.tags.create("none", 99)
    table.checkout("first")
    table.restore()
    assert sorted(db.open_table("t").to_arrow()["id"].to_pylist()) == [1, 2]
    assert db.create_table("t", rows(100), mode="overwrite").count_rows() == 1
    with pytest.raises(models.TableNotFoundError):
        db.open_table("nope")
    assert db.table_exists(["t"])
    assert not db.table_exists(["nope"])
    assert db.list_tables().tables == ["t"]
    history = holdfast.open_table(tmp_path / "t.lance").history()
    assert not any(info.foreign for info in history)


def test_two_ids_are_two_tables(tables: Any) -> None:
    write(tables, ["a", "b"], 1)
    write(tables, ["a.b"], 2, 3)
    write(tables, ["a", "b", "c"], 4)
    assert read(tables, ["a", "b"]) == [1]
    assert read(tables, ["a.b"]) == [2, 3]
    assert read(tables, ["a", "b", "c"]) == [4]
    assert (listed(tables), children(tables)) == (["a.b"], ["a"])
    assert (listed(tables, "a"), children(tables, "a")) == (["b"], ["b"])
    assert listed(tables, "a", "b") == ["c"]


@pytest.mark.parametrize("table_id", [[], ["a.lance", "b"], ["..", "b"], ["a/b"], ["a$b"]])
def test_ids_that_could_name_another_tables_folder_are_refused(
    tables: Any, table_id: list[str]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        write(tables, table_id, 1)
    assert isinstance(caught.value, models.InvalidInputError)


def test_what_is_not_there_is_told_by_both_errors(tables: Any) -> None:
    exists = models.TableExistsRequest(id=["t"])
    asked: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: read(tables, ["t"]), models.TableNotFoundError),
        (lambda: write(tables, ["t"], 1, mode="append"), models.TableNotFoundError),
        (
            lambda: tables.table_exists(exists),
            models.TableNotFoundError,
        ),
        (lambda: tables.drop_table(models.DropTableRequest(id=["t"])), models.TableNotFoundError),
        (lambda: listed(tables, "a"), models.NamespaceNotFoundError),
        (lambda: children(tables, "a"), models.NamespaceNotFoundError),
    ]
    for ask, theirs in asked:
        with pytest.raises(NotFoundError) as caught:
            ask()
        assert isinstance(caught.value, theirs)
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is NotFoundError
        assert str(again) == str(caught.value)


def test_versions_for_people_and_for_lance(tables: Any) -> None:
    write(tables, ["t"], 1)
    write(tables, ["t"], 2, mode="append")
    every = tables.list_table_versions(models.ListTableVersionsRequest(id=["t"], descending=True))
    assert [found.version for found in every.versions] == [2, 1]
    with pytest.raises(NotFoundError) as caught:
        tables.describe_table_version(models.DescribeTableVersionRequest(id=["t"], version=9))
    assert isinstance(caught.value, models.TableVersionNotFoundError)
    held = lance.dataset(namespace_client=tables, table_id=["t"])
    assert len(held.get_transactions(10)) == 2
    with pytest.raises(ValueError, match="does not exist"):
        held.tags.create("a", 99)
    with pytest.raises(OSError, match="was not found"):
        held.checkout_version(99)


def test_a_taken_version_is_a_conflict_for_both(tables: Any, tmp_path: Path) -> None:
    write(tables, ["t"], 1)
    staged = tmp_path / "t.lance" / (version_name(1).path + "-staged")
    staged.write_bytes((tmp_path / "t.lance" / version_name(1).path).read_bytes())
    fields = {"id": ["t"], "version": 1, "manifest_path": str(staged)[1:], "naming_scheme": "V2"}
    with pytest.raises(HoldfastError) as caught:
        tables.create_table_version(fields)
    assert isinstance(caught.value, models.ConcurrentModificationError)


def test_a_creator_who_comes_second_replaces_nothing(properties: dict[str, str]) -> None:
    """Two processes find no table and create it: what the first one wrote stays."""
    first: Any = models.connect("holdfast.Namespace", properties)
    second: Any = models.connect("holdfast.Namespace", properties)
    decide = second.create_table_version

    def after_the_first(request: Any) -> Any:
        if not listed_versions():
            write(first, ["t"], 1)
        return decide(request)

    def listed_versions() -> list[Path]:
        return list(Path(properties["root"], "t.lance", "_versions").glob("*.manifest"))

    second.create_table_version = after_the_first
    with pytest.raises(OSError, match=r"unknown|exists"):
        write(second, ["t"], 2)
    assert read(first, ["t"]) == [1]


def test_namespaces_come_and_go(tables: Any) -> None:
    tables.create_namespace(models.CreateNamespaceRequest(id=["a"]))
    assert children(tables) == ["a"]
    with pytest.raises(AlreadyExistsError) as caught:
        tables.create_namespace(models.CreateNamespaceRequest(id=["a"]))
    assert isinstance(caught.value, models.NamespaceAlreadyExistsError)
    tables.create_namespace(models.CreateNamespaceRequest(id=["a"], mode="exist_ok"))
    write(tables, ["a", "t"], 1)
    with pytest.raises(InvalidInputError) as full:
        tables.drop_namespace(models.DropNamespaceRequest(id=["a"]))
    assert isinstance(full.value, models.NamespaceNotEmptyError)
    drop(tables, ["a", "t"], confirm="true")
    tables.drop_namespace(models.DropNamespaceRequest(id=["a"]))
    assert children(tables) == []
    with pytest.raises(NotFoundError):
        tables.namespace_exists(models.NamespaceExistsRequest(id=["a"]))


def drop(tables: Any, table_id: list[str], **context: str) -> None:
    tables.drop_table(models.DropTableRequest(id=table_id, context=context))


@pytest.mark.requirement("P1")
def test_a_stray_drop_destroys_nothing(properties: dict[str, str], tables: Any) -> None:
    write(tables, ["t"], 1, 2)
    db: Any = lancedb.connect_namespace("holdfast.Namespace", properties)
    with pytest.raises(RuntimeError, match="nothing was dropped"):
        db.drop_table("t")
    with pytest.raises(RuntimeError, match="nothing was dropped"):
        db.drop_all_tables()
    with pytest.raises(PermissionDeniedError, match="newest_version=1") as caught:
        drop(tables, ["t"])
    assert isinstance(caught.value, models.PermissionDeniedError)
    assert read(tables, ["t"]) == [1, 2]


def test_a_confirmed_drop_and_a_new_table_at_its_place(
    properties: dict[str, str], tables: Any
) -> None:
    write(tables, ["t"], 1, 2)
    another: Any = models.connect("holdfast.Namespace", {**properties, "allow_drop": "true"})
    drop(another, ["t"])
    assert listed(tables) == []
    with pytest.raises(NotFoundError):
        write(tables, ["t"], 3, mode="append")
    write(tables, ["t"], 7)
    assert read(another, ["t"]) == [7]
    write(another, ["t"], 8, mode="append")
    assert read(tables, ["t"]) == [7, 8]


@pytest.mark.requirement("P4")
def test_a_drop_that_was_killed_is_finished_by_the_next(tables: Any, tmp_path: Path) -> None:
    write(tables, ["t"], 1)
    (tmp_path / "t.lance" / version_name(1).path).unlink()
    (tmp_path / "t.lance" / ".DS_Store").write_bytes(b"")
    drop(tables, ["t"], confirm="true")
    assert listed(tables) == []
    assert not (tmp_path / "t.lance" / PIN_PATH).exists()


@pytest.mark.requirement("P4")
def test_a_reader_that_puts_a_manifest_back_during_a_drop_bars_nothing(
    tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tables, ["t"], 1)
    write(tables, ["t"], 2, mode="append")
    reader = holdfast.open_table(tmp_path / "t.lance")
    retire = _drop._retire
    put_back: list[bool] = []

    def read_again() -> None:
        manifest = tmp_path / "t.lance" / version_name(2).path
        manifest.unlink(missing_ok=True)
        with contextlib.suppress(HoldfastError):
            reader.to_table()  # its newest manifest is gone, but decided: it comes back
        put_back.append(manifest.exists())

    def read_around_it(uri: str, options: StorageOptions) -> None:
        read_again()
        retire(uri, options)
        read_again()
        read_back = tmp_path / "t.lance" / version_name(1).path
        read_back.write_bytes(b"of a reader that began before")

    monkeypatch.setattr(_drop, "_retire", read_around_it)
    drop(tables, ["t"], confirm="true")
    has_store = reader.pin is not None and reader.pin.arbiter is ArbiterKind.COMMIT_STORE
    assert put_back == [has_store, False]
    assert not list((tmp_path / "t.lance").rglob("*.manifest"))
    write(tables, ["t"], 7)
    assert read(tables, ["t"]) == [7]
    reader.close()


def test_datasets_made_through_it_do_not_travel(tables: Any) -> None:
    made = write(tables, ["t"], 1)
    opened = lance.dataset(namespace_client=tables, table_id=["t"])
    appended = write(tables, ["t"], 2, mode="append")
    for dataset in (made, opened, appended, opened.checkout_version(1)):
        with pytest.raises(TypeError, match=r"holdfast\.open_table"):
            pickle.dumps(dataset)


def test_on_an_object_store(faulty_s3: Callable[..., FaultyS3]) -> None:
    options = faulty_s3().storage_options()
    properties = {f"storage.{key}": value for key, value in options.items()}
    tables: Any = models.connect("holdfast.Namespace", {"root": "s3://lake/db", **properties})
    write(tables, ["t"], 1)
    made = write(tables, ["a", "t"], 2)
    with pytest.raises(TypeError, match=r"holdfast\.open_table"):
        pickle.dumps(made)
    assert (listed(tables), children(tables), listed(tables, "a")) == (["t"], ["a"], ["t"])
    assert len(lance.dataset(namespace_client=tables, table_id=["t"]).get_transactions(5)) == 1
    drop(tables, ["a", "t"], confirm="true")
    assert (listed(tables), children(tables)) == (["t"], [])


def test_unknown_properties_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="commit_stroe"):
        holdfast.Namespace(str(tmp_path), commit_stroe="sqlite")
