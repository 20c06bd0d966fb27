"""Writing from Spark: tasks write files that nobody sees, the driver commits once, by a txn.

A task that is retried, doubled or killed leaves at most files that no version shows. The
commit carries a transaction id that is fixed before the first task starts: Spark's query
and batch ids for a stream, the user's `txnAppId` and `txnVersion`, or else a fresh one. So
a commit whose answer was lost is repeated without harm.

Nothing is deleted here. Spark calls `abort` also after a commit that raised, when the
files may well be in the table; what is left over is for `vacuum`.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.commits import translate_errors
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    InvalidInputError,
    StaleWorkError,
    UnavailableError,
)
from holdfast.formats import Content
from holdfast.options import resolve
from holdfast.spark._options import Use, parse
from holdfast.spark._plan import WritePlan, plan_creation, plan_write
from holdfast.spark._types import batch_for_table
from holdfast.storage import SupportsSync, open_store
from holdfast.txn import AppTxn, OwnTxn, TxnLike, parse_txn

if TYPE_CHECKING:
    from holdfast.commits import CommitResult
    from holdfast.table import Table

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
"""The property of a task that names its streaming query; the checkpoint keeps it for ever."""

CREATES = "secretCreate"
"""That the commit of the rows creates the table; the catalog in Java says so, users never do."""

_TRIES = 5
_FIRST_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class WrittenBatch(WriterCommitMessage):
    """What a task tells the driver: its fragments, and which stream it belongs to."""

    fragments: tuple[str, ...]
    query: str | None


def stream_txn(query: str, batch: int) -> AppTxn:
    """Return the transaction id of one batch of a stream.

    Spark begins a batch when the one before is done. Empty ones are not committed.
    """
    return AppTxn(f"spark-stream-{query}", batch, in_order=True)


class BatchWriter(DataSourceArrowWriter):
    """One job: `write` in its tasks, `commit` once on the driver. Travels as it was planned."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        told = {key: text for key, text in options.items() if key.lower() != CREATES.lower()}
        given = parse(told, Use.WRITE)
        if len(told) < len(options):
            self._plan = plan_creation(schema, given)
        else:
            self._plan = plan_write(schema, given, replaces=overwrite)
        # Made here, before the first task, so that it is one for all that may be repeated.
        self._txn: TxnLike = new_txn()
        self._applied = False
        if given.get("txnAppId") is not None:
            self._txn = (given.get("txnAppId"), given.get("txnVersion"))
        if given.get("txnAppId") is not None and self._plan.version:
            with self._plan.place.open_table() as table:
                self._applied = table.writes.is_repeat(self._txn)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenBatch:
        """Write one task's rows to files of their own."""
        if self._applied:
            return WrittenBatch((), None)
        return write_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows of the job visible in one step.

        Raises:
            CommitUnknownError: the outcome could not be learnt.
            ConflictError: the table was changed in a way that excludes this.
            HoldfastError: a store failed; nothing was added.
        """
        if self._applied:
            log.info("already applied: txn=%s table=%s", self._txn, self._plan.place.uri)
            return
        if self._plan.version:
            commit_fragments(self._plan, fragments_of(messages), self._txn)
        else:
            create_with(self._plan, fragments_of(messages), self._txn)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything as it is: the files may be in the table."""
        log_abort(self._plan.place.uri, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch. Spark makes one to write with and another one to commit with."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        given = parse(options, Use.SINK)
        if given.get("into") == "log":
            raise InvalidInputError(
                "a sink writes the log with Holdfast's jar only (--jars, or a session with "
                "catalogs): without it Spark lets it neither divide rows by shard nor learn its "
                "run. Use .writeStream.foreachBatch(holdfast.spark.ingest(uri, ...))"
            )
        self._plan = plan_write(schema, given, replaces=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenBatch:
        """Write one task's rows to files of their own."""
        return write_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Make all rows of the batch visible in one step, unless they are.

        Raises:
            CommitUnknownError: the outcome could not be learnt.
            ConflictError: the table was changed in a way that excludes this.
            HoldfastError: a store failed; nothing was added.
        """
        queries = {m.query for m in messages if isinstance(m, WrittenBatch)}
        fragments = fragments_of(messages)
        if not fragments and not self._plan.replaces:
            return
        if len(queries) != 1 or None in queries:
            raise InvalidInputError(
                "the tasks of this batch do not name their streaming query, without which a "
                "repeated batch cannot be told from a new one; nothing was committed"
            )
        commit_fragments(self._plan, fragments, stream_txn(str(queries.pop()), batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Leave everything as it is: the files may be in the table."""
        log_abort(f"{self._plan.place.uri} batch {batchId}", messages)


def new_txn(ids: Ids | None = None) -> OwnTxn:
    """Return a transaction id that nobody else has."""
    return OwnTxn(f"spark-{(ids or RandomIds()).token()}")


# In the tasks.


def write_task(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> WrittenBatch:
    """Write rows to new files and make them durable; they are in no version yet.

    Raises:
        InvalidInputError: a value does not fit its column.
        HoldfastError: the store failed.
    """
    task = TaskContext.get()
    query = None if task is None else task.getLocalProperty(QUERY_ID)
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return WrittenBatch((), query)
    fitting = (batch_for_table(b, plan.columns) for b in itertools.chain([first], filled))
    reader = Content(plan.columns).check_batches(fitting)
    with translate_errors(plan.place.uri):
        fragments = write_fragments(reader, schema=plan.columns, **_target(plan), **plan.limits)
    _make_durable(plan, fragments)
    return WrittenBatch(tuple(json.dumps(part.to_json()) for part in fragments), query)


def _target(plan: WritePlan) -> dict[str, Any]:  # Any: what `write_fragments` takes
    """Return where the files go, and how Lance reads that."""
    if plan.version:
        mode = "overwrite" if plan.replaces else "append"
        return {"dataset_uri": plan.place.plain(plan.version), "mode": mode}
    resolved = {key: resolve(key, value) for key, value in plan.place.storage.items()}
    return {
        "dataset_uri": plan.place.uri,
        "mode": "create",
        "storage_options": resolved or None,
    }


def _make_durable(plan: WritePlan, fragments: Sequence[FragmentMetadata]) -> None:
    """Sync files on local disk here, in parallel; the driver may sit on another machine."""
    store = open_store(plan.place.uri, plan.place.storage)
    if isinstance(store, SupportsSync):
        files = (file for part in fragments for file in part.files)
        store.sync([f"data/{file.path}" for file in files if file.base_id is None])


# On the driver, after the tasks.


def fragments_of(messages: Sequence[WriterCommitMessage | None]) -> list[FragmentMetadata]:
    """Return all fragments that tasks wrote."""
    return [
        FragmentMetadata.from_json(text)
        for message in messages
        if isinstance(message, WrittenBatch)
        for text in message.fragments
    ]


def log_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Take note that Spark gave a write up."""
    files = sum(len(part.files) for part in fragments_of(messages))
    log.warning("Spark gave up a write: %s; %d files stay until vacuum", what, files)


def commit_fragments(
    plan: WritePlan,
    fragments: Sequence[FragmentMetadata],
    txn: TxnLike,
    clock: Clock | None = None,
) -> CommitResult | None:
    """Commit once what the tasks wrote; an answer that gets lost is asked for again.

    Returns:
        What was committed; None when there was nothing to commit (any more).

    Raises:
        CommitUnknownError: the outcome could not be learnt, again and again.
        ConflictError: the table was changed in a way that excludes this.
        HoldfastError: a store failed; nothing was added.
    """
    if not fragments and not plan.replaces and not _leaves_a_gap(txn):
        return None
    clock = clock or SystemClock()
    unknown: CommitUnknownError | None = None
    failure: HoldfastError | None = None
    for attempt in range(_TRIES):
        if attempt:
            clock.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        try:
            with plan.place.open_table() as table:
                if unknown is not None and table.applied([txn])[0]:
                    return None
                return _commit(table, plan, fragments, txn)
        except CommitUnknownError as error:
            unknown = error
        except (UnavailableError, ConflictError) as error:
            failure = error
            final = isinstance(error, StaleWorkError) or not plan.replaces
            if isinstance(error, ConflictError) and final:
                break
    # Once an outcome was unknown, a later failure does not make it known.
    if unknown is None and failure is not None:
        raise failure
    raise CommitUnknownError(
        "the outcome of the commit could not be learnt: ask `Table.applied([txn])`, or repeat "
        "the job with the same txnAppId and txnVersion",
        txn=txn,
        table=plan.place.uri,
    ) from unknown


def _leaves_a_gap(txn: TxnLike) -> bool:
    """Tell whether a number must be recorded although its job wrote no rows.

    Gaps in an application's numbers are limited; who counts in order leaves none.
    """
    parsed = parse_txn(txn)
    return isinstance(parsed, AppTxn) and not parsed.in_order


def create_with(
    plan: WritePlan,
    fragments: Sequence[FragmentMetadata],
    txn: TxnLike,
    clock: Clock | None = None,
) -> None:
    """Create the table with these rows, in one commit; safe to call again with the same txn.

    Raises:
        AlreadyExistsError: somebody else created it meanwhile.
        CommitUnknownError: the outcome could not be learnt, again and again.
        HoldfastError: a store failed; there is no table.
    """
    from holdfast.lifecycle import create_with_fragments  # noqa: PLC0415 - workers do without

    clock = clock or SystemClock()
    for left in reversed(range(_TRIES)):
        try:
            create_with_fragments(
                plan.place.uri,
                plan.columns,
                fragments,
                txn=txn,
                commit_store=plan.place.commit_store,
                storage_options=plan.place.storage,
            ).close()
        except (CommitUnknownError, UnavailableError):
            if not left:
                raise
            clock.sleep(_FIRST_PAUSE_SECONDS * 2 ** (_TRIES - left))
        else:
            return


def _commit(
    table: Table, plan: WritePlan, fragments: Sequence[FragmentMetadata], txn: TxnLike
) -> CommitResult:
    if not fragments and not plan.replaces:
        nothing = lance.LanceOperation.UpdateConfig()
        newest = int(table.dataset().version)
        return table.commit_operation(nothing, read_version=newest, txn=txn)
    if not plan.replaces:
        return table.commit(fragments, txn=txn, read_version=plan.version)
    operation = lance.LanceOperation.Overwrite(plan.columns, list(fragments))
    return table.writes.commit_operation(
        operation,
        read_version=int(table.dataset().version),
        txn=txn,
        begun_on=plan.version,
    )
