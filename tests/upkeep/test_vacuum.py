"""Vacuum: takes what nobody needs, and never what somebody may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import holdfast
from holdfast import events
from holdfast.arbiter import RecordedDecisions
from holdfast.commits._history import records_of
from holdfast.errors import CorruptError, InvalidInputError, NotFoundError
from holdfast.formats import make_record, version_name
from holdfast.testing._mutants import mutate
from holdfast.upkeep import GRACE, LeftoverKind, VacuumResult, vacuum
from holdfast.upkeep._leftovers import read_contents
from holdfast.upkeep._vacuum import FINDERS
from upkeep.stock import append, ids_in, lose

DAY = 24 * 3600
TOKEN = "hf-" + "0" * 32


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture(params=["sqlite", None], ids=["commit-store", "conditional-put"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Table]:
    made = holdfast.create_table(
        str(tmp_path / "t.lance"), rows().schema, commit_store=request.param
    )
    made.append(rows(1, 2, 3), txn="one")
    yield made
    made.close()


def age(table: holdfast.Table | str, days: float, *paths: str) -> None:
    """Make files of a table look as if they were written days ago."""
    uri = table if isinstance(table, str) else table.uri
    then = time.time() - days * DAY
    for path in paths:
        os.utime(Path(uri, path), (then, then))


def everything(uri: str) -> list[str]:
    return [str(p.relative_to(uri)) for p in Path(uri).rglob("*") if p.is_file()]


def orphan(table: holdfast.Table, *ids: int) -> list[str]:
    """Write rows that are never committed."""
    parts = write_fragments(rows(*ids), table.dataset(), mode="append")
    return [f"data/{file.path}" for part in parts for file in part.files]


def write_deletion_file(table: holdfast.Table) -> None:
    fragment: Any = lance.dataset(table.uri).get_fragment(0)
    fragment.delete_rows([0])


def found(table: holdfast.Table, **options: Any) -> dict[str, LeftoverKind]:
    """Return what nobody needs, whether it goes now or is listed first."""
    plan = table.vacuum(**options)
    return {one.path: one.kind for one in (*plan.leftovers, *plan.waiting)}


def pass_grace(table: holdfast.Table, days: float = 8) -> None:
    """Make the lists of vacuum, and all commits, look as if they were made days ago."""
    paths = everything(table.uri)
    age(table, days, *(p for p in paths if p.startswith(("_holdfast/vacuum/", "_transactions/"))))


def vacuumed(table: holdfast.Table, **options: Any) -> VacuumResult:
    """Vacuum, let the grace period pass, and vacuum again."""
    table.vacuum(confirm=True, **options)
    pass_grace(table)
    return table.vacuum(confirm=True, **options)


def test_a_fresh_table_has_no_leftovers(table: holdfast.Table) -> None:
    table.append(rows(4))
    age(table, 100, *everything(table.uri))
    assert table.vacuum(confirm=True).leftovers == ()
    assert ids_in(table.uri) == [1, 2, 3, 4]


@pytest.mark.requirement("C8")
def test_data_files_that_no_version_shows(table: holdfast.Table) -> None:
    files = orphan(table, 7, 8)
    age(table, 8, *files)
    plan = table.vacuum()
    assert (plan.leftovers, plan.raised) == ((), True)
    assert [(one.kind, one.path) for one in plan.waiting] == [(LeftoverKind.DATA, files[0])]
    (one,) = plan.waiting
    assert one.size == Path(table.uri, files[0]).stat().st_size
    assert timedelta(days=7.9) < one.age < timedelta(days=8.1)
    assert "no version" in one.reason and "listed first" in one.reason
    assert (plan.applied, plan.version, plan.rows, plan.txn) == (False, 2, 0, None)
    listed = table.vacuum(confirm=True)
    assert (listed.applied, listed.raised, listed.leftovers, listed.version) == (True, True, (), 3)
    again = table.vacuum(confirm=True)  # the grace period has not passed
    assert (again.raised, again.leftovers, again.version) == (False, (), 3)
    assert Path(table.uri, files[0]).exists()
    pass_grace(table)
    assert [one.path for one in table.vacuum().leftovers] == files
    done = table.vacuum(confirm=True)
    assert done.applied and done.leftovers[0].path == files[0]
    assert (done.size, done.waiting) == (one.size, ())
    assert not Path(table.uri, files[0]).exists()
    assert found(table) == {}
    assert ids_in(table.uri) == [1, 2, 3]


def test_what_is_younger_than_the_grace_period_stays(table: holdfast.Table) -> None:
    files = orphan(table, 7)
    assert found(table) == {}
    age(table, 6.9, *files)
    assert found(table) == {}
    assert set(found(table, grace=timedelta(days=6))) == set(files)


def test_files_of_old_versions_stay(table: holdfast.Table) -> None:
    """Every version that is there can still be read, in full."""
    table.dataset().delete("id = 2")
    lance_table = table.dataset()
    lance_table.optimize.compact_files(materialize_deletions_threshold=0.0)
    age(table, 100, *everything(table.uri))
    assert found(table) == {}
    table.vacuum(confirm=True)
    for version in range(2, table.dataset().version + 1):
        assert lance.dataset(table.uri, version=version).to_table().num_rows in {2, 3}


def test_deletion_files_that_no_version_shows(table: holdfast.Table) -> None:
    write_deletion_file(table)
    (file,) = [path for path in everything(table.uri) if path.startswith("_deletions/")]
    assert found(table) == {}
    age(table, 8, *everything(table.uri))
    assert found(table) == {file: LeftoverKind.DELETIONS}
    vacuumed(table)
    assert not Path(table.uri, file).exists()


def test_transactions_that_no_version_came_of(table: holdfast.Table) -> None:
    path = "_transactions/1-0b8ff6a4-0000-4000-8000-000000000000.txn"
    Path(table.uri, path).write_bytes(b"whatever")
    assert found(table) == {}
    age(table, 8, path)
    age(table, 9, "_holdfast/pin.json")
    assert found(table) == {path: LeftoverKind.TRANSACTIONS}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"_holdfast/temporary/{TOKEN}", LeftoverKind.TEMPORARY),
        (f"_holdfast/probe/{TOKEN}/first", LeftoverKind.PROBES),
        ("_versions/18446744073709551000.manifest-5c1e", LeftoverKind.MANIFESTS),
    ],
)
def test_objects_left_behind(table: holdfast.Table, path: str, kind: LeftoverKind) -> None:
    file = Path(table.uri, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"12345")
    assert found(table) == {}
    age(table, 8, path)
    assert found(table) == {path: kind}
    assert found(table, what=[kind.value]) == {path: kind}
    others = [other.value for other in LeftoverKind if other is not kind]
    assert found(table, what=others, keep_versions_for=timedelta(days=9999)) == {}
    table.vacuum(confirm=True)
    assert not file.exists()


# What a commit under way may need


def under_way(table: holdfast.Table) -> tuple[list[str], Any]:
    """Write data long ago, and begin to commit it just now."""
    parts = write_fragments(rows(7, 8), table.dataset(), mode="append")
    files = [f"data/{file.path}" for part in parts for file in part.files]
    other = holdfast.open_table(table.uri)
    before = set(everything(table.uri))
    done = other.commit(parts, txn="late")
    (transaction,) = [
        p for p in set(everything(table.uri)) - before if p.startswith("_transactions/")
    ]
    body = Path(table.uri, transaction).read_bytes()
    other.close()
    return files, (done.version, transaction, body)


def hide_commit(table: holdfast.Table) -> list[str]:
    """Leave a table as it is in the middle of a commit: a transaction, and no version yet."""
    files, (version, transaction, body) = under_way(table)
    manifest = Path(table.uri, version_name(version).path)
    manifest.unlink()
    Path(table.uri, "_versions/latest_version_hint.json").unlink(missing_ok=True)
    age(table, 30, *files)
    assert Path(table.uri, transaction).read_bytes() == body
    return files


@pytest.fixture
def plain_put(tmp_path: Path) -> Iterator[holdfast.Table]:
    made = holdfast.create_table(str(tmp_path / "p.lance"), rows().schema)
    made.append(rows(1, 2, 3))
    yield made
    made.close()


@pytest.mark.requirement("C8")
def test_old_files_of_a_commit_that_is_under_way_stay(plain_put: holdfast.Table) -> None:
    files = hide_commit(plain_put)
    assert set(files).isdisjoint(found(plain_put))
    age(plain_put, 30, *everything(plain_put.uri))  # a commit that never ended
    age(plain_put, 31, "_holdfast/pin.json")
    assert set(files) <= set(found(plain_put))


@pytest.mark.mutant
def test_without_looking_at_young_transactions_they_would_go(plain_put: holdfast.Table) -> None:
    files = hide_commit(plain_put)
    careless = mutate(
        "holdfast.upkeep._leftovers", ("    contents.note_commits_under_way()\n", "    pass\n")
    )
    contents = careless.read_contents(plain_put.core, GRACE)
    assert {info.path for info, _ in FINDERS[LeftoverKind.DATA](contents)} == set(files)


@pytest.mark.mutant
def test_without_the_grace_period_a_running_job_loses_its_files(table: holdfast.Table) -> None:
    parts = write_fragments(rows(7), table.dataset(), mode="append")
    careless = mutate(
        "holdfast.upkeep._leftovers", ("return self.age(info) > self.grace", "return True")
    )
    contents = careless.read_contents(table.core, GRACE)
    gone = [info.path for info, _ in FINDERS[LeftoverKind.DATA](contents)]
    assert gone == [f"data/{file.path}" for part in parts for file in part.files]
    assert found(table) == {}


@pytest.mark.mutant
def test_without_reading_every_version_old_ones_break(table: holdfast.Table) -> None:
    table.append(rows(4))
    table.dataset().optimize.compact_files()
    table.append(rows(5))  # a manifest also names what its own commit replaced
    age(table, 8, *everything(table.uri))
    age(table, 9, "_holdfast/pin.json")
    careless = mutate(
        "holdfast.upkeep._leftovers",
        ("sorted(numbers, reverse=True)", "[max(numbers)]"),
    )
    contents = careless.read_contents(table.core, GRACE)
    assert len(list(FINDERS[LeftoverKind.DATA](contents))) == 2
    assert found(table) == {}


def test_a_version_that_lands_after_the_plan_keeps_its_files(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.upkeep import _vacuum

    parts = write_fragments(rows(7), table.dataset(), mode="append")
    files = [f"data/{file.path}" for part in parts for file in part.files]
    age(table, 8, *files)
    planned = _vacuum.plan_vacuum

    def commit_after(*args: Any, **kwargs: Any) -> Any:
        plan = planned(*args, **kwargs)
        assert [one.path for one in plan[1]] == files
        table.commit(parts, read_version=2)
        return plan

    table.vacuum(confirm=True)
    pass_grace(table)
    monkeypatch.setattr(_vacuum, "plan_vacuum", commit_after)
    assert table.vacuum(confirm=True).leftovers == ()
    assert ids_in(table.uri) == [1, 2, 3, 7]


def test_deletion_files_of_a_commit_that_is_under_way_stay(plain_put: holdfast.Table) -> None:
    write_deletion_file(plain_put)
    (file,) = [path for path in everything(plain_put.uri) if path.startswith("_deletions/")]
    age(plain_put, 30, *everything(plain_put.uri))
    assert found(plain_put) == {file: LeftoverKind.DELETIONS}
    path = "_transactions/2-0b8ff6a4-0000-4000-8000-000000000000.txn"
    Path(plain_put.uri, path).write_bytes(b"an update of version 2")
    assert found(plain_put) == {}


# Staged bytes


def stage(table: holdfast.Table, version: int, token: str = TOKEN) -> str:
    """Stage a manifest that wants to be this version."""
    body = Path(table.uri, version_name(version).path).read_bytes()
    record = make_record(version_name(version).path, body, token, after=None, inline=False)
    assert record.staged is not None
    table.core.store.put(record.staged, body)
    age(table, 30, record.staged)
    return record.staged


def test_staged_bytes_of_a_decided_version(table: holdfast.Table) -> None:
    path = stage(table, 2)
    assert found(table) == {path: LeftoverKind.STAGED}
    (one,) = table.vacuum(confirm=True).leftovers
    assert "version 2 is decided" in one.reason
    assert not Path(table.uri, path).exists()


def hide_newest(table: holdfast.Table) -> str:
    """Leave staged bytes for a version that nobody decided yet."""
    table.append(rows(4))
    path = stage(table, 3)
    Path(table.uri, version_name(3).path).unlink()
    Path(table.uri, "_versions/latest_version_hint.json").unlink(missing_ok=True)
    return path


def test_staged_bytes_of_an_undecided_version_stay(plain_put: holdfast.Table) -> None:
    path = hide_newest(plain_put)
    assert path not in found(plain_put)


@pytest.mark.mutant
def test_staged_bytes_judged_by_age_alone_would_go(plain_put: holdfast.Table) -> None:
    path = hide_newest(plain_put)
    careless = mutate(
        "holdfast.upkeep._vacuum_files",
        ("version is not None and version <= contents.newest", "version is not None"),
    )
    contents = read_contents(plain_put.core, GRACE)
    assert path in {info.path for info, _ in careless.find_staged(contents)}


def test_staged_bytes_that_a_decision_still_needs_stay(tmp_path: Path) -> None:
    made = holdfast.create_table(str(tmp_path / "t.lance"), rows().schema, commit_store="sqlite")
    arbiter = made.core.arbiter
    assert isinstance(arbiter, RecordedDecisions)
    arbiter._inline_bytes = 0
    confirm = "            behind = self._confirm(name, record)\n"
    kept = mutate("holdfast.arbiter._recorded", (confirm, "            behind = ()\n"))
    real = RecordedDecisions._complete
    type(arbiter)._complete = kept.RecordedDecisions._complete  # type: ignore[method-assign]
    try:
        made.append(rows(1))
    finally:
        type(arbiter)._complete = real  # type: ignore[method-assign]
    records = records_of(arbiter)
    assert records is not None
    staged = records.by_version[2].staged
    assert staged is not None and Path(made.uri, staged).exists()
    age(made, 30, *everything(made.uri))
    assert found(made) == {}
    made.close()


# Refusals


def test_lost_appends_that_could_be_rescued_stay(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    append(uri, None, 0, mode="create")
    lose(uri, 1, 2)
    append(uri, None, 3)
    age(uri, 30, *everything(uri))
    table = holdfast.adopt_table(uri, commit_store="sqlite")
    assert found(table) == {}
    from holdfast.upkeep import rescue

    rescue(uri, ids="all", confirm=True)
    assert ids_in(uri) == [0, 1, 2, 3]


def test_bad_calls_are_refused(table: holdfast.Table) -> None:
    with pytest.raises(InvalidInputError, match=r"did you mean 'staged'"):
        table.vacuum(what=["stagd"])
    with pytest.raises(InvalidInputError, match="list"):
        table.vacuum(what="staged")
    for grace in (timedelta(0), timedelta(minutes=59), 7):
        with pytest.raises(InvalidInputError, match="hour"):
            table.vacuum(grace=grace, confirm=True)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        vacuum(str(Path(table.uri).parent / "other.lance"))


def test_a_version_that_cannot_be_read_stops_it(plain_put: holdfast.Table) -> None:
    plain_put.append(rows(4))
    files = orphan(plain_put, 9)
    age(plain_put, 8, *files)
    Path(plain_put.uri, version_name(2).path).write_bytes(b"nonsense")
    with pytest.raises(CorruptError):
        plain_put.vacuum(confirm=True)
    assert Path(plain_put.uri, files[0]).exists()


def test_what_was_deleted_is_told(table: holdfast.Table) -> None:
    files = orphan(table, 7, 8)
    age(table, 8, *files)
    seen: list[events.Event] = []
    with events.subscribed(seen.append):
        table.vacuum()
        table.vacuum(confirm=True)
        assert not [e for e in seen if e.kind is events.EventKind.VACUUMED]
        pass_grace(table)
        table.vacuum(confirm=True)
    (told,) = [e.fields for e in seen if e.kind is events.EventKind.VACUUMED]
    assert (told["what"], told["objects"]) == ("data", 1)


def test_every_kind_has_a_finder() -> None:
    assert set(FINDERS) == set(LeftoverKind)


# The command line


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "vacuum", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_the_command_plans_and_acts(table: holdfast.Table) -> None:
    files = orphan(table, 7)
    assert "nothing to delete" in run(table.uri).stdout
    age(table, 8, *files)
    plan = run(table.uri)
    assert plan.returncode == 0 and files[0] in plan.stdout and "--confirm" in plan.stdout
    assert run(table.uri, "--older-than", "9d").stdout.startswith("nothing")
    listed = run(table.uri, "--confirm").stdout
    assert listed.startswith("listed:") and "a later run deletes" in listed
    pass_grace(table)
    shown = json.loads(run(table.uri, "--what", "data", "--json").stdout)
    assert (shown["done"], shown["objects"], shown["version"]) == (False, 1, 3)
    assert (shown["leftovers"][0]["path"], shown["waiting"]) == (files[0], [])
    assert run(table.uri, "--confirm").stdout.startswith("deleted:")
    assert not Path(table.uri, files[0]).exists()


def test_the_command_refuses_nonsense(table: holdfast.Table) -> None:
    for arguments in (["--older-than", "soon"], ["--older-than", "5m"], ["--what", "dta"]):
        assert run(table.uri, *arguments).returncode == 2
    assert run(f"{table.uri}-not").returncode == 3
