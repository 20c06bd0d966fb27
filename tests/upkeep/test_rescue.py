"""Appends that stock writers lost on a lying store: found, every one, and brought back once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import connect_commit_store
from holdfast.errors import ForeignVersionError, InvalidInputError, NotFoundError
from holdfast.formats import _ledger
from holdfast.formats._transaction import Transaction, decode_transaction
from holdfast.testing import FaultyS3Process
from holdfast.upkeep import Candidate, Doubt, doctor, rescue
from upkeep.stock import (
    append,
    append_all,
    ids_in,
    lose,
    lose_after_showing,
    rows,
    take_away,
)

SPAWN = multiprocessing.get_context("spawn")
PROCESSES, APPENDS = 6, 6
URI = "s3://lake/events.lance"


def set_up(folder: Path) -> str:
    url = f"sqlite:///{folder}/decisions.db?single_host=true"
    with closing(connect_commit_store(url)) as store:
        store.set_up()  # type: ignore[attr-defined]
    return url


def race(options: dict[str, str]) -> tuple[set[int], list[str]]:
    """Let stock writers append concurrently; return what they were told."""
    append(URI, options, 0, mode="create")
    told, ready = SPAWN.Queue(), SPAWN.Barrier(PROCESSES)
    workers = []
    for index in range(PROCESSES):
        ids = list(range(1 + index * APPENDS, 1 + (index + 1) * APPENDS))
        worker = SPAWN.Process(target=append_all, args=(URI, options, ids, told, ready))
        worker.start()
        workers.append(worker)
    acknowledged, failed, running = {0}, [], PROCESSES
    while running:
        kind, value = told.get(timeout=240)
        running -= kind == "done"
        if kind == "acknowledged":
            acknowledged.add(value)
        elif kind == "failed":
            failed.append(value)
    for worker in workers:
        worker.join(240)
    return acknowledged, failed


def ids_of(candidate: Candidate, options: dict[str, str] | None, uri: str = URI) -> list[int]:
    """Return the rows of a candidate, read by Lance from its data files."""
    from lance.file import LanceFileReader

    found: list[int] = []
    for file in candidate.files:
        reader = LanceFileReader(f"{uri}/{file}", storage_options=options)
        found += reader.read_all().to_table()["id"].to_pylist()
    return found


@pytest.mark.requirement("C1")
def test_every_lost_append_is_listed_and_brought_back_once(
    faulty_s3_process: Callable[..., FaultyS3Process], tmp_path: Path
) -> None:
    s3 = faulty_s3_process(conditions="ignoring")
    options = dict(s3.storage_options())
    acknowledged, failed = race(options)
    present = set(ids_in(URI, options))
    lost = acknowledged - present
    assert lost, "the server ignored every condition, and yet nothing was lost"

    plain = doctor(URI, options)
    listed = [number for one in plain.candidates for number in ids_of(one, options)]
    assert len(listed) == len(set(listed))
    assert lost <= set(listed)
    unsure = {int(text.split(":")[0]) for text in failed}
    assert set(listed) <= lost | unsure
    assert not plain.healthy
    print(f"{len(acknowledged)} acknowledged, {len(lost)} lost, {len(listed)} listed")
    seen = [one for one in plain.candidates if one.seen_in is not None]
    print(f"{len(seen)} of them were shown by some version")

    with pytest.raises(InvalidInputError, match="adopt"):
        rescue(URI, options, ids="all", confirm=True)
    holdfast.adopt_table(URI, commit_store=set_up(tmp_path), storage_options=options).close()
    plan = rescue(URI, options, ids="all")
    assert not plan.confirmed
    assert plan.rescued == ()
    assert {one.id for one in plan.planned} == {one.id for one in plain.candidates}
    assert set(ids_in(URI, options)) == present

    done = rescue(URI, options, ids="all", confirm=True)
    assert done.rows == len(listed)
    assert all(one.applied for one in done.rescued)
    assert ids_in(URI, options) == sorted(present | set(listed))
    assert acknowledged <= set(ids_in(URI, options))

    before = lance.dataset(URI, storage_options=options).version
    again = rescue(URI, options, ids="all", confirm=True)
    assert (again.planned, again.skipped, again.rescued) == ((), (), ())
    named = rescue(URI, options, ids=[one.id for one in plan.planned], confirm=True)
    assert [one.applied for one in named.rescued] == [False] * len(plan.planned)
    assert lance.dataset(URI, storage_options=options).version == before
    assert doctor(URI, options).candidates == ()


# One at a time, on local disk

BOTH = pytest.mark.parametrize("commit_store", [None, "sqlite"], ids=["condition", "commit store"])


@pytest.fixture
def plain(tmp_path: Path) -> str:
    uri = str(tmp_path / "t.lance")
    append(uri, None, 0, mode="create")
    return uri


@BOTH
def test_what_is_brought_back_is_a_version_like_any_other(
    plain: str, commit_store: str | None
) -> None:
    lose(plain, 1, 2)
    lose_after_showing(plain, lost=3, kept=4, next_one=5)
    table = holdfast.adopt_table(plain, commit_store=commit_store)
    done = rescue(plain, ids="all", confirm=True)
    assert (done.rows, len(done.rescued), done.skipped) == (3, 2, ())
    assert ids_in(plain) == [0, 1, 2, 3, 4, 5]
    txns = {txn for one in table.history() for txn in one.txns}
    assert txns == {f"rescue:{one.id}" for one in done.rescued}
    assert table.applied(sorted(txns)) == [True, True]
    found = doctor(plain)
    assert found.healthy
    assert found.candidates == ()
    table.dataset().optimize.compact_files()
    assert rescue(plain, ids="all", confirm=True).rescued == ()
    assert ids_in(plain) == [0, 1, 2, 3, 4, 5]


def test_a_plan_changes_nothing(plain: str) -> None:
    lose(plain, 1)
    table = holdfast.adopt_table(plain, commit_store="sqlite")  # keeps SQLite's files open
    before = sorted(str(path) for path in Path(plain).rglob("*"))
    plan = rescue(plain, ids="all")
    assert (plan.confirmed, plan.rescued, plan.rows) == (False, (), 0)
    assert [one.rows for one in plan.planned] == [1]
    assert sorted(str(path) for path in Path(plain).rglob("*")) == before
    table.close()


@BOTH
@pytest.mark.requirement("P3")
def test_rescuers_at_once_bring_it_back_once(
    plain: str, commit_store: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More of them than the config keeps: the others are in files.
    monkeypatch.setattr(_ledger, "_KEPT", {_ledger._RECENT: 2, _ledger._OWN: 2})
    for number in range(1, 7):
        lose(plain, number)
    holdfast.adopt_table(plain, commit_store=commit_store).close()
    with ThreadPoolExecutor(4) as pool:
        tries = [pool.submit(rescue, plain, ids="all", confirm=True) for _ in range(4)]
    assert sum(one.result().rows for one in tries) == 6
    assert ids_in(plain) == list(range(7))


def test_doubtful_ones_are_taken_only_by_name(plain: str) -> None:
    lose(plain, 1, 2)
    append(plain, None, 1, 2)
    lose(plain, 3)
    holdfast.adopt_table(plain, commit_store="sqlite")
    done = rescue(plain, ids="all", confirm=True)
    assert ids_in(plain) == [0, 1, 2, 3]
    (skipped,) = done.skipped
    assert skipped.doubt is Doubt.REPEATED
    (named,) = rescue(plain, ids=[skipped.id], confirm=True).rescued
    assert (named.id, named.rows, named.applied) == (skipped.id, 2, True)
    assert ids_in(plain) == [0, 1, 1, 2, 2, 3]
    (again,) = rescue(plain, ids=[skipped.id, skipped.id], confirm=True).rescued
    assert (again.version, again.applied) == (named.version, False)


def test_an_append_of_many_fragments_and_nested_columns(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])

    def some(first: int) -> pa.Table:
        values = [{"a": i, "b": [str(i), None]} for i in range(first, first + 30)]
        ids = pa.array(range(first, first + 30), pa.int64())
        return pa.table({"id": ids, "nested": pa.array(values, kind)})

    for stable in (False, True):
        place = f"{uri}{stable}"
        lance.write_dataset(some(0), place, enable_stable_row_ids=stable)
        lance.write_dataset(some(30), place, mode="append", max_rows_per_file=10)
        take_away(place, 2)
        holdfast.adopt_table(place, commit_store="sqlite")
        (candidate,) = doctor(place).candidates
        assert (candidate.rows, len(candidate.files)) == (30, 3)
        assert rescue(place, ids="all", confirm=True).rows == 30
        found = lance.dataset(place).to_table().sort_by("id")
        assert found.equals(pa.concat_tables([some(0), some(30)]).combine_chunks())


@pytest.mark.parametrize("ids", ["", "0000", [], ()])
def test_ids_that_are_none(plain: str, ids: Any) -> None:
    holdfast.adopt_table(plain, commit_store="sqlite")
    with pytest.raises(InvalidInputError, match="UUIDs"):
        rescue(plain, ids=ids)


def test_ids_that_are_no_candidates(plain: str) -> None:
    append(plain, None, 1)
    lance.dataset(plain).delete("id = 1")
    gone = {one.operation: one for one in transactions(plain)}
    holdfast.adopt_table(plain, commit_store="sqlite")
    with pytest.raises(NotFoundError, match="no such transaction"):
        rescue(plain, ids=["5c1e"], confirm=True)
    for operation in ("Append", "Delete"):
        with pytest.raises(InvalidInputError, match="no candidate"):
            rescue(plain, ids=[gone[operation].uuid], confirm=True)
    assert ids_in(plain) == [0]


def transactions(uri: str) -> list[Transaction]:
    return [decode_transaction(p.read_bytes()) for p in Path(uri, "_transactions").iterdir()]


def test_where_no_table_is(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no Lance table"):
        rescue(str(tmp_path / "none"), ids="all")


def test_a_plain_table_is_adopted_first(plain: str) -> None:
    lose(plain, 1)
    with pytest.raises(InvalidInputError, match="holdfast adopt URI --commit-store URL"):
        rescue(plain, ids="all")


def test_nothing_is_built_on_a_foreign_version(plain: str) -> None:
    lose(plain, 1)
    table = holdfast.adopt_table(plain, commit_store="sqlite")
    table.append(rows(2))
    append(plain, None, 3)
    with pytest.raises(ForeignVersionError):
        rescue(plain, ids="all", confirm=True)
    holdfast.adopt_table(plain, commit_store="sqlite", accept=3)
    assert rescue(plain, ids="all", confirm=True).rows == 1
    assert ids_in(plain) == [0, 1, 2, 3]
