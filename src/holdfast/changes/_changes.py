"""`Changes`: the change rows between two points of a table's life, and how they are planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from holdfast.changes._cursor import ChangeCursor, Followed
from holdfast.changes._history import History
from holdfast.changes._lineage import follow_columns
from holdfast.changes._plan import Limits, plan_changes
from holdfast.changes._read import StepReader
from holdfast.changes._rows import change_schema
from holdfast.changes._start import Lag, Since, Until, find_end, find_lag, find_start
from holdfast.changes._steps import Step
from holdfast.commits import Versions, open_dataset
from holdfast.errors import InvalidInputError
from holdfast.formats import SnapshotRecord
from holdfast.read import Reader


class Changes:
    """Change rows between two cursors. Iterate over it, or hand it to anything that takes Arrow.

    It may be read any number of times, as long as what it needs is not collected.

    Attributes:
        since: where it begins.
        cursor: where it ends: keep `str(cursor)` once the rows are applied.
        schema: the table's columns, then `_change_type`, `_commit_version`,
            `_commit_timestamp` and `_log_position`.
    """

    def __init__(
        self,
        reader: StepReader,
        steps: Sequence[Step],
        schema: pa.Schema,
        cursors: Sequence[ChangeCursor],
    ) -> None:
        self._reader = reader
        self._steps = tuple(steps)
        self.schema = schema
        self.since, self.cursor = cursors

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the change rows, oldest first; of one shard in the order of its log.

        Raises:
            CollectedError: something was collected meanwhile: begin again with a snapshot.
            Other errors: as for `Table.changes`.
        """
        for step in self._steps:
            yield from self._reader.read(step)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the change rows as an Arrow stream."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return the change rows as a stream of Arrow batches."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """Return the change rows in memory.

        Raises:
            As for iterating.
        """
        return pa.Table.from_batches(self, self.schema)


def read_changes(
    versions: Versions,
    since: Since = None,
    until: Until = None,
    *,
    freshness: str | None = None,
    columns: Sequence[str] | None = None,
    max_rows: int | None = None,
    max_files: int | None = None,
    max_entries: int | None = None,
) -> Changes:
    """Return every insert, update and delete since a point; see `Table.changes`."""
    limits = Limits(
        rows=_limit("max_rows", max_rows),
        files=_limit("max_files", max_files),
        entries=_limit("max_entries", max_entries),
    )
    core, history = versions.core, History(versions)
    start = find_start(history, since, freshness, partial(record_now, versions))
    plan = plan_changes(history, start, find_end(history, start, until), limits)
    wanted = follow_columns(history, open_dataset(versions), columns, plan)
    reader = StepReader(core.store, core.location, core.resolved, wanted)
    schema = change_schema(wanted.schema)
    return Changes(reader, plan.steps, schema, (start, plan.end))


def find_cursor(
    versions: Versions, since: Since = "now", *, freshness: str | None = None
) -> ChangeCursor:
    """Return the cursor of a point in the table's life; see `Table.change_cursor`."""
    return find_start(History(versions), since, freshness, partial(record_now, versions))


def read_lag(versions: Versions, cursor: str | ChangeCursor) -> Lag:
    """Return how far a cursor is behind the table; see `Table.change_lag`."""
    known = ChangeCursor.parse(cursor) if isinstance(cursor, str) else cursor
    return find_lag(History(versions), known)


def record_now(versions: Versions, freshness: Followed) -> SnapshotRecord:
    """Return which files the table has now."""
    with Reader(versions).snapshot(freshness) as snapshot:
        return snapshot.record


def _limit(name: str, given: int | None) -> int | None:
    if given is not None and (type(given) is not int or given < 1):
        raise InvalidInputError(f"{name} is a whole number from 1 on", given=repr(given)[:80])
    return given
