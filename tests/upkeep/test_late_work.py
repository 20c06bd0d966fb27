"""Work that outlasts vacuum is refused, whatever it is and wherever the table is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lance.optimize
import pytest
from lance.fragment import write_fragments

import holdfast
from holdfast._clock import SystemClock
from holdfast.commits._held import report_commits
from holdfast.errors import NotFoundError, StaleWorkError
from holdfast.formats._vacuum_mark import read_mark
from holdfast.testing import FaultyS3
from holdfast.txn import parse_txn
from holdfast.upkeep import rescue
from upkeep.stock import append, ids_in, lose
from upkeep.test_vacuum import age, everything, rows

optimize: Any = lance.optimize
pytestmark = pytest.mark.requirement("P1", "C8")
DAYS = 8


def vacuum(table: holdfast.Table) -> holdfast.upkeep.VacuumResult:
    """Vacuum as if the grace period had passed."""
    age(table, DAYS, *everything(table.uri))
    age(table, DAYS + 1, "_holdfast/pin.json")
    return table.vacuum(confirm=True)


@pytest.fixture(params=["sqlite", None], ids=["commit-store", "conditional-put"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Table]:
    uri = str(tmp_path / "t.lance")
    made = holdfast.create_table(uri, rows().schema, commit_store=request.param)
    for number in (1, 2, 3):
        made.append(rows(number), txn=("app", number))
    write_fragments(rows(0), made.dataset(), mode="append")  # for vacuum to find
    yield made
    made.close()


Late = Callable[[holdfast.Table], Callable[[], object]]
"""Begins some work on a table; what it returns ends it."""


def append_fragments(table: holdfast.Table) -> Callable[[], object]:
    read = int(table.dataset().version)
    parts = write_fragments(rows(7), table.dataset(), mode="append")
    return lambda: table.commit(parts, txn="late", read_version=read)


def append_undated(table: holdfast.Table) -> Callable[[], object]:
    parts = write_fragments(rows(7), table.dataset(), mode="append")
    return lambda: table.commit(parts, txn="late")


def overwrite(table: holdfast.Table) -> Callable[[], object]:
    read = int(table.dataset().version)
    parts = write_fragments(rows(7), table.dataset(), mode="overwrite")
    operation = lance.LanceOperation.Overwrite(table.schema, parts)
    return lambda: table.commit_operation(operation, read_version=read, txn="late")


def compact(table: holdfast.Table) -> Callable[[], object]:
    data = table.dataset()
    (task,) = optimize.Compaction.plan(data, {}).tasks
    done = task.execute(data)

    def end() -> None:
        newest = table.dataset()
        with report_commits(newest):
            optimize.Compaction.commit(newest, [done])

    return end


def plain_append(table: holdfast.Table) -> Callable[[], object]:
    """Stop between the data files and the commit of a plain append."""
    prepared = table.writes.appender.prepare()
    parts = write_fragments(rows(7), prepared.table, mode="append")
    late = prepared.append(parts, parse_txn("late"))
    return lambda: table.writes.appender.append(late)


LATE: list[Late] = [append_fragments, append_undated, overwrite, compact]


@pytest.mark.parametrize("begin", LATE, ids=lambda one: one.__name__)
def test_work_that_saw_one_vacuum_is_committed(table: holdfast.Table, begin: Late) -> None:
    end = begin(table)
    assert vacuum(table).raised
    end()
    assert lance.dataset(table.uri).to_table().num_rows in {1, 3, 4}


@pytest.mark.parametrize("begin", LATE, ids=lambda one: one.__name__)
def test_work_that_saw_two_is_refused(table: holdfast.Table, begin: Late) -> None:
    before = everything(table.uri)
    end = begin(table)
    files = {path for path in everything(table.uri) if path not in before}
    vacuum(table)
    assert {one.path for one in vacuum(table).leftovers} >= {
        path for path in files if not path.startswith("_transactions/")
    }
    with pytest.raises(StaleWorkError):
        end()
    assert ids_in(table.uri) == [1, 2, 3]
    assert table.append(rows(8), txn="late").applied
    assert ids_in(table.uri) == [1, 2, 3, 8]


@pytest.mark.parametrize("begin", [append_fragments, overwrite], ids=lambda one: one.__name__)
def test_it_is_refused_although_its_files_are_there(table: holdfast.Table, begin: Late) -> None:
    """What decides is the number, not whether vacuum came to delete: it may do so later."""
    end = begin(table)
    copy = Path(table.uri).with_suffix(".kept")
    shutil.copytree(Path(table.uri, "data"), copy)
    vacuum(table)
    vacuum(table)
    shutil.copytree(copy, Path(table.uri, "data"), dirs_exist_ok=True)
    with pytest.raises(StaleWorkError, match="anew") as caught:
        end()
    assert caught.value.floor > caught.value.begun_on  # type: ignore[operator]
    assert ids_in(table.uri) == [1, 2, 3]


def test_one_late_append_does_not_take_others_with_it(table: holdfast.Table) -> None:
    end = append_fragments(table)
    vacuum(table)
    vacuum(table)
    with pytest.raises(StaleWorkError):
        end()
    assert table.append(rows(9)).applied
    assert ids_in(table.uri) == [1, 2, 3, 9]


def test_neither_restore_nor_overwrite_nor_settings_take_the_number_back(
    table: holdfast.Table,
) -> None:
    end = append_fragments(table)
    vacuum(table)
    vacuum(table)
    mark = read_mark(table.dataset().config())
    assert (mark.number, mark.floor) == (2, mark.version - 1)
    older: Any = table.dataset(3)
    older.restore()
    assert read_mark(table.dataset().config()) == mark
    operation = lance.LanceOperation.Restore(2)
    table.commit_operation(operation, read_version=int(table.dataset().version), txn="back")
    assert read_mark(table.dataset().config()) == mark
    table.dataset().delete_config_keys(["holdfast.vacuum"])
    table.dataset().update_config({"holdfast.vacuum": "{}"})
    assert read_mark(table.dataset().config()) == mark
    holdfast.write_table(rows(5), table.uri, mode="overwrite")
    assert read_mark(table.dataset().config()) == mark
    with pytest.raises(StaleWorkError):
        end()


def test_a_lost_or_damaged_list_deletes_nothing(table: holdfast.Table) -> None:
    files = [path for path in everything(table.uri) if path.startswith("data/")]
    vacuum(table)
    (listed,) = Path(table.uri, "_holdfast/vacuum").iterdir()
    listed.write_bytes(b"damaged")
    assert vacuum(table).leftovers == ()
    assert all(Path(table.uri, path).exists() for path in files)
    done = vacuum(table)  # the list that was made since
    assert [one.kind for one in done.leftovers if one.kind == "data"] == ["data"]
    for path in Path(table.uri, "_holdfast/vacuum").iterdir():
        path.unlink()
    assert vacuum(table).leftovers == ()
    assert ids_in(table.uri) == [1, 2, 3]


def test_lists_that_nobody_names_go(table: holdfast.Table) -> None:
    for _ in range(4):
        write_fragments(rows(0), table.dataset(), mode="append")
        vacuum(table)
    assert len(list(Path(table.uri, "_holdfast/vacuum").iterdir())) <= 3
    assert ids_in(table.uri) == [1, 2, 3]


def test_the_number_rises_once_per_grace_period(table: holdfast.Table) -> None:
    age(table, DAYS, *everything(table.uri))
    for _ in range(3):
        table.vacuum(confirm=True)
    assert read_mark(table.dataset().config()).number == 1


def test_a_table_without_leftovers_gets_no_version(tmp_path: Path) -> None:
    made = holdfast.create_table(str(tmp_path / "t.lance"), rows().schema)
    made.append(rows(1))
    assert (vacuum(made).raised, made.dataset().version) == (False, 2)


def test_what_can_be_rescued_is_not_listed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    append(uri, None, 0, mode="create")
    lose(uri, 1, 2)
    append(uri, None, 3)
    age(uri, 30, *everything(uri))
    table = holdfast.adopt_table(uri, commit_store="sqlite")
    for _ in range(3):
        write_fragments(rows(9), table.dataset(), mode="append")
        young = [p for p in everything(uri) if p.startswith(("data/", "_holdfast/vacuum/"))]
        age(table, 9, *young)
        assert table.vacuum(confirm=True).raised
    assert read_mark(table.dataset().config()).number == 3
    rescue(uri, ids="all", confirm=True)
    assert ids_in(uri) == [0, 1, 2, 3]


@pytest.mark.parametrize("begin", [append_fragments, append_undated, overwrite, plain_append])
@pytest.mark.parametrize("then", ["nothing", "append", "clean up"])
def test_a_restore_by_stock_does_not_take_the_number_back(
    faulty_s3: Callable[..., FaultyS3], begin: Late, then: str
) -> None:
    server = faulty_s3()
    clock = Shifted()
    server.objects._clock = clock
    options = server.storage_options()
    uri = server.url("lake", "t")
    table = holdfast.create_table(uri, rows(1).schema, storage_options=options)
    for number in (1, 2, 3):
        table.append(rows(number), txn=("app", number))
    end = begin(table)
    for _ in range(2):
        write_fragments(rows(0), table.dataset(), mode="append")
        clock.ahead += (DAYS + 1) * 24 * 3600
        assert table.vacuum(confirm=True).raised
    stock: Any = lance.dataset(uri, version=3, storage_options=options)
    stock.restore()
    if then == "append":
        lance.write_dataset(rows(8), uri, mode="append", storage_options=options)
    if then == "clean up":
        newest: Any = lance.dataset(uri, storage_options=options)
        newest.cleanup_old_versions(older_than=timedelta(0), delete_unverified=False)
    # Lance itself misses the version that was read, once it is cleaned up.
    with pytest.raises((StaleWorkError, NotFoundError) if then == "clean up" else StaleWorkError):
        end()
    fresh = holdfast.open_table(uri, options)
    assert fresh.append(rows(9)).applied
    assert read_mark(fresh.dataset().config()).number == 2
    found = lance.dataset(uri, storage_options=options).to_table()["id"].to_pylist()
    assert sorted(found) == ([1, 2, 8, 9] if then == "append" else [1, 2, 9])


class Shifted(SystemClock):
    """A clock of a store, as far ahead as wanted."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead
