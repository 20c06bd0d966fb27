"""Chapters 1 and 2: which store keeps a name, and what is lost on one that does not.

Eight processes append to one table on an S3 server that ignores the condition of "create only
if absent". First the stock way; `doctor` names what vanished and `rescue` returns it. Then the
same appends through Holdfast, on the same server.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from tools.demo.ledger import Count, Ledger
from tools.demo.terminal import bar, chapter, line, show_count

import holdfast
from holdfast.arbiter import ProbeReport, Verdict, connect_commit_store, remember
from holdfast.testing import FaultyS3Process
from holdfast.upkeep import doctor, rescue

PROCESSES, APPENDS = 8, 10
TOTAL = PROCESSES * APPENDS
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where the workers append, as plain values that travel to them."""

    root: str
    options: dict[str, str]
    commit_store: str | None
    stock: bool

    @property
    def uri(self) -> str:
        """Return the table's address."""
        return f"{self.root}/events.lance"


def probe_both(honest: FaultyS3Process, ignoring: FaultyS3Process) -> None:
    """Probe the two servers side by side."""
    chapter(1, "Two S3 servers, probed: which one keeps a name for its first writer?")
    for name, server in (("honest", honest), ("ignoring", ignoring)):
        found = holdfast.probe(server.url("lake", "probe"), server.storage_options())
        line(
            f"{name:<10} {found.verdict.value.upper():<9} "
            f"{found.evidence[-1]} ({found.requests} requests, {found.elapsed:.2f} s)"
        )


def show_loss(
    ledger: Ledger, server: FaultyS3Process, folder: Path, number: int, *, trusting: bool
) -> None:
    """Lose appends the stock way, bring them back, then lose none.

    With `trusting`, Holdfast is made to believe that the server keeps put-if-absent.
    """
    options = dict(server.storage_options())
    decisions = f"sqlite:///{folder.resolve()}/decisions.db?single_host=true"
    with closing(connect_commit_store(decisions)) as store:
        store.set_up()  # type: ignore[attr-defined]

    chapter(
        number, f"Loss: {PROCESSES} processes append {APPENDS} rows each on the ignoring server"
    )
    line("the stock way:")
    stock = Job(root="s3://lake/stock", options=options, commit_store=None, stock=True)
    lost = run_workers(ledger, "stock", stock)
    bring_back(ledger, stock, decisions, lost)

    if trusting:
        line("Holdfast WITHOUT its safeguard: told that this server keeps put-if-absent")
        _believe(server, options)
    else:
        line("through Holdfast, a SQLite file decides:")
    url = None if trusting else decisions
    run_workers(
        ledger,
        "appends",
        Job(root="s3://lake/ours", options=options, commit_store=url, stock=False),
    )


def _believe(server: FaultyS3Process, options: dict[str, str]) -> None:
    """Plant a verdict that a probe would never give."""
    found = ProbeReport(
        location=server.url("lake", ""),
        verdict=Verdict.ENFORCED,
        evidence=("planted",),
        requests=0,
        elapsed=0.0,
    )
    remember(server.url("lake", "ours"), options, found)


def bring_back(ledger: Ledger, job: Job, decisions: str, before: Count) -> None:
    """Adopt the damaged table, name what vanished, and commit it again."""
    holdfast.adopt_table(job.uri, commit_store=decisions, storage_options=job.options).close()
    found = doctor(job.uri, job.options)
    line(
        f"holdfast doctor: {len(found.candidates)} lost appends have their rows still on the store"
    )
    done = rescue(job.uri, job.options, ids="all", confirm=True)
    after = ledger.count("stock")[0]
    line(
        f"holdfast rescue: {done.rows} rows brought back; lost {before.lost} -> {after.lost}, "
        f"doubled {after.doubled}"
    )


def write(job: Job, ids: list[int], mode: str) -> None:
    """Write rows as a user would: stock pylance, or the same call with our namespace."""
    import lance  # noqa: PLC0415 - only workers need it
    import pyarrow as pa  # noqa: PLC0415

    from holdfast.commits import Namespace  # noqa: PLC0415

    rows = pa.table({"id": pa.array(ids, pa.int64())})
    if job.stock:
        lance.write_dataset(rows, job.uri, mode=mode, storage_options=job.options)
    else:
        tables: Any = Namespace(job.root, job.options, commit_store=job.commit_store)
        lance.write_dataset(rows, namespace_client=tables, table_id=["events"], mode=mode)


def appender(job: Job) -> Callable[[int], object]:
    """Return what appends a row: stock pylance, a table of Holdfast, or pylance through it."""
    import lance  # noqa: F401, PLC0415 - loaded before the start, so that all begin together

    if job.stock or job.commit_store is None:
        return lambda row: write(job, [row], "append")
    table = holdfast.open_table(job.uri, job.options)
    return lambda row: table.append([{"id": row}])


def work(job: Job, worker: int, told: Queue[tuple[str, object]], ready: object) -> None:
    """Append one row after the other; report each answer."""
    append = appender(job)
    ready.wait(120)  # type: ignore[attr-defined]
    for number in range(APPENDS):
        row = 1 + worker * APPENDS + number
        try:
            append(row)
        except Exception as error:  # noqa: BLE001 - whatever a user would see
            told.put(("error", f"{type(error).__name__}: {error}"[:200]))
        else:
            told.put(("ack", row))
    told.put(("done", worker))


def run_workers(ledger: Ledger, name: str, job: Job) -> Count:
    """Create the table, let everybody append, and let the independent reader count."""
    page = ledger.page(name, job.uri, job.options)
    creator = SPAWN.Process(target=write, args=(job, [0], "create"))
    creator.start()
    creator.join(120)
    if creator.exitcode:
        raise RuntimeError(f"the table could not be created, exit code {creator.exitcode}")
    told: Queue[tuple[str, object]] = SPAWN.Queue()
    ready = SPAWN.Barrier(PROCESSES + 1)
    workers = [SPAWN.Process(target=work, args=(job, i, told, ready)) for i in range(PROCESSES)]
    for process in workers:
        process.start()
    ready.wait(120)
    errors: list[str] = []
    running, begun, done = PROCESSES, time.monotonic(), 0
    while running:
        kind, value = told.get(timeout=180)
        if kind == "done":
            running -= 1
            continue
        done += 1
        if kind == "ack":
            page.acknowledged.append(int(str(value)))
        else:
            errors.append(str(value))
        seconds = time.monotonic() - begun
        bar(
            done, TOTAL, f"{done - len(errors)} acknowledged, {len(errors)} errors, {seconds:.1f} s"
        )
    for process in workers:
        process.join(60)
    for error in sorted(set(errors))[:3]:
        line(f"error seen by a worker: {error}")
    found = ledger.count(name)[0]
    show_count(found)
    return found
