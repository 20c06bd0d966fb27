"""The demo: what vanishes on a store that ignores put-if-absent, and what Holdfast keeps.

Eight processes append to one Lance table on an S3 server that ignores the condition of
"create only if absent". First the stock way, then through Holdfast, on the same server.
A stranger, a fresh process that imports only `lance`, then counts what is there. Exit code
0 when every append that Holdfast acknowledged is in the table exactly once.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import holdfast
from holdfast.arbiter import connect_commit_store
from holdfast.testing import FaultyS3Process

PROCESSES, APPENDS = 8, 10
SPAWN = multiprocessing.get_context("spawn")
STRANGER = """
import json, sys, lance
uri, options = sys.argv[1], json.loads(sys.argv[2])
table = lance.dataset(uri, storage_options=options)
print(json.dumps({"version": table.version, "ids": table.to_table()["id"].to_pylist()}))
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where the workers append, as plain values that travel to them."""

    root: str
    options: dict[str, str]
    commit_store: str | None

    @property
    def uri(self) -> str:
        """Return the table's address."""
        return f"{self.root}/events.lance"


@dataclass
class Outcome:
    """What the workers were told, and what a stranger found."""

    acknowledged: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    present: list[int] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Count acknowledged appends that are not in the table."""
        return len(set(self.acknowledged) - set(self.present))

    @property
    def doubled(self) -> int:
        """Count appends that are there more than once."""
        return sum(count - 1 for count in Counter(self.present).values())


def write(job: Job, ids: list[int], mode: str) -> None:
    """Write rows as a user would: stock pylance, or the same call with our namespace."""
    import lance  # noqa: PLC0415 - only workers need it
    import pyarrow as pa  # noqa: PLC0415

    from holdfast.commits import Namespace  # noqa: PLC0415

    rows = pa.table({"id": pa.array(ids, pa.int64())})
    if job.commit_store is None:
        lance.write_dataset(rows, job.uri, mode=mode, storage_options=job.options)
    else:
        tables: Any = Namespace(job.root, job.options, commit_store=job.commit_store)
        lance.write_dataset(rows, namespace_client=tables, table_id=["events"], mode=mode)


def work(job: Job, worker: int, told: Queue[tuple[str, object]], ready: object) -> None:
    """Append one row after the other; report each answer."""
    import lance  # noqa: F401, PLC0415 - loaded before the start, so that all begin at once

    ready.wait(120)  # type: ignore[attr-defined]
    for number in range(APPENDS):
        row = 1 + worker * APPENDS + number
        try:
            write(job, [row], "append")
        except Exception as error:  # noqa: BLE001 - whatever a user would see
            told.put(("error", f"{type(error).__name__}: {error}"[:200]))
        else:
            told.put(("ack", row))
    told.put(("done", worker))


def run_workers(job: Job) -> Outcome:
    """Create the table, let everybody append, and let a stranger count."""
    creator = SPAWN.Process(target=write, args=(job, [0], "create"))
    creator.start()
    creator.join(120)
    told: Queue[tuple[str, object]] = SPAWN.Queue()
    ready = SPAWN.Barrier(PROCESSES)
    workers = [SPAWN.Process(target=work, args=(job, i, told, ready)) for i in range(PROCESSES)]
    for process in workers:
        process.start()
    outcome, running, begun = Outcome(), PROCESSES, time.monotonic()
    while running:
        kind, value = told.get(timeout=180)
        if kind == "ack":
            outcome.acknowledged.append(int(str(value)))
        elif kind == "error":
            outcome.errors.append(str(value))
        else:
            running -= 1
            continue
        show_progress(len(outcome.acknowledged), len(outcome.errors), time.monotonic() - begun)
    for process in workers:
        process.join(60)
    print()
    outcome.present = ask_a_stranger(job)
    return outcome


def show_progress(acknowledged: int, failed: int, seconds: float) -> None:
    """Redraw one line on a terminal; say it now and then elsewhere."""
    total = PROCESSES * APPENDS
    bar = "#" * (40 * acknowledged // total)
    line = f"   [{bar:<40}] {acknowledged}/{total} acknowledged, {failed} errors, {seconds:.0f} s"
    if sys.stdout.isatty():
        print(f"\r{line}", end="", flush=True)
    elif acknowledged + failed == total:
        print(line, end="", flush=True)


def ask_a_stranger(job: Job) -> list[int]:
    """Read the table in a fresh process that knows nothing of Holdfast."""
    command = [sys.executable, "-c", STRANGER, job.uri, json.dumps(job.options)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    ids = json.loads(found.stdout)["ids"]
    return [number for number in ids if number > 0]


def report(outcome: Outcome) -> None:
    """Print the stranger's count."""
    print(
        f"   a stranger finds: acknowledged {len(outcome.acknowledged)}, "
        f"present {len(set(outcome.present))}, lost {outcome.lost}, doubled {outcome.doubled}"
    )
    for error in sorted(set(outcome.errors))[:3]:
        print(f"   error seen by a worker: {error}")


def probe(name: str, server: FaultyS3Process) -> None:
    """Probe one server and say what was found."""
    found = holdfast.probe(server.url("lake", "probe"), server.storage_options())
    print(
        f"   {name:<10} {found.verdict.value.upper():<9} "
        f"{found.evidence[-1]} ({found.requests} requests, {found.elapsed:.2f} s)"
    )


def main() -> int:
    """Tell the story; return the exit code."""
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.parse_args()
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    with (
        FaultyS3Process(conditions="honest") as honest,
        FaultyS3Process(conditions="ignoring") as ignoring,
        tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder,
    ):
        print("1. Two S3 servers, probed: which one keeps a name for its first writer?")
        probe("honest", honest)
        probe("ignoring", ignoring)
        options = dict(ignoring.storage_options())

        print(f"\n2. Stock: {PROCESSES} processes append {APPENDS} rows each, ignoring server.")
        stock = run_workers(Job(root="s3://lake/stock", options=options, commit_store=None))
        report(stock)

        print("\n3. Holdfast: the same appends, the same server; a SQLite file decides.")
        url = f"sqlite:///{Path(folder).resolve()}/decisions.db?single_host=true"
        with closing(connect_commit_store(url)) as store:
            store.set_up()  # type: ignore[attr-defined]
        ours = run_workers(Job(root="s3://lake/holdfast", options=options, commit_store=url))
        report(ours)
    return verdict(stock, ours)


def verdict(stock: Outcome, ours: Outcome) -> int:
    """Print the end of the story and return the exit code."""
    kept = len(ours.acknowledged) == PROCESSES * APPENDS and not ours.lost and not ours.doubled
    print("\nVerdict")
    print(f"   stock     lost {stock.lost} of {len(stock.acknowledged)} acknowledged appends")
    print(f"   holdfast  lost {ours.lost} of {len(ours.acknowledged)}, doubled {ours.doubled}")
    print("   " + ("everything acknowledged is there, once" if kept else "HOLDFAST FAILED"))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
