"""The verbs of a table that tell of its changes, as users call them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import lance
import pyarrow as pa

from holdfast.changes._cursor import ChangeCursor, Followed
from holdfast.changes._history import History
from holdfast.changes._plan import Limits, plan_changes
from holdfast.changes._read import StepReader
from holdfast.changes._rows import change_schema, columns_of
from holdfast.changes._start import Lag, Since, find_end, find_lag, find_start
from holdfast.changes._steps import Step
from holdfast.commits import Versions
from holdfast.errors import InvalidInputError
from holdfast.formats import SnapshotRecord
from holdfast.read import TableSnapshot
from holdfast.storage import ObjectStore

if TYPE_CHECKING:
    from holdfast.read import Freshness


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


class ChangeVerbs(ABC):
    """What a table tells of its changes."""

    _uri: str
    _resolved: Mapping[str, str]
    _store: ObjectStore
    _versions: Versions

    @abstractmethod
    def dataset(self, version: int | None = None) -> lance.LanceDataset:
        """Return a pylance dataset, the newest or of one version."""

    @abstractmethod
    def snapshot(self, *, freshness: Freshness = "latest", pinned: bool = False) -> TableSnapshot:
        """Return the table as it is now."""

    def changes(
        self,
        since: Since = None,
        until: int | str | ChangeCursor | None = None,
        *,
        freshness: str | None = None,
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
        max_files: int | None = None,
        max_entries: int | None = None,
    ) -> Changes:
        """Return every insert, update and delete since a point, each once; reads only.

        Applied in order to the state at `since`, the change rows give exactly the state at
        the returned `cursor`. Rows that are only moved, by compaction or from the log to the
        base table, and rows that are written again with the same values, are no changes.

        Args:
            since: None for a snapshot: all rows there are, as inserts; a version, a time or
                `"now"` for what came after it; or the cursor, or its text, of an earlier call.
            until: a version or a cursor; what is newest now by default.
            freshness: `"latest"` (default) follows base table and log, `"base"` the base
                table alone. A cursor remembers it.
            columns: which columns come out; all that the table has now by default. A change
                of other columns is then no change.
            max_rows: end after about so many rows.
            max_files: end after so many fragments.
            max_entries: end after so many log entries. Memory holds the entries of a call, of
                a table with a key, and the rows that one version rewrote.

        Raises:
            InvalidInputError: a cursor of another table or of one that was made anew, an end
                before the start, unknown columns, a limit below 1.
            NotFoundError: there is no such version yet.
            CollectedError: what lies behind `since` was collected: begin with a snapshot.
            LogLostError: a version does not say how far the log is merged.
            WalGapError, CorruptError: a log or SSTable is damaged.
            UnavailableError, PermissionDeniedError: a store did not tell.
            CommitStoreRegressedError, ForeignVersionError: a name is not what was decided.
        """
        limits = Limits(
            rows=_limit("max_rows", max_rows),
            files=_limit("max_files", max_files),
            entries=_limit("max_entries", max_entries),
        )
        history = self._history()
        wanted = columns_of(self.dataset().schema, columns)
        start = find_start(history, since, freshness, self._record)
        end = ChangeCursor.parse(until) if isinstance(until, str) else until
        plan = plan_changes(history, start, find_end(history, start, end), limits)
        reader = StepReader(self._store, self._uri, self._resolved, wanted)
        schema = change_schema(wanted)
        return Changes(reader, plan.steps, schema, (start, plan.end))

    def change_cursor(self, since: Since = "now", *, freshness: str | None = None) -> ChangeCursor:
        """Return the cursor of a point in the table's life; now by default.

        Raises:
            As for `changes`.
        """
        return find_start(self._history(), since, freshness, self._record)

    def change_lag(self, cursor: str | ChangeCursor) -> Lag:
        """Return how far a cursor is behind the table: versions, and entries of each shard.

        Raises:
            As for `changes`.
        """
        known = ChangeCursor.parse(cursor) if isinstance(cursor, str) else cursor
        return find_lag(self._history(), known)

    def _history(self) -> History:
        return History(self._versions)

    def _record(self, freshness: Followed) -> SnapshotRecord:
        with self.snapshot(freshness=freshness) as snapshot:
            return snapshot.record


def _limit(name: str, given: int | None) -> int | None:
    if given is not None and (type(given) is not int or given < 1):
        raise InvalidInputError(f"{name} is a whole number from 1 on", given=repr(given)[:80])
    return given
