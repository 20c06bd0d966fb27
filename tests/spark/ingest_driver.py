"""A driver that writes a folder of events into two tables' logs, for tests that kill it.

`python ingest_driver.py MASTER SOURCE CHECKPOINT WAYS`; WAYS is JSON: a keyed and a plain table,
or one of them, their storage options, how often upkeep runs, whether the sink form writes, and on
Spark Connect the app.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import holdfast.spark

TABLES: dict[str, dict[str, Any]] = {"keyed": {"deletes": "op = 'D'"}, "plain": {}}


def main(master: str, source: str, checkpoint: str, ways: str) -> None:
    given: dict[str, Any] = json.loads(ways)
    if given.get("app"):
        from pyspark.sql import SparkSession

        spark: Any = holdfast.spark.configure(SparkSession.builder.remote(master)).getOrCreate()
    else:
        # A catalog brings the jar, which the sink form needs.
        catalogs = {"lake": tempfile.gettempdir()} if given["sink"] else {}
        memory = {"spark.executor.memory": "512m"}
        spark = holdfast.spark.session(master, config=memory, catalogs=catalogs)
    events = spark.readStream.schema("id long, v string, op string, n long")
    frame = events.option("maxFilesPerTrigger", 1).json(source)
    for query in (sinks if given["sink"] else functions)(frame, Path(checkpoint), given):
        query.awaitTermination()
    spark.stop()
    print("done", flush=True)


def functions(frame: Any, checkpoint: Path, given: dict[str, Any]) -> list[Any]:
    """Start one query that writes the tables by `ingest`."""
    shared: dict[str, Any] = {
        "storage_options": given["options"],
        "upkeep": given["upkeep"],
        "app": given["app"],
    }
    tables = [
        holdfast.spark.ingest(given[name], order_by="n", **more, **shared)
        for name, more in TABLES.items()
        if name in given
    ]

    def write(events: Any, batch: int) -> None:
        for table in tables:
            table(events, batch)

    return [started(frame.writeStream.foreachBatch(write), checkpoint / "plain")]


def sinks(frame: Any, checkpoint: Path, given: dict[str, Any]) -> list[Any]:
    """Start a query for each table that writes by the sink."""
    storage = {f"storage.{key}": text for key, text in given["options"].items()}
    queries = []
    for name, more in TABLES.items():
        told = {"into": "log", "orderBy": "n", "upkeep": given["upkeep"], **more, **storage}
        stream = frame.writeStream.format("holdfast").options(**told).option("path", given[name])
        queries.append(started(stream, checkpoint / name))
    return queries


def started(stream: Any, checkpoint: Path) -> Any:
    kept = stream.option("checkpointLocation", str(checkpoint))
    return kept.trigger(availableNow=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
