"""Keys of text or bytes: the newest row of each, and a set that whole batches are compared with.

Each key has a 64-bit hash, and a place in a table: the first that was free, from where its hash
points. A row has the key of a place when their hashes are equal and the keys are then found
equal, byte for byte. So nothing depends on the hash being good, except speed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.formats import ragged_bytes

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64] | npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

_WORD = 8
_BITS_MORE = 2  # of the places in the table, an eighth to a quarter is taken
_FEWEST_BITS = 8
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_SEED = np.uint64(0x9E3779B97F4A7C15)
_FREE = -1
_GRID_BYTES = 64  # keys of one length, up to this, are laid out in whole words


class KeyBytes:
    """The bytes of keys, eight at a time; nulls count as empty."""

    def __init__(self, keys: pa.Array) -> None:
        rows = ragged_bytes(keys)
        self.lengths = rows.lengths.astype(np.int64, copy=False)
        self.longest = int(self.lengths.max(initial=0))
        # One length for all is common, and spares arithmetic for each row.
        self._even = self.longest == int(self.lengths.min(initial=self.longest))
        self._grid: Hashes | None = None
        if self._even and self.longest <= _GRID_BYTES:
            self._grid = _grid(rows.flat, len(self.lengths), self.longest)
            return
        self._starts = rows.starts
        padded = np.zeros(len(rows.flat) + _WORD, np.uint8)
        padded[: len(rows.flat)] = rows.flat
        # Every place in the bytes as the start of a word.
        self._words: Hashes = np.ndarray((len(rows.flat) + 1,), "<u8", padded, strides=(1,))

    def word(self, begin: int, rows: Rows | slice) -> Hashes:
        """Return eight bytes of each row, zero where it has fewer."""
        if self._grid is not None:
            return self._grid[rows, begin // _WORD]
        left = self.lengths[rows] - begin
        inside = np.minimum(self._starts[rows] + begin, len(self._words) - 1)
        cuts = np.clip(_WORD - left, 0, _WORD - 1).astype(np.uint64) * np.uint64(8)
        return np.where(left > 0, (self._words[inside] << cuts) >> cuts, np.uint64(0))

    def hashes(self) -> Hashes:
        """Return a hash of each key."""
        mixed = (self.lengths.astype(np.uint64) * _MIX) ^ _SEED
        for begin in range(0, self.longest, _WORD):
            if self._even:
                mixed = _mix(mixed, self.word(begin, slice(None)))
            else:  # long keys may be few
                some = np.flatnonzero(self.lengths > begin)
                mixed[some] = _mix(mixed[some], self.word(begin, some))
        return mixed

    def same(self, rows: Rows, other: KeyBytes, others: Rows) -> Mask:
        """Tell pair by pair whether keys are equal."""
        if self._grid is not None and other._grid is not None:
            if self.longest != other.longest:
                return np.zeros(len(rows), np.bool_)
            alike = self._grid.take(rows, axis=0) == other._grid.take(others, axis=0)
            return (
                np.logical_and.reduce(list(alike.T))
                if self.longest
                else np.ones(len(rows), np.bool_)
            )
        equal: Mask = self.lengths[rows] == other.lengths[others]
        for begin in range(0, min(self.longest, other.longest), _WORD):
            equal &= self.word(begin, rows) == other.word(begin, others)
        return equal


class HashedKeys:
    """The different keys among rows of text or bytes, the last row of each counting.

    Args:
        keys: without nulls.

    Attributes:
        last: of each row whether it is the last with its key.

    Raises:
        ValueError: two keys have the same hash: use another kind of set.
    """

    def __init__(self, keys: pa.Array) -> None:
        self._bytes = KeyBytes(keys)
        self._hashes = self._bytes.hashes()
        bits = max(len(keys).bit_length() + _BITS_MORE, _FEWEST_BITS)
        self._shift, self._around = np.uint64(64 - bits), (1 << bits) - 1
        self._owner = np.full(1 << bits, _FREE, np.int32)
        place = self._fill()
        rows = np.arange(len(keys))
        owner = self._owner[place]
        doubled = np.flatnonzero(owner != rows)
        if not self._bytes.same(doubled, self._bytes, owner[doubled]).all():
            raise ValueError("two keys have one hash")
        self._owner[place] = rows  # of equal keys the last assignment stays
        self.last: Mask = self._owner[place] == rows

    def __len__(self) -> int:
        return int(np.count_nonzero(self.last))

    def _fill(self) -> Rows:
        """Give each key a place; return the place of each row."""
        place = (self._hashes >> self._shift).astype(np.int64)
        left = np.arange(len(place))
        while len(left):
            at = place[left]
            free = self._owner[at] == _FREE
            self._owner[at[free]] = left[free]
            other = self._hashes[self._owner[at]] != self._hashes[left]
            left = left[other]
            place[left] = (place[left] + 1) & self._around
        return place

    def holds(self, values: pa.Array) -> Mask:
        """Tell of each key whether it is in the set; a null never is."""
        given = KeyBytes(values)
        hashes = given.hashes()
        place = (hashes >> self._shift).astype(np.int64)
        owner = self._owner[place]
        rows = np.flatnonzero(owner != _FREE)
        held = np.zeros(len(values), np.bool_)
        while len(rows):
            same = self._hashes[owner[rows]] == hashes[rows]
            some = rows[same]
            held[some] = given.same(some, self._bytes, owner[some])
            rows = rows[~same]
            place[rows] = (place[rows] + 1) & self._around
            owner[rows] = self._owner[place[rows]]
            rows = rows[owner[rows] != _FREE]
        if values.null_count:
            held &= values.is_valid().to_numpy(zero_copy_only=False)
        return held


def _grid(flat: npt.NDArray[np.uint8], rows: int, length: int) -> Hashes:
    """Return keys of one length as rows of whole words, zeros behind them."""
    words = -(-length // _WORD)
    padded = np.zeros((rows, words * _WORD), np.uint8)
    padded[:, :length] = flat.reshape(rows, length)
    return padded.view("<u8")


def _mix(hashes: Hashes, word: Hashes) -> Hashes:
    mixed = (hashes ^ word) * _MIX
    return mixed ^ (mixed >> np.uint64(33))
