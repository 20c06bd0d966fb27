"""Which row of a key is the newest: over many levels, with only keys in memory.

Levels come newest first; inside one, a later row is newer. `find_newest` tells for every row
whether it is the newest of its key, and gives back the set of all keys met: a row of the base
table is shadowed when its key is in that set.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds

from holdfast.formats import key_values
from holdfast.read._hashed import HashedKeys

Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.uint64]

_DENSE = 8
"""A table of all possible keys may have so many places per key that is there."""
_SMALL_TABLE = 1 << 20
_LARGEST_TABLE = 1 << 25
_KEY = "holdfast.key"
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)
_READ_AHEAD = 4  # batches that wait while others are compared


class KeySet(Protocol):
    """A set of keys."""

    def __len__(self) -> int:
        """Return how many keys are in it."""
        ...

    def without(
        self, batches: Iterable[pa.RecordBatch], keys: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches without the rows whose key is in the set."""
        ...

    def holds(self, columns: Sequence[pa.Array]) -> Mask:
        """Tell of each key whether it is in the set."""
        ...


def find_newest(levels: Sequence[Sequence[pa.Array]]) -> tuple[list[Mask], KeySet]:
    """Tell of each row of each level whether it is the newest of its key.

    Args:
        levels: the key columns of each level, newest level first.

    Returns:
        A mask per level, and the set of all keys.
    """
    values = [key_values(columns) for columns in levels]
    if not values:
        return [], _Others(pa.array([], pa.int64()))
    if pa.types.is_integer(values[0].type) and not any(one.null_count for one in values):
        return _newest_numbers([_numbers(one) for one in values])
    return _newest_others(values)


def _numbers(values: pa.Array) -> Numbers:
    wide = pa.uint64() if pa.types.is_unsigned_integer(values.type) else pa.int64()
    numbers: Numbers = values.cast(wide).to_numpy(zero_copy_only=False)
    return numbers


def _newest_numbers(levels: Sequence[Numbers]) -> tuple[list[Mask], KeySet]:
    filled = [one for one in levels if len(one)]
    if not filled:
        return [np.ones(0, np.bool_) for _ in levels], _Others(pa.array([], pa.int64()))
    low = min(int(one.min()) for one in filled)
    high = max(int(one.max()) for one in filled)
    places = high - low + 1
    count = sum(len(one) for one in filled)
    # Keys that a sequence made lie close together: a table that is indexed by them needs neither
    # hashing nor sorting.
    if places <= min(max(count * _DENSE, _SMALL_TABLE), _LARGEST_TABLE):
        return _newest_dense(levels, low, places)
    return _newest_sorted(levels)


def _newest_dense(levels: Sequence[Numbers], low: int, places: int) -> tuple[list[Mask], KeySet]:
    """Write each key's level into a table of all possible keys, oldest first."""
    owner = np.zeros(places, np.min_scalar_type(len(levels)))
    last = np.zeros(places, np.uint32)
    masks: list[Mask] = []
    for number in range(len(levels), 0, -1):
        at = _places(levels[number - 1], low)
        owner[at] = number
    for number, keys in enumerate(levels, 1):
        at = _places(keys, low)
        order = np.arange(len(at), dtype=np.uint32)
        last[at] = order  # of equal keys the last assignment stays
        masks.append((owner[at] == number) & (last[at] == order))
    return masks, _Dense(owner != 0, low)


def _newest_sorted(levels: Sequence[Numbers]) -> tuple[list[Mask], KeySet]:
    # Newest first and each level turned around, so that the first of equal keys is the newest.
    joined = np.concatenate([one[::-1] for one in levels])
    keys, first = np.unique(joined, return_index=True)
    masks = _split(_mask_of(first, len(joined)), [len(one) for one in levels])
    return [mask[::-1] for mask in masks], _Sorted(keys)


def _newest_others(levels: Sequence[pa.Array]) -> tuple[list[Mask], KeySet]:
    # Oldest first, so that the last of equal keys is the newest.
    joined = pa.chunked_array(levels[::-1]).combine_chunks()
    sizes = [len(one) for one in levels[::-1]]
    if not joined.null_count and any(fits(joined.type) for fits in _TEXTS):
        # Two keys with one hash: Arrow's dictionary is slower, and always right.
        with contextlib.suppress(ValueError):
            hashed = HashedKeys(joined)
            return _split(hashed.last, sizes)[::-1], _Bytes(hashed)
    encoded = joined.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    last = np.zeros(len(encoded.dictionary), np.int64)
    last[codes] = np.arange(len(codes))  # of equal codes the last assignment stays
    kept = _mask_of(last, len(codes))
    return _split(kept, sizes)[::-1], _Others(encoded.dictionary)


