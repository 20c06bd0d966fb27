"""Transaction ids of real tables: in any order, from anywhere, for ever."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.commits import touch
from holdfast.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    CorruptError,
    InvalidInputError,
)
from holdfast.formats import _ledger as formats
from holdfast.formats import older_files
from holdfast.formats._ledger import MOST_RANGES
from holdfast.formats._txn_file import TXNS_FOLDER
from holdfast.table import Table
from holdfast.txn import TxnLike
from holdfast.upkeep import doctor

pytestmark = pytest.mark.requirement("P3")

SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep few strings in the config, so that few appends make files."""
    monkeypatch.setattr(formats, "_KEPT", {formats._RECENT: 4, formats._OWN: 4})


@pytest.fixture(params=["conditional put", "commit store"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    commit_store = "sqlite" if request.param == "commit store" else None
    return holdfast.create_table(tmp_path / "t.lance", SCHEMA, commit_store=commit_store)


def fill(table: Table, texts: range) -> None:
    for number in texts:
        assert table.append(rows(number), txn=f"run {number}").applied


def ids_in(table: Table) -> list[int]:
    found = lance.dataset(table.uri).to_table()["id"].to_pylist()
    return sorted(int(number) for number in found)


def files_of(table: Table) -> list[str]:
    return [file.path for file in older_files(table.dataset().config())]


def test_a_late_repeat_is_applied_once_by_every_way_in(table: Table) -> None:
    fill(table, range(12))
    assert files_of(table)
    again = holdfast.open_table(table.uri)
    assert again.applied([f"run {n}" for n in range(13)]) == [True] * 12 + [False]
    fragments = lance.fragment.write_fragments(rows(0), again.dataset())
    operation = lance.LanceOperation.Append(fragments)
    version = again.dataset().version
    results = [
        again.append(rows(0), txn="run 0"),
        again.commit(fragments, txn="run 0"),
        again.commit_operation(operation, read_version=version, txn="run 0"),
        again.commit_operation(
            lance.LanceOperation.Overwrite(SCHEMA, fragments), read_version=version, txn="run 0"
        ),
        holdfast.write_table(rows(0), table.uri, mode="append", txn="run 0"),
        holdfast.write_table(rows(0), table.uri, mode="overwrite", txn="run 0"),
    ]
    assert [one.applied for one in results] == [False] * 6
    assert ids_in(table) == list(range(12))
    assert doctor(table.uri).healthy


def test_random_orders_groups_and_restores_agree_with_a_set(table: Table) -> None:
    chosen = random.Random(7)
    txns: list[TxnLike] = [*(("job", n) for n in range(8)), *(f"run {n}" for n in range(8))]
    models: dict[int, set[int]] = {table.dataset().version: set()}
    with ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            some = chosen.sample(range(len(txns)), 4)
            list(threads.map(lambda n: table.append(rows(n), txn=txns[n]), [*some, some[0]]))
            model = models[max(models)] | set(some)
            models[table.dataset().version] = model
            assert ids_in(table) == sorted(model)
            if chosen.random() < 0.3:
                back = chosen.choice(sorted(models))
                table.dataset(back).restore()  # type: ignore[no-untyped-call]
                models[table.dataset().version] = models[back]
            applied = table.applied(txns)
            assert {n for n, there in enumerate(applied) if there} == models[max(models)]


def test_a_missing_or_damaged_file_stops_strings_and_nothing_else(table: Table) -> None:
    fill(table, range(6))
    (path,) = files_of(table)
    file = Path(table.uri) / path
    body = file.read_bytes()
    for broken in (None, body[:-1]):
        file.unlink() if broken is None else file.write_bytes(broken)
        fresh = holdfast.open_table(table.uri)
        for txn in ("run 0", "new"):
            with pytest.raises(CorruptError, match="put the file back") as caught:
                fresh.append(rows(0), txn=txn)
            assert caught.value.path == path
            with pytest.raises(CorruptError):
                fresh.applied([txn])
        assert fresh.append(rows(100), txn=("app", 1 if broken is None else 2)).applied
        assert fresh.append(rows(100)).applied
        file.write_bytes(body)
        assert not holdfast.open_table(table.uri).append(rows(0), txn="run 0").applied
    file.unlink()
    found = doctor(table.uri).findings
    assert [one.path for one in found if one.kind == "missing_file"] == [path]


def test_too_many_gaps_are_refused_before_anything_is_written(table: Table) -> None:
    version = int(table.dataset().version)
    numbers = [("job", 2 * n) for n in range(MOST_RANGES)]
    entry = ",".join(str(number) for _, number in numbers)
    touch(
        table.versions,
        lambda manifest: holdfast.formats.edit_config(manifest, {"holdfast.txn.app.job": entry}),
    )
    data = sorted((Path(table.uri) / "data").glob("*"))
    with pytest.raises(InvalidInputError, match="too many gaps"):
        table.append(rows(1), txn=("job", 9999))
    with pytest.raises(InvalidInputError, match="too many gaps"):
        table.writes.overwrite(rows(1), ("job", 9999))
    assert sorted((Path(table.uri) / "data").glob("*")) == data
    assert table.dataset().version == version + 1
    assert table.append(rows(1), txn=("job", 1)).applied
    assert table.append(rows(2), txn=("job", 9999)).applied


def test_clean_up_by_pylance_keeps_the_files(table: Table) -> None:
    fill(table, range(12))
    named = files_of(table)
    there = sorted((Path(table.uri) / TXNS_FOLDER).iterdir())
    stats = lance.dataset(table.uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert stats.old_versions > 5
    assert sorted((Path(table.uri) / TXNS_FOLDER).iterdir()) == there and named
    fresh = holdfast.open_table(table.uri)
    assert [fresh.append(rows(0), txn=f"run {n}").applied for n in range(12)] == [False] * 12


def test_a_changed_config_forgets_nothing(table: Table) -> None:
    fill(table, range(6))
    table.append(rows(6), txn=("job", 6))
    table.dataset().update_config({"mine": "1"}, replace=True)
    assert table.dataset().config()["mine"] == "1"
    table.dataset().update_config({"holdfast.txn.app.job": None, "holdfast.txn.older": None})
    fresh = holdfast.open_table(table.uri)
    assert fresh.applied([("job", 6), *(f"run {n}" for n in range(6))]) == [True] * 7


def test_released_and_adopted_again_it_knows_them(table: Table) -> None:
    fill(table, range(6))
    holdfast.release_table(table.uri)
    adopted = holdfast.adopt_table(table.uri)
    assert adopted.applied([f"run {n}" for n in range(7)]) == [True] * 6 + [False]


def test_a_clone_knows_them_once_it_is_adopted(table: Table, tmp_path: Path) -> None:
    fill(table, range(6))
    clone = str(tmp_path / "clone.lance")
    source = lance.dataset(table.uri)
    source.shallow_clone(clone, reference=source.version)
    adopted = holdfast.adopt_table(clone)
    assert adopted.applied([f"run {n}" for n in range(7)]) == [True] * 6 + [False]
    assert not adopted.append(rows(0), txn="run 0").applied
    assert adopted.append(rows(9), txn="run 9").applied
    assert not table.applied(["run 9"])[0]
    shutil.rmtree(tmp_path / "clone.lance" / TXNS_FOLDER)
    with pytest.raises(CorruptError, match="put the file back"):
        holdfast.open_table(clone).append(rows(0), txn="run 0")


# A creation that is repeated.


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("commit_store", [None, "sqlite"])
@pytest.mark.parametrize("txn", ["first", ("job", 0)])
def test_a_creation_is_repeated(tmp_path: Path, commit_store: str | None, txn: TxnLike) -> None:
    uri = tmp_path / "new.lance"
    given: dict[str, Any] = {"mode": "create", "txn": txn, "commit_store": commit_store}
    made = holdfast.write_table(rows(1), uri, **given)
    assert made.applied
    again = holdfast.write_table(rows(1), uri, **given)
    assert (again.applied, again.rows) == (False, 0)
    for other in ("second", ("job", 1), None):
        with pytest.raises(AlreadyExistsError):
            holdfast.write_table(rows(1), uri, **{**given, "txn": other})
    table = holdfast.open_table(uri)
    table.append(rows(2))
    table.dataset().restore()  # type: ignore[no-untyped-call]
    assert not holdfast.write_table(rows(1), uri, **given).applied
    assert ids_in(table) == [1, 2]


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("commit_store", [None, "sqlite"])
def test_a_creation_whose_append_is_missing_is_completed(
    tmp_path: Path, commit_store: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = tmp_path / "new.lance"
    given: dict[str, Any] = {"mode": "create", "txn": "first", "commit_store": commit_store}

    def dies(*_: object, **__: object) -> None:
        raise CommitUnknownError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "append", dies)
        with pytest.raises(CommitUnknownError):
            holdfast.write_table(rows(1), uri, **given)
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda _: holdfast.write_table(rows(1), uri, **given), range(4)))
    assert sorted(one.applied for one in done) == [False, False, False, True]
    assert ids_in(holdfast.open_table(uri)) == [1]


@pytest.mark.requirement("C8")
def test_an_empty_table_is_created_once(tmp_path: Path) -> None:
    uri = tmp_path / "new.lance"
    with ThreadPoolExecutor(4) as threads:
        made = list(
            threads.map(lambda _: holdfast.create_table(uri, SCHEMA, txn="first"), range(4))
        )
    assert {one.pin for one in made} == {made[0].pin}
    assert made[0].dataset().version == 1
    with pytest.raises(AlreadyExistsError):
        holdfast.create_table(uri, SCHEMA, txn="second")
    lance.write_dataset(rows(1), str(tmp_path / "plain.lance"))
    with pytest.raises(AlreadyExistsError, match="adopt"):
        holdfast.create_table(tmp_path / "plain.lance", SCHEMA, txn="first")
