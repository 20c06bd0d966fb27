"""What a fresh read costs beside stock's LSM scanner and beside the base table alone.

    ./run bench lsm [--rows N] [--generations 1,5,20] [--keys int,text] [--repeat N] [--json FILE]

One table on local disk: a base, generations of changed and new rows above it, and rows that are
only in the log. The generations are written and flushed by stock Lance, so that stock's scanner
reads the same files. What is compared takes turns, so that whatever else the machine does
hits all. docs/reference/performance.md explains.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import lance
import numpy as np
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, ShardSnapshot

import holdfast
from _measuring import write_json
from holdfast.wal._manifests import ShardManifests

GENERATION_ROWS = 90_000
LOG_ROWS = 10_000
PUT_ROWS = 10_000
LOOKUPS = 60
NEW_KEYS = 1.2  # of all keys written above the base, a sixth is new
AIMS = {"scan / stock": 1.0, "scan / base": 4.0, "lookup / stock": 1.0}


Lance: TypeAlias = Any  # pylance's datasets and writers
Numbers: TypeAlias = "np.typing.NDArray[np.int64]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: milliseconds, and how many rows were read."""

    keys: str
    generations: int
    rows: int
    base: float
    fresh: float
    stock: float | None
    lookup: float
    stock_lookup: float | None
    cold_lookup: float
    count: float
    peak_mb: float


class Levels:
    """A table with generations above its base."""

    def __init__(self, folder: Path, kind: str, rows: int, generations: int) -> None:
        self.kind = kind
        self.chance = np.random.default_rng(7)
        self.total = int(rows * NEW_KEYS)
        key = pa.int64() if kind == "int" else pa.string()
        schema = pa.schema([("id", key), ("value", pa.float64()), ("note", pa.string())])
        self.table = holdfast.create_table(folder / "t.lance", schema, primary_key=["id"])
        self.schema = self.table.schema
        self.table.append(self.rows(np.arange(rows)))
        self.table.dataset().initialize_mem_wal(maintained_indexes=[])
        self.shard = str(uuid.UUID(int=1))
        for _ in range(generations):
            with self.writer() as writer:
                self.put(writer, GENERATION_ROWS)
        log = self.table.claim_writer(self.shard)
        self.put(log, LOG_ROWS)
        log.close(flush=False)  # so its rows stay in the log

    def writer(self) -> Lance:
        return self.table.dataset().mem_wal_writer(self.shard, max_wal_flush_interval_ms=1)

    def put(self, writer: Lance, count: int) -> None:
        made = self.rows(self.chance.choice(self.total, count, replace=False))
        for start in range(0, count, PUT_ROWS):
            writer.put(made.slice(start, PUT_ROWS))

    def rows(self, numbers: Numbers) -> pa.Table:
        notes = [f"note {number % 1000} of a row" for number in numbers.tolist()]
        columns = [pa.array(self.keys(numbers)), self.chance.random(len(numbers)), notes]
        return pa.table(columns, schema=self.schema)

    def keys(self, numbers: Numbers) -> list[Any]:
        if self.kind == "int":
            return list(numbers.tolist())
        return [f"customer-{number:010d}" for number in numbers.tolist()]

    def snapshots(self) -> list[ShardSnapshot]:
        manifest = ShardManifests(self.table.core, self.shard).latest()
        assert manifest is not None
        found = ShardSnapshot(self.shard).with_current_generation(manifest.current_generation)
        for one in manifest.sstables:
            found = found.with_sstable(one.generation, one.path)
        return [found]


def milliseconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e3


