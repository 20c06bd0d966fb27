"""kill -9 before and after every storage call of `Table.append`: recovered by whoever comes next.

After the kill another process appends, then the dead one is started again with the same
transaction: everything acknowledged is there, each row once, as stock pylance reads it.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from crash.append_worker import append, marks_in
from crash.forks import forking, run_to_its_end
from crash.worker import Run
from holdfast.arbiter import SupportsSetUp, connect_commit_store

PRELOADED = [
    "pytest",
    "_pytest.config",
    "lance.namespace",
    "holdfast.arbiter.stores.sqlite",
    "crash.append_worker",
]
SCHEMA = pa.schema([("mark", pa.string())])
AT_ONCE = 2

# Hundreds of processes one after the other: on a starved machine each takes seconds.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with forking(PRELOADED):
        yield


def run_process(run: Run) -> int:
    """Run one process to its end and return its exit code (negative: the signal)."""
    return run_to_its_end(append, run)


def acknowledged(run: Run) -> set[str]:
    acks = Path(run.acks).read_text().splitlines() if Path(run.acks).exists() else []
    return {json.loads(line)["mark"] for line in acks}


def check(run: Run) -> list[str]:
    found = marks_in(run.url)
    assert acknowledged(run) <= set(found), "acknowledged and lost"
    assert len(set(found)) == len(found), "doubled"
    return found


def kill_and_recover(run: Run) -> None:
    dying = run_process(run)
    assert dying in {-signal.SIGKILL, 0}
    check(run)
    alive = replace(run, die_at=None)
    assert run_process(replace(alive, mark="b")) == 0  # somebody else comes along
    assert "b" in check(run)
    assert run_process(alive) == 0  # the dead one is started again
    assert check(run) == ["a", "b", "first"]


def create(run: Run) -> Run:
    table = holdfast.create_table(run.url, SCHEMA, commit_store=run.commit_store)
    table.append(pa.table({"mark": ["first"]}), txn="first")
    table.close()
    return run


@pytest.mark.requirement("C1", "C8")
@pytest.mark.parametrize("how", ["conditional put", "inline", "staged"])
def test_kill_at_every_call_of_an_append(tmp_path: Path, how: str) -> None:
    url = None if how == "conditional put" else f"sqlite:///{tmp_path}/decisions.db"
    if url is not None:
        store = connect_commit_store(url)
        assert isinstance(store, SupportsSetUp)
        store.set_up()
        store.close()
    base = Run(
        url=str(tmp_path / "counted"),
        mark="a",
        acks=str(tmp_path / "acks"),
        commit_store=url,
        inline_bytes=0 if how == "staged" else 1 << 16,
    )
    listing = tmp_path / "calls.json"
    assert run_process(replace(create(base), calls_to=str(listing))) == 0
    calls = json.loads(listing.read_text())
    print(f"{len(calls)} calls: {' '.join(calls)}")
    assert {"write_fragments", "sync"} <= set(calls)
    cases = [
        replace(
            base,
            url=str(tmp_path / f"t-{number}-{after}"),
            acks=str(tmp_path / f"acks-{number}-{after}"),
            die_at=number,
            die_after=after,
        )
        for number, after in itertools.product(range(1, len(calls) + 1), (False, True))
    ]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(kill_and_recover, map(create, cases)))
