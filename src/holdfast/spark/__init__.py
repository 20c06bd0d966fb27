"""PySpark: ready sessions, and the verbs of a table on Spark.

    spark = holdfast.spark.session()
    df.write.format("holdfast").mode("append").save(uri)
    spark.read.format("holdfast").load(uri)

Spark finds the data source `holdfast` by itself. Importing this module loads neither
pyspark nor Lance: each name below is loaded at its first use.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.spark._about import AboutSource as AboutSource
    from holdfast.spark._catalog import answer_of as answer_of
    from holdfast.spark._changes import ChangeBatchReader as ChangeBatchReader
    from holdfast.spark._changes import ChangeStreamReader as ChangeStreamReader
    from holdfast.spark._compact import CompactResult
    from holdfast.spark._follow import StreamReader as StreamReader
    from holdfast.spark._ingest import ingest
    from holdfast.spark._ingest_source import IngestSource as IngestSource
    from holdfast.spark._jar import SUPPORTED as SUPPORTED
    from holdfast.spark._jar import jar_path as jar_path
    from holdfast.spark._merge import MergeResult
    from holdfast.spark._merge_source import MergeSource as MergeSource
    from holdfast.spark._read import BatchReader as BatchReader
    from holdfast.spark._read import schema_of as schema_of
    from holdfast.spark._session import activate, configure, session
    from holdfast.spark._sink import SinkSource as SinkSource
    from holdfast.spark._sql import run_sql
    from holdfast.spark._sql_change import ChangeSource as ChangeSource
    from holdfast.spark._table import SparkTable, ViewResult, table
    from holdfast.spark._tasks import TaskSource as TaskSource
    from holdfast.spark._write import BatchWriter as BatchWriter
    from holdfast.spark._write import StreamWriter as StreamWriter

# What is not in this list is for the command line and for `pyspark_holdfast`, not for users.
__all__ = [
    "CompactResult",
    "MergeResult",
    "SparkTable",
    "ViewResult",
    "activate",
    "configure",
    "ingest",
    "run_sql",
    "session",
    "table",
]


__getattr__ = load_names(
    __name__,
    {
        "_about": "AboutSource",
        "_catalog": "answer_of",
        "_changes": "ChangeBatchReader ChangeStreamReader",
        "_compact": "CompactResult",
        "_follow": "StreamReader",
        "_ingest": "ingest",
        "_ingest_source": "IngestSource",
        "_jar": "SUPPORTED jar_path",
        "_merge": "MergeResult",
        "_merge_source": "MergeSource",
        "_read": "BatchReader schema_of",
        "_session": "activate configure session",
        "_sql": "run_sql",
        "_sql_change": "ChangeSource",
        "_sink": "SinkSource",
        "_table": "SparkTable ViewResult table",
        "_tasks": "TaskSource",
        "_write": "BatchWriter StreamWriter",
    },
)
