"""A Spark driver of its own, for tests that kill it or that need another kind of Spark.

`python driver.py JOB MASTER URI [ARGS]`; the tests' folder must be on `PYTHONPATH`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.task.duration.threshold": "2s",
}


def append(spark: SparkSession, uri: str, fault: str, txn: str = "") -> None:
    """Append 0..99 in 4 tasks."""
    writer = spark.range(0, 100, numPartitions=4).write.format("faulty").mode("append")
    if txn:
        writer = writer.option("txnAppId", "job").option("txnVersion", txn)
    writer.option("fault", fault).save(uri)


def changes(spark: SparkSession, uri: str, sink: str, checkpoint: str) -> None:
    """Write the changes of a table to another one, batch after batch, until killed."""
    frame = spark.readStream.format("holdfast").option("readChangeFeed", "true")
    frame = frame.option("maxEntriesPerTrigger", "6").option("maxFilesPerTrigger", "4")
    writer = frame.load(uri).writeStream.format("holdfast")
    writer = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds")
    writer.start(sink).awaitTermination()


def connect(spark: SparkSession, uri: str) -> None:
    """Append, read and stream by Spark Connect."""
    spark.range(0, 60).write.format("holdfast").mode("append").save(uri)
    frame = spark.read.format("holdfast").option("filter", "id >= 10").load(uri)
    frame.selectExpr("id + 50 as id").write.format("holdfast").mode("append").save(uri)
    stream = spark.readStream.format("holdfast").load(uri).writeStream.format("holdfast")
    stream = stream.option("checkpointLocation", f"{uri}-checkpoint")
    stream.trigger(availableNow=True).start(f"{uri}-copy").awaitTermination()


def statement(spark: SparkSession, uri: str, text: str, number: str) -> None:
    """Run a statement of SQL under a transaction id; the catalog `lake` is where the table is."""
    del uri
    holdfast.spark.run_sql(spark, text, txn=("job", int(number)))


def main(job: str, master: str, uri: str, *more: str) -> None:
    if job == "connect":
        from pyspark.sql import SparkSession

        builder = holdfast.spark.configure(SparkSession.builder.remote(master))
        spark = builder.getOrCreate()
        connect(spark, uri)
    else:
        config = SPECULATION if master.startswith("spark:") else {}
        quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        config = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": quick,
            **config,
        }
        catalogs = {"lake": str(Path(uri).parent)} if job == "statement" else {}
        spark = holdfast.spark.session(master, config=config, catalogs=catalogs)
        jobs: dict[str, Callable[..., None]] = {
            "append": append,
            "changes": changes,
            "statement": statement,
        }
        jobs[job](spark, uri, *more)
    spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
