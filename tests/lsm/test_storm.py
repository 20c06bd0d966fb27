"""Real processes, killed at random: writers, mergers, vacuum and readers at one table.

The object store ignores conditions; a commit store decides. A storm lasts for so many seconds,
and longer on a slow machine: until enough was killed, merged and read. For longer storms and
more of them: HOLDFAST_STORM_SECONDS=60 HOLDFAST_STORM_SEEDS=50.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

import holdfast
from commits.table_worker import set_up
from holdfast.testing import FaultyS3Process
from lsm import worker
from lsm.tables import SCHEMA

pytestmark = [pytest.mark.requirement("W13"), pytest.mark.requirement("L12")]

SECONDS = float(os.environ.get("HOLDFAST_STORM_SECONDS", "6"))
SEEDS = int(os.environ.get("HOLDFAST_STORM_SEEDS", "2"))
WRITERS = 2
LEAST = {"killed": 4, "flushed": 2, "merged": 4, "vacuumed": 2, "read": 4}
LONGEST = SECONDS + 480.0  # then the machine, or the code, stands still
LONGEST_WAIT = 30.0
ROLES = [("write", 0), ("write", 1), ("merge", 0), ("vacuum", 0), ("read", 0)]


def acknowledged(notes: Path) -> int:
    every = (worker.notes_of(notes, writer) for writer in range(WRITERS))
    return sum(len(worker.read_notes(path)[1]) for path in every)


class Storm:
    """The processes, each replaced when it is dead."""

    def __init__(self, given: dict[str, Any], folder: Path) -> None:
        self._given = json.dumps(given)
        self._folder = folder
        self._running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._seen: dict[tuple[str, int], int] = {}  # what its predecessors said
        self.kills = 0

    def keep_up(self) -> None:
        for role, number in ROLES:
            process = self._running.get((role, number))
            if process is None or process.poll() is not None:
                self._running[role, number] = self._start(role, number)

    def wait(self, notes: Path) -> None:
        """Wait until all are at work, and something was acknowledged: a busy machine is slow."""
        end, before = time.monotonic() + LONGEST_WAIT, acknowledged(notes)
        while time.monotonic() < end:
            if all(map(self._at_work, ROLES)) and acknowledged(notes) > before:
                return
            self.keep_up()
            time.sleep(0.05)

    def _at_work(self, who: tuple[str, int]) -> bool:
        return b"started" in self._out(who).read_bytes()[self._seen[who] :]

    def _out(self, who: tuple[str, int]) -> Path:
        return self._folder / f"{who[0]}-{who[1]}.out"

    def _start(self, role: str, number: int) -> subprocess.Popen[bytes]:
        path = self._out((role, number))
        self._seen[role, number] = path.stat().st_size if path.exists() else 0
        with path.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, worker.__file__, role, str(number), self._given],
                stdout=out,
                stderr=out,
            )

    def kill(self, chosen: random.Random) -> None:
        process = self._running[chosen.choice(ROLES)]
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.kills += 1

    def done(self) -> dict[str, int]:
        """Return how often what happened."""
        words = Counter(line.split(" ")[0] for line in self.said().splitlines())
        return {what: self.kills if what == "killed" else words[what] for what in LEAST}

    def is_over(self, elapsed: float) -> bool:
        """Tell whether it lasted long enough and did enough; a standstill ends it, too."""
        done = self.done()
        enough = all(done[what] >= least for what, least in LEAST.items())
        return (elapsed >= SECONDS and enough) or elapsed >= LONGEST

    def end(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.out")))


@pytest.mark.timeout(LONGEST + 120)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_row_is_exact_whoever_is_killed(
    seed: int, tmp_path: Path, faulty_s3_process: Callable[..., FaultyS3Process]
) -> None:
    server = faulty_s3_process(conditions="ignoring")
    uri, options = server.url("lake", "t.lance"), dict(server.storage_options("lake"))
    commits = set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true")
    table = holdfast.create_table(
        uri, SCHEMA, primary_key=["k"], commit_store=commits, storage_options=options
    )
    table.dataset().initialize_mem_wal(maintained_indexes=[])
    notes = tmp_path / "notes"
    notes.mkdir()
    given = {
        "uri": uri,
        "options": options,
        "commit_store": commits,
        "notes": str(notes),
        "writers": WRITERS,
    }
    storm, chosen = Storm(given, tmp_path), random.Random(seed)
    try:
        begun = time.monotonic()
        while not storm.is_over(time.monotonic() - begun):
            storm.keep_up()
            storm.wait(notes)
            time.sleep(chosen.uniform(0.0, 1.0))
            storm.kill(chosen)
    finally:
        storm.end()
    said = storm.said()
    assert "VIOLATION" not in said, said[-5000:]
    for writer in range(WRITERS):
        path = worker.notes_of(notes, writer)
        if path.exists() and worker.read_notes(path)[1]:
            table.flush_log(worker.shard_of(writer), idle=timedelta(0))
    table.compact_lsm()
    found = lance.dataset(uri, storage_options=options).to_table().to_pylist()
    rows = {row["k"]: int(row["v"]) for row in found}
    assert len(rows) == len(found), "a key is there twice"
    for writer in range(WRITERS):
        for key, fine in worker.allowed(worker.notes_of(notes, writer)).items():
            assert rows.pop(key, None) in fine, (writer, key, fine)
    assert rows == {}
    print(acknowledged(notes), "acknowledged", storm.done())
    print("\n".join(sorted(set(re.findall("error: [^(]+", said)))))
    assert acknowledged(notes) > 0, said[-3000:]
    assert all(storm.done()[what] >= least for what, least in LEAST.items()), said[-3000:]
