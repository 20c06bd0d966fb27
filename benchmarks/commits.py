"""What a commit costs beside stock pylance, Delta and Iceberg, with many concurrent writers.

    ./run bench commits [--seconds N] [--processes 1,4,8,32] [--only stock,holdfast] [--json FILE]

One-row appends to one fresh table on local disk. The processes of a row warm up on tables of
their own, then append to the common one from a barrier on. All systems of a row take turns in
the same processes, so that whatever else the machine does hits all. Then: how a commit grows
with fragments and versions, and what it asks of an S3 server. docs/reference/performance.md
explains.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import itertools
import json
import logging
import math
import multiprocessing
import os
import queue
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import lance
import pyarrow as pa
from lance.fragment import write_fragments

import holdfast
import s3_servers
import servers
from _measuring import (
    SCHEMA,
    WARM_UP_CALLS,
    Step,
    Tally,
    machine,
    markdown,
    numbers,
    one_row,
    run_block,
    write_json,
)
from holdfast.arbiter import SupportsSetUp, connect_commit_store
from holdfast.testing import FaultyS3Process

START_SECONDS = 300.0
THREADS = 16
S3_COMMITS = 20
GROWTH_COMMITS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """How to make a table in a folder, append to it and count its rows."""

    label: str
    create: Callable[[str], None]
    open: Callable[[str], Step]
    count: Callable[[str], int]
    module: str = "lance"
    install: str = ""
    server: str = ""

    def missing(self) -> str | None:
        """Say why it cannot run here, or None."""
        if importlib.util.find_spec(self.module) is None:
            return f"not installed. Run: .venv/bin/pip install {self.install}"
        return servers.missing(self.server) if self.server else None


# --- the systems ------------------------------------------------------------------------------


def table_in(folder: str) -> str:
    return f"{folder}/table.lance"


def count_lance(folder: str) -> int:
    return int(lance.dataset(table_in(folder)).count_rows())


def create_stock(folder: str) -> None:
    lance.write_dataset(SCHEMA.empty_table(), table_in(folder))


def open_stock(folder: str) -> Step:
    place = table_in(folder)
    return lambda rows: lance.write_dataset(rows, place, mode="append")


def create_holdfast(folder: str) -> None:
    holdfast.create_table(table_in(folder), SCHEMA)


def create_embedded(folder: str) -> None:
    holdfast.create_table(table_in(folder), SCHEMA, commit_store="sqlite")


def open_holdfast(folder: str) -> Step:
    return holdfast.open_table(table_in(folder)).append


def create_delta(folder: str) -> None:
    from deltalake import DeltaTable

    DeltaTable.create(folder, SCHEMA)


def open_delta(folder: str) -> Step:
    from deltalake import write_deltalake

    return lambda rows: write_deltalake(folder, rows, mode="append")


def count_delta(folder: str) -> int:
    from deltalake import DeltaTable

    return int(pa.table(DeltaTable(folder).to_pyarrow_table()).num_rows)


# Any: pyiceberg's catalog and table; it need not be installed.
def catalog_in(folder: str) -> Any:  # noqa: ANN401
    from pyiceberg.catalog.sql import SqlCatalog

    server = Path(folder) / "postgres"
    url = server.read_text() if server.exists() else f"sqlite:///{folder}/catalog.db"
    return SqlCatalog(folder, uri=url, warehouse=f"file://{folder}")


def create_iceberg(folder: str) -> None:
    catalog = catalog_in(folder)
    catalog.create_namespace_if_not_exists("bench")
    catalog.create_table("bench.table", SCHEMA)


def create_iceberg_postgres(folder: str) -> None:
    url = os.environ["BENCH_POSTGRES"].replace("postgresql://", "postgresql+psycopg://")
    Path(folder, "postgres").write_text(url)
    create_iceberg(folder)


def open_iceberg(folder: str) -> Step:
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # it tells every retry
    table = catalog_in(folder).load_table("bench.table")

    def append(rows: pa.Table) -> None:
        try:
            table.append(rows)
        except Exception:
            table.refresh()  # a stale handle would fail for ever
            raise

    return append


def count_iceberg(folder: str) -> int:
    return int(catalog_in(folder).load_table("bench.table").scan().to_arrow().num_rows)


SYSTEMS: Mapping[str, System] = {
    "stock": System(label="stock pylance", create=create_stock, open=open_stock, count=count_lance),
    "holdfast": System(
        label="Holdfast", create=create_holdfast, open=open_holdfast, count=count_lance
    ),
    "holdfast-sqlite": System(
        label="Holdfast, SQLite decides",
        create=create_embedded,
        open=open_holdfast,
        count=count_lance,
    ),
    "delta": System(
        label="deltalake",
        create=create_delta,
        open=open_delta,
        count=count_delta,
        module="deltalake",
        install="deltalake",
    ),
    "iceberg": System(
        label="pyiceberg, SQLite catalog",
        create=create_iceberg,
        open=open_iceberg,
        count=count_iceberg,
        module="pyiceberg",
        install="'pyiceberg[pyarrow,sql-sqlite]'",
    ),
    "iceberg-postgres": System(
        label="pyiceberg, PostgreSQL catalog",
        create=create_iceberg_postgres,
        open=open_iceberg,
        count=count_iceberg,
        module="pyiceberg",
        install="'pyiceberg[pyarrow,sql-sqlite]'",
        server="postgres",
    ),
}
OURS = ("holdfast", "holdfast-sqlite")
IN_THREADS = ("stock", *OURS)


# --- measuring --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """Who writes, as plain values that travel to the worker processes."""

    processes: int
    threads: int
    seconds: float
    names: Sequence[str]
    folder: str

    @property
    def label(self) -> str:
        return str(self.processes) if self.threads == 1 else f"1 x {self.threads} threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; times in milliseconds.

    `missing` were acknowledged and are not there; `fsync` is what one took around this round.
    """

    system: str
    writers: str
    p50: float
    p99: float
    rate: float
    failed: int
    missing: int
    fsync: float
    stock_rate: float
    stock_p99: float


