"""What the fenced log costs beside a bare durable put, stock pylance's writer and SlateDB.

    ./run bench wal [--seconds N] [--only append,condition,tailer,peers,open]

Everything that is compared takes turns in one process, so that whatever else the machine does hits
all. Printed: appends of already encoded bytes beside a bare put of the same bytes, encoding apart;
put-if-absent beside plain put, alone and 16 together; the tailer beside obstore and pyarrow alone;
opening a shard with entries to replay beside stock, and beside the fewest calls it can take: two
durable puts and one read per entry.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import importlib.util
import itertools
import logging
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import lance
import numpy as np
import obstore
import pyarrow as pa
from pyarrow import ipc

from _measuring import write_json
from holdfast.arbiter import ConditionalPut, Verdict
from holdfast.core import TableCore
from holdfast.formats._entry import EntryDraft, log_schema
from holdfast.formats._wal_names import entry_name
from holdfast.storage import LocalStore, ObjectStore, RemoteStore, open_store
from holdfast.testing import FaultyS3Process
from holdfast.wal import WalAppender, WalTailer

SIZES = {"1 kB": 32, "100 kB": 12_800, "4 MB": 524_288}
KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY)])
Step = Callable[[], object]


def rows(count: int) -> pa.RecordBatch:
    numbers = np.random.default_rng(7).integers(0, 2**62, count)  # does not compress
    return pa.record_batch([pa.array(numbers)], schema=SCHEMA)


def take_turns(steps: Mapping[str, Step], seconds: float) -> dict[str, list[float]]:
    """Run the steps one after the other until the time is up; return each one's times."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(next(iter(times.values()))) < 5:
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begun)
    return times


ROWS: list[dict[str, object]] = []
"""All lines that were shown."""


