"""A Spark job on tables of vendors' stores: append, retry, read back. For a process of its own.

`python spark_job.py URI ...`; the storage options of each come as a JSON list on standard input.
"""

from __future__ import annotations

import json
import sys

import holdfast.spark


def main(*uris: str) -> None:
    config = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = holdfast.spark.session("local[2]", config=config)
    frame = spark.range(1000, 1100, numPartitions=4).selectExpr(
        "id", "concat('row ', cast(id as string)) as text"
    )
    counts = []
    for uri, options in zip(uris, json.load(sys.stdin), strict=True):
        writer = frame.write.format("holdfast").mode("append").options(**options)
        writer.option("txnAppId", "spark").option("txnVersion", "1").save(uri)
        writer.save(uri)  # a retry of the same job
        counts.append(spark.read.format("holdfast").options(**options).load(uri).count())
    spark.stop()
    print(json.dumps({"counts": counts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
