"""A Spark driver of its own, for tests that kill it or that need another kind of Spark.

`python driver.py JOB MASTER URI [ARGS]`; the tests' folder must be on `PYTHONPATH`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast.spark
from holdfast.errors import UnsupportedError

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


def connect_by_name(spark: SparkSession, uri: str) -> None:
    """Create, change and read a table by its name, on a Connect server that has the jar."""
    name = f"lake.{Path(uri).stem}"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, w STRING) TBLPROPERTIES ('primaryKey' = 'id')")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    spark.sql(f"UPDATE {name} SET w = upper(w) WHERE length(w) = 1 AND id = 1")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT id FROM range(2, 4)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET w = 'm' "
        "WHEN NOT MATCHED THEN INSERT (id, w) VALUES (s.id, 'n')"
    )
    by_address = spark.read.format("holdfast").load(uri).where("id = 2")
    assert [tuple(row) for row in by_address.collect()] == [(2, "m")]
    assert spark.table(name).count() == 3
    try:
        holdfast.spark.run_sql(spark, f"DELETE FROM {name}", txn=("job", 1))
    except UnsupportedError:
        return
    raise AssertionError("a txn that nothing carries was taken")


def statement(spark: SparkSession, uri: str, text: str, number: str) -> None:
    """Run a statement of SQL under a transaction id; the catalog `lake` is where the table is."""
    del uri
    holdfast.spark.run_sql(spark, text, txn=("job", int(number)))


def main(job: str, master: str, uri: str, *more: str) -> None:
    if job.startswith("connect"):
        from pyspark.sql import SparkSession

        by_name = job == "connect_by_name"
        catalogs = {"lake": str(Path(uri).parent)} if by_name else {}
        builder = holdfast.spark.configure(SparkSession.builder.remote(master), catalogs=catalogs)
        spark = builder.getOrCreate()
        (connect_by_name if by_name else connect)(spark, uri)
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
