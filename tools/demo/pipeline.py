"""Chapter 3: several Spark jobs and a stream write one table concurrently, and some of them die.

The table is on local disk with the embedded commit store. One job loses a Python worker after
it wrote its files, another its whole driver between writing and committing; the stream is
made to replay a batch that it had committed. Whatever was acknowledged goes into the ledger.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from tools.demo.ledger import Ledger
from tools.demo.terminal import chapter, errors_into, line

import holdfast
import holdfast.spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROWS, PARTITIONS, FILES = 5_000, 4, 4
SCHEMA = pa.schema([("id", pa.int64()), ("job", pa.string()), ("text", pa.string())])
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One Spark job: its name is the app of its transaction, its ids are its own."""

    name: str
    first: int

    @property
    def ids(self) -> range:
        """Return the ids of its rows."""
        return range(self.first, self.first + ROWS)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return its rows, the same ones every time."""
        columns = ("id", f"'{self.name}' as job", "concat('harbour storm ', id) as text")
        return spark.range(self.ids.start, self.ids.stop, 1, PARTITIONS).selectExpr(*columns)

    def save(self, spark: SparkSession, uri: str, source: str = "holdfast") -> None:
        """Append the rows, under the job's transaction id."""
        (
            self.frame(spark)
            .write.format(source)
            .mode("append")
            .option("txnAppId", self.name)
            .option("txnVersion", "1")
            .save(uri)
        )


