"""A commit store that was set back to an older backup: every way in notices it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import connect_commit_store
from holdfast.errors import CommitStoreRegressedError, ForeignVersionError
from holdfast.formats import version_name

pytestmark = pytest.mark.requirement("P1", "P2")
SCHEMA = pa.schema([pa.field("id", pa.int64())])


class Backup:
    """A local table whose commit store is a SQLite file beside it, with a copy of that file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "decisions.db"
        self.uri = str(folder / "t.lance")
        self.url = f"sqlite:///{self.file}"
        self._backup = folder / "backup.db"
        store: Any = connect_commit_store(self.url)
        store.set_up()
        store.close()

    def make(self) -> holdfast.Table:
        table = holdfast.create_table(self.uri, SCHEMA, primary_key=["id"], commit_store=self.url)
        table.append([{"id": 1}], txn=("app", 1))
        return table

    def take(self) -> None:
        self._run(f"VACUUM INTO '{self._backup}'")

    def restore(self) -> None:
        """Bring the old content back under the same file, as a restored dump does."""
        self._run(
            f"ATTACH '{self._backup}' AS old",
            "DELETE FROM holdfast_records",
            "INSERT INTO holdfast_records SELECT * FROM old.holdfast_records",
            "DELETE FROM holdfast_boundaries",
            "INSERT INTO holdfast_boundaries SELECT * FROM old.holdfast_boundaries",
        )

    def empty(self) -> None:
        self._run("DELETE FROM holdfast_records", "DELETE FROM holdfast_boundaries")

    def _run(self, *statements: str) -> None:
        store: Any = connect_commit_store(self.url)
        with store._use() as connection:
            for statement in statements:
                connection.execute(statement)
        store.close()


@pytest.fixture
def backup(tmp_path: Path) -> Backup:
    return Backup(tmp_path)


READS: dict[str, Callable[[holdfast.Table], object]] = {
    "to_table": lambda table: table.to_table(),
    "base": lambda table: table.to_table(freshness="base"),
    "count": lambda table: table.count(),
    "dataset": lambda table: table.dataset(),
    "snapshot": lambda table: table.snapshot(),
    "applied": lambda table: table.applied([("app", 2)]),
    "lookup": lambda table: table.lookup([1]),
    "append": lambda table: table.append([{"id": 9}]),
    "txn": lambda table: table.append([{"id": 9}], txn=("app", 2)),
    "delete": lambda table: table.dataset().delete("id = 1"),
}


@pytest.mark.parametrize("verb", READS)
@pytest.mark.parametrize("lost", [1, 3])
def test_a_fresh_process_notices(backup: Backup, verb: str, lost: int) -> None:
    table = backup.make()
    backup.take()
    for number in range(lost):
        table.append([{"id": 2 + number}], txn=("app", 2 + number))
    backup.restore()
    with pytest.raises(CommitStoreRegressedError, match="troubleshooting"):
        READS[verb](holdfast.open_table(backup.uri))
    assert lance.dataset(backup.uri).count_rows() == 1 + lost


@pytest.mark.parametrize("verb", READS)
def test_a_running_process_notices(backup: Backup, verb: str) -> None:
    table = backup.make()
    backup.take()
    table.append([{"id": 2}], txn=("app", 2))
    table.append([{"id": 3}], txn=("app", 3))
    backup.restore()
    with pytest.raises(CommitStoreRegressedError):
        READS[verb](table)


@pytest.mark.parametrize("verb", READS)
def test_an_emptied_commit_store_is_noticed(backup: Backup, verb: str) -> None:
    table = backup.make()
    table.append([{"id": 2}])
    backup.empty()
    with pytest.raises(CommitStoreRegressedError):
        READS[verb](holdfast.open_table(backup.uri))


@pytest.mark.parametrize("verb", ["to_table", "count", "append"])
def test_a_backup_from_before_a_vacuum_is_noticed(backup: Backup, verb: str) -> None:
    table = backup.make()
    table.append([{"id": 2}])
    backup.take()  # knows versions 1 to 3
    for number in range(3, 7):
        table.append([{"id": number}])
    table.core.arbiter.accept("versions", 5)  # type: ignore[attr-defined]
    for number in range(1, 6):
        Path(backup.uri, version_name(number).path).unlink()
    backup.restore()
    with pytest.raises(CommitStoreRegressedError):
        READS[verb](holdfast.open_table(backup.uri))


@pytest.mark.parametrize("verb", ["to_table", "count", "applied", "append"])
def test_a_backup_whose_newest_version_outlived_its_successors_is_noticed(
    backup: Backup, verb: str
) -> None:
    """As one with a tag does: the name beyond it is free again."""
    table = backup.make()
    known = int(table.dataset().version)
    backup.take()
    for number in range(3, 7):
        table.append([{"id": number}])
    newest = int(table.dataset().version)
    table.core.arbiter.accept("versions", newest - 1)  # type: ignore[attr-defined]
    for number in range(known + 1, newest):
        Path(backup.uri, version_name(number).path).unlink()
    backup.restore()
    with pytest.raises(CommitStoreRegressedError):
        READS[verb](holdfast.open_table(backup.uri))


@pytest.mark.parametrize("verb", READS)
def test_a_version_that_a_stranger_wrote_is_noticed(backup: Backup, verb: str) -> None:
    backup.make()
    lance.write_dataset(pa.table({"id": [7]}, schema=SCHEMA), backup.uri, mode="append")
    with pytest.raises(ForeignVersionError):
        READS[verb](holdfast.open_table(backup.uri))


def test_shards_notice(backup: Backup) -> None:
    table = backup.make()
    shard = "11111111-2222-4333-8444-555555555555"
    rows = pa.record_batch({"id": [5]}, schema=SCHEMA)
    writer = table.claim_writer(shard)
    writer.put(rows)
    backup.take()
    writer.put(rows)
    backup.restore()
    with pytest.raises(CommitStoreRegressedError):  # the log has more than its records
        holdfast.open_table(backup.uri).to_table()
    with pytest.raises(CommitStoreRegressedError):
        writer.put(rows)
    with pytest.raises(CommitStoreRegressedError):
        holdfast.open_table(backup.uri).claim_writer(shard)


def test_a_claim_that_was_forgotten_is_noticed(backup: Backup) -> None:
    table = backup.make()
    shard = "11111111-2222-4333-8444-555555555555"
    table.claim_writer(shard).close()
    backup.take()
    holdfast.open_table(backup.uri).claim_writer(shard).close()
    backup.restore()
    with pytest.raises(CommitStoreRegressedError):
        holdfast.open_table(backup.uri).claim_writer(shard)
