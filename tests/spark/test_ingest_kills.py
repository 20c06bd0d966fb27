"""A stream into the log whose drivers, executors, workers and upkeep are killed: events are there
once, and a reader of changes hears of each change once.

Readers look at the tables all the while. The seed is in the test's name, and tells what runs:

- even: on disk; odd: on an S3 server that ignores conditions, with a commit store
- 0, 1 of each 4: Spark in one process; 2, 3: a cluster, whose executors are killed
- 0, 3, 5, 6 of each 8: `ingest`; the others: the sink

HOLDFAST_EXPLORE=1 runs HOLDFAST_STREAM_SEEDS seeds (30) from HOLDFAST_SEED on, each with more
kills; those that HOLDFAST_STREAM_MINUTES leaves no time for are skipped.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest

import holdfast
from commits.table_worker import set_up
from holdfast.shard import Sharding
from s3_servers import S3Server
from spark.conftest import importable_by_workers
from spark.test_drivers import SECONDS, kill_group

if TYPE_CHECKING:
    Popen = subprocess.Popen[str]

pytestmark = [
    pytest.mark.requirement("C7", "C8", "S4"),
    pytest.mark.timeout(1800),
]

DRIVER = Path(__file__).with_name("ingest_driver.py")
LONG = "HOLDFAST_EXPLORE" in os.environ
FIRST = int(os.environ.get("HOLDFAST_SEED", "0"))
COUNT = int(os.environ.get("HOLDFAST_STREAM_SEEDS", "30"))
SEEDS = range(FIRST, FIRST + COUNT) if LONG else (3, 4)  # each store, Spark and form once
OVER = time.monotonic() + 60 * float(os.environ.get("HOLDFAST_STREAM_MINUTES", "600"))
FILES, ROWS = 14, 12
DRIVER_KILLS = 3 if LONG else 1
PART_KILLS = 4 if LONG else 2
COLUMNS = [("v", pa.string()), ("n", pa.int64())]
KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), *COLUMNS])
PLAIN = pa.schema([("id", pa.int64()), *COLUMNS])


class Events:
    """Files of changes, one for each batch, and what the tables must be once all are in."""

    def __init__(self, folder: Path, random: random.Random, files: int = FILES) -> None:
        self.files = files
        self.source = folder / "events"
        self.checkpoint = folder / "checkpoint"
        self.source.mkdir()
        self._rows: list[list[dict[str, Any]]] = []
        number = 0
        for file in range(files):
            rows = []
            for _ in range(ROWS):
                key, deletes = random.randrange(20), random.random() < 0.3
                rows.append({"id": key, "v": "x", "op": "D" if deletes else "U", "n": number})
                number += 1
            self._rows.append(rows)
            path = self._path(file)
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))  # Spark's order

    @property
    def keyed(self) -> dict[int, int]:
        """Return what a table with a key must have in the end."""
        newest = {row["id"]: row for rows in self._rows for row in rows}
        return {key: row["n"] for key, row in newest.items() if row["op"] == "U"}

    @property
    def plain(self) -> Counter[int]:
        """Return what a table without a key must have in the end."""
        return Counter(row["n"] for rows in self._rows for row in rows)

    def keep_begun(self) -> None:
        """Take back the files that no batch has begun with; nobody runs meanwhile."""
        begun = self._count("offsets")
        for file in range(begun, self.files):
            self._path(file).unlink()
        self.files = min(self.files, begun)
        del self._rows[self.files :]

    def _path(self, file: int) -> Path:
        return self.source / f"{file:06d}.json"

    def _count(self, what: str) -> int:
        """Return how many batches are in one of Spark's lists, of which it keeps the newest."""
        folder = self.checkpoint / "plain" / what
        numbers = [int(one.name) for one in folder.glob("*") if one.name.isdigit()]
        return max(numbers, default=-1) + 1

    def done(self) -> int:
        """Return how many batches Spark knows to be done."""
        return self._count("commits")


