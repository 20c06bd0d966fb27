"""Rows in a request's body, which anybody may have made, and rows in an answer.

A body is read as Arrow's IPC stream or file, or as JSON rows. Nothing in it can take more
memory than the body has bytes: compressed buffers are refused, and so are more rows than the
body has bits. A stream that does not say where it ends may have been cut off: refused, too.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidInputError

STREAM = "application/vnd.apache.arrow.stream"
FILE = "application/vnd.apache.arrow.file"
JSON = "application/json"
LINES = "application/x-ndjson"

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MAGIC = b"ARROW1"
_BITS = 8
_COMPRESSION_FIELD = 3  # of a record batch, in Arrow's flatbuffers
_HEADER_FIELD = 2  # of a message
_HEADER_TYPE_FIELD = 1
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_MALFORMED = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    NotImplementedError,
    struct.error,
)


def read_rows(body: bytes, content_type: str) -> pa.Table | list[dict[str, Any]]:
    """Return the rows of a body.

    Raises:
        InvalidInputError: it holds none, was cut off, is compressed, or is no Arrow.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in {JSON, LINES}:
        return _read_json(body, lines=kind == LINES)
    if kind not in {"", STREAM, FILE, "application/octet-stream", "application/vnd.apache.arrow"}:
        raise InvalidInputError(
            f"rows come as {STREAM}, {FILE}, {JSON} or {LINES}", content_type=kind[:80]
        )
    if not body:
        raise InvalidInputError("the body is empty: send rows as an Arrow IPC stream")
    is_file = body.startswith(_MAGIC)
    try:
        return _read_file(body) if is_file else _read_stream(body)
    except InvalidInputError:
        raise
    except _MALFORMED as error:
        raise InvalidInputError(
            "the body is no Arrow IPC stream, or a part of it is missing",
            reason=" ".join(str(error).split())[:200],
        ) from None


def to_file(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return batches as an Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def to_stream(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return batches as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def to_json(batches: Iterable[pa.RecordBatch]) -> bytes:
    """Return batches as a JSON list of rows, for people: bytes in base64, no NaN."""
    rows = [_plain(row) for batch in batches for row in batch.to_pylist()]
    return json.dumps(rows, default=str, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a column
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _read_json(body: bytes, *, lines: bool) -> list[dict[str, Any]]:
    try:
        text = body.decode()
        rows = (
            [json.loads(line) for line in text.splitlines() if line.strip()]
            if lines
            else json.loads(text)
        )
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("the body is no JSON", reason=type(error).__name__) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidInputError("rows are a JSON list of objects, or one object per line")
    return rows


def _read_stream(body: bytes) -> pa.Table:
    source, end = pa.BufferReader(body), 0
    for message in pa.ipc.MessageReader.open_stream(source):
        _refuse_compression(message)
        end = source.tell()
    if body[end:] != _END:
        raise InvalidInputError(
            "the Arrow stream does not end with its end mark, so it may have been cut off: close "
            "the writer before you send what it wrote"
        )
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return _read_bounded(reader, body)


def _read_file(body: bytes) -> pa.Table:
    if not body.endswith(_MAGIC):
        raise InvalidInputError("the Arrow file has no end mark: it was cut off")
    # The file's blocks follow its magic bytes, padded to eight, as a stream does.
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)[8:]):
        _refuse_compression(message)
    with pa.ipc.open_file(pa.py_buffer(body)) as reader:
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        return _read_bounded(pa.RecordBatchReader.from_batches(reader.schema, batches), body)


def _read_bounded(reader: pa.RecordBatchReader, body: bytes) -> pa.Table:
    """Read all batches, unless there are more rows than the body can hold."""
    batches, rows = [], 0
    for batch in reader:
        rows += batch.num_rows
        if rows > len(body) * _BITS:
            raise InvalidInputError("the body says it has more rows than it can hold", rows=rows)
        batch.validate(full=True)
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _refuse_compression(message: pa.ipc.Message) -> None:
    if message.type not in {"record batch", "dictionary"}:
        return
    if _is_compressed(bytes(message.metadata)):
        raise InvalidInputError(
            "compressed Arrow buffers are not taken: send the stream without compression"
        )


def _is_compressed(metadata: bytes) -> bool:
    """Tell whether a batch's flatbuffer names a codec; pyarrow does not say so."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    (kind,) = struct.unpack_from("<B", metadata, _field(metadata, root, _HEADER_TYPE_FIELD))
    batch = _table(metadata, _field(metadata, root, _HEADER_FIELD))
    if kind == _DICTIONARY_BATCH:
        batch = _table(metadata, _field(metadata, batch, 1))
    return _field(metadata, batch, _COMPRESSION_FIELD) != 0


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffer's table is; 0 when it is not there."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    return table + offset if offset else 0


def _table(data: bytes, at: int) -> int:
    (forward,) = struct.unpack_from("<I", data, at)
    return at + int(forward)
