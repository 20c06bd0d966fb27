"""Changes in Spark: a stream of them, and a batch. The driver plans steps, tasks read them.

A stream's offset is the cursor of `Table.changes`, so it names the table by its id. Where the
stream begins is written into its first end offset: Spark keeps that one in the checkpoint, and
asks for the initial offset anew when it repeats the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.changes import (
    BESIDE,
    ChangeColumns,
    ChangeCursor,
    ChangePlan,
    ChangeTarget,
    History,
    Inserted,
    Limits,
    Since,
    Step,
    StepReader,
    Until,
    change_schema,
    find_end,
    find_start,
    follow_columns,
    lag_behind,
    plan_changes,
    record_now,
)
from holdfast.errors import InvalidInputError
from holdfast.options import resolve
from holdfast.spark._new_columns import refuse_new_columns
from holdfast.spark._options import SparkOptions, Use, parse
from holdfast.spark._place import Place
from holdfast.spark._read import refusals
from holdfast.spark._types import batches_for_spark, check_readable
from holdfast.storage import open_store

if TYPE_CHECKING:
    from holdfast.table import Table

Offset: TypeAlias = dict[str, Any]
"""What Spark keeps in its checkpoint as JSON."""

NOT_BEGUN: Offset = {"version": -1}
_PARTITION_BYTES = 64 * 2**20
_LIMITS = {
    "rows": "maxRowsPerTrigger",
    "files": "maxFilesPerTrigger",
    "entries": "maxEntriesPerTrigger",
}


@dataclass(frozen=True)
class ChangePart(InputPartition):
    """What one task reads."""

    steps: tuple[Step, ...]
    columns: ChangeColumns


class _Followed:
    """The table as the driver follows it, opened once."""

    def __init__(self, place: Place, given: SparkOptions) -> None:
        self._table: Table = place.table()
        self._given = given
        self.history: History = History(self._table.versions)

    def start(self) -> ChangeCursor:
        """Return where the user wants changes to begin."""
        freshness, since = self._given.get("freshness"), _since(self._given)
        record = partial(record_now, self._table.versions)
        return find_start(self.history, since, freshness, record)

    def columns(self, schema: StructType, plan: ChangePlan) -> ChangeColumns:
        """Return the columns that tasks read for a schema.

        Raises:
            InvalidInputError: the table does not have them (any more), or nobody can tell which
                ones they were.
            CollectedError: a version that tells it was collected.
        """
        newest = self._table.dataset()
        names = [name for name in schema.fieldNames() if name not in BESIDE.names]
        names = names or newest.schema.names[:1]
        check_readable(schema, change_schema(newest.schema, names))
        return follow_columns(self.history, newest, names, plan)

    def check_complete(self, schema: StructType, first: ChangeCursor, last: ChangeCursor) -> None:
        """Refuse columns that came between two cursors of a stream of all columns.

        Raises:
            InvalidInputError: there are such columns.
        """
        refuse_new_columns(self._table, schema.names, first.version, last.version)

    def close(self) -> None:
        """Let go of connections."""
        self._table.close()


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in one process on the driver; `read` runs in the tasks."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._given = parse(options, Use.SOURCE)
        self._place = Place.of(self._given)
        self._limits = Limits(**{key: self._given.get(name) for key, name in _LIMITS.items()})
        self._open: _Followed | None = None  # where batches are planned; it does not travel
        self._ends = False  # with what is there now
        self._last: ChangeTarget | None = None
        self._seen: tuple[ChangePlan, ChangeTarget] | None = None

    @property
    def _followed(self) -> _Followed:
        if self._open is None:
            self._open = _Followed(self._place, self._given)
        return self._open

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's
        """Say only that the stream has not begun."""
        return NOT_BEGUN

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return whether a batch is limited; by how much, `latestOffset` knows itself."""
        limited = next((one for one in asdict(self._limits).values() if one is not None), None)
        return ReadAllAvailable() if limited is None else ReadMaxFiles(limited)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Let the run end with what the first look at the table finds."""
        self._ends = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's
        """Return where the next batch ends.

        Raises:
            InvalidInputError: the checkpoint is of another table, or of another source.
            CollectedError: something that the stream has not read was collected.
            Other errors: as for `Table.changes`.
        """
        history = self._followed.history
        known = self._cursor(start)
        cursor = self._followed.start() if known is None else known.started()
        target = self._last or find_end(history, cursor, None)
        if self._ends:
            self._last = target
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        plan = plan_changes(history, cursor, target, limits)
        end = plan.end
        self._seen = (plan, target)
        if known is None:
            end = replace(end, origin=cursor)
        return start if known is not None and end == cursor else end.to_dict()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's
        """Tell Spark's progress what the batch reads, what is newest, and how far that is ahead."""
        if self._seen is None:
            return None
        plan, target = self._seen
        lag = lag_behind(self._followed.history, plan.end, target)
        return {
            "version": target.version,
            "log": dict(target.log or {}),
            "batch": plan.measure(),
            "lag": asdict(lag),
        }

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Share out what lies between two offsets; the same whenever it is asked.

        Raises:
            InvalidInputError: the offsets are of another table, or of another source.
            CollectedError: something between them was collected.
        """
        last = self._cursor(end)
        first = self._cursor(start) or (None if last is None else last.origin)
        if last is None or first is None:
            return []
        plan = plan_changes(self._followed.history, first.started(), ChangeTarget.of(last))
        if plan.end != last.started():
            raise InvalidInputError(
                "the checkpoint does not fit the table: use a new checkpointLocation",
                checkpoint=str(last)[:200],
            )
        if self._given.get("columns") is None:
            self._followed.check_complete(self._schema, first, last)
        return share_out(plan.steps, self._followed.columns(self._schema, plan))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the change rows of one task."""
        return read_changes(self._place, partition, self._schema)

    def commit(self, end: Offset) -> None:
        """Let go of what was read of versions that are behind."""
        cursor = ChangeCursor.parse(end)
        self._followed.history.forget(cursor.version)

    def stop(self) -> None:
        """Let go of connections."""
        if self._open is not None:
            self._open.close()

    def _cursor(self, offset: Offset) -> ChangeCursor | None:
        """Return the cursor of this very table; None for a stream that has not begun.

        Raises:
            InvalidInputError: the offset is of another table, or not one of ours.
        """
        if offset == NOT_BEGUN:
            return None
        try:
            cursor = ChangeCursor.parse(offset)
        except InvalidInputError as error:
            raise InvalidInputError(
                "the checkpoint is not one of a stream of changes: use a new checkpointLocation",
                offset=str(offset)[:200],
            ) from error
        self._followed.history.check(cursor)
        followed = self._given.get("freshness") or cursor.freshness
        if followed != cursor.freshness:
            raise InvalidInputError(
                "the checkpoint follows with another freshness: go on with that, or use a new "
                "checkpointLocation",
                checkpoint=cursor.freshness,
                freshness=followed,
            )
        return cursor


