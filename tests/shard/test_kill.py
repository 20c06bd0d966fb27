"""kill -9 before and after every storage call of a writer: what was acknowledged is there, once.

The next writer replays the log and flushes; then stock reads what must be there.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import lance
import pytest

import holdfast
from crash.forks import forking, run_to_its_end
from crash.worker import Run
from shard.kill_worker import states, write
from shard.levels import KEYED, newest, stock_rows
from shard.test_model import MEMORY

PRELOADED = ["pytest", "_pytest.config", "lance.namespace", "holdfast.table", "shard.kill_worker"]
AT_ONCE = 2


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with forking(PRELOADED):
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a place where fsync costs little: it is the process that dies, not the machine."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-kill-", dir=MEMORY))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def run_process(run: Run) -> int:
    return run_to_its_end(write, run)


def create(run: Run) -> Run:
    table = holdfast.create_table(run.url, KEYED)
    table.prepare_writers()
    table.close()
    return run


def kill_and_recover(run: Run) -> None:
    assert run_process(run) in {-signal.SIGKILL, 0}
    path = Path(run.acks)
    acknowledged = len(path.read_text().splitlines()) if path.exists() else 0
    allowed = states()[acknowledged : acknowledged + 2]
    table = holdfast.open_table(run.url)
    shard = shard_in(run)
    if run.die_after and shard is not None:  # stock comes along first
        with lance.dataset(run.url).mem_wal_writer(shard) as stock:
            assert newest(stock.lsm_scanner().to_table().to_pylist()) in allowed
    with table.claim_writer("unsharded") as writer:
        pass
    found = stock_rows(table, writer.shard_id)
    assert newest(found) in allowed, f"{run}: {found}, acknowledged {acknowledged}"
    assert len(newest(found)) == len(found), "doubled"


def shard_in(run: Run) -> str | None:
    """Return the shard, if the process got that far."""
    return next((one.name for one in (Path(run.url) / "_mem_wal").glob("*")), None)


@pytest.mark.requirement("L3", "W1", "W8")
@pytest.mark.parametrize("mode", ["memtable", "log"])
def test_kill_at_every_call_of_a_writer(folder: Path, mode: str) -> None:
    base = Run(url=str(folder / "counted"), mark=mode, acks=str(folder / "acks"))
    listing = folder / "calls.json"
    assert run_process(replace(create(base), calls_to=str(listing))) == 0
    calls = json.loads(listing.read_text())
    print(f"{len(calls)} calls: {' '.join(calls)}")
    assert {"put_if_absent"} <= set(calls)
    assert ({"write_dataset", "write_file", "sync"} <= set(calls)) == (mode == "memtable")
    cases = [
        replace(
            base,
            url=str(folder / f"t-{number}-{after}"),
            acks=str(folder / f"acks-{number}-{after}"),
            die_at=number,
            die_after=after,
        )
        for number, after in itertools.product(range(1, len(calls) + 1), (False, True))
    ]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(kill_and_recover, map(create, cases)))
