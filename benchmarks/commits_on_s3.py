"""How many processes commit to one table on an object store, beside stock pylance.

    ./run bench commits_on_s3 [--seconds N] [--latencies 0,10,40] [--processes 1,8,32] [--only ...]

One-row appends to one fresh table on an S3 server in a process of its own, which answers each
request after a given time. The processes warm up on a table of their own, without latency; then
all append to the common one, one system after the other, in the same processes. An honest server
keeps put-if-absent, for stock pylance and for the conditional put; another one ignores it, and a
database decides. docs/reference/performance.md explains.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import math
import multiprocessing
import os
import queue
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import lance

import holdfast
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
from holdfast.storage import open_store
from holdfast.testing import FaultyS3Process

START_SECONDS = 300.0
FLOOR_REQUESTS = 40
TRIPS_OF_AN_APPEND = 4
BUCKET = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a system's table is, as plain values that travel to the worker processes."""

    uri: str
    options: Mapping[str, str]
    commit_store: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """How to make a table on S3, append to it and count its rows."""

    label: str
    create: Callable[[Site], object]
    open: Callable[[Site], Step]
    count: Callable[[Site], int]
    honest: bool = True
    server: str = ""
    module: str = "lance"
    only_at: int = 0

    def missing(self) -> str | None:
        """Say why it cannot run here, or None."""
        if importlib.util.find_spec(self.module) is None:
            return f"{self.module} is not installed"
        return servers.missing(self.server) if self.server in servers.STARTERS else None


def create_stock(site: Site) -> None:
    lance.write_dataset(SCHEMA.empty_table(), site.uri, storage_options=dict(site.options))


def open_stock(site: Site) -> Step:
    options = dict(site.options)
    return lambda rows: lance.write_dataset(rows, site.uri, mode="append", storage_options=options)


def count_lance(site: Site) -> int:
    return int(lance.dataset(site.uri, storage_options=dict(site.options)).count_rows())


def create_holdfast(site: Site) -> None:
    holdfast.create_table(
        site.uri, SCHEMA, commit_store=site.commit_store, storage_options=site.options
    )


def open_holdfast(site: Site) -> Step:
    table = holdfast.open_table(site.uri, site.options, commit_store=site.commit_store)
    return table.append


def create_delta(site: Site) -> None:
    from deltalake import DeltaTable

    DeltaTable.create(site.uri, SCHEMA, storage_options=dict(site.options))


def open_delta(site: Site) -> Step:
    from deltalake import write_deltalake

    options = {**site.options, "conditional_put": "etag"}
    return lambda rows: write_deltalake(site.uri, rows, mode="append", storage_options=options)


def count_delta(site: Site) -> int:
    from deltalake import DeltaTable

    found = DeltaTable(site.uri, storage_options=dict(site.options)).to_pyarrow_table()
    return int(found.num_rows)


def decided_by(label: str, server: str) -> System:
    return System(
        label=f"Holdfast, {label} decides",
        create=create_holdfast,
        open=open_holdfast,
        count=count_lance,
        honest=False,
        server=server,
    )


