"""The driver's Python side of the sink form, `writeStream` with `.option("into", "log")`.

The sink itself is Java (`LogSink`): Spark tells a Python sink neither its batch nor its run, and
lets it divide no rows. What it does with a batch is what `ingest` does, told by this process:

| question | answer |
|---|---|
| `plan`, with query, run, batch and columns | columns to select, rows to keep, partitions, work |
| `finish` | what it wrote, for Spark's progress: the batch is in all shards |
| `fail` | nothing: the run is forgotten, and whoever goes on claims the shards anew |

Spark has one kind of Python process on the driver that lives as long as a query, that of a
stream's source. So this is one: a question comes as its start offset, the answer is the offset
that it returns. It ends with the query, or with Spark.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from holdfast.errors import HoldfastError
from holdfast.spark._ingest import Ingest, Planned, ingest
from holdfast.spark._ingest_work import WORK, IngestWork, decode_columns
from holdfast.spark._options import SparkOptions, Use, parse
from holdfast.spark._types import spark_schema

Question: TypeAlias = dict[str, Any]
"""JSON."""

DRIVES = "secretSink"
"""That a load is the driver of a sink; the sink in Java says so, users never do."""


def ingest_of(given: SparkOptions) -> Ingest:
    """Return what writes batches as the options of a sink say.

    Raises:
        InvalidInputError: an option is malformed.
    """
    upkeep = given.get("upkeep") or "1 minute"
    made = ingest(
        given.path,
        given.storage,
        commit_store=given.get("commitStoreUrl"),
        deletes=given.get("deletes"),
        order_by=given.get("orderBy") or (),
        upkeep=None if upkeep.strip().lower() == "none" else upkeep,
        entries_per_batch=given.get("entriesPerBatch") or 1,
        shard=given.get("shard"),
    )
    assert isinstance(made, Ingest)  # noqa: S101 - what it returns
    return made


class SinkSource(DataSource):
    """The data source whose stream reader is the driver of a sink."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the driver."""
        del schema
        told = {key: text for key, text in self.options.items() if key.lower() != DRIVES.lower()}
        return SinkDriver(told)


class SinkDriver(DataSourceStreamReader):
    """Answers the questions of one query's sink, in a process that lives as long as it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._sink: Ingest | None = None
        self._planned: tuple[str, Planned] | None = None
        self._folder: Path | None = None

    def initialOffset(self) -> Question:  # noqa: N802 - Spark's
        """Say nothing: this is no source."""
        return {}

    def latestOffset(self, start: Question, limit: ReadLimit) -> Question:  # noqa: N802 - Spark's
        """Answer a question; an error of ours is an answer, too."""
        del limit
        try:
            return self._answer(start)
        except HoldfastError as error:
            return {"error": str(error), "kind": error.kind.value}

    def partitions(self, start: Question, end: Question) -> Sequence[InputPartition]:
        """Return none: this is no source."""
        del start, end
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        """Return no rows: this is no source."""
        del partition
        return iter(())

    def stop(self) -> None:
        """Let go of the table; the shards stay with this run until the next."""
        if self._sink is not None and self._planned is not None:
            self._sink.drop(self._planned[0])
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / "answer.json").unlink(missing_ok=True)
                self._folder.rmdir()

    def _answer(self, question: Question) -> Question:
        if self._sink is None:
            self._sink = ingest_of(parse(self._options, Use.SINK))
        if question["verb"] == "plan":
            return self._plan(self._sink, question)
        if self._planned is None:
            return {}
        query, planned = self._planned
        if question["verb"] == "fail":
            self._sink.drop(query)
            return {}
        with self._sink.guard(query):
            return {"metrics": self._sink.finish(query, planned).as_metrics()}

    def _plan(self, sink: Ingest, question: Question) -> Question:
        query = sink.name_of(question["query"])
        schema = StructType.fromJson(question["columns"])
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        answer = self._folder / "answer.json"
        answer.unlink(missing_ok=True)  # never that of the batch before
        with sink.guard(query):
            planned = sink.plan(query, question["run"], schema, int(question["batch"]), answer)
        self._planned = (query, planned)
        if planned.job is None:
            return {}
        route, work = planned.job
        return {
            "select": list(route.select),
            "where": route.where,
            "partitions": route.partitions,
            "column": work.column,
            "cast": _other_type(schema, work),
            "uri": sink.uri,
            WORK: work.encode(),
        }


def _other_type(schema: StructType, work: IngestWork) -> str | None:
    """Return the type of the column that rows are divided by, if the frame has it as another."""
    if work.column is None or work.column not in schema.names:
        return None
    wanted = spark_schema(decode_columns(work.columns), [work.column]).fields[0].dataType
    return None if schema[work.column].dataType == wanted else wanted.simpleString()


__all__ = ["SinkDriver", "SinkSource", "ingest_of"]
