"""SQLite -> PostgreSQL, killed at its writes, while other processes append and put.

Whatever the dead mover had reached, the same command finishes the move; the writers never stop,
and every row that one of them was acknowledged is there once.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
import servers
from crash.forks import FORKS, forking, run_to_its_end
from crash.move_worker import Writing, append_until_stopped, move, put_until_stopped
from crash.worker import Run
from holdfast.arbiter import SupportsSetUp, connect_commit_store, read_pin
from holdfast.storage import open_store

PRELOADED = ["lance.namespace", "psycopg", "crash.move_worker"]
PRELOADED += ["sqlalchemy.dialects.postgresql.psycopg", "holdfast.arbiter.stores.postgres"]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
EVERYWHERE = bool(os.environ.get("HOLDFAST_EXPLORE"))
SECONDS = 200.0

# Hundreds of processes one after the other: on a starved machine each takes seconds.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with forking(PRELOADED):
        yield


def create(run: Run) -> Run:
    table = holdfast.create_table(run.url, SCHEMA, primary_key=["id"], commit_store="sqlite")
    table.append([{"id": 0, "text": "first"}], txn="first")
    table.close()
    return run


def acknowledged(file: str) -> list[int]:
    if not Path(file).exists():
        return []
    return [json.loads(line)["mark"] for line in Path(file).read_text().splitlines()]


def await_acknowledgements(writers: list[Writing], more: int) -> None:
    """Wait until each writer was acknowledged so many rows more than now."""
    wanted = {writer: len(acknowledged(writer.acks)) + more for writer in writers}
    deadline = time.monotonic() + SECONDS
    while any(len(acknowledged(writer.acks)) < wanted[writer] for writer in writers):
        assert time.monotonic() < deadline, "a writer does not get on"
        time.sleep(0.02)


@contextmanager
def writing(run: Run) -> Iterator[list[Writing]]:
    """Let an appender and a putter write until the block ends."""
    stop = f"{run.acks}-stop"
    assert run.commit_store is not None
    writers = [
        Writing(
            url=run.url,
            mark=place * 1_000_000,
            acks=f"{run.acks}-{place}",
            stop=stop,
            commit_store=run.commit_store,
        )
        for place in (1, 2)
    ]
    programs = (append_until_stopped, put_until_stopped)
    processes = [
        FORKS.Process(target=program, args=(writer,))
        for program, writer in zip(programs, writers, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        yield writers
    finally:
        Path(stop).touch()
        for process in processes:
            process.join(SECONDS)
            process.kill()


def kill_and_finish(run: Run) -> None:
    with writing(create(run)) as writers:
        await_acknowledgements(writers, 2)
        assert run_to_its_end(move, run) in {-signal.SIGKILL, 0}
        assert run_to_its_end(move, replace(run, die_at=None)) == 0
        await_acknowledgements(writers, 3)
    pin = read_pin(open_store(run.url))
    assert pin is not None and str(pin.store_url).startswith("postgresql:")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_COMMIT_STORE_URL", str(run.commit_store))
        table = holdfast.open_table(run.url)
        found = table.scan().read_all()["id"].to_pylist()
        table.close()
    promised = [mark for writer in writers for mark in acknowledged(writer.acks)]
    assert set(promised) <= set(found), "acknowledged and lost"
    assert len(found) == len(set(found)), "doubled"


@pytest.mark.requirement("O2", "P1")
def test_a_mover_is_killed_while_others_append_and_put(
    postgres: servers.Server, tmp_path: Path
) -> None:
    store = connect_commit_store(postgres.url)
    assert isinstance(store, SupportsSetUp)
    store.set_up()
    store.close()
    base = Run(
        url=str(tmp_path / "counted"),
        mark="m",
        acks=str(tmp_path / "acks"),
        commit_store=postgres.url,
        calls_to=str(tmp_path / "calls.json"),
    )
    assert run_to_its_end(move, create(base)) == 0
    calls = json.loads((tmp_path / "calls.json").read_text())
    print(f"{len(calls)} writes: {' '.join(calls)}")
    points = list(itertools.product(range(1, len(calls) + 1), (False, True)))
    if not EVERYWHERE:  # around the two steps that matter most, and the last
        closed = calls.index("retire") + 1
        points = [(closed, True), (calls.index("put") + 1, True)]
    for number, after in points:
        kill_and_finish(
            replace(
                base,
                url=str(tmp_path / f"t-{number}-{after}"),
                acks=str(tmp_path / f"acks-{number}-{after}"),
                die_at=number,
                die_after=after,
                calls_to=None,
            )
        )
