"""kill -9 before every storage call of a build: whoever comes next finishes it, exactly.

The rerun reuses every task that had finished, and the index then answers as one that stock
Lance built in one process.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import lance
import pytest

import holdfast
from crash.forks import FORKS, forking, run_to_its_end
from crash.worker import Run
from holdfast.arbiter import SupportsSetUp, connect_commit_store
from index.corpus import Hits, hits, make_table, queries, stock_copy
from index.kill_worker import PARAMETERS, TASKS, build, finalize
from index.test_races import built

PRELOADED = [
    "pytest",
    "_pytest.config",
    "lance.namespace",
    "lance.file",
    "holdfast.arbiter.stores.sqlite",
    "index.kill_worker",
]
AT_ONCE = 2
SHOWN = ("match", "phrase", "fuzzy", "boolean")
POINTS = 60


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with forking(PRELOADED):
        yield


def run_process(run: Run) -> int:
    return run_to_its_end(build, run)


def answers(table: lance.LanceDataset) -> dict[str, Hits]:
    return {name: hits(table, queries()[name]) for name in SHOWN}


def kill_and_resume(run: Run, expected: dict[str, Hits]) -> bool:
    """Return whether the killed process had acknowledged the index."""
    assert run_process(run) in {-signal.SIGKILL, 0}
    acknowledged = Path(run.acks).exists()
    table = holdfast.open_table(run.url)
    if acknowledged:
        assert len(table.indexes()) == 1
    was_there = bool(table.indexes())
    finished = sum(info.finished for info in table.index_builds())
    result = table.create_index("text", "fts", tasks=TASKS, **PARAMETERS)
    assert result.applied is not was_there
    if result.applied:
        assert result.reused == finished
    (info,) = table.indexes()
    assert (info.uncovered, info.partitions) == (0, TASKS)
    assert answers(table.dataset()) == expected
    assert table.index_builds() == []
    table.close()
    return acknowledged


def create(run: Run) -> Run:
    make_table(run.url, fragments=3, size=20, commit_store=run.commit_store).close()
    return run


@pytest.mark.requirement("F5", "F6", "F9", "F12")
@pytest.mark.parametrize("how", ["conditional put", "commit store"])
def test_kill_at_every_call_of_a_build(tmp_path: Path, how: str) -> None:
    url = None
    if how == "commit store":
        url = f"sqlite:///{tmp_path}/decisions.db"
        store = connect_commit_store(url)
        assert isinstance(store, SupportsSetUp)
        store.set_up()
        store.close()
    listing = tmp_path / "calls.json"
    base = create(
        Run(
            url=str(tmp_path / "counted"),
            mark="a",
            acks=str(tmp_path / "acks"),
            commit_store=url,
        )
    )
    expected = answers(stock_copy(holdfast.open_table(base.url), tmp_path, **PARAMETERS))
    assert run_process(replace(base, calls_to=str(listing))) == 0
    calls = json.loads(listing.read_text())
    print(f"{len(calls)} calls: {' '.join(calls)}")
    assert len(calls) >= POINTS
    assert {"stage", "copy", "delete", "put_if_absent"} <= set(calls)
    every = 1 if how == "conditional put" else 6  # the protocol is the same
    cases = [
        replace(
            base,
            url=str(tmp_path / f"t-{point}"),
            acks=str(tmp_path / f"ack-{point}"),
            die_at=point,
        )
        for point in range(1, len(calls) + 1, every)
    ]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        done = list(threads.map(lambda run: kill_and_resume(create(run), expected), cases))
    assert not all(done) and len(done) >= POINTS // every


@pytest.mark.requirement("F9")
def test_eight_rounds_of_three_finalizing_processes(tmp_path: Path) -> None:
    expected = None
    for number in range(8):
        uri, acks = tmp_path / f"t{number}", tmp_path / f"acks{number}"
        table = make_table(uri, fragments=3, size=20)
        _, record = built(table)
        ready = FORKS.Barrier(3)
        processes = [
            FORKS.Process(target=finalize, args=(str(uri), record.build_id, ready, str(acks)))
            for _ in range(3)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(240)
        assert [process.exitcode for process in processes] == [0, 0, 0]
        said = [json.loads(line) for line in acks.read_text().splitlines()]
        assert sum(one["applied"] for one in said) == 1
        if expected is None:
            expected = answers(stock_copy(table, tmp_path, **PARAMETERS))
        assert answers(table.dataset()) == expected
        assert (table.indexes()[0].partitions, table.index_builds()) == (3, [])
