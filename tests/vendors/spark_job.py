"""A Spark job on a table of a vendor's store: append, read back, index. For a process of its own.

`python spark_job.py URI`; storage options come as JSON on standard input.
"""

from __future__ import annotations

import json
import sys

import holdfast.spark


def main(uri: str) -> None:
    options = json.load(sys.stdin)
    config = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = holdfast.spark.session("local[2]", config=config)
    frame = spark.range(1000, 1100, numPartitions=4).selectExpr(
        "id", "concat('row ', cast(id as string)) as text"
    )
    writer = frame.write.format("holdfast").mode("append").options(**options)
    writer.option("txnAppId", "spark").option("txnVersion", "1").save(uri)
    writer.save(uri)  # a retry of the same job
    count = spark.read.format("holdfast").options(**options).load(uri).count()
    spark.stop()
    print(json.dumps({"count": count}))


if __name__ == "__main__":
    main(*sys.argv[1:])
