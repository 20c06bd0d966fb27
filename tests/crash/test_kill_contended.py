"""kill -9 at every call of an append that meets a rival: S3 that ignores conditions, PostgreSQL.

The append loses its first decision, stands in line, builds on the newest version and decides.
Whoever comes next finishes what is left, waits for nobody who died in line, and loses nothing.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import holdfast
import servers
from commits.table_worker import set_up
from crash.append_worker import append_contended, rows
from crash.forks import forking, run_to_its_end
from crash.worker import Run
from holdfast.testing import FaultyS3Process

pytestmark = pytest.mark.timeout(900)
PRELOADED = [
    "pytest",
    "lance.namespace",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "holdfast.arbiter.stores.postgres",
    "crash.append_worker",
]
SCHEMA = pa.schema([("mark", pa.string())])


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with forking(PRELOADED):
        yield


@pytest.fixture(scope="module")
def s3() -> Iterator[FaultyS3Process]:
    with FaultyS3Process(conditions="ignoring") as server:
        yield server


def marks_in(run: Run) -> list[str]:
    """Return what stock pylance reads."""
    table = lance.dataset(run.url, storage_options=run.options)
    return sorted(table.to_table()["mark"].to_pylist())


def kill_and_recover(run: Run) -> None:
    """Kill one; let another one append; start the dead one again: all is there once."""
    table = holdfast.create_table(
        run.url, SCHEMA, commit_store=run.commit_store, storage_options=run.options
    )
    assert run_to_its_end(append_contended, run) in {-signal.SIGKILL, 0}
    acknowledged = Path(run.acks).exists()
    assert "rival of a" in marks_in(run)
    assert not acknowledged or "a" in marks_in(run), "acknowledged and lost"
    table.append(rows("b"), txn="b")
    there = marks_in(run).count("a")
    repeated = table.append(rows("a"), txn="a")
    assert repeated.applied is (there == 0), "found in the table, and not in what stock reads"
    assert marks_in(run) == ["a", "b", "rival of a", "warm a"]
    table.close()


@pytest.mark.requirement("C1", "C2", "C8")
def test_kill_at_every_call_of_a_contended_append(
    postgres: servers.Server, s3: FaultyS3Process, tmp_path: Path
) -> None:
    def place(name: str, die_at: int | None = None, *, after: bool = False) -> Run:
        return Run(
            url=s3.url("lake", f"{name}.lance"),
            options=dict(s3.storage_options("lake")),
            mark="a",
            acks=str(tmp_path / f"acks-{name}"),
            commit_store=commit_store,
            die_at=die_at,
            die_after=after,
        )

    commit_store = set_up(postgres.url)
    listing = tmp_path / "calls.json"
    kill_and_recover(replace(place("counted"), calls_to=str(listing)))
    calls = json.loads(listing.read_text())
    print(f"{len(calls)} calls: {' '.join(calls)}")
    assert calls.count("compare_and_set") >= 1  # it stood in line
    points = itertools.product(range(1, len(calls) + 1), (False, True))
    cases = [place(f"t-{at}-{after}", at, after=after) for at, after in points]
    work: Callable[[Run], None] = kill_and_recover
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, cases))
