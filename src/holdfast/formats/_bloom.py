"""The bloom filter beside an SSTable: split blocks as in Parquet, keys hashed by SipHash-1-3.

It has a fixed 32 KiB, enough for some ten thousand keys; beyond, it lets everything pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from holdfast.errors import CorruptError
from holdfast.formats._ragged import Ragged

Hashes = npt.NDArray[np.uint64]

BLOOM_BYTES = 32_768
_BLOCK_BYTES = 32
_WORDS = 8
_SALTS = (
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)
_U = np.uint64
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def hash_rows(rows: Ragged) -> Hashes:
    """Return SipHash-1-3 with a zero key of every row; rows of one length go together."""
    hashes = np.empty(len(rows.lengths), np.uint64)
    starts = rows.starts
    for length in np.unique(rows.lengths):
        at = np.flatnonzero(rows.lengths == length)
        matrix = rows.flat[starts[at][:, None] + np.arange(length)]
        hashes[at] = _hash_matrix(matrix)
    return hashes


def hash_numbers(values: npt.NDArray[np.int64]) -> Hashes:
    """Return the hashes of keys of one 64-bit integer: a zero byte, then eight bytes each."""
    plain = values.view(np.uint64)
    last = (plain >> _U(56)) | _U(9 << 56)
    return _hash_words([plain << _U(8), last])


def bloom_filter(hashes: Hashes) -> bytes:
    """Return the filter that lets these hashes pass."""
    bits = np.zeros((BLOOM_BYTES // _BLOCK_BYTES * _WORDS, 32), np.bool_)
    for places, shifts in _places(hashes, BLOOM_BYTES):
        bits[places, shifts] = True
    return np.packbits(bits, axis=1, bitorder="little").tobytes()


def may_contain(filter_bytes: bytes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Tell of each hash whether its key may be there; False is certain.

    Raises:
        CorruptError: these bytes are no filter.
    """
    size = len(filter_bytes)
    if size == 0 or size % _BLOCK_BYTES:
        raise CorruptError("a bloom filter is made of blocks of 32 bytes", size=size)
    words = np.frombuffer(filter_bytes, "<u4")
    contained = np.ones(len(hashes), np.bool_)
    for places, shifts in _places(hashes, size):
        contained &= (words[places] >> shifts.astype(np.uint32)) & np.uint32(1) == 1
    return contained


def _places(
    hashes: Hashes, size: int
) -> Iterable[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield for each word of a block which word of the filter and which of its bits is meant."""
    blocks = ((hashes >> _U(32)) * _U(size // _BLOCK_BYTES)) >> _U(32)
    low = (hashes & _U(0xFFFFFFFF)).astype(np.uint32)
    for word, salt in enumerate(_SALTS):
        shifts = (low * np.uint32(salt)) >> np.uint32(27)
        yield (blocks * _U(_WORDS) + _U(word)).astype(np.int64), shifts.astype(np.int64)


def _hash_matrix(rows: npt.NDArray[np.uint8]) -> Hashes:
    count, length = rows.shape
    padded = np.zeros((count, (length // 8 + 1) * 8), np.uint8)
    padded[:, :length] = rows
    words = padded.view("<u8").astype(np.uint64)
    words[:, -1] |= _U((length & 0xFF) << 56)
    return _hash_words([words[:, index] for index in range(words.shape[1])])


def _hash_words(words: Sequence[Hashes]) -> Hashes:
    """Hash messages of equal length, given word by word, the length in the last one."""
    state = [np.full(len(words[0]), start, np.uint64) for start in _START]
    for word in words:
        state[3] ^= word
        _mix(state)
        state[0] ^= word
    state[2] ^= _U(0xFF)
    for _ in range(3):
        _mix(state)
    hashes: Hashes = state[0] ^ state[1] ^ state[2] ^ state[3]
    return hashes


def _rotate(value: Hashes, bits: int) -> Hashes:
    return (value << _U(bits)) | (value >> _U(64 - bits))


def _mix(state: list[Hashes]) -> None:
    """Do one round of SipHash on every row."""
    v0, v1, v2, v3 = state
    v0 = v0 + v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = v2 + v3
    v3 = _rotate(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _rotate(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    state[:] = v0, v1, v2, v3
