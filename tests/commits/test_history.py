"""What history and status tell of a table, and that asking changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from commits.table_worker import rows
from holdfast.arbiter import Key, RecordedDecisions, open_arbiter
from holdfast.commits._history import TableStatus, VersionInfo
from holdfast.core import TableCore
from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats import encode_record, make_record, version_name
from holdfast.formats._transaction import VersionFacts, decode_transaction

SCHEMA = rows(0).schema
BOTH = pytest.mark.parametrize("commit_store", [None, "sqlite"], ids=["condition", "commit store"])


def create(folder: Path, commit_store: str | None = "sqlite") -> holdfast.Table:
    return holdfast.create_table(str(folder / "t.lance"), SCHEMA, commit_store=commit_store)


def files_in(folder: Path) -> dict[str, int]:
    found = (p for p in folder.rglob("*") if p.is_file() and "commits.db" not in p.name)
    return {str(p): p.stat().st_mtime_ns for p in found}


@BOTH
def test_history_tells_what_happened(tmp_path: Path, commit_store: str | None) -> None:
    begun = datetime.now(UTC) - timedelta(seconds=1)
    table = create(tmp_path, commit_store)
    table.append(rows(1, 2), txn="a string")
    table.append(rows(3), txn=("job", 7))
    dataset = table.dataset()
    dataset.delete("id = 1")
    dataset.update({"text": "'new'"}, where="id = 2")
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    found = table.history()
    assert [one.version for one in found] == list(range(len(found), 0, -1))
    assert [one.operation for one in reversed(found)][:6] == [
        "Overwrite",
        "Append",
        "Append",
        "Delete",
        "Update",
        "CreateIndex",
    ]
    assert found[0].operation == "Rewrite"
    assert [one.txns for one in reversed(found)][:4] == [(), ("a string",), ("job:7",), ()]
    assert [one.rows for one in reversed(found)][:5] == [0, 2, 3, 2, 2]
    assert found[0].rows == lance.dataset(table.uri).count_rows() == 2
    assert found[0].fragments == len(lance.dataset(table.uri).get_fragments())
    assert all(begun <= one.time <= datetime.now(UTC) for one in found)
    (by,) = {one.decided_by for one in found}
    assert by is not None
    assert by.startswith("sqlite:") if commit_store else by == "conditional-put"
    assert not any(one.foreign for one in found)
    times = [one.time for one in found]
    assert times == sorted(times, reverse=True)
    stock: dict[Any, Any] = {
        v["version"]: v["timestamp"] for v in lance.dataset(table.uri).versions()
    }
    for one in found:
        assert abs(one.time.timestamp() - stock[one.version].timestamp()) < 0.001


@BOTH
def test_history_is_bounded_by_its_limit(tmp_path: Path, commit_store: str | None) -> None:
    table = create(tmp_path, commit_store)
    for number in range(5):
        table.append(rows(number), txn=f"t{number}")
    everything = table.history()
    for limit in (1, 2, 5, 6, 100):
        assert table.history(limit) == everything[:limit]
    gets: list[str] = []
    real = table.core.store.get

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(table.core.store, name)

        def get(self, path: str, **span: Any) -> bytes:
            gets.append(path)
            return real(path, **span)

    from holdfast.commits._history import read_history

    store: Any = Counting()
    read_history(TableCore(store, table.core.arbiter), 2)
    assert len(gets) == 3  # and one more, to compare with


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_at_least_one(tmp_path: Path, limit: int) -> None:
    with pytest.raises(InvalidInputError, match="at least 1"):
        create(tmp_path).history(limit)


def test_stock_versions_do_not_repeat_transactions(tmp_path: Path) -> None:
    table = create(tmp_path, None)
    table.append(rows(1), txn="mine")
    lance.write_dataset(rows(2), table.uri, mode="append")
    table.append(rows(3), txn="next")
    assert [one.txns for one in table.history()] == [("next",), (), ("mine",), ()]
    assert [one.txns for one in table.history(2)] == [("next",), ()]
    assert {one.decided_by for one in table.history()} == {"conditional-put"}


def test_foreign_versions_are_told(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.append(rows(1), txn="mine")
    lance.write_dataset(rows(2), table.uri, mode="append")
    newest, ours, _ = table.history()
    assert (newest.foreign, newest.decided_by, newest.txns) == (True, None, ())
    assert (ours.foreign, ours.txns) == (False, ("mine",))
    status = table.status()
    assert status.foreign == (3,)
    assert (status.version, status.newest_recorded, status.newest_in_store) == (2, 2, 3)


def test_a_decided_version_that_was_overwritten_is_foreign(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.append(rows(1))
    first = Path(table.uri, version_name(1).path)
    Path(table.uri, version_name(2).path).write_bytes(first.read_bytes())
    newest = table.history()[0]
    assert (newest.foreign, newest.decided_by) == (True, None)


def test_adopted_versions_are_told(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    for number in range(3):
        lance.write_dataset(rows(number), uri, mode="append" if number else "create")
    table = holdfast.adopt_table(uri, commit_store="sqlite")
    table.append(rows(9), txn="ours")
    found = table.history()
    assert [one.decided_by for one in found[1:]] == ["adopted"] * 3
    assert str(found[0].decided_by).startswith("sqlite:")
    assert not any(one.foreign for one in found)


def test_an_unfinished_version_is_told_and_left_alone(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.append(rows(1, 2), txn="mine")
    Path(table.uri, version_name(2).path).unlink()
    before = files_in(tmp_path)
    fresh = holdfast.open_table(table.uri)
    newest = fresh.history()[0]
    assert (newest.version, newest.rows, newest.txns) == (2, 2, ("mine",))
    status = fresh.status()
    assert status.unfinished == (2,)
    assert (status.version, status.rows, status.newest_in_store) == (2, 2, 1)
    assert files_in(tmp_path) == before
    assert fresh.dataset().count_rows() == 2
    assert fresh.status().unfinished == ()


def test_staged_bytes_are_told(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.append(rows(1))
    arbiter = open_arbiter(table.uri)
    assert isinstance(arbiter, RecordedDecisions)
    body = Path(table.uri, version_name(2).path).read_bytes()
    token = "hf-" + "7" * 32
    record = make_record(version_name(3).path, body, token, after=None, inline=False)
    assert record.staged is not None
    table.core.store.put(record.staged, body)
    key = Key(f"{arbiter.pin.table_id}/versions", 3)
    arbiter._commit_store.put_if_absent(key, encode_record(record))
    status = table.status()
    assert (status.staged_objects, status.staged_bytes) == (1, len(body))
    assert status.unfinished == (3,)
    assert table.history()[0].version == 3


@BOTH
def test_status_of_a_table(tmp_path: Path, commit_store: str | None) -> None:
    table = create(tmp_path, commit_store)
    table.append(rows(1, 2))
    table.append(rows(3))
    status = table.status()
    assert isinstance(status, TableStatus)
    assert table.pin is not None
    assert status.table_id == table.pin.table_id
    assert status.commit_store_id == table.pin.store_id
    assert (status.uri, status.version, status.rows, status.fragments) == (table.uri, 3, 3, 2)
    assert status.arbiter == ("commit-store" if commit_store else "conditional-put")
    assert status.newest_recorded == (3 if commit_store else None)
    assert (status.newest_in_store, status.unfinished, status.foreign) == (3, (), ())
    assert (status.staged_objects, status.staged_bytes) == (0, 0)


def test_versions_that_were_collected_are_left_out(tmp_path: Path) -> None:
    table = create(tmp_path, None)
    for number in range(4):
        table.append(rows(number), txn=f"t{number}")
    table.dataset().cleanup_old_versions(timedelta(0))
    (only,) = table.history()
    assert isinstance(only, VersionInfo)
    assert (only.version, only.txns) == (5, ("t3",))


# What is read of Lance's files


@pytest.mark.parametrize("body", [b"", b"\xff" * 40, b"\x0a\x03abc", b"LANC"])
def test_bytes_that_are_no_transaction(body: bytes) -> None:
    with pytest.raises(CorruptError, match="no Lance transaction"):
        decode_transaction(body)


@pytest.mark.parametrize("body", [b"", b"LANC", b"\xff" * 64, b"\0" * 12 + b"LANC"])
def test_bytes_that_are_no_manifest(body: bytes) -> None:
    with pytest.raises(CorruptError, match="no Lance manifest"):
        VersionFacts(body)


def test_transactions_of_every_kind_are_named_as_lance_names_them(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(rows(1, 2, 3), uri)
    lance.write_dataset(rows(4), uri, mode="append")
    dataset = lance.dataset(uri)
    dataset.delete("id = 1")
    dataset.update({"text": "'x'"}, where="id = 2")
    dataset.merge_insert("id").when_not_matched_insert_all().execute(rows(9))
    dataset.add_columns({"double": "id * 2"})
    dataset.add_columns(pa.field("empty", pa.int32()))
    dataset.drop_columns(["double"])
    dataset.optimize.compact_files()
    dataset.create_scalar_index("id", "BTREE")
    dataset.update_config({"key": "value"})
    older: Any = dataset.checkout_version(2)
    older.restore()
    lance.write_dataset(rows(5), uri, mode="overwrite")
    dataset = lance.dataset(uri)
    for version in range(1, dataset.version + 1):
        facts = VersionFacts(Path(uri, version_name(version).path).read_bytes())
        made: Any = dataset.read_transaction(version)
        said = type(made.operation).__name__
        assert facts.transaction is not None
        # pylance has no class for reserving fragments, the first step of a compaction
        ours = facts.transaction.operation
        assert said == ("BaseOperation" if ours == "ReserveFragments" else ours), version
        assert facts.rows == lance.dataset(uri, version=version).count_rows()