class ChangeBatchReader(DataSourceReader):
    """Plans a batch of changes on the driver and reads it in the tasks."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._given = parse(options, Use.READ)
        self._place = Place.of(self._given)

    def partitions(self) -> Sequence[InputPartition]:
        """Find out what lies between start and end, and share it out."""
        with refusals(), closing(_Followed(self._place, self._given)) as followed:
            start = followed.start()
            target = find_end(followed.history, start, _until(self._given))
            plan = plan_changes(followed.history, start, target)
            return share_out(plan.steps, followed.columns(self._schema, plan))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the change rows of one task."""
        return read_changes(self._place, partition, self._schema)


def _since(given: SparkOptions) -> Since:
    """Return where options say that changes begin."""
    version = given.get("startingVersion")
    if version == "latest":
        return "now"
    if version is not None:
        return int(version) - 1  # Spark's users name the first version they want
    for name in ("startingTimestamp", "startingCursor"):
        if given.get(name) is not None:
            since: Since = given.get(name)
            return since
    return None


def _until(given: SparkOptions) -> Until:
    """Return where options say that changes end."""
    names = ("endingVersion", "endingTimestamp", "endingCursor")
    until: Until = next((given.get(one) for one in names if given.get(one) is not None), None)
    return until


def share_out(steps: Sequence[Step], columns: ChangeColumns) -> list[InputPartition]:
    """Return which task reads what: rows that were added in parts of a good size, others alone."""
    parts: list[InputPartition] = []
    group: list[Step] = []
    for step in steps:
        if not isinstance(step, Inserted):
            parts.append(ChangePart((step,), columns))
            continue
        for piece in step.split(_PARTITION_BYTES):
            group.append(piece)
            if sum(one.size for one in group) >= _PARTITION_BYTES:
                parts.append(ChangePart(tuple(group), columns))
                group = []
    return [*parts, ChangePart(tuple(group), columns)] if group else parts


def read_changes(
    place: Place, part: InputPartition, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the change rows of some steps, as Spark wants them; runs in a task.

    Raises:
        CollectedError: a file is gone.
        InvalidInputError: a value has no place in Spark's type.
    """
    if not isinstance(part, ChangePart):  # Spark makes one of its own of none
        return
    resolved = {key: resolve(key, value) for key, value in place.storage.items()}
    store = open_store(place.uri, place.storage)
    reader = StepReader(store, place.uri, resolved, part.columns)
    for step in part.steps:
        yield from batches_for_spark(reader.read(step), schema)