# Any: multiprocessing's own types differ by context.
def work(writers: Writers, number: int, barrier: Any, results: Any) -> None:  # noqa: ANN401
    """Measure in one process, in step with the others; send the tallies, or an error."""
    try:
        results.put(measure(writers, number, barrier))
    except BaseException as error:  # noqa: BLE001 - told by the parent
        barrier.abort()
        if not isinstance(error, BrokenBarrierError):
            results.put(traceback.format_exc())


def measure(writers: Writers, number: int, barrier: Any) -> dict[str, list[Tally]]:  # noqa: ANN401
    steps: dict[str, Step] = {}
    for name in writers.names:
        own = made(name, f"{writers.folder}/warm-up-{name}-{number}")
        warm_up = SYSTEMS[name].open(own)
        for call in range(WARM_UP_CALLS):
            warm_up(one_row(call))
        steps[name] = SYSTEMS[name].open(f"{writers.folder}/{name}")
    tallies = {}
    for name in writers.names:
        barrier.wait(START_SECONDS)
        with ThreadPoolExecutor(writers.threads) as pool:
            running = [
                pool.submit(run_block, steps[name], writers.seconds) for _ in range(writers.threads)
            ]
        tallies[name] = [each.result() for each in running]
    return tallies


def made(name: str, folder: str) -> str:
    Path(folder).mkdir()
    SYSTEMS[name].create(folder)
    return folder


def run_rows(writers: Writers) -> list[Row]:
    """Start the processes, wait for their tallies, and sum them up per system."""
    for name in writers.names:
        made(name, f"{writers.folder}/{name}")
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(writers.processes), context.Queue()
    workers = [
        context.Process(target=work, args=(writers, number, barrier, results))
        for number in range(writers.processes)
    ]
    before = fsync_milliseconds(writers.folder)
    for worker in workers:
        worker.start()
    answers: list[Any] = []
    while len(answers) < writers.processes and not (answers and isinstance(answers[-1], str)):
        with contextlib.suppress(queue.Empty):
            answers.append(results.get(timeout=5))
        if any(worker.exitcode for worker in workers):
            barrier.abort()
            raise SystemExit("a worker died; see above")
    for worker in workers:
        worker.join()
    if isinstance(answers[-1], str):
        raise SystemExit(f"a worker failed\n{answers[-1]}")
    fsync = (before + fsync_milliseconds(writers.folder)) / 2
    rows: list[Row] = []
    for name in writers.names:
        tallies = list(itertools.chain.from_iterable(answer[name] for answer in answers))
        stock = rows[0] if rows else None
        rows.append(sum_up(writers, name, tallies, fsync, stock))
    return rows


