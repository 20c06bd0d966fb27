"""The data source of `ingest`: its tasks write log entries, each at the place it was given.

`holdfast` itself is that source when it is given the option `secretIngest`. A task decides its
entries itself, so there is nothing to commit when all are done; what they did is left in a file
on the driver's machine, where Spark calls `commit`, for the driver's own process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage


class IngestSource(DataSource):
    """The data source of one batch."""

    def writer(self, schema: object, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark calls it so
        """Return the writer of entries."""
        del schema, overwrite
        return _EntryWriter(self.options["secretIngest"])


@dataclass
class _Message(WriterCommitMessage):
    body: str


class _EntryWriter(DataSourceArrowWriter):
    def __init__(self, work: str) -> None:
        self._work = work

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the entries of one task's shards; done before, they are not written again."""
        from holdfast.spark._ingest_rows import write_entries  # noqa: PLC0415 - planning needs no Arrow
        from holdfast.spark._ingest_work import IngestWork  # noqa: PLC0415

        return _Message(json.dumps(write_entries(IngestWork.decode(self._work), iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave what the tasks have done for the caller."""
        bodies = [json.loads(one.body) for one in messages if isinstance(one, _Message)]
        answer = Path(json.loads(self._work)["answer"])
        answer.write_text(json.dumps(bodies))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: entries that are in the log stay there, and are known by their ids."""
