"""Old versions go when told, behind a boundary; never one that somebody keeps, nor a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pytest

import holdfast
from commits.table_worker import set_up
from holdfast.arbiter import RecordedDecisions
from holdfast.commits import _versions as versions_module
from holdfast.commits._boundary import VersionsBoundary
from holdfast.commits._history import records_of
from holdfast.commits._newest import find_overtaking
from holdfast.commits._queue import Queue
from holdfast.errors import CommitUnknownError, ConflictError, InvalidInputError
from holdfast.formats import PIN_PATH, version_name, version_of
from holdfast.upkeep import LeftoverKind, Severity, doctor
from holdfast.upkeep import _vacuum as vacuum_module
from upkeep.stock import append, ids_in, lose
from upkeep.test_vacuum import age, everything, rows, run

WEEK = timedelta(days=7)
pytestmark = pytest.mark.requirement("L12")


@pytest.fixture(params=["conditional-put", "sqlite", "postgres"])
def table(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[holdfast.Table]:
    """A table of three rows: created, appended to, compacted."""
    store = None if request.param == "conditional-put" else str(request.param)
    if store == "postgres":
        store = set_up(request.getfixturevalue("postgres").url)
        monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", store)
    made = holdfast.create_table(tmp_path / "t.lance", rows().schema, commit_store=store)
    for number in (1, 2, 3):
        made.append(rows(number), txn=("app", number))
    made.dataset().optimize.compact_files()
    yield made
    made.close()


def old(table: holdfast.Table, days: float = 10) -> None:
    """Make all of a table look old, and its pin a day older."""
    age(table, days, *everything(table.uri))
    age(table, days + 1, PIN_PATH)


def versions_in(table: holdfast.Table) -> list[int]:
    return [one["version"] for one in lance.dataset(table.uri).versions()]


def taken(table: holdfast.Table, **options: Any) -> list[int]:
    done = table.vacuum(keep_versions_for=WEEK, confirm=True, **options)
    kinds = [one for one in done.leftovers if one.kind is LeftoverKind.VERSIONS]
    return sorted(version_of(one.path) or 0 for one in kinds)


def test_old_versions_go_with_what_only_they_show(table: holdfast.Table) -> None:
    table.append(rows(4), txn=("app", 4))  # a manifest speaks of what its own commit replaced
    old(table)
    before = versions_in(table)
    files = set(everything(table.uri))
    plan = table.vacuum(keep_versions_for=WEEK)
    assert (plan.applied, versions_in(table)) == (False, before)
    assert set(everything(table.uri)) >= files
    assert taken(table) == before[:-1]
    newest = before[-1] + 1  # by which vacuum says what it listed
    assert versions_in(table) == [before[-1], newest]
    assert doctor(table.uri).healthy
    old(table)
    assert taken(table) == [before[-1]]
    newest += 1
    assert ids_in(table.uri) == [1, 2, 3, 4]
    kept = [path for path in everything(table.uri) if path.startswith("data/")]
    assert len(kept) == 2  # what the compaction wrote, and what came since
    assert table.append(rows(4), txn=("app", 4)).applied is False
    assert table.append(rows(5), txn=("app", 5)).applied is True
    append(table.uri, None, 6) if records_of(table.core.arbiter) is None else table.append(rows(6))
    assert ids_in(table.uri) == [1, 2, 3, 4, 5, 6]
    assert doctor(table.uri).findings == ()
    assert [one.version for one in table.history()][:3] == [newest + 2, newest + 1, newest]
    assert table.vacuum(keep_versions_for=WEEK).leftovers == ()


def test_records_of_versions_that_are_gone_go_too(table: holdfast.Table) -> None:
    newest = table.status().version
    old(table)
    taken(table, what=["versions"])
    assert VersionsBoundary(table.core.store).read() == newest - 1
    records = records_of(table.core.arbiter)
    if records is None:
        return
    assert (sorted(records.by_version), records.boundary) == ([newest], newest - 1)


def test_without_being_told_versions_stay(table: holdfast.Table) -> None:
    old(table)
    before = versions_in(table)
    assert table.vacuum(confirm=True).leftovers == ()
    assert versions_in(table) == before


def test_a_version_stays_until_its_successor_is_old(table: holdfast.Table) -> None:
    """Whoever reads it may have begun when the successor came, not when it was made."""
    old(table)
    young = version_name(4).path
    age(table, 6, young)
    assert taken(table) == [1, 2]
    assert 3 in versions_in(table)
    assert lance.dataset(table.uri, version=3).count_rows() == 2


def test_tagged_and_pinned_versions_stay(table: holdfast.Table) -> None:
    table.dataset().tags.create("keep", 2)
    with table.snapshot(pinned=True) as view:
        table.append(rows(9))
        table.append(rows(10))
        old(table)
        pin = next(path for path in everything(table.uri) if "snapshots" in path)
        age(table, 0, pin)
        newest = table.status().version
        assert set(versions_in(table)) - set(taken(table)) >= {2, newest - 2, newest}
        assert view.count() == 3
    assert lance.dataset(table.uri, version=2).to_table()["id"].to_pylist() == [1]
    assert lance.dataset(table.uri).checkout_version("keep").count_rows() == 1
    assert ids_in(table.uri) == [1, 2, 3, 9, 10]
    assert doctor(table.uri).healthy


def test_a_tag_that_comes_after_the_plan_keeps_its_version(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = vacuum_module.plan_vacuum

    def planned(*given: Any, **more: Any) -> Any:
        found = plan(*given, **more)
        table.dataset().tags.create("late", 2)
        return found

    old(table)
    monkeypatch.setattr(vacuum_module, "plan_vacuum", planned)
    assert 2 not in taken(table)
    assert lance.dataset(table.uri, version=2).to_table()["id"].to_pylist() == [1]


@pytest.fixture
def no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for the turn of a writer that sleeps."""
    monkeypatch.setattr(Queue, "_wait", lambda *_: None)