def sum_up(
    writers: Writers, name: str, tallies: Sequence[Tally], fsync: float, stock: Row | None
) -> Row:
    times = sorted(itertools.chain.from_iterable(tally.seconds for tally in tallies))
    failures = list(itertools.chain.from_iterable(tally.failures for tally in tallies))
    for reason in sorted(set(failures))[:2]:
        print(f"  {name} failed {len(failures)} times, e.g. {reason}", file=sys.stderr)
    present = SYSTEMS[name].count(f"{writers.folder}/{name}")
    p99 = times[math.ceil(len(times) * 0.99) - 1] * 1000 if times else math.nan
    rate = sum(len(tally.seconds) / tally.elapsed for tally in tallies)
    return Row(
        system=SYSTEMS[name].label,
        writers=writers.label,
        p50=statistics.median(times) * 1000 if times else math.nan,
        p99=p99,
        rate=rate,
        failed=len(failures),
        missing=max(0, len(times) - present),
        fsync=fsync,
        stock_rate=stock.stock_rate if stock else rate,
        stock_p99=stock.stock_p99 if stock else p99,
    )


# --- growth -----------------------------------------------------------------------------------


def grown_by_fragments(folder: Path, fragments: int) -> str:
    """Make a stock table of many fragments; one data file serves them all."""
    place = str(folder / "table.lance")
    table = lance.write_dataset(SCHEMA.empty_table(), place)
    written = write_fragments(one_row(0), place, schema=SCHEMA)
    lance.LanceDataset.commit(
        table, lance.LanceOperation.Append(written * fragments), read_version=1
    )
    return place


def grown_by_versions(folder: Path, versions: int) -> str:
    """Make a stock table of many versions and one fragment, so that only their number counts."""
    place = str(folder / "table.lance")
    table = lance.write_dataset(one_row(0), place)
    for number in range(1, versions):
        table.update_config({"number": str(number)})
    return place


def growth(folder: Path, fragments: Sequence[int], versions: Sequence[int]) -> Iterator[list[str]]:
    """Yield the lines of the growth table: the same table, stock and adopted."""
    makers = (
        ("fragments", grown_by_fragments, fragments),
        ("versions", grown_by_versions, versions),
    )
    for kind, grow, sizes in makers:
        for size in sizes:
            place = folder / f"{kind}-{size}"
            place.mkdir()
            print(f"{size} {kind} ...", file=sys.stderr, flush=True)
            stock = grow(place, size)
            steps = {"stock": open_stock(str(place))}
            for name, commit_store in (("holdfast", None), ("holdfast-sqlite", "sqlite")):
                copy = f"{place}/{name}.lance"
                shutil.copytree(stock, copy)
                steps[name] = holdfast.adopt_table(copy, commit_store=commit_store).append
            yield [f"{size:,} {kind}", *growth_cells(steps)]
            shutil.rmtree(place)


def growth_cells(steps: Mapping[str, Step]) -> list[str]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(-WARM_UP_CALLS, GROWTH_COMMITS):
        for name, step in steps.items():
            before = time.perf_counter()
            step(one_row(number))
            if number >= 0:
                times[name].append(time.perf_counter() - before)
    p50 = {name: statistics.median(each) * 1000 for name, each in times.items()}
    ratios = [p50[name] / p50["stock"] for name in OURS]
    return [*(f"{p50[name]:.1f}" for name in steps), *(f"{ratio:.2f}" for ratio in ratios)]


# --- requests ---------------------------------------------------------------------------------


