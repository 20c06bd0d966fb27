"""What reading changes costs beside a plain scan of the same rows.

    ./run bench changes [--rows N] [--repeat N] [--json FILE]

One table on local disk with a key and one without: rows that were appended, rows that were
updated, rows that are in the log only. What is compared takes turns, so that whatever else the
machine does hits all. docs/reference/performance.md explains.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import holdfast
from _measuring import markdown, write_json

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("note", pa.string())])
VERSIONS = 10
ENTRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: change rows and scanned rows, and how many per second."""

    what: str
    changes: int
    rows: int
    changes_per_second: float
    scanned_per_second: float

    @property
    def ratio(self) -> float:
        """Return how many times longer a change row takes than a scanned row."""
        return self.scanned_per_second / self.changes_per_second


def made(keys: np.ndarray, value: float) -> pa.Table:
    notes = pa.array([f"a note of row {key:09}" for key in keys.tolist()])
    values = pa.array(np.full(len(keys), value))
    return pa.Table.from_arrays([pa.array(keys), values, notes], schema=SCHEMA)


def append(table: holdfast.Table, rows: int) -> None:
    for part in np.array_split(np.arange(rows), VERSIONS):
        table.append(made(part, 0.0))


def put(table: holdfast.Table, keys: np.ndarray, value: float) -> None:
    """Put rows into the log, and leave them there."""
    config = holdfast.ShardWriterConfig(max_memtable_rows=100_000)
    with table.claim_writer("unsharded", config=config) as writer:
        for part in np.array_split(keys, ENTRIES):
            writer.put(made(part, value))


def measure(repeat: int, *calls: Callable[[], int]) -> list[tuple[int, float]]:
    """Return how many rows each call gave, and the median of its seconds; they take turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    counts = [0 for _ in calls]
    for _ in range(repeat + 1):
        for number, call in enumerate(calls):
            begun = time.perf_counter()
            counts[number] = call()
            seconds[number].append(time.perf_counter() - begun)
    return [(n, statistics.median(one[1:])) for n, one in zip(counts, seconds, strict=True)]


def count(batches: object) -> int:
    return sum(batch.num_rows for batch in batches)  # type: ignore[attr-defined]


def line(
    what: str, table: holdfast.Table, since: holdfast.ChangeCursor | None, repeat: int, **how: str
) -> Line:
    """Compare the changes since a cursor with a scan that has the same rows."""
    freshness = how.get("freshness", "latest")
    changed, scanned = measure(
        repeat,
        lambda: count(table.changes(since, freshness=freshness)),
        lambda: count(table.scan(freshness=freshness)),  # type: ignore[arg-type]
    )
    return Line(
        what=what,
        changes=changed[0],
        rows=scanned[0],
        changes_per_second=changed[0] / changed[1],
        scanned_per_second=scanned[0] / scanned[1],
    )


def lines(folder: Path, rows: int, repeat: int) -> list[Line]:
    found = []
    table = holdfast.create_table(folder / "keyed.lance", SCHEMA, primary_key=["k"])
    start = table.change_cursor(freshness="base")
    append(table, rows)
    found.append(line("a snapshot", table, None, repeat))
    found.append(line("appends", table, start, repeat, freshness="base"))
    before = table.change_cursor(freshness="base")
    table.dataset().update({"v": "v + 1"}, where="k % 4 = 0")
    found.append(line("an update of a quarter", table, before, repeat, freshness="base"))
    now = table.change_cursor()
    put(table, np.arange(0, rows, 10), 2.0)
    found.append(line("log, a tenth updated", table, now, repeat))
    table.close()
    plain = holdfast.create_table(folder / "plain.lance", SCHEMA)
    now = plain.change_cursor()
    put(plain, np.arange(rows // 10), 2.0)
    found.append(line("log without a key", plain, now, repeat))
    plain.close()
    return found


def table_of(found: Sequence[Line]) -> str:
    headings = [
        "changes",
        "change rows",
        "changes/s",
        "scanned rows",
        "scanned/s",
        "scan / changes",
    ]
    return markdown(
        headings,
        [
            [
                one.what,
                f"{one.changes:,}",
                f"{one.changes_per_second:,.0f}",
                f"{one.rows:,}",
                f"{one.scanned_per_second:,.0f}",
                f"{one.ratio:.1f}",
            ]
            for one in found
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = lines(Path(folder), given.rows, given.repeat)
    print(table_of(found))
    if given.json:
        write_json(given.json, [asdict(one) for one in found])


if __name__ == "__main__":
    main()
