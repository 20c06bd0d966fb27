"""Reading steps: the change rows of each, from the object store alone.

Memory holds the entries of one log step, or the rows that one version rewrote; rows that were
only added go through in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.changes._compare import INSERT, compare
from holdfast.changes._history import collected_error
from holdfast.changes._lineage import GONE, ChangeColumns
from holdfast.changes._log_rows import distinct_keys, find_changes, find_old
from holdfast.changes._rows import TIME, change_rows
from holdfast.changes._steps import Compared, Inserted, Logged, Step
from holdfast.core import TableCore
from holdfast.errors import NotFoundError, WalGapError
from holdfast.formats import (
    TOMBSTONE,
    Entry,
    Field,
    Name,
    SnapshotRecord,
    arrow_field,
    counterpart,
    entry_name,
)
from holdfast.read import Columns, View, open_view, translate_read_errors
from holdfast.storage import ObjectStore
from holdfast.wal import Chain, Log

_BATCH_ROWS = 1 << 16
_ADDRESS = "_rowaddr"
_KEY = "\0key"  # no column of a table is called so


class StepReader:
    """Reads steps of one table.

    Args:
        store: the table's object store.
        address: where the table is, as pylance takes it.
        options: storage options with their values.
        columns: which columns of the table come out, in which types, and what they were.
    """

    def __init__(
        self, store: ObjectStore, address: str, options: Mapping[str, str], columns: ChangeColumns
    ) -> None:
        self._store = store
        self._address = address
        self._options = options
        self._columns = columns

    def read(self, step: Step) -> Iterator[pa.RecordBatch]:
        """Yield the change rows of a step.

        Raises:
            CollectedError: a file that it names is gone.
            WalGapError, CorruptError: a log or an SSTable is damaged.
            InvalidInputError: a column had another type.
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        try:
            for table in self._tables(step):
                yield from table.to_batches(max_chunksize=_BATCH_ROWS)
        except NotFoundError as error:
            raise collected_error("a file", version=step.version) from error

    def _tables(self, step: Step) -> Iterator[pa.Table]:
        match step:
            case Inserted():
                return self._read_inserted(step)
            case Compared():
                return self._read_compared(step)
            case Logged():
                return self._read_logged(step)

    def _read_inserted(self, step: Inserted) -> Iterator[pa.Table]:
        view = self._view(step.part.record)
        fragments: list[object] = []
        above = step.part.fragments is None
        with translate_read_errors(self._address):
            for number in step.part.fragments or ():
                fragments.append(view.base.get_fragment(number))  # noqa: PERF401 - may raise
        names = self._names(view)
        for batch in view.batches(names, fragments=fragments, levels=above):
            rows = self._fit(view, pa.Table.from_batches([batch]))
            yield change_rows(rows, INSERT, version=step.version, time=step.time)

    def _read_compared(self, step: Compared) -> Iterator[pa.Table]:
        before, after = self._view(step.before), self._view(step.after)
        gone = [self._side(before, step.removed)]
        came = [self._side(after, step.added)]
        for fragment in step.masked:
            lost, regained = self._read_masked(before, after, fragment)
            gone.append(lost)
            came.append(regained)
        # Rows are paired by the key only if it is the same before and after.
        paired = self._key_ids(before) == self._key_ids(after)
        keys = after.columns.keys if paired else ()
        old = self._fit_with_key(before, gone, keyed=paired)
        new = self._fit_with_key(after, came, keyed=paired)
        rows, types = compare(
            old.cast(new.schema), new, new.column_names[-len(keys) :] if keys else []
        )
        if rows.num_rows:
            chosen = rows.select(self._columns.schema.names)
            yield change_rows(chosen, types, version=step.version, time=step.time)

    def _fit(self, view: View, rows: pa.Table) -> pa.Table:
        """Return rows of a view in the columns that come out."""
        return self._columns.fit(rows, self._fields(view))

    def _fit_with_key(self, view: View, parts: Sequence[pa.Table], *, keyed: bool) -> pa.Table:
        """Return rows in the columns that come out, and the key beside them."""
        rows = pa.concat_tables([self._fit(view, part) for part in parts])
        for at, name in enumerate(view.columns.keys if keyed else ()):
            beside = pa.chunked_array(
                [chunk for part in parts for chunk in part[name].chunks], type=parts[0][name].type
            )
            rows = rows.append_column(f"{_KEY}{at}", beside)
        return rows.combine_chunks()

    def _key_ids(self, view: View) -> list[int | str | None]:
        """Return what tells the key of a version: today's ids, or names of what is gone."""
        known = {one.name: one for one in self._fields(view)}
        ids = [known[name].id for name in view.columns.keys]
        return [
            name if one == GONE else one for one, name in zip(ids, view.columns.keys, strict=True)
        ]

    def _fields(self, view: View) -> list[Field]:
        """Return the columns of a view with the ids of today."""
        return self._columns.translate(view.snapshot.base.version, view.columns.fields)

    def _side(self, view: View, fragments: tuple[int, ...] | None) -> pa.Table:
        """Return the rows of some fragments that nothing hides, or all rows of a state."""
        names = self._names(view, keyed=True)
        if fragments is None:
            batches = view.batches(names)
        else:
            with translate_read_errors(self._address):
                chosen: list[object] = [view.base.get_fragment(number) for number in fragments]
            batches = view.batches(names, fragments=chosen, levels=False)
        return pa.Table.from_batches(batches, view.schema(names))

    def _read_masked(self, before: View, after: View, fragment: int) -> tuple[pa.Table, pa.Table]:
        """Return the rows that a fragment lost, and those that it regained."""
        old, new = self._addresses(before, fragment), self._addresses(after, fragment)
        lost = self._at(before, fragment, np.setdiff1d(old, new, assume_unique=True))
        return lost, self._at(after, fragment, np.setdiff1d(new, old, assume_unique=True))

    def _addresses(self, view: View, fragment: int) -> np.ndarray:
        with translate_read_errors(self._address):
            part = view.base.get_fragment(fragment)
            scanner = view.base.scanner(columns=[], with_row_address=True, fragments=[part])
            addresses: np.ndarray = scanner.to_table()[_ADDRESS].to_numpy()
        return addresses

    def _at(self, view: View, fragment: int, addresses: np.ndarray) -> pa.Table:
        """Return the rows at these addresses of a fragment that nothing hides."""
        names = self._names(view, keyed=True)
        if not len(addresses):
            return view.schema(names).empty_table()
        with translate_read_errors(self._address):
            if view.base.has_stable_row_ids:
                part = view.base.get_fragment(fragment)
                rows = view.base.scanner(
                    columns=names, with_row_address=True, fragments=[part]
                ).to_table()
                held = np.isin(rows[_ADDRESS].to_numpy(), addresses)
                rows = rows.drop_columns([_ADDRESS]).filter(pa.array(held))
            else:
                rows = view.base._take_rows(addresses.tolist(), columns=names)  # noqa: SLF001 - the only way by address
        above, keys = view.overlay.keys, view.columns.keys
        if above is None or not len(above):
            return rows
        batches = above.without(rows.combine_chunks().to_batches(), keys)
        return pa.Table.from_batches(batches, rows.schema)

    def _read_logged(self, step: Logged) -> Iterator[pa.Table]:
        view = self._view(step.state)
        if not view.columns.keys:
            for entry, time in self._entries(step):
                rows = self._fit(view, _rows_of(entry, view.columns))
                at = np.full(rows.num_rows, entry.position)
                yield _logged_rows(step, rows, INSERT, at, {entry.position: time})
            return
        parts, positions, times = [], [], {}
        for entry, time in self._entries(step):
            rows = _rows_of(entry, view.columns)
            parts.append(rows)
            positions.append(np.full(rows.num_rows, entry.position, np.int64))
            times[entry.position] = time
        if not parts:
            return
        keys = view.columns.keys
        names = self._names(view, keyed=True)
        new = pa.concat_tables(parts).combine_chunks()
        old = find_old(view, distinct_keys(new, keys), names)
        wanted = pa.schema([new.schema.field(name) for name in names])
        rows, types, at = find_changes(
            pa.Table.from_arrays(old.columns, schema=wanted),
            new.select([*names, TOMBSTONE]),
            np.concatenate(positions),
            keys,
        )
        if rows.num_rows:
            yield _logged_rows(step, self._fit(view, rows), types, at, times)

    def _entries(self, step: Logged) -> Iterator[tuple[Entry, datetime]]:
        """Yield the entries with rows, and when the store got each."""
        chain = Chain(step.shard_id)
        position = step.after
        try:
            timed = _Timed(self._store)
            arbiter: Any = timed  # Any: of an arbiter, a log needs only this
            log = Log(TableCore(self._store, arbiter), step.shard_id)
            for entry in log.entries(step.after, step.through):
                chain.check(entry)
                position = entry.position
                time = timed.take_time(entry_name(step.shard_id, position))
                if not entry.fence:
                    yield entry, time
        except WalGapError as error:
            # The plan saw its end, and nothing is missing in a log but what was collected.
            raise collected_error(
                "a log entry", shard_id=step.shard_id, position=position + 1
            ) from error

    def _view(self, record: SnapshotRecord) -> View:
        return open_view(record, self._store, self._address, self._options)

    def _names(self, view: View, *, keyed: bool = False) -> list[str]:
        """Return the columns to read of a version that may lack some."""
        theirs = self._fields(view)
        places = (counterpart(one, theirs) for one in self._columns.fields)
        names = [theirs[at].name for at in places if at is not None]
        if keyed:
            names += [name for name in view.columns.keys if name not in names]
        return names or [theirs[0].name]


class _Timed:
    """Reads names that are known to be decided, without asking whoever decides, and their times.

    A log reads several entries concurrently, so their times are asked for concurrently too.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._times: dict[str, datetime] = {}

    def read(self, name: Name) -> bytes | None:
        try:
            body = self._store.get(name.path)
            modified = self._store.head(name.path).modified
        except NotFoundError:
            return None
        self._times[name.path] = datetime.fromtimestamp(modified, UTC)
        return body

    def take_time(self, name: Name) -> datetime:
        """Return when the store got what was read, once."""
        return self._times.pop(name.path)


def _logged_rows(
    step: Logged,
    rows: pa.Table,
    types: str | Sequence[str],
    positions: np.ndarray,
    times: Mapping[int, datetime],
) -> pa.Table:
    """Return change rows of the log; their time is that of the store when it got the entry."""
    entries, which = np.unique(positions, return_inverse=True)
    return change_rows(
        rows,
        types,
        version=step.version,
        time=pa.array([times[int(one)] for one in entries], TIME).take(pa.array(which)),
        positions=pa.array(positions, pa.int64()),
    )


def _rows_of(entry: Entry, columns: Columns) -> pa.Table:
    """Return the rows of an entry in the columns of a version, with `_tombstone`."""
    parts = []
    for batch in entry.batches:
        theirs = [arrow_field(field) for field in batch.schema if field.name != TOMBSTONE]
        parts.append(columns.fit(pa.Table.from_batches([batch]), theirs))
    return pa.concat_tables(parts)


__all__ = ["StepReader"]