def requests(folder: Path) -> Iterator[list[str]]:
    """Yield the lines of the request table: the mean of some commits to an S3 server."""
    with FaultyS3Process() as server:
        options = server.storage_options()
        for label, step in s3_steps(server.url("bench"), options, folder):
            for number in range(WARM_UP_CALLS):
                step(one_row(number))
            server.control.clear_requests()
            for number in range(S3_COMMITS):
                step(one_row(number))
            totals = server.control.totals()
            kinds = ", ".join(
                f"{name} {total.requests / S3_COMMITS:.3g}" for name, total in totals.items()
            )
            figures = [
                sum(getattr(total, what) for total in totals.values()) / S3_COMMITS
                for what in ("requests", "received_bytes", "sent_bytes")
            ]
            yield [label, *(f"{figure:,.0f}" for figure in figures), kinds]


def s3_steps(bucket: str, options: Mapping[str, str], folder: Path) -> Iterator[tuple[str, Step]]:
    plain = f"{bucket}/stock.lance"
    lance.write_dataset(SCHEMA.empty_table(), plain, storage_options=dict(options))
    yield (
        "stock pylance",
        lambda rows: lance.write_dataset(rows, plain, mode="append", storage_options=dict(options)),
    )
    ours = holdfast.create_table(f"{bucket}/ours.lance", SCHEMA, storage_options=options)
    yield "Holdfast, conditional put", ours.append
    url = f"sqlite:///{folder}/decisions.db?single_host=true"
    store = connect_commit_store(url)
    assert isinstance(store, SupportsSetUp)
    store.set_up()
    store.close()
    decided = holdfast.create_table(
        f"{bucket}/decided.lance", SCHEMA, storage_options=options, commit_store=url
    )
    yield "Holdfast, SQLite decides", decided.append
    if s3_servers.missing("ministack") is None:
        with dynamodb():
            managed = f"{bucket}/managed.lance?ddbTableName=commits".replace("s3:", "s3+ddb:")
            lance.write_dataset(SCHEMA.empty_table(), managed, storage_options=dict(options))
            yield (
                "stock pylance, s3+ddb (without DynamoDB's own)",
                lambda rows: lance.write_dataset(
                    rows, managed, mode="append", storage_options=dict(options)
                ),
            )


@contextlib.contextmanager
def dynamodb() -> Iterator[None]:
    """Run a DynamoDB with the table that Lance wants, and point Lance to it."""
    server = s3_servers.start_ministack()
    try:
        keys = {"base_uri": ("HASH", "S"), "version": ("RANGE", "N")}
        table = {
            "TableName": "commits",
            "KeySchema": [{"AttributeName": key, "KeyType": keys[key][0]} for key in keys],
            "AttributeDefinitions": [
                {"AttributeName": key, "AttributeType": keys[key][1]} for key in keys
            ],
            "BillingMode": "PAY_PER_REQUEST",
        }
        scope = "Credential=test/20260101/us-east-1/dynamodb/aws4_request"
        host, port = server.endpoint.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request(
            "POST",
            "/",
            json.dumps(table),
            {
                "X-Amz-Target": "DynamoDB_20120810.CreateTable",
                "Content-Type": "application/x-amz-json-1.0",
                "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=none",
            },
        )
        if connection.getresponse().status != http.client.OK:
            raise SystemExit("no DynamoDB table could be made")
        connection.close()
        os.environ.update(
            AWS_ENDPOINT_URL_DYNAMODB=server.endpoint,
            DYNAMODB_ENDPOINT=server.endpoint,
            AWS_ACCESS_KEY_ID="test",
            AWS_SECRET_ACCESS_KEY="test",
            AWS_DEFAULT_REGION="us-east-1",
        )
        yield
    finally:
        server.stop()


# --- the report -------------------------------------------------------------------------------

HEADINGS = (
    *("system", "writers", "p50 ms", "p99 ms", "commits/s", "failed", "missing", "fsync ms"),
    *("rate / stock", "p99 / stock"),
)
GROWTH_HEADINGS = (
    *("table", "stock p50 ms", "Holdfast p50 ms", "SQLite decides p50 ms"),
    *("Holdfast / stock", "SQLite / stock"),
)
REQUEST_HEADINGS = ("per commit", "requests", "bytes to the store", "bytes from it", "of which")


