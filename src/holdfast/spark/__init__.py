"""PySpark: ready sessions, and the verbs of a table on Spark.

    spark = holdfast.spark.session()
    df.write.format("holdfast").mode("append").save(uri)
    spark.read.format("holdfast").load(uri)

Spark finds the data source `holdfast` by itself. Importing this module loads neither
pyspark nor Lance: each name below is loaded at its first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.spark._compact import CompactResult
    from holdfast.spark._ingest import ingest
    from holdfast.spark._merge import MergeResult
    from holdfast.spark._session import activate, configure, session
    from holdfast.spark._table import SparkTable, ViewResult, table

# What users may use -> the module that has it.
_HOME = {
    "CompactResult": "_compact",
    "MergeResult": "_merge",
    "SparkTable": "_table",
    "ViewResult": "_table",
    "activate": "_session",
    "configure": "_session",
    "ingest": "_ingest",
    "session": "_session",
    "table": "_table",
}

__all__ = [
    "CompactResult",
    "MergeResult",
    "SparkTable",
    "ViewResult",
    "activate",
    "configure",
    "ingest",
    "session",
    "table",
]


def __getattr__(name: str) -> object:
    """Load a name when it is first asked for."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
