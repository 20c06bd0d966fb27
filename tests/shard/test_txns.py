"""Puts and deletes with a transaction id: applied once, whoever repeats them and whenever."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

import holdfast
from crash.forks import forking, run_to_its_end
from crash.worker import Run
from holdfast.commits import drop_table
from holdfast.errors import CorruptError, HoldfastError, InvalidInputError, UnavailableError
from holdfast.options import StorageOptions
from holdfast.shard import ShardWriter
from holdfast.storage import LocalStore
from holdfast.txn import AppTxn
from holdfast.wal import WalTailer
from shard.levels import KEYED, PLAIN
from shard.test_model import MEMORY
from shard.txn_worker import PUTS, put_all
from shard.writing import Config, failing, rows, unavailable

pytestmark = pytest.mark.requirement("P3")

NOW = timedelta(0)
PRELOADED = ["pytest", "_pytest.config", "lance.namespace", "holdfast.table", "shard.txn_worker"]


@pytest.fixture(params=[None, "sqlite"], ids=["conditional-put", "commit-store"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> holdfast.Table:
    """Return a table without a key: what is applied twice is there twice."""
    return holdfast.create_table(tmp_path / "t", PLAIN, commit_store=request.param)


def claim(table: holdfast.Table, **settings: Any) -> ShardWriter:
    return table.claim_writer("unsharded", config=Config(**settings))


def keys(table: holdfast.Table) -> list[int]:
    found: list[int] = table.scan().read_all()["k"].to_pylist()
    return sorted(found)


def collect(table: holdfast.Table) -> None:
    """Collect the log as if all of it were old."""
    then = time.time() - timedelta(days=30).total_seconds()
    for folder in ("_mem_wal", "_holdfast/log-txns"):
        for path in Path(table.uri, folder).rglob("*"):
            os.utime(path, (then, then))
    table.vacuum(what=["log", "sstables"], grace=timedelta(hours=1), confirm=True)


def entries(table: holdfast.Table, shard_id: str) -> list[Any]:
    return list(WalTailer(table.core, shard_id).entries())


def memories(table: holdfast.Table) -> list[str]:
    return sorted(path.name for path in Path(table.uri).glob("_holdfast/log-txns/*/at-*"))


def nothing(_table: holdfast.Table) -> None:
    """Leave the rows in the log."""


def flush(table: holdfast.Table) -> None:
    for shard_id in table.shards():
        table.flush_log(shard_id, idle=NOW)


def flush_and_collect(table: holdfast.Table) -> None:
    flush(table)
    collect(table)


def merge(table: holdfast.Table) -> None:
    flush(table)
    table.compact_lsm()


def merge_and_collect(table: holdfast.Table) -> None:
    merge(table)
    collect(table)


@pytest.mark.parametrize("txn", [("app", 7), "a string", AppTxn("app", 7, in_order=True)])
def test_a_repeat_by_the_same_writer_writes_nothing(plain: holdfast.Table, txn: Any) -> None:
    with claim(plain) as writer:
        first = writer.put(rows(1, 2), txn=txn)
        again = writer.put(rows(1, 2), txn=txn)
        assert (first.applied, again.applied) == (True, False)
        assert again.position is None
        assert again.txn == first.txn is not None
        assert writer.put(rows(3)).applied is True
        assert writer.stats().rows == 3
    assert keys(plain) == [1, 2, 3]


@pytest.mark.parametrize("memtable", [True, False])
@pytest.mark.parametrize("between", [nothing, flush, flush_and_collect, merge, merge_and_collect])
def test_a_repeat_by_a_later_writer_writes_nothing(
    plain: holdfast.Table, between: Callable[[holdfast.Table], None], memtable: bool
) -> None:
    writer = claim(plain, enable_memtable=memtable)
    writer.put(rows(1), txn=("app", 0))
    writer.put(rows(2), txn="a string")
    writer.abort()
    between(plain)
    for _ in range(2):
        later = claim(plain, enable_memtable=memtable)
        assert later.put(rows(1), txn=("app", 0)).applied is False
        assert later.put(rows(2), txn="a string").applied is False
        later.abort()
        between(plain)
    fresh = claim(plain, enable_memtable=memtable)
    assert fresh.put(rows(3), txn=("app", 1)).applied is True
    fresh.close()
    assert keys(plain) == [1, 2, 3]


def test_a_writer_flushes_and_the_next_one_reads_few_entries(plain: holdfast.Table) -> None:
    with claim(plain) as writer:
        for number in range(20):
            writer.put(rows(number), txn=("app", number))
            if number % 5 == 4:
                writer.flush()
    collect(plain)
    assert len(memories(plain)) == 2  # the oldest, which stays, and the newest
    with claim(plain) as later:
        repeats = [later.put(rows(n), txn=("app", n)).applied for n in range(22)]
    assert repeats == [False] * 20 + [True] * 2
    assert keys(plain) == list(range(22))


def test_a_delete_is_repeated_without_harm(table: holdfast.Table) -> None:
    with claim(table) as writer:
        writer.put(rows(1, v="old"))
        assert writer.delete_keys([1], txn=("app", 0)).applied is True
        writer.put(rows(1, v="new"))
        assert writer.delete_keys([1], txn=("app", 0)).applied is False
        assert writer.put_nowait(rows(2), txn=("app", 1)).result().applied is True
        assert writer.put_nowait(rows(2), txn=("app", 1)).result().applied is False
        assert writer.delete_keys_nowait([2], txn=("app", 1)).result().applied is False
        assert writer.to_table()["v"].to_pylist() == ["new", "x"]


def test_of_many_threads_with_one_id_one_applies_it(plain: holdfast.Table) -> None:
    with claim(plain) as writer, ThreadPoolExecutor(8) as threads:

        def put(number: int) -> bool | None:
            return writer.put(rows(number // 8), txn=f"id-{number // 8}").applied

        found = list(threads.map(put, range(8 * 25)))
    assert sum(map(bool, found)) == 25
    assert keys(plain) == list(range(25))


def test_a_number_with_too_many_gaps_is_refused_alone(plain: holdfast.Table) -> None:
    with claim(plain) as writer:
        many = [writer.put_nowait(rows(n), txn=("app", 2 * n)) for n in range(256)]
        assert all(one.result().applied for one in many)
        with pytest.raises(InvalidInputError, match="too many gaps"):
            writer.put(rows(999), txn=("app", 9999))
        assert writer.put(rows(256), txn=("app", 1)).applied is True
        assert writer.put(rows(257), txn=("other", 0)).applied is True
        assert writer.stats().buffered_bytes > 0
    assert keys(plain) == list(range(258))


@pytest.mark.parametrize("bad", [("app",), 7, ("app", -1), "", ("app", 1.5)])
def test_what_is_no_id_is_refused(plain: holdfast.Table, bad: Any) -> None:
    with claim(plain) as writer:
        with pytest.raises(InvalidInputError):
            writer.put(rows(1), txn=bad)
        assert writer.put(rows(2)).applied is True
    assert memories(plain) == []


def test_every_string_is_remembered_however_many(plain: holdfast.Table) -> None:
    for start in (0, 300, 600):
        with claim(plain) as writer:
            done = [writer.put_nowait(rows(n), txn=f"s-{n}") for n in range(start, start + 300)]
            assert all(one.result().applied for one in done)
    merge_and_collect(plain)
    with claim(plain) as writer:
        again = [writer.put_nowait(rows(n), txn=f"s-{n}") for n in range(900)]
        assert not any(one.result().applied for one in again)
    assert keys(plain) == list(range(900))


def test_a_put_with_an_id_is_one_request(
    plain: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[str] = []
    with claim(plain) as writer:
        writer.put(rows(0), txn=("app", 0))  # the first one of a shard prepares it
        for verb in ("get", "head", "put", "put_if_absent", "list", "copy"):
            inner = getattr(LocalStore, verb)

            def counted(*args: Any, verb: str = verb, inner: Any = inner, **more: Any) -> Any:
                requests.append(verb)
                return inner(*args, **more)

            monkeypatch.setattr(LocalStore, verb, counted)
        writer.put(rows(1))
        without, requests[:] = list(requests), []
        writer.put(rows(2), txn=("app", 1))
        assert requests == without
        requests.clear()
        writer.put(rows(2), txn=("app", 1))
        assert requests == []


def test_a_shard_without_ids_has_no_memory(plain: holdfast.Table) -> None:
    with claim(plain) as writer:
        writer.put(rows(1))
    flush_and_collect(plain)
    assert memories(plain) == []


def test_a_flush_that_could_not_write_the_memory(
    plain: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = claim(plain)
    writer.put(rows(1), txn=("app", 0))
    with (
        monkeypatch.context() as patch,
        failing(patch, lambda path: "log-txns" in path, 99, unavailable()) as failed,
    ):
        writer.close()
        assert failed
        with pytest.raises(UnavailableError):  # so the entries stay
            collect(plain)
    assert [entry.rows for entry in entries(plain, writer.shard_id) if entry.rows] == [1]
    collect(plain)
    assert not [entry for entry in entries(plain, writer.shard_id) if entry.rows]
    with claim(plain) as later:
        assert later.put(rows(1), txn=("app", 0)).applied is False
    assert keys(plain) == [1]


def test_a_damaged_memory_is_an_error_and_no_answer(plain: holdfast.Table) -> None:
    with claim(plain) as writer:
        writer.put(rows(1), txn=("app", 0))
    newest = max(Path(plain.uri).glob("_holdfast/log-txns/*/at-*"))
    newest.write_bytes(newest.read_bytes().replace(b'"0"', b'"1"'))
    with pytest.raises(CorruptError, match="memory"):
        claim(plain)


def test_stock_takes_turns_and_no_id_is_forgotten(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", KEYED)
    writer = claim(table)
    writer.put(rows(1, v="ours"), txn=("app", 0))
    shard = writer.shard_id
    writer.abort()
    with lance.dataset(table.uri).mem_wal_writer(shard) as stock:  # replays, and flushes
        found = stock.lsm_scanner().to_table().to_pylist()
        assert [row["v"] for row in found] == ["ours"]
    with claim(table) as later:
        later.put(rows(1, v="newer"))
        assert later.put(rows(1, v="ours"), txn=("app", 0)).applied is False
    merge_and_collect(table)
    with claim(table) as last:
        assert last.put(rows(1, v="ours"), txn=("app", 0)).applied is False
    assert table.scan().read_all()["v"].to_pylist() == ["newer"]


def test_a_table_made_anew_knows_no_id_of_the_one_before(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for number in range(2):
        table = holdfast.create_table(uri, PLAIN)
        with claim(table) as writer:
            assert writer.put(rows(number), txn=("app", 0)).applied is True
        merge_and_collect(table)
        assert keys(table) == [number]
        table.close()
        drop_table(uri, StorageOptions({}))
        assert not [path for path in Path(uri).rglob("at-*") if path.is_file()]


def test_a_writer_of_a_table_that_was_dropped_tells_the_next_one_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    stale = claim(holdfast.create_table(uri, PLAIN))
    drop_table(uri, StorageOptions({}))
    table = holdfast.create_table(uri, PLAIN)
    with pytest.raises(HoldfastError):
        stale.put(rows(1), txn=("app", 0))
    assert memories(table) == []
    stale.abort()


def test_an_overwrite_and_a_release_forget_no_id(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = holdfast.create_table(uri, PLAIN)
    with claim(table) as writer:
        writer.put(rows(1), txn=("app", 0))
    merge_and_collect(table)
    holdfast.write_table(rows(5), uri, mode="overwrite")
    with claim(table) as writer:
        assert writer.put(rows(1), txn=("app", 0)).applied is False
    table.close()
    holdfast.release_table(uri)
    table = holdfast.adopt_table(uri)
    with claim(table) as writer:
        assert writer.put(rows(1), txn=("app", 0)).applied is False
    assert keys(table) == [5]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[None]:
    with forking(PRELOADED):
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="holdfast-txns-", dir=MEMORY))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.requirement("L3")
@pytest.mark.usefixtures("fork_server")
def test_a_repeat_after_a_kill_writes_nothing(folder: Path) -> None:
    """Kill -9 at every storage call; then all puts are repeated, by another process."""

    def create(run: Run) -> Run:
        table = holdfast.create_table(run.url, PLAIN)
        table.prepare_writers()
        table.close()
        return run

    def kill_and_repeat(run: Run) -> None:
        assert run_to_its_end(put_all, run) in {-signal.SIGKILL, 0}
        table = holdfast.open_table(run.url)
        acks = Path(run.acks)
        told = len(acks.read_text().splitlines()) if acks.exists() else 0
        with table.claim_writer("unsharded") as writer:
            applied = [
                writer.put(rows(number), txn=("app", number)).applied for number in range(PUTS)
            ]
        assert applied[:told] == [False] * told
        assert Counter(keys(table)) == Counter(range(PUTS)), f"{run}: {applied}"

    base = Run(url=str(folder / "counted"), mark="memtable", acks=str(folder / "acks"))
    listing = folder / "calls.json"
    assert run_to_its_end(put_all, replace(create(base), calls_to=str(listing))) == 0
    calls = json.loads(listing.read_text())
    print(f"{len(calls)} calls: {' '.join(calls)}")
    cases = [
        replace(
            base,
            url=str(folder / f"t-{number}-{after}"),
            acks=str(folder / f"acks-{number}-{after}"),
            die_at=number,
            die_after=after,
        )
        for number, after in itertools.product(range(1, len(calls) + 1, 2), (False, True))
    ]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(kill_and_repeat, map(create, cases)))
