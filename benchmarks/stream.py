"""Streams into the log, beside the sink of versions and Spark's own Parquet sink.

    ./run bench stream [--seconds 20] [--batches 200 --kill-every 50] [--only latency,...]

Sinks: parquet, versions (one version per batch), log (`ingest`), sink (the sink form), noop.

- latency: events are written to files every 100 ms; how long until a reader in another process
  has them in a fresh scan, at a trigger of one second and back to back, with upkeep every 10 s.
  The reader of Parquet reads the files that Spark's own list of them names. The floor beside it:
  the same query into Spark's `noop` sink, that is, a micro-batch without any writing.
- batches: medians of micro-batches of 1,000 rows, in turns, and rows per second of large ones,
  with upkeep.
- requests: what one micro-batch costs on an object store, one round of upkeep, and 8 shards at 1 s
  in a day.
- kills: a stream whose driver is killed; rows, files and versions beside one version per batch.

It asserts nothing but that the rows are exact. `--json FILE` keeps what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast
import holdfast.spark
from _measuring import markdown, write_json
from holdfast.shard import Sharding
from holdfast.spark._ingest import Ingest
from holdfast.spark._ingest_upkeep import look_after
from holdfast.testing import FaultyS3Process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = "n long, t double, pad string"
SCHEMA = pa.schema([("n", pa.int64()), ("t", pa.float64()), ("pad", pa.string())])
OURS = ("versions", "log", "sink")
KINDS = ("parquet", *OURS, "noop")
PARTS = ("latency", "batches", "requests", "kills")
FILE_SECONDS = 0.1
ROWS_PER_FILE = 50
DAY = 86_400
WARM = 5
"""Batches before a latency run begins."""
ROUNDS = 3
"""How often the sinks take their turn with small batches; the median counts."""
BATCHES_COUNTED = 20
COUNTED_PER_ROUND = 4
LATENCY = {
    "p50_s": "p50 s",
    "p99_s": "p99 s",
    "rows_seen": "rows seen",
    "batch_p50_ms": "micro-batch p50 ms",
    "batch_max_ms": "max ms",
}


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="of each latency run")
    parser.add_argument("--batches", type=int, default=200, help="of the run with kills")
    parser.add_argument("--kill-every", type=int, default=50, help="batches")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rows", type=int, default=50_000, help="of a large batch")
    parser.add_argument("--sustain", type=float, default=60, help="seconds of large batches")
    parser.add_argument("--only", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--sinks", default=",".join(KINDS), help="of latency and batches")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--driver", nargs=3, metavar=("URI", "SOURCE", "CHECKPOINT"))
    parser.add_argument("--reader", nargs=3, metavar=("KIND", "URI", "OUT"))
    given = parser.parse_args()
    if given.driver:
        drive(*given.driver)
        return
    if given.reader:
        read_fresh(*given.reader)
        return
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        bench = Bench(folder, given)
        bench.run(given.only.split(","))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        write_json(given.json, bench.rows)


def make_table(
    uri: str, shards: int, storage_options: dict[str, str] | None = None
) -> holdfast.Table:
    """Create an append-only table."""
    table = holdfast.create_table(uri, SCHEMA, storage_options=storage_options)
    table.prepare_writers(sharding=Sharding.bucket("n", shards))
    return table


class Bench:
    """What is measured, in one Spark."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.folder = folder
        self.given = given
        self.kinds = [kind for kind in KINDS if kind in given.sinks.split(",")]
        self.count = 0
        self.rows: list[dict[str, object]] = []
        self.spark = holdfast.spark.session(
            "local[2]",
            config={"spark.driver.memory": "2g"},
            catalogs={"lake": str(folder)},  # for the jar, with its sink
        )

    def run(self, only: Sequence[str]) -> None:
        """Run the parts."""
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
        try:
            for part in PARTS:
                if part in only:
                    print(f"## {part}\n", flush=True)
                    getattr(self, part)()
                    print(flush=True)
        finally:
            self.spark.stop()

    def fresh(self, name: str) -> str:
        """Return a path that nobody used."""
        self.count += 1
        return str(self.folder / f"{name}-{self.count}")

    def start(
        self, frame: DataFrame, kind: str, uri: str, trigger: dict[str, Any]
    ) -> StreamingQuery:
        """Start a query into one of the sinks."""
        writer = frame.writeStream.option("checkpointLocation", self.fresh("checkpoint"))
        if kind == "log":
            writer = writer.foreachBatch(holdfast.spark.ingest(uri, upkeep="10 seconds"))
            return writer.trigger(**trigger).start()
        if kind == "sink":
            writer = writer.option("into", "log").option("upkeep", "10 seconds")
        ours = kind in ("versions", "sink")
        writer = writer.format("holdfast" if ours else kind)
        return writer.trigger(**trigger).start(uri)

    def latency(self) -> None:
        """Event -> visible to a reader in another process."""
        lines = []
        for kind in self.kinds:
            self._small(kind)  # what is compared finds its processes started
        for kind in self.kinds:
            for name, trigger in (
                ("1 s", {"processingTime": "1 second"}),
                ("back to back", {"processingTime": "0 seconds"}),
            ):
                found = self._latency(kind, trigger)
                self.rows.append({"part": "latency", "sink": kind, "trigger": name, **found})
                lines.append([kind, name, *(_shown(found.get(one)) for one in LATENCY)])
                print(lines[-1], file=sys.stderr, flush=True)
        print(markdown(["sink", "trigger", *LATENCY.values()], lines))

    def _latency(self, kind: str, trigger: dict[str, Any]) -> dict[str, float]:
        source, uri, out = Path(self.fresh("source")), self.fresh(kind), self.fresh("seen")
        source.mkdir()
        if kind in OURS:
            make_table(uri, self.given.shards)
        frame = self.spark.readStream.schema(COLUMNS).json(str(source))
        query = self.start(frame, kind, uri, trigger)
        feed = Feed(source)
        feed.start()
        _await(lambda: _newest(query) >= WARM)  # the first batches start processes
        reader = None
        if kind != "noop":
            command = [sys.executable, __file__, "--reader", kind, uri, out]
            reader = subprocess.Popen(command, stdin=subprocess.PIPE)
            _await(Path(f"{out}.ready").exists)
        begun, first = time.time(), _newest(query)
        time.sleep(self.given.seconds)
        until = time.time()
        feed.stop()
        if reader is not None:
            _await(lambda: json.loads(Path(out).read_text() or "[[0]]")[-1][0] >= feed.rows - 1)
            reader.communicate(b"")
        took = [
            one["durationMs"]["triggerExecution"]
            for one in query.recentProgress
            if one["batchId"] > first and one["numInputRows"]
        ]
        query.stop()
        found = {"batch_p50_ms": statistics.median(took), "batch_max_ms": max(took)}
        if reader is None:
            return found
        seen = json.loads(Path(out).read_text())
        waits = sorted(at - t for _, t, at in seen if begun < t < until)
        return {
            "p50_s": waits[len(waits) // 2],
            "p99_s": waits[int(len(waits) * 0.99)],
            "rows_seen": len(waits),
            **found,
        }

    def batches(self) -> None:
        """Micro-batches of the sinks: small ones, and as many rows as they take."""
        rounds = [{kind: self._small(kind) for kind in self.kinds} for _ in range(ROUNDS)]
        small = {kind: statistics.median(one[kind] for one in rounds) for kind in self.kinds}
        lines = []
        for kind, ms in small.items():
            large = None if kind == "noop" else self._large(kind)
            ratio = ms / small["parquet"] if "parquet" in small else None
            self.rows.append(
                {
                    "part": "batches",
                    "sink": kind,
                    "small_ms": ms,
                    "x_parquet": ratio,
                    "rows_per_second": large,
                }
            )
            lines.append([kind, f"{ms:.0f}", _shown(ratio), _shown(large)])
        print(markdown(["sink", "1,000 rows, median ms", "x Parquet", "rows/s"], lines))
        print(f"\nrows/s: {self.given.sustain:.0f} s of batches of {self.given.rows:,} rows")

    def _small(self, kind: str) -> float:
        frame = self._rows(1_000)
        uri = self.fresh(kind)
        if kind in OURS:
            make_table(uri, self.given.shards)
        query = self.start(frame, kind, uri, {"processingTime": "0 seconds"})
        _await(lambda: _newest(query) >= 25)
        took = [p["durationMs"]["triggerExecution"] for p in query.recentProgress[5:]]
        query.stop()
        return float(statistics.median(took))

    def _large(self, kind: str) -> float:
        frame = self._rows(self.given.rows)
        uri = self.fresh(kind)
        if kind in OURS:
            make_table(uri, self.given.shards)
        query = self.start(frame, kind, uri, {"processingTime": "0 seconds"})
        _await(lambda: _newest(query) >= 3)
        first, begun = _newest(query), time.perf_counter()
        time.sleep(self.given.sustain)
        last, elapsed = _newest(query), time.perf_counter() - begun
        query.stop()
        return float((last - first) * self.given.rows / elapsed)

    def _rows(self, rows: int) -> DataFrame:
        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        frame = source.option("numPartitions", 2).load()
        return frame.selectExpr(
            "value as n", "cast(value as double) as t", "concat('row ', value) as pad"
        )

    def requests(self) -> None:
        """Requests of micro-batches with rows for 8 shards, on a store that decides by itself."""
        server = FaultyS3Process()
        try:
            options = server.storage_options()
            uri = server.url("bench", "stream")
            make_table(uri, 8, storage_options=options)
            write = holdfast.spark.ingest(uri, options, app="bench", upkeep=None)
            assert isinstance(write, Ingest)
            frame = self.spark.range(1000).selectExpr("id as n", "0d as t", "'x' as pad")
            batches, rounds = [], []
            for batch in range(BATCHES_COUNTED):
                before = _requests(server)
                write(frame, batch)
                batches.append(_requests(server) - before)
                if batch % COUNTED_PER_ROUND == COUNTED_PER_ROUND - 1:  # four of these are merged
                    before = _requests(server)
                    look_after(write._state.runs["bench"][1])
                    rounds.append(_requests(server) - before)
        finally:
            server.stop()
        one, upkeep = batches[-2], sum((sum(each.values()) for each in rounds), 0) / len(rounds)
        # A round reads each entry once; a minute has more batches than the rounds counted here.
        more = sum(one.values()) * (60 - COUNTED_PER_ROUND)
        in_a_day = sum(one.values()) * DAY + round((upkeep + more) * DAY / 60)
        print(f"the first batch of a run: {_counts(batches[0])}")
        print(f"each batch: {_counts(one)}")
        print(f"rounds of upkeep: {'; '.join(map(_counts, rounds))}")
        print(f"8 shards at 1 s: {sum(one.values()) * DAY:,} requests a day for batches,")
        print(f"{in_a_day:,} with upkeep every minute")
        for name, count in (("batch", one), ("first batch", batches[0])):
            self.rows.append({"part": "requests", "what": name, "requests": sum(count.values())})
        self.rows.append({"part": "requests", "what": "round of upkeep", "requests": upkeep})
        self.rows.append({"part": "requests", "what": "day at 8 shards, 1 s", "requests": in_a_day})

    def kills(self) -> None:
        """A stream whose driver is killed every so many batches."""
        source, uri = Path(self.fresh("source")), self.fresh("killed")
        source.mkdir()
        batches = self.given.batches
        for number in range(batches):
            rows = [{"n": number * 20 + one, "t": 0.0, "pad": "x"} for one in range(20)]
            (source / f"{number:06d}.json").write_text("\n".join(map(json.dumps, rows)))
        table = make_table(uri, self.given.shards)
        checkpoint = self.fresh("checkpoint")
        begun, kills = time.perf_counter(), self._killed(uri, str(source), checkpoint)
        elapsed = time.perf_counter() - begun
        found = Counter(table.scan(columns=["n"]).read_all()["n"].to_pylist())
        if found != Counter(range(batches * 20)):
            raise SystemExit(f"NOT EXACT: {len(found)} of {batches * 20}")
        counts = {"log": _counted(table)}
        table.merge_log()
        counts["log, merged"] = _counted(table)
        _make_older(uri)
        table.vacuum(confirm=True)
        counts["log, merged, after vacuum"] = _counted(table)
        each = make_table(self.fresh("versions"), self.given.shards)
        reader = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        query = self.start(reader.json(str(source)), "versions", each.uri, {"availableNow": True})
        query.awaitTermination()
        counts["one version per batch"] = _counted(each)
        print(f"{batches} batches, {kills} kills, {elapsed:.0f} s: 0 lost, 0 doubled\n")
        lines = [[name, f"{files:,}", f"{last:,}"] for name, (files, last) in counts.items()]
        print(markdown(["table", "files", "versions"], lines))
        self.rows += [
            {"part": "kills", "table": name, "files": files, "versions": last}
            for name, (files, last) in counts.items()
        ]

    def _killed(self, uri: str, source: str, checkpoint: str) -> int:
        kills = 0
        while True:
            done = _done(checkpoint)
            command = [sys.executable, __file__, "--driver", uri, source, checkpoint]
            driver = subprocess.Popen(command, start_new_session=True)
            try:
                while driver.poll() is None and _done(checkpoint) < done + self.given.kill_every:
                    time.sleep(0.02)
                if driver.poll() is not None or _done(checkpoint) >= self.given.batches:
                    if driver.wait() != 0:
                        raise SystemExit("the driver failed")
                    return kills
                kills += 1
            finally:
                if driver.poll() is None:
                    os.killpg(driver.pid, signal.SIGKILL)
                    driver.wait()


class Feed(threading.Thread):
    """Writes a small file of events every tenth of a second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="feed")
        self._folder = folder
        self._over = threading.Event()
        self.rows = 0

    def run(self) -> None:
        """Write until told to stop."""
        while not self._over.wait(FILE_SECONDS):
            now = time.time()
            some = [
                {"n": self.rows + one, "t": now, "pad": "x" * 20} for one in range(ROWS_PER_FILE)
            ]
            fresh = self._folder / f".{self.rows}"
            fresh.write_text("\n".join(map(json.dumps, some)))
            fresh.rename(self._folder / f"{self.rows:09d}.json")
            self.rows += ROWS_PER_FILE

    def stop(self) -> None:
        """Stop."""
        self._over.set()
        self.join()


def read_fresh(kind: str, uri: str, out: str) -> None:
    """Read a table again and again; note when each row was first seen. In its own process."""
    seen: list[tuple[int, float, float]] = []
    last = -1
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    read = parquet_reader(uri) if kind == "parquet" else fresh_reader(uri)
    while not over.is_set():
        rows = read(last)
        at = time.time()
        found = sorted(zip(rows["n"].to_pylist(), rows["t"].to_pylist(), strict=True))
        seen += [(n, t, at) for n, t in found]
        # Rows of one batch may come shard by shard: only what is contiguous is behind us.
        known = {n for n, _, _ in seen[-5000:]}
        while last + 1 in known:
            last += 1
        seen = list({n: (n, t, at) for n, t, at in reversed(seen)}.values())[::-1]
        fresh = Path(f"{out}.tmp")
        fresh.write_text(json.dumps(seen))
        fresh.rename(out)
        Path(f"{out}.ready").touch()
        time.sleep(0.02)


def fresh_reader(uri: str) -> Callable[[int], pa.Table]:
    """Scan a table of ours, with what is in its log."""
    table = holdfast.open_table(uri)
    return lambda last: table.scan(columns=["n", "t"], filter=f"n > {last}").read_all()


def parquet_reader(uri: str) -> Callable[[int], pa.Table]:
    """Read the Parquet files that Spark's list has named since the last look."""
    known: set[str] = set()

    def read(_last: int) -> pa.Table:
        named = []
        for one in Path(uri, "_spark_metadata").glob("[0-9]*"):
            named += [json.loads(line)["path"] for line in one.read_text().splitlines()[1:]]
        fresh = [unquote(urlsplit(one).path) for one in named if one not in known]
        known.update(named)
        empty = SCHEMA.empty_table().select(["n", "t"])
        return pa.concat_tables([empty, *(pq.read_table(one, columns=["n", "t"]) for one in fresh)])

    return read


def drive(uri: str, source: str, checkpoint: str) -> None:
    """Run a stream to its end. In a process that may be killed."""
    spark = holdfast.spark.session("local[2]")
    reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    writer = reader.json(source).writeStream.option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(holdfast.spark.ingest(uri))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def _newest(query: StreamingQuery) -> int:
    """Return the newest batch that is done."""
    progress: Any = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def _done(checkpoint: str) -> int:
    """Return how many batches are done; Spark keeps the newest hundred in its list."""
    names = [one.name for one in Path(checkpoint, "commits").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=-1) + 1


def _make_older(uri: str) -> None:
    """Let every file look a month old, so that vacuum waits for none of them."""
    month = time.time() - 30 * DAY
    for one in Path(uri).rglob("*"):
        os.utime(one, (month, month))


def _counted(table: holdfast.Table) -> tuple[int, int]:
    files = sum(one.is_file() for one in Path(table.uri).rglob("*"))
    return files, int(table.dataset().version)


def _counts(requests: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(requests.items()))


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _requests(server: FaultyS3Process) -> Counter[str]:
    totals = server.control.totals()
    return Counter({name: one.requests for name, one in totals.items() if one.requests})


def _await(ready: Callable[[], object], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit("it takes too long")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
