"""Rows of a MemTable in a few parts, each with its keys sorted, so that a key is found fast.

A part is a batch of rows and, for a table with a key, one 64-bit code per row, sorted. For a
key of one integer the code is the key; otherwise it is a hash, and a hit is compared with
the key itself. Eight small parts of one level are merged into one of the next, so there are
never many and no row is copied often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.formats._keys import key_values

FAN = 8
"""How many parts of one level become one of the next."""

LARGE = 16_384
"""How many rows a merge may make: a few large parts are searched fast enough, and not copied."""

Codes = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows that follow one another.

    Attributes:
        batch: the rows.
        first: the number of the first one in its MemTable.
        level: how often it was merged.
        codes: the codes of the keys, sorted; none without a key.
        order: the row in the batch that each code belongs to; equal codes in row order.
    """

    batch: pa.RecordBatch
    first: int
    level: int
    codes: Codes
    order: Numbers

    @property
    def end(self) -> int:
        """Return the number behind the last row."""
        return self.first + int(self.batch.num_rows)


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
            unsigned: Codes = numbers.astype(np.uint64).view(np.int64)
            return unsigned if numbers.dtype.kind == "u" else numbers.astype(np.int64)
        values = key_values(columns).to_pylist()
        return np.fromiter((hash(value) for value in values), np.int64, len(values))

    def same(self, one: Sequence[pa.Array], other: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Tell row by row whether keys whose codes are equal are equal themselves."""
        count = len(one[0])
        if self.exact:
            return np.ones(count, np.bool_)
        pairs = zip(key_values(one).to_pylist(), key_values(other).to_pylist(), strict=True)
        return np.fromiter((a == b for a, b in pairs), np.bool_, count)


def make_part(batch: pa.RecordBatch, first: int, codes: Codes) -> Part:
    """Return a new part of level 0."""
    if len(codes) < 2 or (codes[1:] > codes[:-1]).all():  # noqa: PLR2004 - often keys only grow
        return Part(batch, first, 0, codes, np.arange(len(codes)))
    order = np.argsort(codes, kind="stable")
    return Part(batch, first, 0, codes[order], order)


def has_doubles(part: Part) -> bool:
    """Tell whether two rows may have one key: their codes are equal."""
    return bool((part.codes[1:] == part.codes[:-1]).any())


def settle(parts: list[Part]) -> None:
    """Merge at the end of the list until no level has `FAN` small parts there."""
    while len(parts) >= FAN:
        last = parts[-FAN:]
        rows = last[-1].end - last[0].first
        if rows > LARGE or any(part.level != last[-1].level for part in last):
            return
        parts[-FAN:] = [_merged(last)]


def _merged(parts: Sequence[Part]) -> Part:
    first = parts[0].first
    batch = pa.concat_batches([part.batch for part in parts])
    codes = np.concatenate([part.codes for part in parts])
    rows = np.concatenate([part.order + (part.first - first) for part in parts])
    order = np.argsort(codes, kind="stable")  # finds the sorted stretches and merges them
    if not len(codes):
        return Part(batch, first, parts[0].level + 1, codes, rows)
    return Part(batch, first, parts[0].level + 1, codes[order], rows[order])


def hits(parts: Sequence[Part], codes: Codes) -> Iterator[tuple[Part, Numbers, Numbers]]:
    """Yield per part which codes are in it, and in which rows of its batch."""
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
            yield part, which, part.order[np.repeat(left, counts) + inside]