def show(title: str, times: Mapping[str, list[float]], base: str) -> None:
    print(f"\n{title}")
    print(f"  {'':<28}{'p50 ms':>9}{'p99 ms':>9}{'per s':>9}{'ratio':>8}")
    middle = statistics.median(times[base])
    for name, all_of in times.items():
        ordered = sorted(all_of)
        p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
        line = f"{p50 * 1e3:9.2f}{p99 * 1e3:9.2f}{1 / p50:9.0f}{p50 / middle:8.2f}"
        print(f"  {name:<28}{line}")
        figures = {"p50_ms": p50 * 1e3, "p99_ms": p99 * 1e3, "ratio": p50 / middle}
        ROWS.append({"what": title, "system": name, **figures})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where is measured; on local disk there is no server."""

    store: ObjectStore
    url: str
    options: dict[str, str]
    server: FaultyS3Process | None = None
    latency: float = 0.0


@contextlib.contextmanager
def places() -> Iterator[dict[str, Place]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-wal-")))
        found = {
            "local disk": Place(
                store=LocalStore(folder / "sync"), url=str(folder / "sync"), options={}
            ),
            "local disk, no fsync": Place(
                store=LocalStore(folder / "lazy", fsync=False), url=str(folder / "lazy"), options={}
            ),
        }
        for label, latency in (("S3 server", 0.0), ("S3 server, 20 ms", 0.02)):
            server = stack.enter_context(FaultyS3Process(conditions="honest"))
            server.control.set_latency(latency)
            url, options = server.url("bucket", "t"), server.storage_options()
            store = open_store(url, options)
            found[label] = Place(
                store=store, url=url, options=options, server=server, latency=latency
            )
        yield found


def bench_append(place: str, store: ObjectStore, seconds: float) -> None:
    arbiter = ConditionalPut(store, Verdict.ENFORCED)
    for label, count in SIZES.items():
        appender = WalAppender.claim(TableCore(store, arbiter), str(uuid.uuid4()))
        batch = rows(count)
        draft = appender.draft(batch)
        body = draft.stamp(position=1, sequence=1, token="hf-" + "0" * 32)
        numbers = itertools.count()

        def bare(body: bytes = body, numbers: Iterator[int] = numbers) -> None:
            store.put(f"bare/{next(numbers):010d}", body)

        def append(appender: WalAppender = appender, draft: EntryDraft = draft) -> object:
            return appender.append(draft)

        def encode(appender: WalAppender = appender, batch: pa.RecordBatch = batch) -> object:
            return appender.draft(batch)

        steps: dict[str, Step] = {"bare durable put": bare, "append, encoded": append}
        times = take_turns({**steps, "(encoding alone)": encode}, seconds)
        show(f"append {label} ({len(body):,} bytes), {place}", times, "bare durable put")


def bench_condition(place: str, store: ObjectStore, seconds: float) -> None:
    body, numbers = b"x" * 1000, itertools.count()

    def plain() -> None:
        store.put(f"condition/{next(numbers):010d}", body)

    def absent() -> None:
        store.put_if_absent(f"condition/{next(numbers):010d}", body)

    steps = {"plain put": plain, "put-if-absent": absent}
    show(f"1 kB, one at a time, {place}", take_turns(steps, seconds), "plain put")
    with ThreadPoolExecutor(16) as pool:

        def at_once(step: Step) -> Step:
            return lambda: [f.result() for f in [pool.submit(step) for _ in range(16)]]

        many = {name: at_once(step) for name, step in steps.items()}
        show(f"1 kB, 16 together (per 16), {place}", take_turns(many, seconds), "plain put")


def bench_peers(folder: Path, seconds: float) -> None:
    """One row at a time, durable, on local disk; encoding included everywhere."""
    uri = str(folder / "peers.lance")
    dataset = lance.write_dataset(SCHEMA.empty_table(), uri)
    dataset.initialize_mem_wal()
    stock = dataset.mem_wal_writer(str(uuid.uuid4()), max_wal_flush_interval_ms=1)
    lazy = LocalStore(Path(uri), fsync=False)
    ours = {
        name: WalAppender.claim(
            TableCore(store, ConditionalPut(store, Verdict.ENFORCED)), str(uuid.uuid4())
        )
        for name, store in (("holdfast", LocalStore(Path(uri))), ("holdfast, no fsync", lazy))
    }
    batch, table = rows(32), pa.Table.from_batches([rows(32)])
    steps: dict[str, Step] = {"stock writer (no fsync)": lambda: stock.put(table)}
    for name, appender in ours.items():
        steps[name] = lambda appender=appender: appender.append(batch)  # type: ignore[misc]
    with contextlib.ExitStack() as stack:
        slate = slatedb_step(folder, stack)
        if slate is not None:
            steps["SlateDB put + flush"] = slate
        times = take_turns(steps, seconds)
    show("one durable append of 32 rows, encoding included, local disk", times, "holdfast")


def slatedb_step(folder: Path, stack: contextlib.ExitStack) -> Step | None:
    if importlib.util.find_spec("slatedb") is None:
        print("\nSlateDB is not installed: ./run bench wal installs it")
        return None
    slatedb: Any = importlib.import_module("slatedb.uniffi")
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)

    async def open_db() -> Any:  # noqa: ANN401
        place = str(folder / "slate").lstrip("/")
        builder = slatedb.DbBuilder(place, slatedb.ObjectStore.resolve("file:///"))
        return await builder.build()

    async def put(db: Any) -> None:  # noqa: ANN401
        await db.put(b"key", b"v" * 256)
        await db.flush()

    db = loop.run_until_complete(open_db())
    stack.callback(lambda: loop.run_until_complete(db.shutdown()))
    return lambda: loop.run_until_complete(put(db))


def bench_tailer(place: str, store: ObjectStore, seconds: float) -> None:
    arbiter = ConditionalPut(store, Verdict.ENFORCED)
    shard = str(uuid.uuid4())
    count = 64
    with WalAppender.claim(TableCore(store, arbiter), shard) as appender:
        draft = appender.draft(rows(SIZES["100 kB"]))
        for _ in range(count):
            appender.append(draft)
    paths = [entry_name(shard, position).path for position in range(2, count + 2)]

    def fetch(path: str) -> int:
        if isinstance(store, RemoteStore):
            body = bytes(obstore.get(store._client, path).bytes())
        else:
            body = Path(str(getattr(store, "root", "")), path).read_bytes()
        with ipc.open_stream(body) as reader:
            return sum(batch.num_rows for batch in reader)

    def plain() -> int:
        if isinstance(store, RemoteStore):
            with ThreadPoolExecutor(16) as pool:
                return sum(pool.map(fetch, paths))
        return sum(map(fetch, paths))

    def tail() -> int:
        return sum(
            e.rows for e in WalTailer(TableCore(store, arbiter), shard).entries(1, count + 1)
        )

    times = take_turns({"store and pyarrow only": plain, "tailer": tail}, seconds)
    size = draft.size * count / 1e6
    show(f"reading {size:.1f} MB in {count} entries, {place}", times, "store and pyarrow only")


def bench_open(label: str, place: Place, counts: list[int]) -> None:
    """Open a shard for writing with entries of one row to replay; stock's batch limit raised."""
    uri = f"{place.url}-open"
    dataset = lance.write_dataset(SCHEMA.empty_table(), uri, storage_options=place.options or None)
    dataset.initialize_mem_wal()
    fields = dataset.lance_schema.fields()
    local = isinstance(place.store, LocalStore)
    fsync = label == "local disk"
    store = LocalStore(Path(uri), fsync=fsync) if local else open_store(uri, place.options)
    arbiter = ConditionalPut(store, Verdict.ENFORCED)
    preparing = LocalStore(Path(uri), fsync=False) if local else store

    def stock(shard: str, count: int) -> object:
        return dataset.mem_wal_writer(shard, max_memtable_batches=max(8000, 2 * count))

    def ours(shard: str, count: int) -> None:
        with WalAppender.claim(TableCore(store, arbiter), shard) as appender:
            assert sum(entry.rows for entry in appender.replay()) == count

    def least(shard: str, count: int) -> None:
        for _ in range(2):
            store.put_if_absent(f"least/{uuid.uuid4()}", b"x" * 400)
        read_all(store, [entry_name(shard, position).path for position in range(2, count + 2)])

    steps = {"stock": stock, "holdfast": ours, "2 puts, bytes read": least}
    for count in counts:
        times: dict[str, list[float]] = {name: [] for name in steps}
        requests: dict[str, int] = {}
        shard = ""
        for number in range(1 if count * place.latency > 10 else 3 if count > 1000 else 7):
            for name in list(steps)[:: 1 if number % 2 else -1]:
                if not shard or count <= 10:  # each open adds a fence, and few entries show it
                    shard = str(uuid.uuid4())
                    with at_latency(place, 0):
                        fill(preparing, shard, fields, count)
                step = functools.partial(steps[name], shard, count)
                took, requests[name] = timed(place, step)
                times[name].append(took)
        show(f"open with {count:,} entries to replay, {label}", times, "stock")
        if place.server is not None:
            print(f"  requests: {requests}")