SYSTEMS: Mapping[str, System] = {
    "stock": System(label="stock pylance", create=create_stock, open=open_stock, count=count_lance),
    "conditional": System(
        label="Holdfast, conditional put",
        create=create_holdfast,
        open=open_holdfast,
        count=count_lance,
    ),
    "sqlite": decided_by("SQLite", "sqlite"),
    "postgres": decided_by("PostgreSQL", "postgres"),
    "redis": decided_by("Redis", "redis"),
    "delta": System(
        label="deltalake",
        create=create_delta,
        open=open_delta,
        count=count_delta,
        module="deltalake",
        only_at=8,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Times are in milliseconds, `server_cpu` in seconds per second; `cpu` is what all processes used
    for one commit, in milliseconds: writers, S3 server and database. `trip` is how long one bare
    put took, in seconds.
    """

    system: str
    latency: float
    processes: int
    p50: float
    p99: float
    rate: float
    failed: int
    missing: int
    requests: float
    server_cpu: float
    cpu: float
    stock_rate: float
    stock_p99: float
    trip: float = math.nan

    @property
    def most(self) -> float:
        """Return the commits per second that round trips allow, on an idle machine.

        Versions are put at their names in order, one round trip each; and one process waits for
        four, one after the other, with each append: data, transaction, put, and a last look.
        """
        return min(self.processes / (TRIPS_OF_AN_APPEND * self.trip), 1 / self.trip)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the worker processes do, as plain values."""

    seconds: float
    sites: Mapping[str, Site]
    warm_ups: Mapping[str, Site]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one system took: the S3 server's share of a core, requests, and all CPU seconds."""

    share: float
    requests: int
    seconds: float


# Any: multiprocessing's own types differ by context.
def work(job: Job, number: int, barrier: Any, results: Any) -> None:  # noqa: ANN401
    """Measure in one process, in step with the others and with the parent."""
    try:
        steps = {}
        for name, site in job.warm_ups.items():
            own = replace(site, uri=f"{site.uri}-{number}.lance")
            SYSTEMS[name].create(own)
            warm_up = SYSTEMS[name].open(own)
            for call in range(WARM_UP_CALLS):
                warm_up(one_row(call))
            steps[name] = SYSTEMS[name].open(job.sites[name])
        tallies = {}
        for name, step in steps.items():
            barrier.wait(START_SECONDS)  # the parent sets the latency
            barrier.wait(START_SECONDS)
            before = time.process_time()
            tally = run_block(step, job.seconds)
            tallies[name] = tally, time.process_time() - before
            barrier.wait(START_SECONDS)
        results.put(tallies)
    except BaseException:  # noqa: BLE001 - told by the parent
        results.put(traceback.format_exc())
        barrier.abort()


class Servers:
    """Both S3 servers and the databases."""

    def __init__(self, names: Sequence[str], folder: str, stack: contextlib.ExitStack) -> None:
        self.honest = stack.enter_context(FaultyS3Process())
        self.ignoring = stack.enter_context(FaultyS3Process(conditions="ignoring"))
        self._databases: dict[str, int] = {}
        self._stores = {"sqlite": f"sqlite:///{folder}/decisions.db?single_host=true"}
        for name in names:
            starter = servers.STARTERS.get(SYSTEMS[name].server)
            if starter is not None:
                server = starter()
                stack.callback(server.stop)
                self._stores[name] = server.url
                assert server.process is not None
                self._databases[name] = server.process.pid
        for url in self._stores.values():
            store = connect_commit_store(url)
            assert isinstance(store, SupportsSetUp)
            store.set_up()
            store.close()

    def of(self, name: str) -> FaultyS3Process:
        return self.honest if SYSTEMS[name].honest else self.ignoring

    def cpu_seconds(self, name: str) -> float:
        """Return what the servers of a system have used so far."""
        database = self._databases.get(name)
        used = cpu_seconds(self.of(name).pid)
        return used if database is None else used + sum(map(cpu_seconds, family_of(database)))

    def site(self, name: str, path: str) -> Site:
        server = self.of(name)
        return Site(
            uri=server.url(BUCKET, path),
            options=server.storage_options(),
            commit_store=None if SYSTEMS[name].honest else self._stores[name],
        )


def cpu_seconds(pid: int) -> float:
    """Return what a process has used, as the system counts it; nothing of one that has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # a worker of the database's
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def family_of(pid: int) -> list[int]:
    """Return a process and all that it started, and they."""
    family = [pid]
    for parent in family:
        tasks = Path(f"/proc/{parent}/task")
        for children in tasks.glob("*/children"):
            family += map(int, children.read_text().split())
    return family


def run_rows(
    given: argparse.Namespace, sites: Servers, latency: float, processes: int, names: Sequence[str]
) -> list[Row]:
    """Start the processes, let them take turns with all systems, and sum up."""
    chosen = [name for name in names if SYSTEMS[name].only_at in (0, processes)]
    label = f"{latency:g}-{processes}"
    job = Job(
        seconds=given.seconds,
        sites={name: sites.site(name, f"{label}/{name}.lance") for name in chosen},
        warm_ups={name: sites.site(name, f"{label}/{name}-warm-up") for name in chosen},
    )
    for name in chosen:
        SYSTEMS[name].create(job.sites[name])
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes + 1), context.Queue()
    workers = [
        context.Process(target=work, args=(job, number, barrier, results))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    costs = {}
    try:
        for name in chosen:
            server = sites.of(name)
            barrier.wait(START_SECONDS)
            server.control.set_latency(latency / 1000)
            server.control.clear_requests()
            all_before, before = sites.cpu_seconds(name), cpu_seconds(server.pid)
            begun = time.perf_counter()
            barrier.wait(START_SECONDS)
            barrier.wait(START_SECONDS)
            elapsed = time.perf_counter() - begun
            cost = (cpu_seconds(server.pid) - before) / elapsed
            servers_cpu = sites.cpu_seconds(name) - all_before
            requests = sum(total.requests for total in server.control.totals().values())
            costs[name] = Cost(share=cost, requests=requests, seconds=servers_cpu)
            server.control.set_latency(0)
    except Exception:
        with contextlib.suppress(queue.Empty):
            print(results.get(timeout=5), file=sys.stderr)
        raise
    answers = [results.get(timeout=START_SECONDS) for _ in workers]
    for worker in workers:
        worker.join()
    rows: list[Row] = []
    for name in chosen:
        tallies = [answer[name][0] for answer in answers]
        seconds = costs[name].seconds + sum(answer[name][1] for answer in answers)
        total = replace(costs[name], seconds=seconds)
        row = sum_up(name, job.sites[name], tallies, total, rows[0] if rows else None)
        rows.append(Row(**{**asdict(row), "latency": latency, "processes": processes}))
    return rows


def sum_up(name: str, site: Site, tallies: Sequence[Tally], cost: Cost, stock: Row | None) -> Row:
    times = sorted(itertools.chain.from_iterable(tally.seconds for tally in tallies))
    failures = list(itertools.chain.from_iterable(tally.failures for tally in tallies))
    for reason in sorted(set(failures))[:2]:
        print(f"  {name} failed {len(failures)} times, e.g. {reason}", file=sys.stderr)
    p99 = times[math.ceil(len(times) * 0.99) - 1] * 1000 if times else math.nan
    rate = sum(len(tally.seconds) / tally.elapsed for tally in tallies)
    return Row(
        system=SYSTEMS[name].label,
        latency=0,
        processes=0,
        p50=statistics.median(times) * 1000 if times else math.nan,
        p99=p99,
        rate=rate,
        failed=len(failures),
        missing=max(0, len(times) - SYSTEMS[name].count(site)),
        requests=cost.requests / max(len(times), 1),
        server_cpu=cost.share,
        cpu=cost.seconds * 1000 / max(len(times), 1),
        stock_rate=stock.stock_rate if stock else rate,
        stock_p99=stock.stock_p99 if stock else p99,
    )


HEADINGS = (
    *("system", "latency ms", "processes", "p50 ms", "p99 ms", "commits/s", "failed", "missing"),
    *("requests", "S3 CPU", "CPU ms", "CPU allows", "trips allow", "rate / stock", "aim, most"),
    *("p99 / stock", "p99 / p50"),
)


def cells_of(row: Row) -> list[str]:
    """Return one line; what misses an aim is marked, and the most that trips allow is beside it."""
    rate, p99 = row.rate / row.stock_rate, row.p99 / row.stock_p99
    aim = aim_of(row)
    late = row.system.startswith("Holdfast") and row.processes > 1 and row.latency == 10
    return [
        *(row.system, f"{row.latency:g}", str(row.processes), f"{row.p50:.0f}", f"{row.p99:.0f}"),
        *(f"{row.rate:.1f}", str(row.failed), str(row.missing), f"{row.requests:.1f}"),
        *(f"{row.server_cpu:.0%}", f"{row.cpu:.1f}", f"{cpu_allows(row):.0f}/s"),
        f"{row.most:.0f}/s",
        f"{rate:.2f}{' !' if rate < aim else ''}",
        f"{aim:g}, {row.most / row.stock_rate:.1f}" if aim else "",
        f"{p99:.2f}{' !' if late and p99 > 1 / 5 else ''}",
        f"{row.p99 / row.p50:.1f}{' !' if late and row.p99 > 20 * row.p50 else ''}",
    ]


def cpu_allows(row: Row) -> float:
    """Return how many commits per second all cores could make, if nobody ever waited."""
    return (os.cpu_count() or 1) * 1000 / row.cpu


def aim_of(row: Row) -> float:
    """Return the aim for our commits per second at 10 ms, as a share of stock's."""
    if row.latency != 10 or not row.system.startswith("Holdfast"):
        return 0.0
    if row.processes == 1:
        return 1.0
    if "conditional" in row.system or "SQLite" in row.system:
        return 2.0
    return {8: 4.0, 32: 5.0}.get(row.processes, 0.0)


def time_put(sites: Servers, latency: float) -> float:
    """Return how many seconds one bare put takes."""
    server = sites.honest
    server.control.set_latency(latency / 1000)
    store = open_store(server.url(BUCKET, "floor"), server.storage_options())
    store.put("warm", b"x")
    times = []
    for number in range(FLOOR_REQUESTS):
        before = time.perf_counter()
        store.put(str(number), b"x" * 2000)
        times.append(time.perf_counter() - before)
    server.control.set_latency(0)
    return statistics.median(times)


def describe_floor(latency: float, trip: float) -> str:
    """Say what follows from a bare put for a chain of versions."""
    return (
        f"{latency:g} ms: a bare put takes {trip * 1000:.1f} ms. Versions that are put at their "
        f"names in order cannot pass {1 / trip:.0f} commits/s, whoever decides them, and one "
        f"process alone not {1 / (TRIPS_OF_AN_APPEND * trip):.0f}."
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench commits_on_s3", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of appending, per line")
    parser.add_argument("--latencies", type=numbers, default=[0, 10, 40], help="milliseconds")
    parser.add_argument("--processes", type=numbers, default=[1, 8, 32], help="e.g. 1,8")
    parser.add_argument("--only", default=",".join(SYSTEMS), help="some of " + ",".join(SYSTEMS))
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.only.split(",")) - set(SYSTEMS))
    if unknown:
        parser.error(f"no such system: {', '.join(unknown)}")
    return given


