"""The data source `faulty`: `holdfast` with one thing going wrong where the option `fault` says.

Spark finds it as it finds `holdfast`, by `pyspark_faulty`, which must be on its workers' path.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdfast.spark._ingest_source import _EntryWriter
from holdfast.spark._write import (
    BatchWriter,
    StreamWriter,
    WrittenBatch,
    commit_fragments,
    fragments_of,
    new_txn,
)
from pyspark_holdfast import DefaultSource

_MOST_SECONDS = 240.0


class FaultySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        fault, options = self._split()
        if "secretingest" in {name.lower() for name in options}:
            return FaultyEntries(self.options["secretIngest"])
        return FaultyBatch(fault, schema, options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        fault, options = self._split()
        return FaultyStream(fault, schema, options, overwrite=overwrite)

    def _split(self) -> tuple[str, dict[str, str]]:
        options = dict(self.options)
        return options.pop("fault", ""), options


class FaultyBatch(BatchWriter):
    def __init__(self, fault: str, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenBatch:
        before_write(self._fault)
        written = super().write(broken(self._fault, iterator))
        after_write(self._fault)
        return written

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        before_commit(self._fault)
        super().commit(messages)
        after_commit(self._fault)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        super().abort(messages)
        if self._fault == "raise-after-commit, delete":  # what a sink must not do
            for part in fragments_of(messages):
                for file in part.files:
                    Path(self._plan.place.uri, "data", file.path).unlink()


class FaultyEntries(_EntryWriter):
    """Of a batch for the log: the first try of the first task is killed behind its entries."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        written = super().write(iterator)
        if is_first_try():
            os.kill(os.getpid(), signal.SIGKILL)
        return written


class FaultyStream(StreamWriter):
    def __init__(self, fault: str, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenBatch:
        before_write(self._fault)
        written = super().write(broken(self._fault, iterator))
        after_write(self._fault)
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        before_commit(self._fault)
        if self._fault == "no-txn":  # what a sink must not do
            commit_fragments(self._plan, fragments_of(messages), new_txn())
            return
        super().commit(messages, batchId)
        after_commit(self._fault)


def is_first_try() -> bool:
    """Tell whether this is the first attempt of the first task."""
    task = TaskContext.get()
    return task is not None and task.partitionId() == 0 and task.attemptNumber() == 0


def await_file(path: Path) -> None:
    deadline = time.monotonic() + _MOST_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def before_write(fault: str) -> None:
    kind, _, where = fault.partition(":")
    if kind == "hold-first-try" and is_first_try():
        Path(where, "held").touch()
        await_file(Path(where, "go"))
    if kind == "hold-tasks":
        Path(where, "held").touch()
        await_file(Path(where, "go"))


def broken(fault: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        if fault == "kill-worker" and is_first_try():
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "kill-executor" and is_first_try():
            os.kill(parent_of(os.getppid()), signal.SIGKILL)  # the daemon's parent is the JVM
        if fault == "raise-in-stream" and is_first_try():
            raise OSError("a fault of the test, amid the rows")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def after_write(fault: str) -> None:
    if (fault == "raise-after-write" and is_first_try()) or fault == "raise-always":
        raise OSError("a fault of the test, after the files were written")


def before_commit(fault: str) -> None:
    kind, _, where = fault.partition(":")
    if kind == "hold-commit":
        Path(where, "held").touch()
        await_file(Path(where, "go"))


def after_commit(fault: str) -> None:
    if fault.startswith("raise-after-commit"):
        raise OSError("a fault of the test, after the commit")
