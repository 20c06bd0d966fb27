"""Stock pylance calls, committed through Holdfast by way of its namespace."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

from commits.table_worker import Place, rows
from holdfast.arbiter import connect_commit_store, open_arbiter
from holdfast.commits import Namespace
from holdfast.errors import (
    AlreadyExistsError,
    ForeignVersionError,
    InvalidInputError,
    NotFoundError,
)
from holdfast.formats import TOKEN_KEY, version_name
from holdfast.testing import Fault, FaultyS3


def write(tables: Any, *ids: int, mode: str = "append", name: str = "t") -> lance.LanceDataset:
    return lance.write_dataset(rows(*ids), namespace_client=tables, table_id=[name], mode=mode)


def ids_in(uri: str, options: dict[str, str] | None = None) -> list[int]:
    found = lance.dataset(uri, storage_options=options).to_table()["id"].to_pylist()
    return sorted(found)


@pytest.fixture(params=[None, "sqlite"], ids=["conditional put", "commit store"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return Namespace(str(tmp_path), commit_store=request.param)


def test_stock_reads_what_was_committed(tables: Any, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    assert write(tables, 1, mode="create").version == 1
    for number in (2, 3, 4):
        write(tables, number)
    assert ids_in(uri) == [1, 2, 3, 4]
    stock = lance.dataset(uri)
    assert stock.version == 4
    assert stock.config()[TOKEN_KEY].startswith("hf-")
    assert open_arbiter(uri).read(version_name(4)) is not None


def test_every_kind_of_commit_goes_through(tables: Any, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    write(tables, *range(20), mode="create")
    write(tables, *range(20, 40))
    dataset = lance.dataset(namespace_client=tables, table_id=["t"])
    dataset.delete("id < 5")
    dataset.update({"text": "'changed'"}, where="id = 7")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        rows(7, 100)
    )
    dataset.create_scalar_index("id", "BTREE")
    dataset.add_columns({"double": "id * 2"})
    dataset.optimize.compact_files()
    stock = lance.dataset(uri)
    assert sorted(stock.to_table()["id"].to_pylist()) == [*range(5, 40), 100]
    for version in range(1, stock.version + 1):
        assert lance.dataset(uri, version=version).config()[TOKEN_KEY]
    older: Any = dataset.checkout_version(2)
    older.restore()
    assert ids_in(uri) == list(range(40))


def test_a_version_left_unfinished_is_finished_by_the_next(tmp_path: Path) -> None:
    tables: Any = Namespace(str(tmp_path), commit_store="sqlite")
    uri = str(tmp_path / "t.lance")
    write(tables, 1, mode="create")
    write(tables, 2)
    (tmp_path / "t.lance" / version_name(2).path).unlink()  # decided, but never copied
    assert ids_in(uri) == [1]
    fresh: Any = Namespace(str(tmp_path))
    write(fresh, 3)
    assert ids_in(uri) == [1, 2, 3]


def test_an_existing_table_is_not_created_again(tables: Any) -> None:
    write(tables, 1, mode="create")
    with pytest.raises(AlreadyExistsError, match="append"):
        write(tables, 2, mode="create")


def test_a_table_that_is_not_there(tables: Any) -> None:
    with pytest.raises(NotFoundError):
        write(tables, 1)


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a b", "a%2Fb"])
def test_malformed_names_are_refused(tables: Any, name: str) -> None:
    with pytest.raises(InvalidInputError):
        write(tables, 1, mode="create", name=name)


def test_it_travels_as_plain_arguments_and_shows_no_secret() -> None:
    tables = Namespace(
        "s3://bucket/lake",
        {"aws_secret_access_key": "CANARY", "aws_region": "eu"},
        commit_store="env:HOLDFAST_TEST_URL",
    )
    again = pickle.loads(pickle.dumps(tables))
    assert again.namespace_id() == tables.namespace_id()
    assert "CANARY" not in repr(tables) + tables.namespace_id()


def test_a_dataset_that_lance_returned_loses_its_hook_and_that_is_noticed(tmp_path: Path) -> None:
    """Nothing can stop it from travelling; a commit of its own is then foreign."""
    place = Place(uri=str(tmp_path / "t.lance"), commit_store="sqlite")
    table = place.create()
    returned = lance.write_dataset(rows(1), table.dataset(), mode="append")
    returned.insert(rows(2))  # here it has its hook
    assert table.append(rows(3)).applied
    pickle.loads(pickle.dumps(returned)).insert(rows(4))  # there it has none
    for one in (table, place.open()):
        with pytest.raises(ForeignVersionError) as caught:
            one.append(rows(5))
        assert caught.value.number == place.stock().version
    assert [info.version for info in table.history() if info.foreign] == [5]


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
def test_answers_lost_during_a_commit(
    faulty_s3: Callable[..., FaultyS3], tmp_path: Path, kind: Any
) -> None:
    s3 = faulty_s3(conditions="ignoring")
    tables: Any = s3_tables(s3, tmp_path)
    write(tables, 0, mode="create")
    for nth in range(1, 7):
        s3.faults.add(Fault(kind=kind, path_regex="_versions|_holdfast", nth=nth))
        write(tables, nth)
        s3.faults.clear()
        assert ids_in("s3://lake/tables/t.lance", s3.storage_options()) == list(range(nth + 1))


def s3_tables(s3: FaultyS3, folder: Path) -> Namespace:
    url = f"sqlite:///{folder}/decisions.db?single_host=true"
    store: Any = connect_commit_store(url)
    store.set_up()
    store.close()
    return Namespace("s3://lake/tables", s3.storage_options(), commit_store=url)