def timed(place: Place, step: Step) -> tuple[float, int]:
    """Return the seconds of one step, and its requests to a server."""
    if place.server is not None:
        place.server.control.clear_requests()
    begun = time.perf_counter()
    step()
    took = time.perf_counter() - begun
    totals = place.server.control.totals() if place.server is not None else {}
    return took, sum(total.requests for total in totals.values())


@contextlib.contextmanager
def at_latency(place: Place, latency: float) -> Iterator[None]:
    if place.server is not None:
        place.server.control.set_latency(latency)
    yield
    if place.server is not None:
        place.server.control.set_latency(place.latency)


def fill(store: ObjectStore, shard: str, fields: Any, count: int) -> None:  # noqa: ANN401
    schema = log_schema(SCHEMA, fields, ["id"])
    with WalAppender.claim(
        TableCore(store, ConditionalPut(store, Verdict.ENFORCED)), shard
    ) as appender:
        for number in range(count):
            columns = [pa.array([number]), pa.array([False])]
            appender.append(pa.record_batch(columns, schema=schema))


def read_all(store: ObjectStore, paths: list[str]) -> None:
    """Read files, and do nothing with them: 16 together from a server."""
    if isinstance(store, LocalStore):
        for path in paths:
            fd = os.open(f"{store.root}/{path}", os.O_RDONLY)
            os.read(fd, 1 << 16)
            os.close(fd)
        return
    assert isinstance(store, RemoteStore)
    client = store._client

    def some(first: int) -> None:
        for path in paths[first::16]:
            obstore.get(client, path).bytes()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(some, range(16)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run bench wal", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="per row (default 3)")
    parser.add_argument("--open", default="10,1000,10000", help="entries to replay")
    parser.add_argument("--only", default="append,condition,tailer,peers,open", help="which parts")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    counts = [int(part) for part in arguments.open.split(",")]
    parts = arguments.only.split(",")
    with places() as found:
        for label, place in found.items():
            for name, bench in (
                ("append", bench_append),
                ("condition", bench_condition),
                ("tailer", bench_tailer),
            ):
                if name in parts:
                    bench(label, place.store, arguments.seconds)
        if "peers" in parts:
            with tempfile.TemporaryDirectory(prefix="holdfast-wal-") as folder:
                bench_peers(Path(folder), arguments.seconds)
        if "open" in parts:
            for label, place in found.items():
                few = [count for count in counts if count * place.latency <= 20]
                bench_open(label, place, few)  # stock reads one entry after the other
    if arguments.json:
        write_json(arguments.json, ROWS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