class Reader(threading.Thread):
    """Reads a table again and again: nothing is there twice, and nothing goes."""

    def __init__(self, uri: str, options: dict[str, str], pause: float = 0.2) -> None:
        super().__init__(name="fresh-reader")
        self._given = (uri, options)
        self._pause = pause
        self._over = threading.Event()
        self.reads = 0
        self.wrong: str | None = None

    def run(self) -> None:
        table = holdfast.open_table(*self._given)
        seen: Counter[int] = Counter()
        try:
            while not self._over.is_set() and self.wrong is None:
                found = Counter(table.scan(columns=["n"]).read_all()["n"].to_pylist())
                if any(count > 1 for count in found.values()):
                    self.wrong = f"twice: {found - Counter(set(found))}"
                elif seen - found:
                    self.wrong = f"gone: {seen - found}"
                seen, self.reads = found, self.reads + 1
                self._over.wait(self._pause)
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.wrong = repr(error)
        finally:
            table.close()

    def stop(self) -> None:
        self._over.set()
        self.join()


class ChangesReader(threading.Thread):
    """Follows a table by its changes, and applies each to what it has, by a column."""

    def __init__(
        self, uri: str, options: dict[str, str], key: str = "id", pause: float = 0.2
    ) -> None:
        super().__init__(name="changes-reader")
        self._given = (uri, options)
        self._key, self._pause = key, pause
        self._over = threading.Event()
        self.state: dict[int, int] = {}
        self.readings = 0
        self.wrong: str | None = None

    def run(self) -> None:
        table = holdfast.open_table(*self._given)
        cursor: Any = table.change_cursor()
        try:
            last = False
            while not last and self.wrong is None:
                last = self._over.is_set()  # one reading more, of all there is
                changes = table.changes(cursor)
                for row in changes.to_table().to_pylist():
                    self._apply(row["_change_type"], row[self._key], row["n"])
                cursor, self.readings = str(changes.cursor), self.readings + 1
                self._over.wait(self._pause)
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.wrong = repr(error)
        finally:
            table.close()

    def _apply(self, kind: str, key: int, n: int) -> None:
        if kind == "insert" and key in self.state:
            self.wrong = f"inserted twice: {key}"
        if kind in ("delete", "update_preimage") and self.state.pop(key, None) != n:
            self.wrong = f"{kind} of what is not there: {key}"
        if kind in ("insert", "update_postimage"):
            self.state[key] = n

    def stop(self) -> None:
        self._over.set()
        self.join()