def cells_of(row: Row) -> list[str]:
    """Return one line; what misses an aim is marked."""
    rate, p99 = row.rate / row.stock_rate, row.p99 / row.stock_p99
    ours = row.system.startswith("Holdfast")
    slow = ours and rate < least_rate(row)
    late = ours and row.writers in {"8", "32"} and p99 > 1 / 3
    return [
        *(row.system, row.writers, f"{row.p50:.1f}", f"{row.p99:.0f}", f"{row.rate:.1f}"),
        *(str(row.failed), str(row.missing), f"{row.fsync:.2f}"),
        *(f"{rate:.2f}{' !' if slow else ''}", f"{p99:.2f}{' !' if late else ''}"),
    ]


def least_rate(row: Row) -> float:
    """Return the aim for our commits per second, as a share of stock's."""
    return {"1": 0.6, "8": 1.0, "32": 1.0, f"1 x {THREADS} threads": 3.0}.get(row.writers, 0.0)


def fsync_milliseconds(folder: str) -> float:
    times = []
    with tempfile.TemporaryFile(buffering=0, dir=folder) as file:
        for _ in range(100):
            file.write(os.urandom(500))
            before = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - before)
    return statistics.median(times) * 1000


def contended(given: argparse.Namespace, names: Sequence[str], folder: str) -> Iterator[Row]:
    rounds = [(count, 1, names) for count in given.processes]
    if given.threads:
        rounds.append((1, THREADS, [name for name in names if name in IN_THREADS]))
    for number, (processes, threads, chosen) in enumerate(rounds):
        place = f"{folder}/round-{number}"
        Path(place).mkdir()
        writers = Writers(
            processes=processes,
            threads=threads,
            seconds=given.seconds,
            names=chosen,
            folder=place,
        )
        print(f"{writers.label} ...", file=sys.stderr, flush=True)
        rows = run_rows(writers)
        print(markdown(HEADINGS, [cells_of(row) for row in rows]), file=sys.stderr, flush=True)
        yield from rows
        shutil.rmtree(place)


@contextlib.contextmanager
def postgres_if_wanted(names: Sequence[str]) -> Iterator[None]:
    if not any(SYSTEMS[name].server for name in names):
        yield
        return
    server = servers.STARTERS["postgres"]()
    os.environ["BENCH_POSTGRES"] = server.url  # workers inherit it
    try:
        yield
    finally:
        server.stop()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench commits", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of appending, per line")
    parser.add_argument("--processes", type=numbers, default=[1, 4, 8, 32], help="e.g. 1,8")
    parser.add_argument("--only", default=",".join(SYSTEMS), help="some of " + ",".join(SYSTEMS))
    parser.add_argument("--no-threads", dest="threads", action="store_false")
    parser.add_argument("--fragments", type=numbers, default=[10, 1_000, 10_000])
    parser.add_argument("--versions", type=numbers, default=[10, 10_000], help="e.g. 1000,10000")
    parser.add_argument("--no-s3", dest="s3", action="store_false")
    parser.add_argument("--folder", help="where the tables go; a temporary folder unless given")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.only.split(",")) - set(SYSTEMS))
    if unknown:
        parser.error(f"no such system: {', '.join(unknown)}")
    return given


def available(names: Sequence[str]) -> list[str]:
    found = []
    for name in dict.fromkeys(["stock", *names]):  # stock first: the ratios are to it
        reason = SYSTEMS[name].missing()
        if reason is None:
            found.append(name)
        else:
            print(f"skipped {name}: {reason}", file=sys.stderr)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    names = available(given.only.split(","))
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as folder,
        postgres_if_wanted(names),
    ):
        print(machine())
        print("Holdfast fsyncs data and decision before it acknowledges; the others fsync nothing.")
        rows = list(contended(given, names, folder))
        print(f"\n{markdown(HEADINGS, [cells_of(row) for row in rows])}\n\n! misses an aim\n")
        grown = list(growth(Path(folder), given.fragments, given.versions))
        if grown:
            print(f"{markdown(GROWTH_HEADINGS, grown)}\n")
        if given.s3:
            print(markdown(REQUEST_HEADINGS, list(requests(Path(folder)))))
    if given.json:
        write_json(given.json, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