def in_turn(calls: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the median of each call; all are made once before any is measured."""
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            taken[name].append(milliseconds(call))
    return {name: statistics.median(found) for name, found in taken.items()}


def measure(levels: Levels, generations: int, repeat: int, *, stock: bool) -> Line:
    table = levels.table
    base = lance.dataset(table.uri)
    snapshots = levels.snapshots()
    calls: dict[str, Callable[[], object]] = {
        "base": base.to_table,
        "fresh": table.to_table,
        "count": table.count,
    }
    found = in_turn(calls, repeat)
    scanned = None
    if stock:
        scanned = milliseconds(LsmScanner.from_snapshots(base, snapshots).to_table)
        # Stock reads no log; what both can read must be the same.
        flushed = table.count(freshness="flushed")
        assert LsmScanner.from_snapshots(base, snapshots).count_rows() == flushed
    lookups = measure_lookups(levels, base, snapshots, stock=stock)
    return Line(
        keys=levels.kind,
        generations=generations,
        rows=table.count(),
        base=found["base"],
        fresh=found["fresh"],
        stock=scanned,
        count=found["count"],
        peak_mb=peak_mb(table),
        **lookups,
    )


def measure_lookups(
    levels: Levels, base: Lance, snapshots: list[ShardSnapshot], *, stock: bool
) -> dict[str, Any]:
    """Look keys up one by one: in an open snapshot as stock does, and fresh each time."""
    keys = levels.keys(levels.chance.choice(levels.total, LOOKUPS))
    planner = LsmPointLookupPlanner(base, snapshots)
    kind = levels.schema.field("id").type
    ours: list[float] = []
    theirs: list[float] = []
    fresh: list[float] = []
    with levels.table.snapshot(freshness="flushed") as snapshot:
        snapshot.lookup(keys[:1])
        for key in keys:
            ours.append(milliseconds(lambda key=key: snapshot.lookup([key])))  # type: ignore[misc]
            if stock:
                plan = pa.array([key], kind)
                theirs.append(
                    milliseconds(lambda plan=plan: planner.plan_lookup(plan).to_table())  # type: ignore[misc]
                )
    fresh.extend(
        milliseconds(lambda key=key: levels.table.lookup([key]))  # type: ignore[misc]
        for key in keys[: LOOKUPS // 4]
    )
    return {
        "lookup": statistics.median(ours),
        "stock_lookup": statistics.median(theirs) if theirs else None,
        "cold_lookup": statistics.median(fresh),
    }


def peak_mb(table: holdfast.Table) -> float:
    """Return what a streamed scan holds at most, of Python's and of Arrow's memory."""
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    tracemalloc.start()
    for _ in table.scan():
        most = max(most, pool.bytes_allocated() - before)
    _, python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (most + python) / 2**20


HEADINGS = (
    "keys",
    "generations",
    "rows",
    "base scan ms",
    "fresh scan ms",
    "/ base",
    "stock LsmScanner ms",
    "/ stock",
    "count ms",
    "lookup p50 ms",
    "stock lookup p50 ms",
    "/ stock",
    "fresh lookup p50 ms",
    "peak MB streamed",
)


def cells_of(line: Line) -> list[str]:
    return [
        line.keys,
        str(line.generations),
        f"{line.rows:,}",
        f"{line.base:.0f}",
        f"{line.fresh:.0f}",
        ratio(line.fresh, line.base, AIMS["scan / base"]),
        "-" if line.stock is None else f"{line.stock:.0f}",
        ratio(line.fresh, line.stock, AIMS["scan / stock"]),
        f"{line.count:.0f}",
        f"{line.lookup:.1f}",
        "-" if line.stock_lookup is None else f"{line.stock_lookup:.1f}",
        ratio(line.lookup, line.stock_lookup, AIMS["lookup / stock"]),
        f"{line.cold_lookup:.1f}",
        f"{line.peak_mb:.0f}",
    ]


def ratio(ours: float, theirs: float | None, aim: float) -> str:
    if theirs is None:
        return "-"
    found = ours / theirs
    return f"{found:.2f}{' !' if found > aim else ''}"


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [headings, *lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headings))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = (map(str.rjust, line, widths) for line in (headings, rule, *lines))
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def machine() -> str:
    return (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, "
        f"pylance {version('pylance')}, pyarrow {version('pyarrow')}"
    )


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench lsm", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="in the base")
    parser.add_argument("--generations", type=numbers, default=[1, 5, 20], help="e.g. 1,5")
    parser.add_argument("--keys", default="int,text", help="some of int,text")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--no-stock", dest="stock", action="store_false")
    parser.add_argument("--folder", help="where the tables go; a temporary folder unless given")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args(arguments)


def reads(given: argparse.Namespace) -> Iterator[Line]:
    for kind in given.keys.split(","):
        for generations in given.generations:
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                levels = Levels(Path(folder), kind, given.rows, generations)
                yield measure(levels, generations, given.repeat, stock=given.stock)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    print(machine())
    lines = []
    for line in reads(given):
        lines.append(line)
        print(f"  {line.keys}, {line.generations} generations: done", file=sys.stderr)
    print(f"\n{markdown(HEADINGS, [cells_of(line) for line in lines])}\n\n! misses an aim")
    if given.json:
        write_json(given.json, [asdict(line) for line in lines])
    return 0


if __name__ == "__main__":
    sys.exit(main())
