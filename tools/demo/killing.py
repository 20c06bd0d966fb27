"""A data source that is Holdfast's own, and kills at the worst moment.

It wraps the writer that Holdfast gives to Spark; nothing in Holdfast knows of it. What dies is
chosen by the environment variable `DEMO_KILLS`:

- `worker`: the first attempt of a task writes its files, then its Python worker is killed;
- `driver`: all tasks have written, then the commit waits until somebody kills the driver. It
  leaves the file that `DEMO_MARKER` names, to say that the moment has come.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_holdfast import DefaultSource


class KillingSource(DefaultSource):
    """`df.write.format("holdfast-killing")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name that goes into `format`."""
        return "holdfast-killing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return Holdfast's writer in the hands of a murderer."""
        inner = super().writer(schema, overwrite)
        if not isinstance(inner, DataSourceArrowWriter):
            raise TypeError("the demo wraps an Arrow writer")
        return KillingWriter(inner)


class KillingWriter(DataSourceArrowWriter):
    """Does what the inner writer does, until the moment comes."""

    def __init__(self, inner: DataSourceArrowWriter) -> None:
        self.inner = inner

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the files; then the first attempt dies before Spark hears of them."""
        message = self.inner.write(iterator)
        task = TaskContext.get()
        first = task is not None and task.attemptNumber() == 0 and task.partitionId() == 0
        if first and os.environ.get("DEMO_KILLS") == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit; or wait for death."""
        if os.environ.get("DEMO_KILLS") == "driver":
            Path(os.environ["DEMO_MARKER"]).touch()
            time.sleep(600)
        self.inner.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up, as the inner writer does."""
        self.inner.abort(messages)