def by_vacuum(table: holdfast.Table) -> None:
    """Let our own collection take all versions but the newest."""
    old(table)
    table.vacuum(what=["versions"], keep_versions_for=WEEK, confirm=True)


def by_stock(table: holdfast.Table) -> None:
    """Let pylance's own clean-up do it."""
    lance.dataset(table.uri).cleanup_old_versions(
        older_than=timedelta(0), delete_unverified=False, error_if_tagged_old_versions=False
    )


def stop_before_deciding(table: holdfast.Table, collect: Callable[[holdfast.Table], None]) -> None:
    """Let the next decision of a version wait until that version was made and collected."""
    arbiter: Any = table.core.arbiter
    verbs = [verb for verb in ("decide", "decide_next") if hasattr(arbiter, verb)]
    other = holdfast.open_table(table.uri)

    def late(decide: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        for verb in verbs:
            delattr(arbiter, verb)  # the class has its own
        for number in (7, 8):
            other.append(rows(number))
        collect(other)
        assert name.number not in versions_in(other)
        return decide(name, *args, **kwargs)

    for verb in verbs:
        setattr(arbiter, verb, partial(late, getattr(arbiter, verb)))


def add(table: holdfast.Table) -> None:
    table.append(rows(6), txn=("app", 6))


def add_without_txn(table: holdfast.Table) -> None:
    table.append(rows(6))


def overwrite(table: holdfast.Table) -> None:
    operation = lance.LanceOperation.Overwrite(table.schema, [])
    table.commit_operation(operation, read_version=table.status().version)


def delete_by_hand(table: holdfast.Table) -> None:
    table.dataset().delete("id = 1")


@pytest.mark.requirement("P1")
@pytest.mark.usefixtures("no_queue")
@pytest.mark.parametrize("collect", [by_vacuum, by_stock], ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    "act", [add, add_without_txn, overwrite, delete_by_hand], ids=lambda one: one.__name__
)
def test_a_writer_that_stopped_never_wins_a_collected_name(
    table: holdfast.Table, act: Any, collect: Any
) -> None:
    """However short the stop was: no clock takes part."""
    recorded = records_of(table.core.arbiter) is not None
    if recorded and collect is by_stock:
        pytest.skip("stock's clean-up leaves the records alone: the name stays taken")
    stop_before_deciding(table, collect)
    retried = act is add or (act is add_without_txn and recorded)
    # A handle of Lance's own says in its words that the outcome is unknown.
    refused = pytest.raises((ConflictError, CommitUnknownError, OSError))
    with nullcontext() if retried else refused:
        act(table)
    assert sorted(ids_in(table.uri)) == sorted([1, 2, 3, 7, 8] + [6] * retried)
    assert table.append(rows(6), txn=("app", 6)).applied is (act is not add)
    assert all(one.severity is Severity.NOTE for one in doctor(table.uri).findings)


@pytest.mark.requirement("P1")
@pytest.mark.usefixtures("no_queue")
def test_a_version_that_others_built_on_at_once_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after its put: the newest version is another's, and ours is below it."""
    table = holdfast.create_table(tmp_path / "t.lance", rows().schema)
    table.append(rows(1))
    find = find_overtaking
    looks: list[object] = []

    def late(*given: Any) -> Any:
        if not looks:
            looks.append(given)
            append(table.uri, None, 7)  # stock, then Holdfast; and what ours added is removed
            holdfast.open_table(table.uri).dataset().delete("id = 6")
        return find(*given)

    monkeypatch.setattr(versions_module, "find_overtaking", late)
    assert table.append(rows(6)).applied is True
    assert looks
    assert ids_in(table.uri) == [1, 7]


def test_what_is_decided_and_not_in_place_is_finished_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the boundary the objects count: an unfinished version would be gone for ever."""
    table = holdfast.create_table(tmp_path / "t.lance", rows().schema, commit_store="sqlite")
    table.append(rows(1))
    monkeypatch.setattr(RecordedDecisions, "_confirm", lambda *_: ())  # dies before the mark
    table.append(rows(2))
    monkeypatch.undo()
    for number in (3, 4):
        table.append(rows(number))
    table.dataset().tags.create("keep", 3)
    Path(table.uri, version_name(3).path).unlink()  # or before the copy
    old(table)
    assert taken(table) == [1, 2, 4]
    assert lance.dataset(table.uri, version=3).to_table()["id"].to_pylist() == [1, 2]


def test_refusals(table: holdfast.Table) -> None:
    with pytest.raises(InvalidInputError, match="7 days"):
        table.vacuum(keep_versions_for=timedelta(days=6))
    with pytest.raises(InvalidInputError, match="keep_versions_for"):
        table.vacuum(what=["versions"])


def test_versions_that_tell_of_lost_appends_stay(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    append(uri, None, 0, mode="create")
    lose(uri, 1, 2)
    append(uri, None, 3)
    age(uri, 30, *everything(uri))
    table = holdfast.adopt_table(uri, commit_store="sqlite")
    with pytest.raises(InvalidInputError, match="rescue"):
        table.vacuum(keep_versions_for=WEEK)
    from holdfast.upkeep import rescue

    rescue(uri, ids="all", confirm=True)
    age(uri, 30, *everything(uri))
    assert taken(table)
    assert ids_in(uri) == [0, 1, 2, 3]


def test_the_command(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", rows().schema, commit_store="sqlite")
    table.append(rows(1))
    old(table)
    shown = run(table.uri, "--keep-versions-for", "7d", "--what", "versions")
    assert "versions" in shown.stdout and "Add --confirm" in shown.stdout
    assert run(table.uri, "--keep-versions-for", "soon").returncode == 2
    assert len(versions_in(table)) > 1
    run(table.uri, "--keep-versions-for", "7d", "--what", "versions", "--confirm")
    assert len(versions_in(table)) == 1


def test_maintenance_lets_versions_go_when_told(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", rows().schema)
    table.append(rows(1))
    table.dataset().initialize_mem_wal(maintained_indexes=[])
    table.append(rows(2))
    old(table)
    table.maintain(confirm=True)
    assert len(versions_in(table)) > 1
    before = versions_in(table)
    table.maintain(holdfast.upkeep.Policy(keep_versions_for=WEEK), confirm=True)
    assert versions_in(table) == [before[-1], before[-1] + 1]  # and what vacuum says it listed
    assert ids_in(table.uri) == [1, 2]
