"""Rows of a MemTable in batches, and their keys in a few sorted parts, so that a key is found fast.

For a table with a key there is one 64-bit code per row. For a key of one integer the code is
the key; otherwise it is a hash, and a hit is compared with the key itself. Eight neighbours of
one level are merged into one of the next, so there are never many and nothing is copied often;
rows are merged only while they are few: a copy of what callers gave costs memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.formats import key_values

FAN = 8
"""How many neighbours of one level become one of the next."""

PIECE_ROWS = 4_096
"""How many rows small batches are merged to."""

_SMALL_ROWS = 512  # a batch of so many is left as it is,
_SMALL_BYTES = 1 << 20  # or of so many bytes
_LEFT = -1  # the level of such a batch
_MOST_KEYS = 65_536  # a merge of keys makes no more than these

Codes = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows that follow one another.

    Attributes:
        batch: the rows.
        first: the number of the first one in its MemTable.
        end: the number behind the last one.
        level: how often they were merged; negative if they never are.
    """

    batch: pa.RecordBatch
    first: int
    end: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of some rows that follow one another.

    Attributes:
        codes: the codes of the keys, sorted.
        numbers: the row that each code belongs to; equal codes in row order.
        first: the number of the first row.
        end: the number behind the last one.
        level: how often they were merged.
    """

    codes: Codes
    numbers: Numbers
    first: int
    end: int
    level: int = 0


class KeyCodes:
    """Makes codes of keys.

    Args:
        schema: the columns of the rows.
        keys: the key columns; none for rows without a key.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)
        only = schema.field(keys[0]) if len(keys) == 1 else None
        self.exact = only is not None and pa.types.is_integer(only.type) and not only.nullable

    def columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the key columns."""
        return [rows.column(name) for name in self._keys]

    def of(self, columns: Sequence[pa.Array]) -> Codes:
        """Return one code per row."""
        if self.exact:
            numbers = columns[0].to_numpy(zero_copy_only=False)
            wide = np.uint64 if numbers.dtype.kind == "u" else np.int64
            codes: Codes = numbers.astype(wide, copy=False).view(np.int64)
            return codes
        values = key_values(columns).to_pylist()
        return np.fromiter((hash(value) for value in values), np.int64, len(values))

    def same(self, one: Sequence[pa.Array], other: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Tell row by row whether keys whose codes are equal are equal themselves."""
        count = len(one[0])
        if self.exact:
            return np.ones(count, np.bool_)
        pairs = zip(key_values(one).to_pylist(), key_values(other).to_pylist(), strict=True)
        return np.fromiter((a == b for a, b in pairs), np.bool_, count)


def pieces(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, small neighbours joined."""
    small: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        left, count = not _is_small(batch), int(batch.num_rows)
        if small and (left or rows + count > PIECE_ROWS):
            yield _join_batches(small)
            small, rows = [], 0
        if left:
            yield batch
        else:
            small.append(batch)
            rows += count
    if small:
        yield _join_batches(small)


def _is_small(batch: pa.RecordBatch) -> bool:
    return int(batch.num_rows) < _SMALL_ROWS and int(batch.nbytes) < _SMALL_BYTES


def make_keys(codes: Codes, first: int) -> Keys:
    """Return the keys of new rows."""
    numbers = np.arange(first, first + len(codes), dtype=np.int32)
    if len(codes) > 1 and not (codes[1:] > codes[:-1]).all():  # often keys only grow
        order = np.argsort(codes, kind="stable")
        codes, numbers = codes[order], numbers[order]
    return Keys(codes, numbers, first, first + len(codes))


def replaced_inside(keys: Keys) -> Numbers:
    """Return the rows that a later one with the same code follows."""
    replaced: Numbers = keys.numbers[:-1][keys.codes[1:] == keys.codes[:-1]]
    return replaced


def add_rows(rows: list[Rows], batch: pa.RecordBatch) -> Rows:
    """Put a batch at the end; return it as it was put there."""
    first = rows[-1].end if rows else 0
    level = 0 if _is_small(batch) else _LEFT
    new = Rows(batch, first, first + int(batch.num_rows), level)
    rows.append(new)
    _settle(rows, PIECE_ROWS, _merged_rows)
    return new


def add_keys(keys: list[Keys], new: Keys) -> None:
    """Put keys at the end."""
    keys.append(new)
    _settle(keys, _MOST_KEYS, _merged_keys)


Part = TypeVar("Part", Rows, Keys)


def _settle(parts: list[Part], most: int, merged: Callable[[Sequence[Part]], Part]) -> None:
    """Merge at the end of the list until no level has `FAN` small parts there."""
    while len(parts) >= FAN and parts[-1].level >= 0:
        last = parts[-FAN:]
        if last[-1].end - last[0].first > most or any(it.level != last[-1].level for it in last):
            return
        parts[-FAN:] = [merged(last)]


def _merged_rows(parts: Sequence[Rows]) -> Rows:
    batch = _join_batches([part.batch for part in parts])
    return Rows(batch, parts[0].first, parts[-1].end, parts[0].level + 1)


def _merged_keys(parts: Sequence[Keys]) -> Keys:
    codes = np.concatenate([part.codes for part in parts])
    numbers = np.concatenate([part.numbers for part in parts])
    if not (codes[1:] > codes[:-1]).all():
        order = np.argsort(codes, kind="stable")  # finds the sorted stretches and merges them
        codes, numbers = codes[order], numbers[order]
    return Keys(codes, numbers, parts[0].first, parts[-1].end, parts[0].level + 1)


def _join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    # From the system's allocator, which gives memory back: these live long.
    return pa.concat_batches(batches, memory_pool=pa.system_memory_pool())


def hits(parts: Sequence[Keys], codes: Codes) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield per part which codes are in it, and in which rows."""
    if not len(codes):
        return
    low, high = codes.min(), codes.max()
    for part in parts:
        if not len(part.codes) or part.codes[-1] < low or high < part.codes[0]:
            continue
        left = np.searchsorted(part.codes, codes, "left")
        counts = np.searchsorted(part.codes, codes, "right") - left
        if counts.any():
            which = np.repeat(np.arange(len(codes)), counts)
            inside = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
            yield which, part.numbers[np.repeat(left, counts) + inside]


def locate_rows(rows: Sequence[Rows], numbers: Numbers) -> Iterator[tuple[Rows, Numbers]]:
    """Yield the batches that hold these rows, each with the places of its own in `numbers`."""
    ends = np.array([part.end for part in rows])
    owner = np.searchsorted(ends, numbers, "right")
    for index in np.unique(owner).tolist():
        yield rows[index], np.flatnonzero(owner == index)
