"""kill -9 before and after every storage call of a decision, then recovery: 0 lost, 0 doubled.

Rows of the failure table in RFC 0001: whatever the dead process had reached, the next
decider finishes it, and the dead one's retry with the same tokens finds what it had won.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import servers
from crash.forks import forking, run_to_its_end
from crash.worker import Run, make_arbiter, work
from holdfast.arbiter import SupportsSetUp, connect_commit_store
from holdfast.testing import CountedIds, FaultyS3Process
from model.decide_scenarios import marks_of, name_of

PRELOADED = ["crash.worker", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"]


Point = tuple[int, bool]

# Hundreds of processes one after the other: on a starved machine each takes seconds.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with forking(PRELOADED):
        yield


def run_process(run: Run) -> int:
    """Run one process to its end and return its exit code (negative: the signal)."""
    return run_to_its_end(work, run)


def count_calls(run: Run, folder: Path) -> int:
    """Run once without dying, in a place of its own, and count its storage calls."""
    listing = folder / "calls.json"
    assert run_process(replace(run, calls_to=str(listing))) == 0
    calls = json.loads(listing.read_text())
    print(f"{len(calls)} calls: {' '.join(calls)}")
    return len(calls)


def check_list(run: Run) -> None:
    """Everything acknowledged is in the list, and everything in it is there once."""
    found: tuple[str, ...] = ()
    number = 1
    with closing(make_arbiter(replace(run, die_at=None), [], CountedIds(2))) as arbiter:
        while (body := arbiter.read(name_of(number))) is not None:
            assert marks_of(body)[:-1] == found
            found, number = marks_of(body), number + 1
    acks = Path(run.acks).read_text().splitlines() if Path(run.acks).exists() else []
    acknowledged = {json.loads(line)["mark"] for line in acks}
    assert acknowledged <= set(found), "acknowledged and lost"
    assert len(set(found)) == len(found), "doubled"


def kill_everywhere(base: Run, folder: Path, *, twice: bool = False) -> int:
    """Kill at every call (and the retry at every call); recover; check. Return the runs."""
    calls = count_calls(base, folder)
    points = list(itertools.product(range(1, calls + 1), (False, True)))
    cases: list[tuple[Point, Point | None]] = [(p, None) for p in points]
    if twice:
        cases += [(p, q) for p in points for q in points if p[1] and q[1]]
    for case, (first, second) in enumerate(cases):
        run = replace(base, url=f"{base.url}-{case}", acks=str(folder / f"acks-{case}"))
        for point in (first, second):
            if point is not None:
                dying = replace(run, die_at=point[0], die_after=point[1])
                assert run_process(dying) in {-signal.SIGKILL, 0}
        check_list(run)
        assert run_process(replace(run, mark="b")) == 0  # somebody else comes along
        check_list(run)
        assert run_process(run) == 0  # the dead one is started again
        check_list(run)
    return len(cases)


@pytest.fixture
def quick_list(tmp_path: Path) -> Run:
    return Run(url=str(tmp_path / "list"), mark="a", acks=str(tmp_path / "acks"))


def set_up(url: str) -> str:
    store = connect_commit_store(url)
    assert isinstance(store, SupportsSetUp)
    store.set_up()
    store.close()
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return set_up(f"sqlite:///{tmp_path}/decisions.db")


TWICE = bool(os.environ.get("HOLDFAST_EXPLORE"))


@pytest.mark.requirement("C8")
def test_conditional_put_on_local_disk(quick_list: Run, tmp_path: Path) -> None:
    runs = kill_everywhere(quick_list, tmp_path, twice=True)
    assert runs >= 2


@pytest.mark.requirement("C5", "C8")
@pytest.mark.parametrize("inline_bytes", [1 << 16, 0], ids=["inline", "staged"])
def test_sqlite_on_local_disk(
    quick_list: Run, tmp_path: Path, sqlite_url: str, inline_bytes: int
) -> None:
    run = replace(quick_list, commit_store=sqlite_url, inline_bytes=inline_bytes)
    runs = kill_everywhere(run, tmp_path, twice=TWICE)
    assert runs >= 10


@pytest.fixture
def ignoring_s3() -> Iterator[FaultyS3Process]:
    with FaultyS3Process(conditions="ignoring") as server:
        yield server


@pytest.mark.requirement("C2", "C5", "C8")
def test_postgres_over_an_ignoring_s3_server(
    postgres: servers.Server, ignoring_s3: FaultyS3Process, tmp_path: Path
) -> None:
    run = Run(
        url=ignoring_s3.url("bucket", "list"),
        options=dict(ignoring_s3.storage_options("bucket")),
        mark="a",
        acks=str(tmp_path / "acks"),
        commit_store=set_up(postgres.url),
        inline_bytes=0,
    )
    runs = kill_everywhere(run, tmp_path, twice=TWICE)
    assert runs >= 10
