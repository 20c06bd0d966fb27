"""A long stream into the log whose parts are killed again and again: exact, in few files.

HOLDFAST_EXPLORE=1 runs it: HOLDFAST_STREAM_BATCHES batches (2,000), with a kill every
HOLDFAST_STREAM_KILLS (50), from HOLDFAST_SEED. After half of HOLDFAST_STREAM_MINUTES each of the
two ends early: what is begun by then is finished, and looked at.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pytest

import holdfast
from holdfast.shard import Sharding
from spark.test_drivers import kill_group
from spark.test_ingest_kills import (
    KEYED,
    PLAIN,
    ChangesReader,
    Events,
    Reader,
    parts_of,
    start,
)

if TYPE_CHECKING:
    import subprocess

    Popen = subprocess.Popen[str]

pytestmark = [
    pytest.mark.requirement("C7", "C8", "S4"),
    pytest.mark.timeout(12 * 3600),
    pytest.mark.skipif("HOLDFAST_EXPLORE" not in os.environ, reason="HOLDFAST_EXPLORE=1 runs it"),
]

BATCHES = int(os.environ.get("HOLDFAST_STREAM_BATCHES", "2000"))
KILL_EVERY = int(os.environ.get("HOLDFAST_STREAM_KILLS", "50"))
MINUTES = float(os.environ.get("HOLDFAST_STREAM_MINUTES", "600"))
SEED = int(os.environ.get("HOLDFAST_SEED", "0"))
FILES_PER_VERSION = 3
"""What one version per batch makes of each: a data file, a manifest and a transaction."""
SILENT_SECONDS = 600
"""A stream that is longer without a new batch does not get on."""


class Killed:
    """A stream that runs to its end, or to the end of its time, through kills."""

    def __init__(self, events: Events, ways: dict[str, Any], dice: random.Random) -> None:
        self._events = events
        self._ways = ways
        self._dice = dice
        self._over = time.monotonic() + 60 * MINUTES / 2
        self.kills = 0

    def run(self) -> None:
        while not self._runs_to_its_end():
            if time.monotonic() > self._over:
                self._events.keep_begun()
                self._over = float("inf")

    def _runs_to_its_end(self) -> bool:
        driver = start(self._events, self._ways, "local[2,4]")
        said: deque[str] = deque(maxlen=100)
        hears = threading.Thread(target=lambda: said.extend(driver.stdout or ()), daemon=True)
        hears.start()  # a full pipe would hold the driver up
        try:
            while self._await_batches(driver):
                self.kills += 1
                time.sleep(self._dice.uniform(0, 0.5))  # anywhere in the next batch
                # All of it; or one part, after which it goes on, or ends.
                if self._dice.random() < 0.5 or time.monotonic() > self._over:
                    return False
                with suppress(ProcessLookupError, IndexError):
                    os.kill(self._dice.choice(sorted(parts_of(driver))), signal.SIGKILL)
            return driver.poll() == 0
        finally:
            kill_group(driver)

    def _await_batches(self, driver: Popen) -> bool:
        """Wait for as many batches as come between kills; False when the driver ended before."""
        wanted = self._events.done() + KILL_EVERY
        newest, since = 0, time.monotonic()
        while (done := self._events.done()) < min(wanted, self._events.files):
            if driver.poll() is not None:
                return False
            if time.monotonic() > self._over:
                return True
            if done > newest:
                newest, since = done, time.monotonic()
            assert time.monotonic() - since < SILENT_SECONDS, "the stream does not get on"
            time.sleep(0.1)
        if done < self._events.files:
            return True
        driver.wait(SILENT_SECONDS)
        return False


def count_files(table: holdfast.Table) -> int:
    return sum(one.is_file() for one in Path(table.uri).rglob("*"))


def make_older(table: holdfast.Table) -> None:
    """Let every file look a month old, so that vacuum waits for none of them."""
    month = time.time() - 30 * 86_400
    for one in Path(table.uri).rglob("*"):
        os.utime(one, (month, month))


@pytest.mark.parametrize("name", ["plain", "keyed"])
def test_a_long_stream_is_exact_in_few_files_and_versions(name: str, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    events = Events(tmp_path, dice, BATCHES)
    schema, key = (KEYED, ["id"]) if name == "keyed" else (PLAIN, [])
    table = holdfast.create_table(tmp_path / name, schema, primary_key=key)
    table.prepare_writers(sharding=Sharding.bucket("id", 2))
    ways: dict[str, Any] = {
        name: table.uri,
        "options": {},
        "upkeep": "1 minute",
        "app": None,
        "sink": False,
    }
    # Of a table with a key only the changes tell each row; what is replaced is not there twice.
    changes = ChangesReader(table.uri, {}, key="id" if key else "n", pause=2)
    readers: list[Reader | ChangesReader] = [changes]
    if not key:
        readers.append(Reader(table.uri, {}, pause=2))
    for one in readers:
        one.start()
    begun = time.monotonic()
    stream = Killed(events, ways, dice)
    try:
        stream.run()
    finally:
        for one in readers:
            one.stop()
    seconds = time.monotonic() - begun
    left, versions = count_files(table), int(table.dataset().version)
    table.merge_log()
    make_older(table)
    table.vacuum(confirm=True)
    files = count_files(table)
    print(
        f"{name}: {events.files} batches, {stream.kills} kills, {seconds:.0f} s, seed {SEED}: "
        f"{left} files, {files} once vacuum has run, {versions} versions; {changes.readings} "
        "readings of changes"
    )
    assert [one.wrong for one in readers] == [None] * len(readers)
    found = table.scan().read_all()
    stock = lance.dataset(table.uri).to_table()
    if key:
        assert changes.state == events.keyed
        for rows in (found, stock):
            pairs = ((row["id"], row["n"]) for row in rows.to_pylist())
            assert Counter(pairs) == Counter(events.keyed.items())
    else:
        assert Counter(changes.state.keys()) == events.plain
        for rows in (found, stock):
            assert Counter(rows["n"].to_pylist()) == events.plain
    assert stream.kills >= (events.files - 1) // KILL_EVERY // 2
    if events.files < 1_000:  # what a table has anyway, and each run, weighs more than batches
        return
    assert versions <= events.files / 20
    assert files <= FILES_PER_VERSION * events.files / 10