def start(events: Events, ways: dict[str, Any], master: str) -> Popen:
    arguments = [master, str(events.source), str(events.checkpoint), json.dumps(ways)]
    return subprocess.Popen(
        [sys.executable, str(DRIVER), *arguments],
        env={**os.environ, "PYTHONPATH": importable_by_workers()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def await_batches(driver: Popen, events: Events, count: int) -> bool:
    """Wait until so many batches are done; False when the driver ended before."""
    deadline = time.monotonic() + SECONDS
    while events.done() < count:
        if driver.poll() is not None:
            return False
        assert time.monotonic() < deadline, "the stream does not get on"
        time.sleep(0.02)
    return True


def parts_of(driver: Popen) -> Iterator[int]:
    """Yield the processes that a driver has started: its JVM, executors and Python workers."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(folder.name)
            if pid != driver.pid and os.getsid(pid) == driver.pid:
                yield pid


def executors_of(driver: Popen) -> list[int]:
    """Return those of a driver's processes that are executors of a cluster."""
    found = []
    for pid in parts_of(driver):
        with suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return sorted(found)


def storm(events: Events, ways: dict[str, Any], dice: random.Random, master: str) -> int:
    """Run the stream to its end, killing drivers first and then any of their parts.

    Returns:
        How many executors were killed.
    """
    for _ in range(DRIVER_KILLS):
        drivers = [start(events, ways, master)]
        try:
            if LONG and dice.random() < 0.5:  # another driver on the same checkpoint
                drivers.append(start(events, ways, master))
            if await_batches(drivers[0], events, events.done() + dice.randrange(1, 4)):
                time.sleep(dice.uniform(0, 1.5))  # anywhere in the next batch
        finally:
            for driver in drivers:
                kill_group(driver)
    kills, executors = PART_KILLS, 0
    for _ in range(4 + PART_KILLS):
        driver = start(events, ways, master)
        killable = 1  # one executor of two: without any, Spark waits for another for minutes
        try:
            while kills and await_batches(driver, events, min(FILES, events.done() + 2)):
                kills -= 1
                time.sleep(dice.uniform(0, 0.5))
                wanted = executors_of(driver)[:killable] or others_of(driver) or [driver.pid]
                killed = dice.choice(wanted)
                if killable and killed in executors_of(driver):
                    killable, executors = 0, executors + 1
                with suppress(ProcessLookupError):
                    os.kill(killed, signal.SIGKILL)
            said, _ = driver.communicate(timeout=SECONDS)
            if driver.returncode == 0 and "done" in said:
                return executors
        finally:
            kill_group(driver)
    raise AssertionError(said[-3000:])


def others_of(driver: Popen) -> list[int]:
    """Return a driver's processes that are no executors: its JVM and Python workers."""
    return sorted(set(parts_of(driver)) - set(executors_of(driver)))


def rows(table: Any) -> tuple[dict[int, int], int]:
    found = table.to_pylist()
    return {row["id"]: row["n"] for row in found}, len(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_stream_is_exact(seed: int, tmp_path: Path, rclone_s3: S3Server) -> None:
    if LONG and time.monotonic() > OVER:
        pytest.skip("the time is up")
    dice = random.Random(seed)
    cluster, sink = seed % 4 > 1, bool((seed ^ seed >> 1 ^ seed >> 2) & 1)
    master = "local-cluster[2,1,512]" if cluster else "local[2,4]"
    events = Events(tmp_path, dice)
    root, options, commit_store = str(tmp_path), {}, None
    if seed % 2:  # a store that ignores conditions
        root, options = rclone_s3.url(f"ingest-{seed}"), rclone_s3.storage_options()
        commit_store = set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true")
    tables = {}
    for name, schema, key in (("keyed", KEYED, ["id"]), ("plain", PLAIN, [])):
        table = holdfast.create_table(
            f"{root}/{name}",
            schema,
            primary_key=key,
            commit_store=commit_store,
            storage_options=options,
        )
        table.prepare_writers(sharding=Sharding.bucket("id", 2))
        tables[name] = table
    ways: dict[str, Any] = {
        "keyed": tables["keyed"].uri,
        "plain": tables["plain"].uri,
        "options": options,
    }
    reader, changes = Reader(ways["plain"], options), ChangesReader(ways["keyed"], options)
    reader.start()
    changes.start()
    try:
        told = {**ways, "upkeep": "1 second", "app": None, "sink": sink}
        executors = storm(events, told, dice, master)
    finally:
        reader.stop()
        changes.stop()
    print(f"{reader.reads} reads, {changes.readings} of changes, {executors} executors killed")
    assert reader.wrong is None
    assert reader.reads > 1
    assert changes.wrong is None
    assert changes.state == events.keyed
    assert bool(executors) == cluster
    for freshness in ("latest", "base"):
        found, count = rows(tables["keyed"].scan(freshness=freshness).read_all())
        assert (found, count) == (events.keyed, len(events.keyed))
        numbers = tables["plain"].scan(freshness=freshness).read_all()["n"].to_pylist()
        assert Counter(numbers) == events.plain
        for table in tables.values():
            table.merge_log()
    stock = lance.dataset(ways["keyed"], storage_options=options or None).to_table()
    assert rows(stock) == (events.keyed, len(events.keyed))


def test_spark_connect_writes_the_log_by_its_app(tmp_path: Path) -> None:
    events = Events(tmp_path, random.Random(7))
    ways: dict[str, Any] = {"options": {}, "upkeep": "1 minute", "app": "connect", "sink": False}
    for name, schema, key in (("keyed", KEYED, ["id"]), ("plain", PLAIN, [])):
        table = holdfast.create_table(tmp_path / name, schema, primary_key=key)
        ways[name] = table.uri
    driver = start(events, ways, "local[2]")
    try:
        said, _ = driver.communicate(timeout=SECONDS)
    finally:
        kill_group(driver)
    assert driver.returncode == 0 and "done" in said, said[-3000:]
    found, count = rows(holdfast.open_table(ways["keyed"]).scan().read_all())
    assert (found, count) == (events.keyed, len(events.keyed))
    numbers = holdfast.open_table(ways["plain"]).scan().read_all()["n"].to_pylist()
    assert Counter(numbers) == events.plain
