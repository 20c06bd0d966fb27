"""Processes that are stopped in the middle of a put, or inside SQLite's write lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import BusyError
from holdfast.formats import EMBEDDED_PATH
from lsm.tables import SCHEMA
from lsm.test_vacuum_log import grow_old

pytestmark = pytest.mark.requirement("P4", "L7")
SHARD = "11111111-2222-4333-8444-555555555555"

_PUT = """
import os, signal, sys
import holdfast
from holdfast.errors import HoldfastError

table = holdfast.open_table(sys.argv[1])
writer = table.claim_writer(sys.argv[2])
writer.put([{"k": 1, "v": "before"}])
kind = type(table.core.arbiter)
decide = kind.decide

def stopped(arbiter, name, body, token, **how):
    if name.series.startswith("log/"):
        kind.decide = decide
        if sys.argv[3] == "after":
            done = decide(arbiter, name, body, token, **how)
        os.kill(os.getpid(), signal.SIGSTOP)
        if sys.argv[3] == "after":
            return done
    return decide(arbiter, name, body, token, **how)

kind.decide = stopped
try:
    writer.put([{"k": 2, "v": "stopped"}])
except HoldfastError as error:
    print(type(error).__name__, flush=True)
else:
    print("acknowledged", flush=True)
try:
    writer.put([{"k": 3, "v": "later"}])
except HoldfastError as error:
    print(type(error).__name__, flush=True)
else:
    print("acknowledged", flush=True)
os._exit(0)
"""

_LOCK = """
import os, signal, sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def stopped_process(script: str, *arguments: str) -> Iterator[Any]:
    """Run a script until it stops itself."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            how = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert how is not None
            assert how.si_code == os.CLD_STOPPED, process.communicate()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commit_store", [None, "sqlite"], ids=["conditional-put", "commit-store"])
def test_a_writer_stopped_inside_a_put_wakes_up_fenced(
    tmp_path: Path, commit_store: str | None, moment: str
) -> None:
    """Meanwhile its shard was taken over, flushed, merged and collected."""
    table = holdfast.create_table(
        tmp_path / "t", SCHEMA, primary_key=["k"], commit_store=commit_store
    )
    with stopped_process(_PUT, table.uri, SHARD, moment) as process:
        with table.claim_writer(SHARD) as writer:
            writer.put([{"k": 4, "v": "new owner"}])
            writer.flush()
        table.compact_lsm()
        grow_old(table)
        table.vacuum(grace=timedelta(hours=1), confirm=True)
        process.send_signal(signal.SIGCONT)
        told, _ = process.communicate(timeout=240)
    first, second = told.split()
    assert second == "FencedError", told
    # What was decided before the stop is there, and may be acknowledged; else it is not.
    assert first == "FencedError" or (moment, first) == ("after", "acknowledged"), told
    found = {row["k"]: row["v"] for row in table.to_table().to_pylist()}
    there = {2: "stopped"} if moment == "after" else {}
    assert found == {1: "before", **there, 4: "new owner"}
    table.close()


def test_others_are_told_who_is_stopped_inside_the_lock(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", SCHEMA, primary_key=["k"], commit_store="sqlite")
    table.append([{"k": 1, "v": "base"}])
    writer = table.claim_writer(SHARD)
    calls: list[Callable[[], object]] = [
        lambda: table.append([{"k": 2, "v": "late"}], txn="late"),
        lambda: table.claim_writer("unsharded"),
    ]
    with stopped_process(_LOCK, str(tmp_path / "t" / EMBEDDED_PATH)) as process:
        for call in calls:
            with pytest.raises(BusyError, match="stopped") as caught:
                call()
            assert str(process.pid) in str(caught.value)
        assert table.to_table().num_rows == 1  # readers do not wait
    assert table.append([{"k": 2, "v": "late"}], txn="late").applied
    writer.put([{"k": 3, "v": "goes on"}])
    writer.close()
    assert sorted(table.to_table()["k"].to_pylist()) == [1, 2, 3]
    table.close()