def run(ledger: Ledger, folder: Path, seed: int) -> None:
    """Run the jobs and the stream, with their deaths; the ledger has what was acknowledged."""
    uri = str(folder / "events.lance")
    chapter(3, "Pipeline: three Spark jobs and a stream into one table; a worker and a driver die")
    holdfast.create_table(uri, SCHEMA, commit_store="sqlite").close()
    ledger.page("pipeline", uri)
    firsts = random.Random(seed).sample(range(1, 1000), 4)  # noqa: S311 - data, not secrets
    jobs = [Job(name=f"job-{n}", first=first * 1_000_000) for n, first in enumerate(firsts[:3])]
    doomed = jobs[2]
    write_stream_files(folder / "arriving", firsts[3] * 1_000_000)
    with (
        errors_into(folder / "spark.log"),
        doomed_driver(folder, uri, doomed) as driver,
        spark_session() as spark,
    ):
        with ThreadPoolExecutor(4) as pool:
            running = [
                pool.submit(save_and_tell, ledger, spark, uri, jobs[0], "holdfast"),
                pool.submit(save_and_tell, ledger, spark, uri, jobs[1], "holdfast-killing"),
                pool.submit(stream, ledger, spark, uri, folder, firsts[3] * 1_000_000),
                pool.submit(driver, uri),
            ]
            for one in running:
                one.result()
        run_again(ledger, spark, uri, doomed)
        replay(spark, uri, folder)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Hold a local Spark, with up to four attempts per task and the killing source."""
    from tools.demo.killing import KillingSource  # noqa: PLC0415 - imports pyspark

    os.environ["DEMO_KILLS"] = "worker"
    os.environ["PYTHONPATH"] = str(ROOT)  # where the workers find the killing source
    spark = holdfast.spark.session("local[2,4]", name="holdfast demo")
    try:
        spark.dataSource.register(KillingSource)
        yield spark
    finally:
        spark.stop()


def save_and_tell(ledger: Ledger, spark: SparkSession, uri: str, job: Job, source: str) -> None:
    """Run one job in a thread of its own; it is acknowledged when `save` returns."""
    holdfast.spark.activate(spark)
    job.save(spark, uri, source)
    ledger.acknowledge("pipeline", job.ids)
    died = ", although a Python worker was killed after it wrote" if source != "holdfast" else ""
    line(f"{job.name}: {ROWS} rows acknowledged{died}")


# The stream.


def write_stream_files(folder: Path, first: int) -> None:
    """Write the files that arrive: one micro-batch each."""
    folder.mkdir()
    for number in range(FILES):
        ids = range(first + number * ROWS, first + (number + 1) * ROWS)
        texts = [f"calm harbour {one}" for one in ids]
        table = pa.table([list(ids), ["stream"] * ROWS, texts], schema=SCHEMA)
        pq.write_table(table, folder / f"{number}.parquet")


def run_stream(spark: SparkSession, uri: str, folder: Path) -> int:
    """Take in what has arrived, one file per micro-batch; return how many batches ran."""
    query = (
        spark.readStream.schema("id long, job string, text string")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "arriving"))
        .writeStream.format("holdfast")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(uri)
    )
    query.awaitTermination()
    return len(query.recentProgress)


def stream(ledger: Ledger, spark: SparkSession, uri: str, folder: Path, first: int) -> None:
    """Run the stream to its end."""
    holdfast.spark.activate(spark)
    run_stream(spark, uri, folder)
    ledger.acknowledge("pipeline", range(first, first + FILES * ROWS))
    line(f"stream: {FILES * ROWS} rows acknowledged in {FILES} micro-batches")


def replay(spark: SparkSession, uri: str, folder: Path) -> None:
    """Let the stream forget that its last batch was committed, and run it again."""
    before = holdfast.open_table(uri).dataset().count_rows()
    for name in (f"{FILES - 1}", f".{FILES - 1}.crc"):
        (folder / "checkpoint" / "commits" / name).unlink()
    batches = run_stream(spark, uri, folder)
    added = holdfast.open_table(uri).dataset().count_rows() - before
    line(f"stream: forgot its last commit, replayed {batches} batch; rows added: {added}")


# The driver that dies.


@contextmanager
def doomed_driver(folder: Path, uri: str, job: Job) -> Iterator[Callable[[str], None]]:
    """Start a second driver for `job`; yield what kills it between write and commit."""
    marker, pids = folder / "about-to-commit", folder / "driver-pids"
    environment = {**os.environ, "DEMO_KILLS": "driver", "DEMO_MARKER": str(marker)}
    command = [
        sys.executable,
        "-m",
        "tools.demo.pipeline",
        uri,
        job.name,
        str(job.first),
        str(pids),
    ]
    with (folder / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )

    def kill(uri: str) -> None:
        wait_for(marker, driver)
        for pid in (int(pids.read_text()), driver.pid):
            os.kill(pid, signal.SIGKILL)
        driver.wait(30)
        known = holdfast.open_table(uri).applied([(job.name, 1)])[0]
        line(f"{job.name}: its driver was killed between write and commit; in the table: {known}")

    try:
        yield kill
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait(30)


def wait_for(marker: Path, driver: subprocess.Popen[bytes]) -> None:
    """Wait until the driver is about to commit.

    Raises:
        RuntimeError: it ended before.
    """
    deadline = time.monotonic() + 240
    while not marker.exists():
        if driver.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the second driver did not get to its commit: see {marker.parent}")
        time.sleep(0.05)


def be_the_doomed_driver() -> None:
    """Run one job in a Spark of our own, up to the commit that never happens."""
    uri, name, first, pids = sys.argv[1:]
    with spark_session_that_dies() as spark:
        java = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # noqa: SLF001
        Path(pids).write_text(str(java))
        Job(name=name, first=int(first)).save(spark, uri, "holdfast-killing")


@contextmanager
def spark_session_that_dies() -> Iterator[SparkSession]:
    """Hold a small Spark with the killing source."""
    from tools.demo.killing import KillingSource  # noqa: PLC0415 - imports pyspark

    os.environ["PYTHONPATH"] = str(ROOT)
    spark = holdfast.spark.session("local[1]", name="holdfast demo, doomed")
    spark.dataSource.register(KillingSource)
    yield spark


def run_again(ledger: Ledger, spark: SparkSession, uri: str, job: Job) -> None:
    """Submit the killed job again, twice, with its transaction id."""
    table = holdfast.open_table(uri)
    for attempt in ("submitted again", "and once more"):
        known = table.applied([(job.name, 1)])[0]
        before = table.dataset().count_rows()
        job.save(spark, uri)
        added = table.dataset().count_rows() - before
        if not known:
            ledger.acknowledge("pipeline", job.ids)
        line(f"{job.name}: {attempt} with the same txn: applied={not known}, rows added: {added}")


if __name__ == "__main__":
    be_the_doomed_driver()