def measured(given: argparse.Namespace, names: Sequence[str], folder: str) -> Iterator[Row]:
    """Yield the lines of the table."""
    with contextlib.ExitStack() as stack:
        sites = Servers(names, folder, stack)
        trips = {latency: time_put(sites, latency) for latency in given.latencies}
        for latency, trip in trips.items():
            print(describe_floor(latency, trip), flush=True)
        for latency, processes in itertools.product(given.latencies, given.processes):
            print(f"{processes} processes, {latency} ms ...", file=sys.stderr, flush=True)
            rows = [
                replace(row, trip=trips[latency])
                for row in run_rows(given, sites, latency, processes, names)
            ]
            print(markdown(HEADINGS, [cells_of(row) for row in rows]), file=sys.stderr, flush=True)
            yield from rows


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    names = []
    for name in dict.fromkeys(["stock", *given.only.split(",")]):  # stock first: the ratios
        reason = SYSTEMS[name].missing()
        if reason is None:
            names.append(name)
        else:
            print(f"skipped {name}: {reason}", file=sys.stderr)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        print(machine())
        rows = list(measured(given, names, folder))
        print(f"\n{markdown(HEADINGS, [cells_of(row) for row in rows])}\n\n! misses an aim")
        print(f"it took {(time.perf_counter() - begun) / 60:.1f} minutes")
    if given.json:
        write_json(given.json, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
