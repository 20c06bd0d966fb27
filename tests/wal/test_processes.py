"""Real processes and servers: kill -9 at every storage call, writers put to sleep, bad nets."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import servers
from crash.forks import FORKS, forking, run_to_its_end
from crash.worker import Run
from holdfast.arbiter import (
    ConditionalPut,
    RetryPolicy,
    SupportsSetUp,
    Verdict,
    connect_commit_store,
)
from holdfast.core import TableCore
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    PoisonedError,
    UnavailableError,
)
from holdfast.storage import open_store
from holdfast.testing import StillClock
from holdfast.testing._faulty_s3 import FaultyS3
from holdfast.testing._faulty_s3_process import FaultyS3Process
from holdfast.testing._s3_faults import Fault
from holdfast.wal import WalAppender, collect_log
from wal.log_worker import SHARD, flush, marks_in, parts, recovered, rows, sleeper, work

LONG = "HOLDFAST_EXPLORE" in os.environ
KILLS = int(os.environ.get("HOLDFAST_LOG_KILLS", "2000"))
PLACES = ["local disk", "honest S3", "ignoring S3 and SQLite", "ignoring S3 and PostgreSQL"]


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    dialect = "sqlalchemy.dialects.postgresql.psycopg"
    with forking(["pytest", "_pytest.config", "pandas", "psycopg", dialect, "wal.log_worker"]):
        yield


@pytest.fixture(params=PLACES)
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    faulty_s3_process: Callable[..., FaultyS3Process],
) -> Callable[[str], Run]:
    """Return a function from a name to a fresh shard's place."""
    kind = request.param
    if kind == "local disk":
        return lambda name: Run(
            url=str(tmp_path / name), mark="a", acks=str(tmp_path / f"{name}.acks")
        )
    conditions = "honest" if kind == "honest S3" else "ignoring"
    server = faulty_s3_process(conditions=conditions)
    folder = uuid.uuid4().hex  # the database is shared, and knows tables by their location
    commits: str | None = None
    if "SQLite" in kind:
        commits = f"sqlite:///{tmp_path}/commits.db"
    elif "PostgreSQL" in kind:
        postgres: servers.Server = request.getfixturevalue("postgres")
        commits = postgres.url
    if commits is not None:
        connected = connect_commit_store(commits)
        assert isinstance(connected, SupportsSetUp)
        connected.set_up()
        connected.close()
    return lambda name: Run(
        url=server.url("bucket", f"{folder}/{name}"),
        mark="a",
        acks=str(tmp_path / f"{name}.acks"),
        options=server.storage_options(),
        commit_store=commits,
    )


def run_process(run: Run) -> int:
    return run_to_its_end(work, run)


def check(run: Run) -> None:
    acks = Path(run.acks).read_text().splitlines() if Path(run.acks).exists() else []
    told = [json.loads(line)["mark"] for line in acks]
    store, arbiter = parts(run, [])
    _, found = recovered(store, arbiter)
    arbiter.close()
    assert set(told) <= set(found), "acknowledged and lost"
    assert len(set(found)) == len(found), "doubled"
    assert [m for m in found if m in told] == told, "reordered"