def _mask_of(places: npt.NDArray[np.int64], size: int) -> Mask:
    kept = np.zeros(size, np.bool_)
    kept[places] = True
    return kept


def _split(kept: Mask, sizes: Sequence[int]) -> list[Mask]:
    """Return a mask per level from the mask of all levels in a row."""
    ends = np.cumsum(sizes)
    return [kept[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _places(keys: Numbers, low: int) -> npt.NDArray[np.int64]:
    # The difference wraps around the same way for signed and unsigned numbers.
    return (keys.astype(np.uint64) - np.uint64(low % 2**64)).astype(np.int64)


class _Masking(ABC):
    """Compares batch by batch."""

    def without(
        self, batches: Iterable[pa.RecordBatch], keys: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            held = self.holds([batch.column(name) for name in keys])
            if not held.any():
                yield batch
            elif not held.all():
                yield batch.filter(pa.array(~held))

    @abstractmethod
    def holds(self, columns: Sequence[pa.Array]) -> Mask:
        """Tell of each row whether its key is in the set."""


class _Bytes(_Masking):
    """Text or bytes, and keys of several columns."""

    def __init__(self, keys: HashedKeys) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def holds(self, columns: Sequence[pa.Array]) -> Mask:
        return self._keys.holds(key_values(columns))


class _IntegerSet(_Masking):
    """What the two sets of whole numbers share."""

    def holds(self, columns: Sequence[pa.Array]) -> Mask:
        column = columns[0]
        if not column.null_count:
            return self._holds(_numbers(column))
        # A null is no key: 0 stands in for it and is masked out again.
        held = self._holds(_numbers(pc.fill_null(column, 0)))
        valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
        return held & valid

    @abstractmethod
    def _holds(self, keys: Numbers) -> Mask:
        """Tell of each number whether it is in the set."""


class _Dense(_IntegerSet):
    """Whole numbers close together: a table of all that are possible."""

    def __init__(self, there: Mask, low: int) -> None:
        self._there = there
        self._low = low

    def __len__(self) -> int:
        return int(self._there.sum())

    def _holds(self, keys: Numbers) -> Mask:
        at = keys.astype(np.uint64) - np.uint64(self._low % 2**64)
        inside = at < np.uint64(len(self._there))
        held = np.zeros(len(keys), np.bool_)
        if inside.all():
            held = self._there[at.astype(np.int64)]
        else:
            held[inside] = self._there[at[inside].astype(np.int64)]
        return held


class _Sorted(_IntegerSet):
    """Whole numbers far apart: sorted."""

    def __init__(self, keys: Numbers) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def _holds(self, keys: Numbers) -> Mask:
        at = np.searchsorted(self._keys, keys)
        at[at == len(self._keys)] = 0
        held: Mask = self._keys[at] == keys
        return held


class _Others:
    """Keys of any type: Arrow's own hash table, built once per stream."""

    def __init__(self, keys: pa.Array) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def without(
        self, batches: Iterable[pa.RecordBatch], keys: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        stream = iter(batches)
        first = next(stream, None)
        if first is None:
            return
        names = first.schema.names
        keyed = _with_key(first, keys)

        def all_keyed() -> Iterator[pa.RecordBatch]:
            yield keyed
            for batch in stream:
                yield _with_key(batch, keys)

        reader = pa.RecordBatchReader.from_batches(keyed.schema, all_keyed())
        key = keys[0] if len(keys) == 1 else _KEY
        scanner = pds.Scanner.from_batches(
            reader,
            filter=~pc.field(key).isin(self._keys),
            columns=names,
            batch_readahead=_READ_AHEAD,
        )
        for batch in scanner.to_reader():
            if batch.num_rows:
                yield batch

    def holds(self, columns: Sequence[pa.Array]) -> Mask:
        held: Mask = pc.is_in(key_values(columns), self._keys).to_numpy(zero_copy_only=False)
        return held


def _with_key(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Return the batch with its key as one column: one more, where it has several."""
    if len(keys) == 1:
        return batch
    value = key_values([batch.column(name) for name in keys])
    return batch.append_column(_KEY, value)
