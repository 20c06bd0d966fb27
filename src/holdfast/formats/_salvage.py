"""Rows that nobody can read, told from those beside them.

Writers check every value. Older ones, and stock's, did not: one text that is no UTF-8 makes
everything unreadable that is read together with it. Here each row is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidInputError
from holdfast.formats._content import Content, check_stored, check_values


def good_rows(batch: pa.RecordBatch) -> np.ndarray:
    """Tell of each row of a batch whether it could be written to a table."""
    return find_good(
        batch.num_rows, lambda start, count: _passes(_check_given, _part(batch, start, count))
    )


def readable_rows(batch: pa.RecordBatch) -> np.ndarray:
    """Tell of each row of a batch from storage whether its values are values of their types."""
    return find_good(
        batch.num_rows, lambda start, count: _passes(check_stored, _part(batch, start, count))
    )


def find_good(rows: int, is_good: Callable[[int, int], bool]) -> np.ndarray:
    """Tell of each row whether it is good, by asking for ranges; few are asked for if few are not.

    Args:
        rows: how many there are.
        is_good: tells of `count` rows from `start` on whether all of them are.
    """
    good = np.ones(rows, np.bool_)
    waiting = [(0, rows)] if rows else []
    while waiting:
        start, count = waiting.pop()
        if is_good(start, count):
            continue
        if count == 1:
            good[start] = False
            continue
        half = count // 2
        waiting += [(start, half), (start + half, count - half)]
    return good


def only_rows(batch: pa.RecordBatch, wanted: np.ndarray) -> pa.RecordBatch:
    """Return some rows of a batch, in memory of their own; what is in others is not looked at."""
    numbers = np.flatnonzero(wanted)
    if not len(numbers):
        return batch.slice(0, 0)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    columns = [
        pa.concat_arrays([column.slice(int(run[0]), len(run)) for run in runs])
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _part(batch: pa.RecordBatch, start: int, count: int) -> pa.RecordBatch:
    wanted = np.zeros(batch.num_rows, np.bool_)
    wanted[start : start + count] = True
    part = only_rows(batch, wanted)
    # One array alone is not copied, and its neighbours would be looked at, too.
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in part.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _check_given(batch: pa.RecordBatch) -> None:
    check_values(batch)
    Content(batch.schema).check(batch)


def _passes(check: Callable[[pa.RecordBatch], None], batch: pa.RecordBatch) -> bool:
    try:
        check(batch)
    except InvalidInputError:
        return False
    return True
