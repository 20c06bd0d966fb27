"""Answers of a table as DataFrames: rows that Lance found where the caller is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.spark._types import batches_for_spark, spark_schema


def frame_of(spark: Any, rows: pa.Table) -> Any:  # noqa: ANN401 - of either kind of session
    """Return rows as a DataFrame, in the types that Spark reads them in.

    Raises:
        InvalidInputError: Spark has no type for a column.
    """
    schema = spark_schema(rows.schema)
    batches = list(batches_for_spark(iter(rows.to_batches()), schema))
    if not batches:
        return spark.createDataFrame([], schema)
    return spark.createDataFrame(pa.Table.from_batches(batches), schema)
