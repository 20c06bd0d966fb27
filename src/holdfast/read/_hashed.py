"""Keys of text or bytes in a set that whole batches are compared with at once, exactly.

Each key has a 64-bit hash. Buckets hold the keys whose hashes begin alike; a row is in the
set when a key of its bucket has its hash and is then found equal, byte for byte. So nothing
depends on the hash being good, except speed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.formats._ragged import Ragged, variable

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_WORD = 8
_BITS_MORE = 3  # eight buckets per key
_FEWEST_BITS, _MOST_BITS = 8, 26
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_SEED = np.uint64(0x9E3779B97F4A7C15)


class HashedKeys:
    """A set of different keys, of text or bytes.

    Raises:
        ValueError: two of them have the same hash: use another kind of set.
    """

    def __init__(self, keys: pa.Array) -> None:
        hashes = hash_keys(keys)
        bits = len(keys).bit_length() + _BITS_MORE
        self._shift = np.uint64(64 - min(max(bits, _FEWEST_BITS), _MOST_BITS))
        buckets = self._bucket_of(hashes)
        order = np.argsort(hashes)
        self._hashes = hashes[order]
        if (self._hashes[1:] == self._hashes[:-1]).any():
            raise ValueError("two keys have one hash")
        self._keys = keys.take(pa.array(order))
        size = 1 << (64 - int(self._shift))
        counts = np.bincount(buckets, minlength=size)
        self._most = int(counts.max(initial=0))
        self._starts = np.zeros(size + 1, np.int32)
        np.cumsum(counts, out=self._starts[1:])

    def holds(self, values: pa.Array) -> Mask:
        """Tell of each key whether it is in the set."""
        found = np.zeros(len(values), np.bool_)
        hashes = hash_keys(values)
        buckets = self._bucket_of(hashes)
        at, ends = self._starts[buckets], self._starts[buckets + 1]
        rows = np.flatnonzero(at < ends)
        for _ in range(self._most):
            if not len(rows):
                break
            same = self._hashes[at[rows]] == hashes[rows]
            self._compare(values, rows[same], at, found)
            rows = rows[~same]
            at[rows] += 1
            rows = rows[at[rows] < ends[rows]]
        return found

    def _compare(
        self, values: pa.Array, rows: npt.NDArray[np.int64], at: npt.NDArray[np.int32], found: Mask
    ) -> None:
        if not len(rows):
            return
        ours = self._keys.take(pa.array(at[rows]))
        theirs = values.take(pa.array(rows))
        equal = pc.fill_null(pc.equal(ours, theirs), False)
        found[rows] = equal.to_numpy(zero_copy_only=False)

    def _bucket_of(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        return (hashes >> self._shift).astype(np.int64)


def hash_keys(keys: pa.Array) -> Hashes:
    """Return a hash of each key, eight bytes at a time; nulls count as empty."""
    rows = variable(keys)
    return _hash(rows, rows.lengths.astype(np.int64))


def _hash(rows: Ragged, lengths: npt.NDArray[np.int64]) -> Hashes:
    found = (lengths.astype(np.uint64) * _MIX) ^ _SEED
    longest = int(lengths.max(initial=0))
    if not longest:
        return found
    padded = np.zeros(len(rows.flat) + _WORD, np.uint8)
    padded[: len(rows.flat)] = rows.flat
    # Every place in the bytes as the start of a word.
    words = np.ndarray((len(rows.flat) + 1,), "<u8", padded, strides=(1,))
    starts = rows.starts
    short = int(lengths.min()) < longest
    for begin in range(0, longest, _WORD):
        some = np.flatnonzero(lengths > begin) if short else slice(None)
        left = lengths[some] - begin
        word = words[starts[some] + begin]
        cut = np.clip(_WORD - left, 0, _WORD - 1).astype(np.uint64) * np.uint64(8)
        mixed = (found[some] ^ ((word << cut) >> cut)) * _MIX
        found[some] = mixed ^ (mixed >> np.uint64(33))
    return found
