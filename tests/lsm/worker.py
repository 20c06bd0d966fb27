"""One process of the storm: a writer, a merger, a vacuum or a reader, until it is killed.

    python worker.py ROLE NUMBER '{"uri": ..., "options": ..., "commit_store": ..., "notes": ...}'

A writer notes each operation before it is sent ("try") and after it is acknowledged ("ack"),
one line each, in a file of its own that its successors go on with.
"""

from __future__ import annotations

import json
import os
import random
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import holdfast
from holdfast.errors import HoldfastError
from holdfast.shard._config import ShardWriterConfig
from holdfast.upkeep._leftovers import read_contents
from holdfast.upkeep._vacuum_log import find_log, find_sstables, take_log, take_sstables

KEYS = 12
AT_ONCE = timedelta(0)
Operation = tuple[int, int, bool]
"""The number of an operation of a writer, its key, and whether it deletes."""


def shard_of(writer: int) -> str:
    return str(uuid.UUID(int=writer + 1, version=4))


def notes_of(folder: Path, writer: int) -> Path:
    return folder / f"writer-{writer}"


def read_notes(path: Path) -> tuple[list[Operation], set[int]]:
    """Return the operations that were tried, in order, and the numbers of the acknowledged.

    A line that lacks its end is being written, and does not count yet.
    """
    tried: list[Operation] = []
    acknowledged: set[int] = set()
    text = path.read_text() if path.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        word, *rest = line.split()
        if word == "try":
            tried.append((int(rest[0]), int(rest[1]), rest[2] == "True"))
        else:
            acknowledged.add(int(rest[0]))
    return tried, acknowledged


def allowed(path: Path) -> dict[int, set[int | None]]:
    """Return what each key may be now: as the last acknowledged operation left it, or later."""
    tried, acknowledged = read_notes(path)
    found: dict[int, set[int | None]] = {}
    for number, key, deletes in tried:
        value = None if deletes else number
        if number in acknowledged:
            found[key] = {value}
        else:
            found.setdefault(key, {None}).add(value)
    return found


def problems(
    rows: dict[int, int], before: dict[int, set[int | None]], after: Path
) -> Iterator[str]:
    """Yield what a reader saw that it must not see: older than what was acknowledged before."""
    tried, _ = read_notes(after)
    for key, fine in before.items():
        seen = rows.get(key)
        oldest = min((n for n in fine if n is not None), default=-1)
        later = {None if deletes else n for n, k, deletes in tried if k == key and n >= oldest}
        if seen not in fine | later:
            yield f"key {key} is {seen}, not one of {sorted(map(str, fine))}"


def write(table: Any, number: int, notes: Path) -> None:
    tried, _ = read_notes(notes)
    count = max((one[0] for one in tried), default=0)
    chosen = random.Random(os.getpid())
    config = (
        ShardWriterConfig(max_memtable_rows=20)
        if number % 2 == 0
        else ShardWriterConfig(enable_memtable=False)
    )
    with notes.open("a") as book, table.claim_writer(shard_of(number), config=config) as writer:
        while True:
            count += 1
            key, deletes = number * 1000 + chosen.randrange(KEYS), chosen.random() < 0.2
            print("try", count, key, deletes, file=book, flush=True)
            if deletes:
                writer.delete_keys([key])
            else:
                writer.put([{"k": key, "v": str(count)}])
            print("ack", count, file=book, flush=True)


def merge(table: Any, writers: int) -> None:
    """Merge all logs; half of the time also flush the log of the writer that does so itself."""
    chosen = random.Random(os.getpid())
    while True:
        for writer in range(writers):
            shard = shard_of(writer)
            if writer % 2 or chosen.random() < 0.5:
                size = 100_000 if writer % 2 else chosen.choice([3, 9, 100_000])
                with reported():
                    if table.flush_log(shard, idle=AT_ONCE, rows_per_generation=size).applied:
                        print("flushed", writer, flush=True)
            with reported():
                if table.compact_lsm(shards=[shard]).applied:
                    print("merged", writer, flush=True)


def vacuum(table: Any) -> None:
    while True:
        with reported():
            contents = read_contents(table.core, timedelta(seconds=-1))
            take_log(contents, [info.path for info, _ in find_log(contents)])
            take_sstables(contents, [info.path for info, _ in find_sstables(contents)])
            print("vacuumed", flush=True)


def read(table: Any, folder: Path, writers: int) -> None:
    while True:
        before = {writer: allowed(notes_of(folder, writer)) for writer in range(writers)}
        try:
            found = table.scan().read_all().to_pylist()
        except HoldfastError as error:
            report(error)
            continue
        rows = {row["k"]: int(row["v"]) for row in found}
        if len(rows) != len(found):
            print("VIOLATION: a key was read twice", flush=True)
        for writer in range(writers):
            for problem in problems(rows, before[writer], notes_of(folder, writer)):
                print("VIOLATION:", problem, flush=True)
        print("read", len(rows), flush=True)


@contextmanager
def reported() -> Iterator[None]:
    try:
        yield
    except HoldfastError as error:
        report(error)


def report(error: HoldfastError) -> None:
    """Say what went wrong; what must never happen is a violation."""
    fatal = error.kind in {
        "corrupt",
        "wal_gap",
        "foreign_version",
        "commit_store_regressed",
        "internal",
    }
    print("VIOLATION:" if fatal else "error:", error, flush=True)


def main() -> None:
    role, number, given = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    table = holdfast.open_table(given["uri"], given["options"], commit_store=given["commit_store"])
    folder, writers = Path(given["notes"]), int(given["writers"])
    print("started", flush=True)
    match role:
        case "write":
            write(table, number, notes_of(folder, number))
        case "merge":
            merge(table, writers)
        case "vacuum":
            vacuum(table)
        case _:
            read(table, folder, writers)


if __name__ == "__main__":
    main()
