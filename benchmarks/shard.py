"""What ingest costs: durable puts, sustained writing, flush, replay, reads and memory.

    ./run bench shard [--seconds N] [--megabytes N] [--place local,s3] [--only PARTS] [--json FILE]

Peers: pylance's own shard writer with its defaults and at its best setting (a tick of 1 ms),
and SlateDB where it is installed. Systems of a row take turns, so that whatever else the
machine does hits all. Our acknowledgements are fsynced on local disk; pylance's and SlateDB's
are not: they are in the page cache. docs/reference/performance.md explains.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import holdfast
from _measuring import write_json
from holdfast.formats._entry import draft_entry
from holdfast.options import StorageOptions
from holdfast.shard import ShardWriter, ShardWriterConfig
from holdfast.storage import open_store
from holdfast.testing import FaultyS3Process

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("text", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("vec", pa.list_(pa.float32(), 8)),
    ]
)
THREADS = 16
THREADS_AIM = 600
BIG = 100_000
TURNS = 5
ENTRY_BYTES = 10 << 20
S3_LATENCY = 0.02
PARTS = ("put", "threads", "sustained", "flush", "replay", "reads", "memory")
Put = Callable[[pa.RecordBatch], object]


@dataclass
class Place:
    """Where the tables of a run are."""

    name: str
    root: str
    options: dict[str, str] = field(default_factory=dict)

    def table(self, name: str) -> holdfast.Table:
        uri = f"{self.root}/{name}-{uuid.uuid4().hex[:8]}.lance"
        made = holdfast.create_table(uri, SCHEMA, storage_options=self.options)
        made.prepare_writers(maintained_indexes=[])
        return made

    def dataset(self, table: holdfast.Table) -> lance.LanceDataset:
        return lance.dataset(table.uri, storage_options=self.options or None)


@dataclass
class Results:
    """Everything that was measured, for people and for programs."""

    rows: list[dict[str, object]] = field(default_factory=list)

    def add(self, what: str, system: str, value: float, unit: str, base: float | None) -> None:
        ratio = None if not base else value / base
        self.rows.append(
            {"what": what, "system": system, "value": value, "unit": unit, "ratio": ratio}
        )
        shown = "" if ratio is None else f"{ratio:8.2f}x"
        print(f"{what:<44} {system:<22} {value:>10.2f} {unit:<5} {shown}")


@functools.cache
def schema_of(numbers: int) -> pa.Schema:
    """Return the columns of rows whose vectors have so many numbers."""
    return SCHEMA.set(3, pa.field("vec", pa.list_(pa.float32(), numbers)))


def make_rows(count: int, first: int = 0, *, numbers: int = 8) -> pa.RecordBatch:
    ids = np.arange(first, first + count)
    vectors = pa.array(np.ones(count * numbers, np.float32))
    return pa.record_batch(
        [
            pa.array(ids),
            pa.array([f"note number {n} about something" for n in ids]),
            pa.array(ids * 0.5),
            pa.FixedSizeListArray.from_arrays(vectors, numbers),
        ],
        schema=schema_of(numbers),
    )


@contextlib.contextmanager
def ours(place: Place, **settings: Any) -> Iterator[ShardWriter]:  # noqa: ANN401
    table = place.table("ours")
    with table.claim_writer("unsharded", config=ShardWriterConfig(**settings)) as writer:
        yield writer


@contextlib.contextmanager
def stock(place: Place, **settings: Any) -> Iterator[Any]:  # noqa: ANN401
    table = place.table("stock")
    with place.dataset(table).mem_wal_writer(str(uuid.uuid4()), **settings) as writer:
        yield writer


def systems(
    place: Place, stack: contextlib.ExitStack, folder: Path
) -> dict[str, Callable[[], Put | None]]:
    """Return for every system what opens it and returns its durable put."""
    found: dict[str, Callable[[], Put | None]] = {
        "bare durable put": lambda: bare_put(place, folder),
        "holdfast": lambda: stack.enter_context(ours(place)).put,
        "holdfast, log only": lambda: stack.enter_context(ours(place, enable_memtable=False)).put,
        "pylance": lambda: stack.enter_context(stock(place)).put,
        "pylance, 1 ms": lambda: stack.enter_context(stock(place, max_wal_flush_interval_ms=1)).put,
    }
    if place.name == "local":
        found["slatedb"] = lambda: slatedb_put(folder, stack)
    return found


def slatedb_put(folder: Path, stack: contextlib.ExitStack) -> Put | None:
    """Return a put of the same bytes as one value, flushed; None where it is not installed."""
    if importlib.util.find_spec("slatedb") is None:
        return None
    slatedb: Any = importlib.import_module("slatedb.uniffi")
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)

    async def open_database() -> Any:  # noqa: ANN401
        place = str(folder / "slate").lstrip("/")
        return await slatedb.DbBuilder(place, slatedb.ObjectStore.resolve("file:///")).build()

    async def put(rows: pa.RecordBatch) -> None:
        await database.put(uuid.uuid4().bytes, rows.serialize().to_pybytes())
        await database.flush()

    database = loop.run_until_complete(open_database())
    stack.callback(lambda: loop.run_until_complete(database.shutdown()))
    return lambda rows: loop.run_until_complete(put(rows))


def bare_put(place: Place, folder: Path) -> Put:
    """Return a put of the same bytes as an entry has, under a new name, durable."""
    root = str(folder / "bare") if place.name == "local" else f"{place.root}/bare"
    store = open_store(root, StorageOptions(place.options))
    shard = str(uuid.uuid4())

    def put(rows: pa.RecordBatch) -> None:
        draft = draft_entry([rows], shard_id=shard, epoch=1, writer="0" * 32)
        body = draft.stamp(position=1, sequence=1, token="hf-" + "0" * 32)
        store.put_if_absent(f"objects/{uuid.uuid4().hex}", body)

    return put


def bench_put(place: Place, folder: Path, seconds: float, results: Results) -> None:
    """One thread, 100 rows: the median time until they are durable."""
    with contextlib.ExitStack() as stack:
        opened = {name: make() for name, make in systems(place, stack, folder).items()}
        puts = {name: put for name, put in opened.items() if put is not None}
        times: dict[str, list[float]] = {name: [] for name in puts}
        until = time.perf_counter() + seconds * len(puts)
        number = 0
        while time.perf_counter() < until or min(map(len, times.values())) < 5:
            for name, put in puts.items():
                rows = make_rows(100, number)
                begun = time.perf_counter()
                put(rows)
                times[name].append(time.perf_counter() - begun)
                number += 100
        base = statistics.median(times["bare durable put"]) * 1000
        for name, taken in times.items():
            value = statistics.median(taken) * 1000
            results.add(f"{place.name}: durable put, 100 rows, p50", name, value, "ms", base)


def bench_threads(place: Place, folder: Path, seconds: float, results: Results) -> None:
    """Sixteen threads, 100 rows each: puts a second. The base is pylance at 1 ms.

    Only one system is open at a time; each has its turn twice. The bare durable put has no
    queue: every thread makes its own file.
    """
    names = ("pylance, 1 ms", "pylance", "holdfast", "holdfast, log only", "bare durable put")
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(2):
        for name in names:
            with contextlib.ExitStack() as stack:
                put = systems(place, stack, folder / f"{name} {turn}")[name]()
                assert put is not None
                found[name].append(threaded(put, seconds / 2))
    base = statistics.mean(found["pylance, 1 ms"])
    for name, values in found.items():
        what = f"{place.name}: durable puts, {THREADS} threads"
        results.add(what, name, statistics.mean(values), "/s", base)
    bare = statistics.mean(found["bare durable put"])
    aim = f", aim {THREADS_AIM}/s" if place.name != "local" else ""
    rates = (statistics.mean(found[name]) for name in ("holdfast", "holdfast, log only"))
    shown = " and ".join(f"{rate:.0f}/s, {rate / bare:.2f}x" for rate in rates)
    print(f"  {THREADS} parallel bare puts {bare:.0f}/s; a writer, and its log alone: {shown}{aim}")


def threaded(put: Put, seconds: float) -> float:
    until = time.perf_counter() + seconds

    def work(worker: int) -> int:
        done = 0
        while time.perf_counter() < until:
            put(make_rows(100, worker * 10_000_000 + done * 100))
            done += 1
        return done

    begun = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        count = sum(pool.map(work, range(THREADS)))
    return count / (time.perf_counter() - begun)


def bench_sustained(place: Place, folder: Path, megabytes: int, results: Results) -> None:
    """Write so many MB and close: pylance without waiting, ours with futures; in turns.

    The bare durable puts are the least that any log with fsync does: the same rows, encoded in
    entries of 10 MiB, each a durable put, and no queue, MemTable or flush.
    """
    for size in (5_000, 100):
        amount = megabytes if size == 5_000 else max(1, megabytes // 4)
        count = max(2, amount * 2**20 // make_rows(size).nbytes)
        batches = [make_rows(size, n * size) for n in range(count)]
        total = sum(int(batch.nbytes) for batch in batches) / 2**20
        runs: dict[str, Callable[[list[pa.RecordBatch]], None]] = {
            "pylance": lambda rows: put_stock(place, rows),
            "holdfast": lambda rows: put_ours(place, rows),
            "holdfast, log only": lambda rows: put_ours(place, rows, enable_memtable=False),
            "bare durable put": lambda rows: put_bare(place, folder, rows),
        }
        for run in runs.values():
            run(batches[:2])  # what is loaded at the first use is not counted
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(3):
            for name, run in runs.items():
                begun, cpu = time.perf_counter(), time.process_time()
                run(batches)
                taken[name].append((time.perf_counter() - begun, time.process_time() - cpu))
        base = None
        for name, times in taken.items():
            value = total / statistics.median(wall for wall, _ in times)
            base = base or value
            results.add(f"{place.name}: sustained, {size} rows a put", name, value, "MB/s", base)
            cpu = statistics.median(cpu for _, cpu in times) / total * 1024
            results.add(f"{place.name}: CPU, {size} rows a put", name, cpu, "s/GB", None)


def put_stock(place: Place, batches: list[pa.RecordBatch]) -> None:
    with stock(place, durable_write=False, max_wal_flush_interval_ms=1) as writer:
        for batch in batches:
            writer.put(batch)


def put_ours(place: Place, batches: list[pa.RecordBatch], **settings: Any) -> None:  # noqa: ANN401
    with ours(place, **settings) as writer:
        for future in [writer.put_nowait(batch) for batch in batches]:
            future.result()


def put_bare(place: Place, folder: Path, batches: list[pa.RecordBatch]) -> None:
    put = bare_put(place, folder)
    together = max(1, ENTRY_BYTES // int(batches[0].nbytes))
    for start in range(0, len(batches), together):
        put(pa.concat_batches(batches[start : start + together]))


def bench_flush(place: Place, results: Results) -> None:
    """Flush 95,000 rows, in turns. Ours are fsynced, pylance's are not."""
    whole = [make_rows(5_000, n * 5_000) for n in range(BIG // 5_000 - 1)]
    theirs, mine = Times(), Times()
    table = place.table("flush")
    for turn in range(TURNS):
        other = place.dataset(table).mem_wal_writer(str(uuid.uuid4()), max_wal_flush_interval_ms=1)
        for batch in whole:
            other.put(batch)
        with theirs.timed():
            other.close()
        writer = table.claim_writer(f"bucket-{turn}")
        for batch in whole:
            writer.put(batch)
        with mine.timed():
            writer.flush()
        writer.close()
    report_times(f"{place.name}: flush of 95,000 rows", theirs, mine, results)


def bench_replay(place: Place, results: Results) -> None:
    """Open a shard whose log has 95,000 rows, in turns."""
    whole = [make_rows(5_000, n * 5_000) for n in range(BIG // 5_000 - 1)]
    theirs, mine = Times(), Times()
    table = place.table("replay")
    for _ in range(TURNS):
        shard = str(uuid.uuid4())
        filling = table.claim_writer(shard)
        for batch in whole:
            filling.put(batch)
        filling.abort()
        with theirs.timed():
            again = place.dataset(table).mem_wal_writer(shard)
        del again
        with mine.timed():
            opened = table.claim_writer(shard)
        assert opened.stats().replayed_rows == len(whole) * 5_000
        opened.abort()
    report_times(f"{place.name}: reopen, replay 95,000 rows", theirs, mine, results)


@dataclass
class Times:
    """How long something took, and how much of it the processor worked, in milliseconds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        begun, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.append((time.perf_counter() - begun) * 1000)
        self.cpu.append((time.process_time() - cpu) * 1000)


def report_times(what: str, theirs: Times, mine: Times, results: Results) -> None:
    for suffix, name in (("", "wall"), (", CPU", "cpu")):
        base = statistics.median(getattr(theirs, name))
        results.add(f"{what}{suffix}", "pylance", base, "ms", base)
        value = statistics.median(getattr(mine, name))
        results.add(f"{what}{suffix}", "holdfast", value, "ms", base)


def bench_reads(place: Place, seconds: float, results: Results) -> None:
    """Read 95,000 rows that are in memory."""
    with stock(place, max_wal_flush_interval_ms=1) as theirs, ours(place) as mine:
        for n in range(BIG // 5_000 - 1):
            batch = make_rows(5_000, n * 5_000)
            theirs.put(batch)
            mine.put(batch)
        some = [n * 90 for n in range(1_000)]
        listed = ", ".join(map(str, some))
        cases: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "lookup of 1 key": (
                lambda: theirs.lsm_scanner().filter("id = 777").to_table(),
                lambda: mine.lookup([777]),
            ),
            "lookup of 1,000 keys": (
                lambda: theirs.lsm_scanner().filter(f"id in ({listed})").to_table(),
                lambda: mine.lookup(some),
            ),
            "filtered scan": (
                lambda: theirs.lsm_scanner().filter("score > 40000 and text like '%7%'").to_table(),
                lambda: mine.to_table(filter="score > 40000 and text like '%7%'"),
            ),
        }
        for name, (stocks, own) in cases.items():
            assert stocks().num_rows == own().num_rows
            base = median_ms(stocks, seconds)
            results.add(f"{place.name}: {name} of 95,000", "pylance", base, "ms", base)
            results.add(
                f"{place.name}: {name} of 95,000", "holdfast", median_ms(own, seconds), "ms", base
            )


def median_ms(call: Callable[[], object], seconds: float) -> float:
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(taken) < 3:
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1000


def memory_of_a_writer(rows: int, numbers: int, root: str) -> None:
    """Print resident bytes per buffered byte; run in a process of its own.

    Args:
        rows: how many rows to buffer.
        numbers: how many numbers the vector of a row has.
        root: where the table is.
    """
    table = holdfast.create_table(f"{root}/memory-{numbers}.lance", schema_of(numbers))
    with table.claim_writer("unsharded") as writer:
        for _ in range(3):
            writer.put(make_rows(1_000, numbers=numbers))
        writer.lookup([1])
        before, buffered = resident(), 0
        for n in range(rows // 1_000):
            batch = make_rows(1_000, n * 1_000, numbers=numbers)
            buffered += int(batch.nbytes)
            writer.put(batch)
            del batch
        writer.lookup([5])
        pa.default_memory_pool().release_unused()
        print(json.dumps({"ratio": (resident() - before) / buffered, "size": buffered}))
        writer.close(flush=False)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def bench_memory(root: Path, results: Results) -> None:
    for numbers in (8, 256):
        done = subprocess.run(
            [sys.executable, __file__, "--memory", str(root), "--numbers", str(numbers)],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        what = f"local: resident memory per byte of {found['size'] / 2**20:.0f} MiB"
        results.add(what, "holdfast", found["ratio"], "", None)


@contextlib.contextmanager
def places(chosen: list[str], folder: Path) -> Iterator[list[Place]]:
    with contextlib.ExitStack() as stack:
        found = [Place("local", str(folder))] if "local" in chosen else []
        if "s3" in chosen:
            server = stack.enter_context(FaultyS3Process(conditions="honest"))
            server.control.set_latency(S3_LATENCY)
            options = dict(server.storage_options())
            found.append(Place("S3, 20 ms", server.url("bench", "t"), options))
        yield found


def run_parts(
    place: Place,
    folder: Path,
    parts: Sequence[str],
    given: argparse.Namespace,
    results: Results,
) -> None:
    """Measure in one place."""
    local = place.name == "local"
    if "put" in parts:
        bench_put(place, folder / "put", given.seconds, results)
    if "threads" in parts:
        bench_threads(place, folder / "threads", given.seconds, results)
    if "sustained" in parts:
        bench_sustained(place, folder / "sustained", given.megabytes, results)
    if "flush" in parts:
        bench_flush(place, results)
    if "replay" in parts:
        bench_replay(place, results)
    if "reads" in parts and local:
        bench_reads(place, given.seconds, results)
    if "memory" in parts and local:
        bench_memory(folder, results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--place", default="local,s3")
    parser.add_argument("--only", default=",".join(PARTS), help="some of " + ",".join(PARTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    parser.add_argument("--numbers", type=int, default=8, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        memory_of_a_writer(90_000, arguments.numbers, arguments.memory)
        return 0
    parts = arguments.only.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=os.environ.get("BENCH_DIR")))
    results = Results()
    try:
        with places(arguments.place.split(","), folder) as found:
            for place in found:
                run_parts(place, folder, parts, arguments, results)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        write_json(arguments.json, results.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
