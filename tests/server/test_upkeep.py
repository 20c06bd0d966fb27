"""Upkeep by servers: every table of the root, one server at a time, nothing deleted unasked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast._clock import SystemClock
from holdfast.formats import UPKEEP_LEASE_PATH
from holdfast.storage import LocalStore
from holdfast.upkeep import read_lease, take_lease
from server.serving import rows_of, serving, wait_until


class FakeClock(SystemClock):
    """A wall clock that a test sets."""

    at = 1000.0

    def now(self) -> float:
        return self.at


def test_a_lease_is_anothers_until_it_ran_out(tmp_path: Path) -> None:
    from datetime import timedelta

    store, clock, minute = LocalStore(tmp_path), FakeClock(), timedelta(minutes=1)
    assert read_lease(store) is None
    assert take_lease(store, "a", minute, clock)
    assert not take_lease(store, "b", minute, clock)
    clock.at += 59
    assert take_lease(store, "a", minute, clock)  # renewed
    clock.at += 59
    assert not take_lease(store, "b", minute, clock)
    clock.at += 2
    assert take_lease(store, "b", minute, clock)
    assert not take_lease(store, "a", minute, clock)
    (tmp_path / UPKEEP_LEASE_PATH).write_bytes(b"torn")
    assert take_lease(store, "a", minute, clock)


def fill(root: Path) -> None:
    for name in ("one", "deep/two"):
        table = holdfast.create_table(root / f"{name}.lance", rows_of([]).schema)
        for number in range(10):
            table.append(rows_of([number]))
        table.close()


def fragments(root: Path, name: str) -> int:
    return holdfast.open_table(root / f"{name}.lance").status().fragments


@pytest.mark.requirement("N1")
def test_one_server_of_two_looks_after_every_table(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root)
    stray = root / "one.lance" / "data" / "nobody-knows-it.lance"
    stray.write_bytes(b"left behind")
    old = 10 * 86_400
    os.utime(stray, (stray.stat().st_mtime - old, stray.stat().st_mtime - old))
    with (
        serving(root, "--upkeep", "1s", log=tmp_path / "log1") as first,
        serving(root, "--upkeep", "1s", log=tmp_path / "log2") as second,
    ):
        wait_until(lambda: fragments(root, "one") == fragments(root, "deep/two") == 1)
        holders = [
            server
            for server in (first, second)
            if any(one["message"] == "upkeep" for one in server.records())
        ]
        assert len(holders) == 1
        (holder,) = holders
        client = holder.client()
        metrics = client.get("/metrics").body.decode()
        assert 'holdfast_upkeep_steps_total{kind="compact",state="done"} 2.0' in metrics
        client.close()
        wait_until(lambda: any(one.get("step") == "vacuum" for one in holder.records()))
        assert stray.exists()  # nobody confirmed it


def test_maintain_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    fill(tmp_path)
    # A program that was started in the background hands on that Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "holdfast", "maintain", str(tmp_path / "one.lance")),
            *("--every", "1s", "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    assert running.stdout is not None
    first, second = (json.loads(running.stdout.readline()) for _ in range(2))
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    running.stdout.close()
    assert [step["kind"] for step in first["steps"]] == ["compact"]
    assert second["steps"] == []
