"""Rows of two states compared: which went, which came, which changed.

Equal rows of both sides cancel each other, one for one; so rows that were only moved to another
file are no change. What is left is paired by key: an update. Without a key it is a delete and
an insert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.formats import key_values

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_preimage", "update_postimage"
_WIDEST = 1 << 62


def row_codes(rows: pa.Table) -> Codes:
    """Return a number per row: equal numbers for rows that are equal bit by bit, and only those."""
    codes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        codes = _join_codes(codes, _column_codes(_whole(column)))
    return codes


def key_codes(rows: pa.Table, keys: Sequence[str]) -> Codes:
    """Return a number per row: equal numbers for equal keys, from 0 on."""
    return _encode_column(key_values([_whole(rows[name]) for name in keys]))


def compare(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, list[str]]:
    """Return the change rows that lead from one set of rows to another, and their types.

    Deletes come first, then updates, both images of one next to each other, then inserts.

    Args:
        before: the rows that were there.
        after: the rows that are there now, in the same columns.
        keys: the columns of the primary key; none for a table without.
    """
    both = pa.concat_tables([before, after])
    first = before.num_rows
    codes = row_codes(both)
    gone = np.flatnonzero(_unmatched_rows(codes[:first], codes[first:]))
    came = np.flatnonzero(_unmatched_rows(codes[first:], codes[:first])) + first
    old, new = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if keys and len(gone) and len(came):
        marks = key_codes(both, keys)
        old, new = _pair_rows(marks[gone], marks[came])
    images = np.stack([gone[old], came[new]], axis=1).reshape(-1)
    gone, came = np.delete(gone, old), np.delete(came, new)
    places = np.concatenate([gone, images, came])
    types = [DELETE] * len(gone) + [BEFORE, AFTER] * (len(images) // 2) + [INSERT] * len(came)
    return both.take(pa.array(places)), types


def _unmatched_rows(mine: Codes, theirs: Codes) -> Mask:
    """Tell of each of my rows whether the other side has none left that is equal."""
    size = int(max(mine.max(initial=-1), theirs.max(initial=-1))) + 1
    # Codes of many columns are sparse: counting by them would need a table of all that are
    # possible.
    if size > 4 * (len(mine) + len(theirs)) + 1024:
        distinct, packed = np.unique(np.concatenate([mine, theirs]), return_inverse=True)
        mine, theirs, size = packed[: len(mine)], packed[len(mine) :], len(distinct)
    counts = np.bincount(theirs, minlength=size)
    left: Mask = ranks(mine) >= counts[mine]
    return left


def ranks(codes: Codes) -> Codes:
    """Return of each row how many rows before it have the same number."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(begins, len(ordered)))
    places = np.zeros(len(codes), np.int64)
    places[order] = np.arange(len(ordered)) - np.repeat(begins, lengths)
    return places


def _pair_rows(old: Codes, new: Codes) -> tuple[Codes, Codes]:
    """Return the places of rows with one key, the first of one side with the first of the other."""
    most = int(max(ranks(old).max(initial=0), ranks(new).max(initial=0))) + 1
    _, mine, theirs = np.intersect1d(
        old * most + ranks(old), new * most + ranks(new), assume_unique=True, return_indices=True
    )
    order = np.argsort(mine)
    return mine[order], theirs[order]


def _join_codes(first: Codes, second: Codes) -> Codes:
    width = int(second.max(initial=0)) + 1
    # The product of two codes must stay in 64 bits: packed anew they are below the number of rows.
    if (int(first.max(initial=0)) + 1) * width >= _WIDEST:
        first, second = _pack_codes(first), _pack_codes(second)
        width = int(second.max(initial=0)) + 1
    return first * width + second


def _pack_codes(codes: Codes) -> Codes:
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)


def _column_codes(column: pa.Array) -> Codes:
    """Return a number per value, from 0 on; null has one of its own."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _column_codes(column.dictionary_decode())
    if pa.types.is_floating(kind):  # by their bits: a NaN is equal to itself
        return _encode_column(column.view(f"int{kind.bit_width}"))
    if pa.types.is_struct(kind):
        codes: Codes = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        for part in column.flatten():
            codes = _join_codes(codes, _column_codes(part))
        return codes
    lists = _as_bytes(column)
    if lists is not None:
        return _encode_column(lists)
    try:
        return _encode_column(column)
    except pa.ArrowNotImplementedError:
        return _encode_column(
            pa.array([repr(value) for value in column.to_pylist()], pa.large_string())
        )


def _as_bytes(column: pa.Array) -> pa.Array | None:
    """Return lists of numbers as bytes; None for others, or where one has a null inside."""
    kind: Any = column.type  # Any: of several classes
    even = pa.types.is_fixed_size_list(kind)
    if not even and not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
        return None
    size = kind.list_size if even else 0
    inside = (
        column.values.slice(column.offset * size, len(column) * size) if even else column.values
    )
    plain = pa.types.is_primitive(inside.type) and not pa.types.is_boolean(inside.type)
    if inside.null_count or not plain:
        return None
    numbers = np.ascontiguousarray(inside.to_numpy(zero_copy_only=False))
    if even:
        ends = np.arange(len(column) + 1, dtype=np.int64) * size
    else:
        ends = column.offsets.to_numpy().astype(np.int64)
    buffers = [None, pa.py_buffer(ends * numbers.itemsize), pa.py_buffer(numbers)]
    made = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(column), buffers)
    return pc.if_else(column.is_valid(), made, None) if column.null_count else made


def _encode_column(column: pa.Array) -> Codes:
    indices = column.dictionary_encode(null_encoding="encode").indices
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
