"""A driver that writes a folder of events into two tables' logs, for tests that kill it.

`python ingest_driver.py MASTER SOURCE CHECKPOINT WAYS`; WAYS is JSON: a keyed and a plain table,
their storage options, how often upkeep runs, and on Spark Connect the app.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import holdfast.spark


def main(master: str, source: str, checkpoint: str, ways: str) -> None:
    given: dict[str, Any] = json.loads(ways)
    if given.get("app"):
        from pyspark.sql import SparkSession

        spark: Any = holdfast.spark.configure(SparkSession.builder.remote(master)).getOrCreate()
    else:
        spark = holdfast.spark.session(master)
    shared = {"storage_options": given["options"], "upkeep": given["upkeep"], "app": given["app"]}
    keyed = holdfast.spark.ingest(given["keyed"], deletes="op = 'D'", order_by="n", **shared)
    plain = holdfast.spark.ingest(given["plain"], order_by="n", **shared)

    def both(events: Any, batch: int) -> None:
        keyed(events, batch)
        plain(events, batch)

    events = spark.readStream.schema("id long, v string, op string, n long")
    stream = events.option("maxFilesPerTrigger", 1).json(source).writeStream.foreachBatch(both)
    query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
