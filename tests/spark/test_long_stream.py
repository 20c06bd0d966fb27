"""A long stream into the log whose driver is killed again and again: exact, in few files.

HOLDFAST_EXPLORE=1 runs it: HOLDFAST_STREAM_BATCHES batches (2,000), with a kill every
HOLDFAST_STREAM_KILLS (50), from HOLDFAST_SEED.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.shard import Sharding
from spark.test_drivers import SECONDS, kill_group
from spark.test_ingest_kills import (
    KEYED,
    PLAIN,
    ChangesReader,
    Events,
    Reader,
    await_batches,
    parts_of,
    start,
)

pytestmark = [
    pytest.mark.requirement("C7", "C8", "S4"),
    pytest.mark.timeout(12 * 3600),
    pytest.mark.skipif("HOLDFAST_EXPLORE" not in os.environ, reason="HOLDFAST_EXPLORE=1 runs it"),
]

BATCHES = int(os.environ.get("HOLDFAST_STREAM_BATCHES", "2000"))
KILL_EVERY = int(os.environ.get("HOLDFAST_STREAM_KILLS", "50"))
SEED = int(os.environ.get("HOLDFAST_SEED", "0"))
FILES_PER_VERSION = 3
"""What one version per batch makes of each: a data file, a manifest and a transaction."""


def run_killed(events: Events, ways: dict[str, Any], dice: random.Random) -> int:
    """Run the stream to its end; return how many kills it took."""
    kills = 0
    while True:
        driver = start(events, ways, "local[2,4]")
        try:
            going = await_batches(driver, events, min(BATCHES, events.done() + KILL_EVERY))
            if going and events.done() < BATCHES:
                time.sleep(dice.uniform(0, 1))  # anywhere in the next batch
                kills += 1
                with suppress(ProcessLookupError):  # half of the time only a part of it
                    parts = sorted(parts_of(driver)) if dice.random() < 0.5 else []
                    os.kill(dice.choice(parts or [driver.pid]), signal.SIGKILL)
                continue
            said, _ = driver.communicate(timeout=SECONDS)
            if driver.returncode == 0 and "done" in said:
                return kills
        finally:
            kill_group(driver)


def count_files(table: holdfast.Table) -> int:
    return sum(one.is_file() for one in Path(table.uri).rglob("*"))


def make_older(table: holdfast.Table) -> None:
    """Let every file look a month old, so that vacuum waits for none of them."""
    month = time.time() - 30 * 86_400
    for one in Path(table.uri).rglob("*"):
        os.utime(one, (month, month))


def test_a_long_stream_is_exact_in_few_files_and_versions(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    events = Events(tmp_path, dice, BATCHES)
    tables = {}
    for name, schema, key in (("keyed", KEYED, ["id"]), ("plain", PLAIN, [])):
        table = holdfast.create_table(tmp_path / name, schema, primary_key=key)
        table.prepare_writers(sharding=Sharding.bucket("id", 2))
        tables[name] = table
    uris = {name: table.uri for name, table in tables.items()}
    ways: dict[str, Any] = {
        **uris,
        "options": {},
        "upkeep": "10 seconds",
        "app": None,
        "sink": False,
    }
    reader, changes = Reader(uris["plain"], {}), ChangesReader(uris["keyed"], {})
    reader.start()
    changes.start()
    begun = time.monotonic()
    try:
        kills = run_killed(events, ways, dice)
    finally:
        reader.stop()
        changes.stop()
    plain = tables["plain"]
    left = count_files(plain)
    versions = int(plain.dataset().version)
    plain.merge_log()
    make_older(plain)
    plain.vacuum(confirm=True)
    print(
        f"{BATCHES} batches, {kills} kills, {time.monotonic() - begun:.0f} s, seed {SEED}: "
        f"{left} files, {count_files(plain)} once vacuum has run, {versions} versions"
    )
    assert (reader.wrong, changes.wrong) == (None, None)
    assert changes.state == events.keyed
    assert Counter(plain.scan().read_all()["n"].to_pylist()) == events.plain
    found = tables["keyed"].scan().read_all().to_pylist()
    assert Counter((row["id"], row["n"]) for row in found) == Counter(events.keyed.items())
    assert kills >= (BATCHES - 1) // KILL_EVERY // 2
    assert versions <= BATCHES / 20
    assert count_files(plain) <= FILES_PER_VERSION * BATCHES / 10
