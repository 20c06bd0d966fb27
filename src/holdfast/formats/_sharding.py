"""Which shard a row belongs to: Lance's bucket hash and LanceDB's shard ids.

bucket(column, 4)            # -> [2, 0, 1, ...]
shard_id_of_bucket(2)        # -> a UUID, the same everywhere
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError
from holdfast.formats._ragged import ragged_bytes, valid_rows

MAX_BUCKETS = 1_024
_SHARDS = uuid.UUID("4c534d57-5249-5445-5f53-484152443031")

_U32 = npt.NDArray[np.uint32]


def bucket(column: pa.Array, buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each value; a null is in bucket 0.

    Raises:
        InvalidInputError: a number of buckets that no table has, or a type without a hash.
    """
    if not 1 <= buckets <= MAX_BUCKETS:
        raise InvalidInputError(f"a table has 1 to {MAX_BUCKETS} buckets", buckets=buckets)
    hashes = _hash(column) & np.uint32(0x7FFFFFFF)
    buckets_of_rows = (hashes % np.uint32(buckets)).astype(np.int32)
    return np.where(valid_rows(column), buckets_of_rows, np.int32(0)).astype(np.int32)


def shard_id_unsharded() -> str:
    """Return the id of the one shard of an unsharded table."""
    return _named_uuid(b"unsharded")


def shard_id_of_bucket(number: int) -> str:
    """Return the id of a bucket's shard."""
    return _named_uuid(f"bucket-{number}".encode())


def shard_id_of_value(value: pa.Scalar) -> str:
    """Return the id of the shard of one value, where rows are divided by the value itself.

    Raises:
        InvalidInputError: a null, or a type that divides no rows.
    """
    return _named_uuid(b"identity-" + scalar_bytes(value))


def scalar_bytes(value: pa.Scalar) -> bytes:
    """Return a value as shard manifests hold it: numbers from the lowest byte up, text as it is.

    Raises:
        InvalidInputError: a null, or a type that divides no rows.
    """
    if not value.is_valid:
        raise InvalidInputError("a null belongs to no shard: give the sharding column a value")
    kind = value.type
    if pa.types.is_boolean(kind):
        return b"\x01" if value.as_py() else b"\x00"
    if pa.types.is_integer(kind):
        size, signed = kind.bit_width // 8, pa.types.is_signed_integer(kind)
        return int(value.as_py()).to_bytes(size, "little", signed=signed)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str(value.as_py()).encode()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return bytes(value.as_py())
    raise InvalidInputError("rows are not divided by a column of this type", type=str(kind))


def _named_uuid(name: bytes) -> str:
    """Return the UUID of version 5 of a name; `uuid.uuid5` takes bytes from Python 3.12 on."""
    digest = hashlib.sha1(_SHARDS.bytes + name, usedforsecurity=False).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


def _hash(column: pa.Array) -> _U32:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _hash_text(column)
    words = _words(column)
    if words.shape[1] == 1:
        return _finish_hash(_mix(np.zeros(len(words), np.uint32), words[:, 0]), 4)
    low = _mix(np.zeros(len(words), np.uint32), words[:, 0])
    return _finish_hash(_mix(low, words[:, 1]), 8)


def _words(column: pa.Array) -> npt.NDArray[np.uint32]:
    """Return each value as one or two words of 32 bits."""
    kind = column.type
    values = _plain(column)
    if pa.types.is_floating(kind):
        values = np.where(values == 0, values.dtype.type(0), values)
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
        return np.ascontiguousarray(values).view(np.uint32).reshape(len(values), -1)
    size = values.dtype.itemsize
    wide: npt.NDArray[Any] = values.astype(np.int64 if size == 8 else np.int32)  # noqa: PLR2004
    return np.ascontiguousarray(wide).view(np.uint32).reshape(len(values), -1)


def _plain(column: pa.Array) -> npt.NDArray[Any]:  # Any: any number
    kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        column = column.cast(pa.int64())
    elif not (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
    ):
        raise InvalidInputError("rows are not divided by a column of this type", type=str(kind))
    filler = False if pa.types.is_boolean(column.type) else 0
    values: npt.NDArray[Any] = pc.fill_null(column, filler).to_numpy(zero_copy_only=False)
    return values


def _hash_text(column: pa.Array) -> _U32:
    rows = ragged_bytes(column)
    starts = rows.starts
    result = np.zeros(len(rows.lengths), np.uint32)
    for length in np.unique(rows.lengths).tolist():
        at = np.flatnonzero(rows.lengths == length)
        matrix = rows.flat[starts[at][:, None] + np.arange(length)]
        whole = length // 4
        hashes = np.zeros(len(at), np.uint32)
        words = np.ascontiguousarray(matrix[:, : whole * 4]).view("<u4") if whole else None
        for index in range(whole):
            hashes = _mix(hashes, words[:, index])  # type: ignore[index]  # whole > 0
        for index in range(whole * 4, length):
            # What is left over is mixed in byte by byte, each with its sign.
            hashes = _mix(hashes, matrix[:, index].astype(np.int8).astype(np.uint32))
        result[at] = _finish_hash(hashes, length)
    return result


def _rotate(value: _U32, bits: int) -> _U32:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


def _mix(hashes: _U32, words: _U32) -> _U32:
    """Do one step of murmur3."""
    mixed = _rotate(words.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotate(hashes ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish_hash(hashes: _U32, length: int) -> _U32:
    hashes = hashes ^ np.uint32(length)
    hashes ^= hashes >> np.uint32(16)
    hashes = hashes * np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes = hashes * np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes
