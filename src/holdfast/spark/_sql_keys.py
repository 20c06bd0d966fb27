"""Keys of the rows that a statement inserts, into a table with a primary key: each stays one row's.

Tasks keep the keys of what they insert; the driver looks them up. So MERGE INTO whose source has a
key twice, or whose condition is not on the key, is refused and never makes a key appear twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.edit import by_fragment, check_keys
from holdfast.errors import InvalidInputError
from holdfast.memtable import find_matching
from holdfast.spark._merge_source import (
    ADDRESS,
    COPIES,
    WRITES,
    ChangedRows,
    MergeWork,
    WrittenMerge,
)
from holdfast.spark._stage import collect, keep_keys
from holdfast.storage import ObjectStore
from holdfast.upkeep import MergeKeys, key_of

_INSERTED = "__holdfast_inserted"
_SHOWN_KEYS = 10


class RowsWithKeys(ChangedRows):
    """Writes the changes of one task, and keeps the keys of the rows that it inserts.

    Args:
        work: what to do.
        condition: what the rows meet, in Lance's SQL; None for any.
        all_keys: keep the keys of rows that it updates, too.
    """

    def __init__(
        self, work: MergeWork, condition: str | None = None, *, all_keys: bool = False
    ) -> None:
        super().__init__(work)
        self._condition = condition
        self._all_keys = all_keys
        self._keys: list[pa.RecordBatch] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> WrittenMerge:
        """Write them, and return what was written."""
        done = super().write(batches)
        if self._keys and done.error is None:
            done.staged = keep_keys(self._work, self._keys)
        return done

    def _fit_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        fitted = super()._fit_batch(batch)
        if self._condition is not None:
            _check_met(fitted, self._condition, self._table.data_storage_version)
        return fitted

    def _note(self, batch: pa.RecordBatch) -> None:
        super()._note(batch)
        if self._work.on:
            written, inserted = batch.column(WRITES), pc.is_null(batch.column(ADDRESS))
            keys = batch.select(list(self._work.on)).append_column(_INSERTED, inserted)
            kept = keys.filter(written if self._all_keys else pc.and_(written, inserted))
            if kept.num_rows:
                self._keys.append(kept)


def as_inserts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of a plain write as the changes that they are."""
    for batch in batches:
        marked = batch.append_column(ADDRESS, pa.nulls(batch.num_rows, pa.int64()))
        marked = marked.append_column(COPIES, pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows))
        yield marked.append_column(WRITES, pa.repeat(pa.scalar(True), batch.num_rows))


def _check_met(batch: pa.RecordBatch, condition: str, storage_version: str) -> None:
    meet = find_matching(pa.Table.from_batches([batch]), condition, storage_version)
    if len(meet) != batch.num_rows:
        raise InvalidInputError(
            "rows do not meet the condition under which they would replace others: they would be "
            "there twice after a repeat",
            where=condition[:200],
            rows=batch.num_rows - len(meet),
        )


class WrittenKeys:
    """The keys that a statement inserts and, if it is an upsert, those that it updates.

    Args:
        on: the key columns.
        keys: those of the rows, and whether each row is inserted.

    Raises:
        InvalidInputError: an inserted key is null, or there more than once.
    """

    def __init__(self, on: Sequence[str], keys: pa.Table) -> None:
        self._on = tuple(on)
        inserted = keys.filter(keys.column(_INSERTED))
        values = key_of(inserted, self._on)
        check_keys(inserted, values, self._on)
        self._inserted = MergeKeys(self._on, values)
        self._all = MergeKeys(self._on, key_of(keys, self._on))

    def check(self, base: lance.LanceDataset, gone: Mapping[int, np.ndarray]) -> None:
        """Refuse inserted keys that a row of a version has, unless that row goes.

        Raises:
            InvalidInputError: there are some; the error names them.
        """
        matches = self._inserted.matches(base) if len(self._inserted.keys) else ()
        for addresses, keys in matches:
            there = by_fragment([addresses])
            if any(np.setdiff1d(some, gone.get(number, ())).size for number, some in there.items()):
                shown = ", ".join(str(key) for key in keys.slice(0, _SHOWN_KEYS).to_pylist())
                raise InvalidInputError(
                    "the statement inserts keys that the table has already: join on the key, and "
                    "say what becomes of rows that match",
                    on=", ".join(self._on),
                    keys=shown,
                )

    def are_in(self, newest: lance.LanceDataset, fragments: Sequence[Any]) -> bool:
        """Tell whether a row in these fragments has one of the keys."""
        return self._all.are_in(newest, fragments)


def written_keys(
    parts: Sequence[WrittenMerge], store: ObjectStore, on: Sequence[str]
) -> WrittenKeys | None:
    """Return the keys that tasks have kept; None if they wrote no rows that count.

    Raises:
        InvalidInputError: an inserted key is null, or there more than once.
    """
    staged = collect(parts, store, 0)
    tables = [one for one in (staged.rows, staged.keys) if one is not None]
    return WrittenKeys(on, pa.concat_tables(tables)) if tables else None