@pytest.mark.requirement("L1", "L2", "L3", "L10", "L11", "C6")
def test_kill_at_every_storage_call_twice(place: Callable[[str], Run], tmp_path: Path) -> None:
    whole = replace(place("whole"), calls_to=str(tmp_path / "calls"))
    assert run_process(whole) == 0
    count = len(json.loads(Path(whole.calls_to or "").read_text()))
    calls = range(1, count + 1)
    pairs = [(k, (k * 7 + shift) % count + 1) for shift in calls for k in calls]
    runs = 0
    for first, second in pairs[: KILLS // 3] if LONG else pairs[: count : max(1, count // 13)]:
        run = place(f"k{first}-{second}")
        for mark, die_at in (("a", first), ("b", second)):
            dying = replace(run, mark=mark, die_at=die_at, die_after=(first + second) % 2 == 0)
            assert run_process(dying) in {-signal.SIGKILL, 0}
            runs += 1
        check(run)
        assert run_process(replace(run, mark="c")) == 0
        check(run)
        runs += 1
    print(f"{runs} processes, {count} storage calls")
    assert runs >= (min(KILLS - 2, 3 * len(pairs)) if LONG else 26)


@pytest.mark.requirement("L3", "L7", "L12")
def test_a_sleeper_is_fenced_across_flush_and_collection(place: Callable[[str], Run]) -> None:
    rounds = 100 if LONG else 5
    for number in range(rounds):
        run = place(f"z{number}")
        told, telling = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=sleeper, args=(run, telling))
        process.start()
        telling.close()
        assert process.pid is not None
        acknowledged = [heard(told)[1] for _ in range(2 + number % 3)]
        store, arbiter = parts(run, [])
        put_to_sleep(process.pid, run)
        try:
            appender, found = recovered(store, arbiter)
            appender.append(rows("b0"))
            flush(appender, [*found, "b0"])
            collect_log(TableCore(store, arbiter), SHARD, confirm=True)
            appender.append(rows("b1"))
        finally:
            os.kill(process.pid, signal.SIGCONT)
        ended = None
        while ended is None:
            kind, first, second = heard(told)
            if kind == "acknowledged":
                acknowledged.append(first)
            else:
                ended = (kind, first, second)
        process.join(60)
        told.close()
        _, all_of_it = recovered(store, arbiter)
        arbiter.close()
        assert ended[0] == "fenced" or ended[1] == "PoisonedError", ended
        if ended[0] == "fenced":
            assert ended == ("fenced", 1, 2)
        assert set(acknowledged) <= set(all_of_it)
        assert all_of_it[-2:] == ["b0", "b1"]
        assert len(set(all_of_it)) == len(all_of_it)


def heard(told: Any) -> Any:
    """Return what a process tells next."""
    assert told.poll(60), "the process hangs"
    return told.recv()


def put_to_sleep(pid: int, run: Run) -> None:
    """Stop a process anywhere; with a commit store, wait until it stops itself.

    Stopped inside a transaction it would keep its database locked for everybody.
    """
    if run.commit_store is None:
        os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)


HISTORIES = int(os.environ.get("HOLDFAST_LOG_HISTORIES", "1000" if LONG else "100"))
APPENDS = 200
STOPS = (PoisonedError, FencedError, UnavailableError, CommitUnknownError, ConflictError)


@pytest.mark.requirement("L1", "L10", "L11")
def test_histories_through_a_bad_network(faulty_s3: Callable[..., FaultyS3]) -> None:
    server = faulty_s3()
    # Creates only: they are what decides. Lost reads are retried by the client, at length.
    for kind, chance in (("drop_after", 0.02), ("drop_before", 0.02), ("status_before", 0.01)):
        server.faults.add(
            Fault(kind=kind, probability=chance, times=None, status=409, conditional=True)  # type: ignore[arg-type]
        )
    seed = int(os.environ.get("HOLDFAST_SEED", "0"))
    for number in range(HISTORIES):
        history(server, f"h{number}", random.Random(seed * 100_000 + number))
    fired = server.faults.fired
    print(fired)
    assert min(fired.values()) >= HISTORIES


def history(server: FaultyS3, name: str, chance: random.Random) -> None:
    """Writers take turns; nothing is lost, doubled, reordered or made up."""
    store = open_store(server.url("bucket", name), server.storage_options())
    clock = StillClock()
    arbiter = ConditionalPut(store, Verdict.ENFORCED, clock=clock, retry=RetryPolicy(attempts=4))

    def claimed() -> WalAppender:
        while True:
            try:
                return WalAppender.claim(TableCore(store, arbiter, clock=clock), SHARD)
            except STOPS:
                continue

    def log() -> list[str]:
        while True:
            try:
                return marks_in(claimed().replay())
            except STOPS:
                continue

    appender = claimed()
    acknowledged, sent = [], []
    for number in range(APPENDS):
        if chance.random() < 0.02:
            appender = claimed()
        mark = f"{number:04d}"
        sent.append(mark)
        try:
            appender.append(rows(mark))
        except STOPS:
            appender = claimed()
            continue
        acknowledged.append(mark)
    found = log()
    assert set(acknowledged) <= set(found), "lost"
    assert set(found) <= set(sent), "made up"
    assert found == sorted(set(found)), "doubled or reordered"
    assert len(acknowledged) > APPENDS * 0.8
