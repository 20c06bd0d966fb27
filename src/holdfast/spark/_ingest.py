"""`ingest`: each micro-batch of a stream into the fenced log, exactly once.

    events.writeStream.foreachBatch(holdfast.spark.ingest(uri, deletes="op = 'D'"))

Rows go to the log of their shard, one entry for each shard and batch, and every reader with
`freshness="latest"` sees them as soon as that entry is decided. See RFC 0013.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from holdfast.core import address_of
from holdfast.errors import FencedError, HoldfastError, InvalidInputError
from holdfast.formats import MAX_ENTRY_BYTES
from holdfast.options import StorageOptions
from holdfast.spark._ingest_frame import Frame, Route, plan_route
from holdfast.spark._ingest_run import BatchProgress, Run
from holdfast.spark._ingest_twice import WrittenBatches
from holdfast.spark._ingest_upkeep import IngestUpkeep, interval_of
from holdfast.spark._ingest_work import (
    MOST_PARTS,
    WORK,
    IngestTarget,
    IngestWork,
    WrittenEntries,
    encode_columns,
)
from holdfast.spark._progress import Session, describe_jobs, is_connect
from holdfast.spark._tasks import failure_of, raise_if_error
from holdfast.storage import open_store
from holdfast.table import open_table
from holdfast.txn import parse_txn

MOST_BYTES = MAX_ENTRY_BYTES // 2
"""How many bytes of rows one log entry may have."""
SOURCE = "holdfast"
_QUERY = "sql.streaming.queryId"
_RUN = "spark.jobGroup.id"
_PROCESS = "this process"
"""What names a run on Spark Connect, which starts a Python process for each."""


def ingest(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
    deletes: str | None = None,
    order_by: str | Sequence[str] = (),
    app: str | None = None,
    upkeep: str | timedelta | None = "1 minute",
    entries_per_batch: int = 1,
    shard: str | None = None,
) -> Callable[[Frame, int], None]:
    """Return a function for `foreachBatch` that writes each batch into the table's log, once.

    When it returns, the batch is durable, and readers with `freshness="latest"` see it. A batch
    that Spark repeats is known by its query and number, also after its first copy was flushed,
    merged and collected. A batch is atomic in each shard, not across shards. Each run of the
    query claims the table's shards: this WRITES, and locks their previous writers out.

    One query writes a table with one `ingest`. A second one of the same table in the same query
    is refused, as both would count the same batches: union the frames.

    Args:
        uri: where the table is, for this process and for Spark's workers alike.
        storage_options: pylance's storage options; secrets as `env:NAME`.
        commit_store: another address of the table's commit store, with credentials, say.
            Workers need to reach it, too.
        deletes: a condition on the rows in Spark's SQL, such as `op = 'D'`; those that meet it
            delete their key. Only with it, or `order_by`, may the stream have columns that the
            table lacks.
        order_by: which of several rows of one key in one batch is the newest: a column, or an
            expression, or several, that grow. Without it such a batch is refused.
        app: the name under which batches are counted. Classic Spark tells the query's id, which
            the checkpoint keeps; on Spark Connect it must be given, for ever the same for one
            checkpoint, and another one for a new checkpoint.
        upkeep: how often the driver flushes the log and merges what was flushed; never deleting.
            None leaves that to `holdfast maintain`.
        entries_per_batch: into how many log entries a shard's rows of one batch are divided, for
            batches that are too large for one. Each entry is atomic then, not the batch.
        shard: the shard to write, for a table whose shards are named by hand.

    Raises:
        InvalidInputError: an argument is malformed.
    """
    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    texts: tuple[object, ...] = (deletes, app, shard, *order)
    for text in texts:
        if text is not None and not (isinstance(text, str) and text.strip()):
            raise InvalidInputError("give a text that is not empty, or leave it out")
    if app is not None:
        parse_txn((f"{app}#{MOST_PARTS}/{MOST_PARTS}", 0))
    if type(entries_per_batch) is not int or not 1 <= entries_per_batch <= MOST_PARTS:
        raise InvalidInputError(
            f"entries_per_batch is 1 to {MOST_PARTS}", entries_per_batch=entries_per_batch
        )
    options = StorageOptions(storage_options)
    return Ingest(
        uri=address_of(uri, open_store(uri, options)),
        options=dict(options),
        commit_store=commit_store,
        deletes=deletes,
        order_by=order,
        app=app,
        upkeep=interval_of(upkeep),
        parts=entries_per_batch,
        shard=shard,
    )


class _State:
    """The runs of the queries that use one `Ingest`, by query; stays in its process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards `runs`
        self.runs: dict[str, tuple[str, Run, IngestUpkeep | None]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_State, ())  # what travels begins anew: it claims for itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What Spark does for one batch.

    Attributes:
        attempt: which run of the query.
        batch: which batch.
        job: how its rows get to their shards, and what its tasks are told; None if all shards
            have the batch.
    """

    attempt: str
    batch: int
    job: tuple[Route, IngestWork] | None = None


_WRITTEN = WrittenBatches()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """Writes the batches of a stream into the log. Travels without what it has claimed."""

    uri: str
    options: Mapping[str, str] = field(repr=False)
    commit_store: str | None = field(repr=False)
    deletes: str | None
    order_by: tuple[str, ...]
    app: str | None
    upkeep: timedelta | None
    parts: int
    shard: str | None
    _state: _State = field(default_factory=_State, repr=False, compare=False)

    def __call__(self, df: Frame, batch_id: int) -> None:
        """Write one batch, unless it is in the log.

        Raises:
            FencedError: another run or writer owns a shard now; the query ends.
            InvalidInputError: the query's id cannot be learnt and there is no `app`; the rows
                do not fit, two of them have one key, or they are too many for one entry; another
                `ingest` of this query has written this batch to the same table.
            HoldfastError: a store failed, or Spark's job; restart the query.
        """
        query, attempt = self._names(df.sparkSession)
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder, self.guard(query):
            answer = Path(folder) / "answer.json"
            planned = self.plan(query, attempt, df.schema, int(batch_id), answer)
            if planned.job is not None:
                self._write(df, *planned.job)
            self.finish(query, planned)

    @contextmanager
    def guard(self, query: str) -> Iterator[None]:
        """Forget the run of a query if what is inside fails.

        Tasks of it may still live: whoever goes on claims the shards anew, and fences them.
        """
        try:
            yield
        except BaseException as error:
            self.drop(query)
            if isinstance(error, FencedError):
                raise _overtaken(error) from error
            raise

    def plan(
        self, query: str, attempt: str, schema: StructType, batch: int, answer: Path
    ) -> Planned:
        """Return what Spark does for a batch; claims the shards when the run is a new one.

        Raises:
            As for a call.
        """
        run, _ = self._run(query, attempt)
        _WRITTEN.check(run.table_id, attempt, self._state, batch)
        targets = run.targets(batch, self.parts)
        if not targets:
            return Planned(attempt=attempt, batch=batch)
        route = plan_route(
            schema,
            run.base,
            run.routing,
            deletes=self.deletes,
            order_by=self.order_by,
            parts=self.parts,
            wanted=list(targets),
        )
        work = self._work(run, batch, targets, answer)
        return Planned(attempt=attempt, batch=batch, job=(route, work))

    def finish(self, query: str, planned: Planned) -> BatchProgress:
        """Take what the tasks of a batch have written, and let upkeep begin if it is time.

        Raises:
            HoldfastError: a task's, or that of the last round of upkeep.
        """
        run, upkeep = self._run(query, planned.attempt)
        written: list[WrittenEntries] = []
        if planned.job is not None:
            taken = _read_taken(Path(planned.job[1].answer))
            run.finish_batch(planned.batch, self.parts, taken)
            written = [one for some in taken.values() for one in some]
        _WRITTEN.note(run.table_id, planned.attempt, self._state, planned.batch)
        if upkeep is not None:
            upkeep.tick()
        return run.progress(written)

    def _names(self, spark: Session) -> tuple[str, str]:
        """Return the app under which batches are counted, and what names this run of the query."""
        if is_connect(spark):  # each run has a process of its own there
            query, attempt = None, _PROCESS
        else:
            query = spark.sparkContext.getLocalProperty(_QUERY)
            attempt = spark.sparkContext.getLocalProperty(_RUN) or ""
        if self.app is None and not query:
            raise InvalidInputError(
                "the id of the streaming query cannot be learnt here (on Spark Connect it never "
                "can): give ingest an app, for ever the same for one checkpoint"
            )
        return self.name_of(query), attempt

    def name_of(self, query: str | None) -> str:
        """Return the app under which the batches of a query are counted."""
        return self.app or f"spark-ingest-{query}"

    def _run(self, query: str, attempt: str) -> tuple[Run, IngestUpkeep | None]:
        with self._state.lock:
            known = self._state.runs.get(query)
        if known is not None and known[0] == attempt:
            return known[1], known[2]
        self.drop(query)
        table = open_table(self.uri, self.options, commit_store=self.commit_store)
        try:
            run = Run(table, shard=self.shard, app=query)
            if self.deletes is not None and not run.base.keys:
                raise InvalidInputError(
                    "this table has no primary key: its rows cannot be deleted by a stream"
                )
        except BaseException:
            table.close()
            raise
        upkeep = None if self.upkeep is None else IngestUpkeep(run, self.upkeep)
        with self._state.lock:
            self._state.runs[query] = (attempt, run, upkeep)
        return run, upkeep

    def drop(self, query: str) -> None:
        """Let go of the run of a query, if it has one here."""
        with self._state.lock:
            known = self._state.runs.pop(query, None)
        if known is not None:
            if known[2] is not None:
                known[2].join()
            known[1].close()

    def _write(self, df: Frame, route: Route, work: IngestWork) -> None:
        """Let tasks write what the shards lack."""
        text = f"holdfast: batch {work.batch} into the log of {self.uri}"
        frame = route.apply(df)
        writer = frame.write.format(SOURCE).mode("append").option(WORK, work.encode())
        try:
            with describe_jobs(df.sparkSession, text):
                writer.save(self.uri)
        except HoldfastError:
            raise
        except Exception as error:
            raise failure_of(error, text) from error

    def _work(
        self, run: Run, batch: int, targets: Mapping[int, IngestTarget], answer: Path
    ) -> IngestWork:
        return IngestWork(
            uri=self.uri,
            options=self.options,
            commit_store=self.commit_store,
            pin=run.pin,
            verdict=run.verdict,
            columns=encode_columns(run.base.schema),
            log_columns=encode_columns(run.base.log_schema),
            keys=run.base.keys,
            column=run.routing.column,
            buckets=len(run.routing.shards),
            app=run.app,
            batch=batch,
            parts=self.parts,
            limit=MOST_BYTES,
            ordered=len(self.order_by),
            targets=targets,
            answer=str(answer),
        )


def _read_taken(answer: Path) -> dict[int, list[WrittenEntries]]:
    try:
        answers = json.loads(answer.read_text())
    except OSError as error:
        raise HoldfastError(
            "Spark's commit ran on another machine than the driver's Python: what its tasks wrote "
            "is in the log, and known there; restart the query where both are one"
        ) from error
    taken: dict[int, list[WrittenEntries]] = {}
    for one in answers:
        raise_if_error(one)
        for number, some in one["taken"].items():
            if int(number) in taken:  # the second of them took the entry of the first for its own
                raise HoldfastError(
                    "Spark gave the rows of one shard to two tasks, and one of them is not in the "
                    "log: do not go on with this checkpoint",
                    shard=number,
                )
            taken[int(number)] = [WrittenEntries(*fields) for fields in some]
    return taken


def _overtaken(error: FencedError) -> FencedError:
    details = {key: value for key, value in error.details.items() if key != "unacknowledged"}
    return FencedError(
        "another run of this query, another query or a writer owns a shard of this table now. What "
        "this run wrote is safe. A shard has one writer: stop the other one, then restart this "
        "query",
        **details,
    )


__all__ = ["Ingest", "ingest"]
