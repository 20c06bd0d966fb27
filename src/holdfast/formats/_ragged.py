"""Rows of bytes of differing length in two numpy arrays, built and joined column-wise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ragged:
    """`lengths[i]` bytes of `flat` belong to row i, one row after the other."""

    flat: Bytes
    lengths: Lengths

    @property
    def starts(self) -> Lengths:
        """Return where each row begins."""
        ends: Lengths = np.cumsum(self.lengths)
        return ends - self.lengths


def valid_rows(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell of each row whether it has a value."""
    valid: npt.NDArray[np.bool_] = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return valid


def single_bytes(values: npt.NDArray[Any]) -> Ragged:  # Any: booleans or small integers
    """Return one byte a row."""
    return Ragged(values.astype(np.uint8), np.ones(len(values), np.int64))


def fixed_bytes(
    values: npt.NDArray[Any], valid: npt.NDArray[np.bool_]
) -> Ragged:  # Any: any number
    """Return the bytes of numbers in their order in memory; a null has none."""
    width = values.dtype.itemsize
    matrix = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
    flat = matrix if valid.all() else matrix[valid]
    return Ragged(flat.reshape(-1), valid.astype(np.int64) * width)


def ragged_bytes(column: pa.Array) -> Ragged:
    """Return the bytes of strings or binary values; a null has none."""
    plain = column.cast(pa.large_binary())
    if plain.null_count:
        plain = pc.fill_null(plain, b"")
    rows = len(plain)
    if rows == 0:
        return Ragged(np.zeros(0, np.uint8), np.zeros(0, np.int64))
    _, offsets, data = plain.buffers()
    ends = np.frombuffer(offsets, np.int64)[plain.offset : plain.offset + rows + 1]
    flat = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    return Ragged(flat, np.diff(ends))


def only(rows: Ragged, kept: npt.NDArray[np.bool_]) -> Ragged:
    """Return the same rows, empty where not kept."""
    if kept.all():
        return rows
    return Ragged(rows.flat[np.repeat(kept, rows.lengths)], np.where(kept, rows.lengths, 0))


def join_parts(parts: Sequence[Ragged]) -> Ragged:
    """Return row by row the bytes of all parts, one behind the other."""
    lengths = np.sum([part.lengths for part in parts], axis=0)
    flat = np.empty(int(lengths.sum()), np.uint8)
    begin = np.cumsum(lengths) - lengths
    for part in parts:
        shift = np.repeat(begin - part.starts, part.lengths)
        flat[np.arange(len(part.flat)) + shift] = part.flat
        begin = begin + part.lengths
    return Ragged(flat, lengths)


def as_array(rows: Ragged) -> pa.Array:
    """Return the rows as an Arrow array of binary values."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.lengths)])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(rows.flat))]
    return pa.Array.from_buffers(pa.large_binary(), len(rows.lengths), buffers).cast(pa.binary())
