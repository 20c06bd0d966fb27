"""A log entry: one Arrow IPC stream, as stock Lance writes and reads it, plus a checksum.

Stock's keys in the schema's metadata are `writer_epoch`, `generation` and `fence_sentinel`. Ours
all begin with `holdfast.`. Stock takes a batch as it is when its schema is exactly the one it
expects but for its own keys, and fits it column by column otherwise; ours would be in the way of
the first, so the last column carries a mark that leads it to the second. `holdfast.stamp` is

    <token>/<position, 20 digits>/<sequence number, 20 digits>/<checksum, 16 digits>

The stamp has a fixed width, so an entry is encoded once, by any thread, before its position is
known, and stamped when it is. The checksum (XXH3) covers every byte, its own digits taken as
zeros: a flipped bit or a cut at any byte shows. Entries by stock have no checksum; of those a
cut shows, a flipped bit not always.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash
from pyarrow import ipc

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats._content import align_batch, parts_of
from holdfast.formats._fields import LanceField, lance_fields, with_ids
from holdfast.formats._names import check_name, check_shard_id
from holdfast.formats._sstable import TOMBSTONE

COMPRESS_ABOVE_BYTES = 32 * 1024
"""Rows that take more than this in memory are compressed."""
MAX_ENTRY_BYTES = 1 << 30
"""Above this an entry is refused: split the rows."""
MAX_FENCE_BYTES = 4096
"""No fence is larger, so a larger entry holds rows."""
MIN_ENTRY_BYTES = 700
"""What is smaller counts as a fence: no entry with rows that we write is."""

_FORMAT = b"1"
_OURS = b"holdfast."
_STAMP_KEY = b"holdfast.stamp"
_TAG = "holdfast.tag."
_MARK = b"holdfast"  # in the last column's metadata
_TOKEN_CHARS = 35
_CHECKSUM_CHARS = 16
_STAMP = re.compile(rb"(hf-[0-9a-f]{32})/([0-9]{20})/([0-9]{20})/([0-9a-f]{16})")
_BLANK = b"hf-" + b"0" * 32 + b"/" + b"0" * 20 + b"/" + b"0" * 20 + b"/" + b"0" * 16
_HEAD = struct.Struct("<Ii")
_CONTINUED = 0xFFFFFFFF
_PERHAPS_COMPRESSED = 8192  # a smaller entry rarely is, and is read where it lies
_ONE_THREAD = ipc.IpcReadOptions(use_threads=False)
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BROKEN = (pa.ArrowException, EOFError, OSError, ValueError, LookupError, struct.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDraft:
    """An encoded entry that still lacks its position; see `stamp`.

    Attributes:
        shard_id: the shard it is for.
        epoch: the writer epoch it is for.
        generation: the MemTable its rows belong to; None without MemTables.
        fence: whether it is a fence.
        rows: how many rows it holds.
        batches: the rows themselves, as they were encoded.
    """

    shard_id: str
    epoch: int
    generation: int | None
    fence: bool
    rows: int
    batches: tuple[pa.RecordBatch, ...]
    _encoded: pa.Buffer = field(repr=False)
    _stamp_at: int = field(repr=False)

    @property
    def size(self) -> int:
        """Return how many bytes it takes on storage."""
        return int(self._encoded.size)

    def stamp(self, *, position: int, sequence: int, token: str) -> bytes:
        """Return the bytes of the entry at this position."""
        stamp = b"%b/%020d/%020d/" % (token.encode(), position, sequence)
        whole = memoryview(self._encoded)
        end = self._stamp_at + len(_BLANK)
        before, after = whole[: self._stamp_at], whole[end:]
        digits = b"%016x" % _checksum(before, stamp, after)
        return b"".join((before, stamp, digits, after))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A log entry that was read.

    Attributes:
        position: its place in the log.
        epoch: the epoch of the writer that wrote it.
        generation: the MemTable its rows belong to; None where there was none.
        fence: True for an entry without rows that locks out earlier writers.
        batches: its rows; none in a fence.
        rows: how many.
        size: bytes on storage.
        writer: who wrote it; None for stock. So the fields below.
        sequence: the number of this entry among those of its writer.
        token: what marked it when it was decided.
        tags: what the writer noted beside the rows.
    """

    position: int
    epoch: int
    generation: int | None
    fence: bool
    batches: tuple[pa.RecordBatch, ...]
    rows: int
    size: int
    writer: str | None = None
    sequence: int | None = None
    token: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


def draft_entry(
    batches: Sequence[pa.RecordBatch],
    *,
    shard_id: str,
    epoch: int,
    writer: str,
    generation: int | None = None,
    tags: Mapping[str, str] | None = None,
) -> EntryDraft:
    """Encode rows as one log entry; see `log_schema` for the columns that stock expects.

    Raises:
        InvalidInputError: no rows, an empty batch, batches of different columns, a malformed
            tag, or more than `MAX_ENTRY_BYTES`.
    """
    combined = _combine_batches(batches)
    rows = sum(batch.num_rows for batch in combined)
    metadata = _header(shard_id, epoch, writer, rows=rows, batches=len(combined))
    if generation is not None:
        metadata[b"generation"] = b"%d" % generation
    for name, value in (tags or {}).items():
        check_name(name, "a tag's name")
        metadata[f"{_TAG}{name}".encode()] = value.encode()
    encoded = _encode(_mark_schema(combined[0].schema).with_metadata(metadata), combined)
    if encoded.size > MAX_ENTRY_BYTES:
        raise InvalidInputError(
            "a log entry is too large: append fewer rows per call",
            size=encoded.size,
            limit=MAX_ENTRY_BYTES,
        )
    return EntryDraft(
        shard_id=shard_id,
        epoch=epoch,
        generation=generation,
        fence=False,
        rows=rows,
        batches=combined,
        _encoded=encoded,
        _stamp_at=_find_blank(encoded),
    )


def draft_fence(*, shard_id: str, epoch: int, writer: str) -> EntryDraft:
    """Encode a fence: no columns, no rows."""
    metadata = _header(shard_id, epoch, writer, rows=0, batches=0)
    encoded = _encode(pa.schema([], metadata={**metadata, b"fence_sentinel": b"true"}), ())
    return EntryDraft(
        shard_id=shard_id,
        epoch=epoch,
        generation=None,
        fence=True,
        rows=0,
        batches=(),
        _encoded=encoded,
        _stamp_at=_find_blank(encoded),
    )


def decode_entry(body: bytes, *, shard_id: str, position: int, trusting: bool = False) -> Entry:
    """Return the entry behind its bytes; by Holdfast or by stock.

    Args:
        body: the bytes.
        shard_id: the shard that it is of.
        position: its place in the log.
        trusting: do not look at the values of one by stock, which has no checksum.

    Raises:
        CorruptError: they are not an entry of this shard and position, or not all of one.
    """
    try:
        return _decode(body, shard_id, position, trusting=trusting)
    except CorruptError:
        raise
    except _BROKEN as error:
        raise _corrupt("it cannot be read", shard_id, position) from error


def log_schema(
    columns: pa.Schema, fields: Sequence[LanceField], primary_key: Sequence[str] = ()
) -> pa.Schema:
    """Return the columns of log entries of a table: with its ids, and with tombstones.

    Columns outside the primary key may be null: a tombstone has only its key.
    """
    made = []
    for column in lance_fields(columns, fields):
        marked = with_ids(column)
        made.append(marked if column.name in primary_key else marked.with_nullable(nullable=True))
    return pa.schema([*made, pa.field(TOMBSTONE, pa.bool_(), nullable=False)])


def _header(
    shard_id: str, epoch: int, writer: str, *, rows: int, batches: int
) -> dict[bytes, bytes]:
    return {
        b"writer_epoch": b"%d" % epoch,
        b"holdfast.format": _FORMAT,
        b"holdfast.shard": check_shard_id(shard_id).encode(),
        b"holdfast.writer": writer.encode(),
        b"holdfast.rows": b"%d" % rows,
        b"holdfast.batches": b"%d" % batches,
        _STAMP_KEY: _BLANK,
    }


def _combine_batches(batches: Sequence[pa.RecordBatch]) -> tuple[pa.RecordBatch, ...]:
    """Concatenate: one batch compresses ten times as fast as sixteen small ones."""
    if not batches or any(batch.num_rows == 0 for batch in batches):
        raise InvalidInputError("a log entry has rows, and no empty batch")
    if not batches[0].schema.names:
        raise InvalidInputError("a log entry has columns")
    schema = batches[0].schema.remove_metadata()
    if any(not batch.schema.equals(schema) for batch in batches):
        raise InvalidInputError("the batches of one log entry have the same columns")
    if len(batches) == 1:
        return (batches[0],)
    table = pa.Table.from_batches([b.replace_schema_metadata(None) for b in batches])
    return tuple(table.combine_chunks().to_batches())


def _encode(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    large = sum(batch.nbytes for batch in batches) > COMPRESS_ABOVE_BYTES
    options = ipc.IpcWriteOptions(compression="zstd" if large else None)
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    return sink.getvalue()


def _mark_schema(schema: pa.Schema) -> pa.Schema:
    last = len(schema) - 1
    field = schema.field(last)
    return schema.set(last, field.with_metadata({**(field.metadata or {}), _MARK: _FORMAT}))


def _unmark_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns as they were before they became those of an entry."""
    schema = schema.remove_metadata()
    if not schema.names:
        return schema
    last = len(schema) - 1
    kept = {k: v for k, v in (schema.field(last).metadata or {}).items() if k != _MARK}
    return schema.set(last, schema.field(last).with_metadata(kept or None))


def _find_blank(encoded: pa.Buffer) -> int:
    view = memoryview(encoded)
    # The entry is encoded before its position is known; the stamp is written over a blank of the
    # same length, so nothing has to be encoded again after a lost race.
    blanks = [match.start() for match in _STAMP.finditer(view, 0, _schema_end(view))]
    if len(blanks) != 1:
        raise InvalidInputError("the columns' metadata or a tag looks like a log entry's stamp")
    return blanks[0]


def _schema_end(body: bytes | memoryview) -> int:
    """Return where the first message of a stream, the schema, ends; the end if that is unclear."""
    if len(body) < _HEAD.size:
        return len(body)
    mark, length = _HEAD.unpack_from(body)
    if mark != _CONTINUED or length < 0:
        return len(body)
    return min(len(body), _HEAD.size + int(length))


def _checksum(before: memoryview, stamp: bytes, after: memoryview) -> int:
    state = xxhash.xxh3_64(before)
    state.update(stamp)
    state.update(b"0" * _CHECKSUM_CHARS)
    state.update(after)
    return state.intdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What the schema of an entry by Holdfast says, apart from its stamp."""

    columns: pa.Schema
    version: bytes
    shard_id: str
    epoch: int
    generation: int | None
    fence: bool
    rows: int
    batches: int
    writer: str
    tags: dict[str, str]


# The entries of one writer differ in little but the stamp: parse what is equal only once.
@functools.lru_cache(maxsize=256)
def _head(message: bytes) -> _Head:
    """Return what a schema message, its stamp blank, says."""
    schema = ipc.read_schema(pa.py_buffer(message))
    metadata: Mapping[bytes, bytes] = schema.metadata or {}
    generation = metadata.get(b"generation")
    return _Head(
        columns=_unmark_schema(schema),
        version=metadata[b"holdfast.format"],
        shard_id=metadata[b"holdfast.shard"].decode(),
        epoch=int(metadata[b"writer_epoch"]),
        generation=None if generation is None else int(generation),
        fence=metadata.get(b"fence_sentinel") == b"true",
        rows=int(metadata[b"holdfast.rows"]),
        batches=int(metadata[b"holdfast.batches"]),
        writer=metadata[b"holdfast.writer"].decode(),
        tags={
            key.decode().removeprefix(_TAG): value.decode()
            for key, value in metadata.items()
            if key.startswith(_TAG.encode())
        },
    )


def _decode(body: bytes, shard_id: str, position: int, *, trusting: bool) -> Entry:
    end = _schema_end(body)
    stamp = _STAMP.search(body, 0, end)
    # Stock's entries have no stamp, and no checksum either.
    if stamp is None:
        return _decode_stock(body, shard_id, position, trusting=trusting)
    _check_sum(body, stamp, shard_id, position)
    head = _head(b"".join((body[: stamp.start()], _BLANK, body[stamp.end() : end])))
    if head.version != _FORMAT:
        raise _corrupt("it has a newer format: upgrade Holdfast", shard_id, position)
    # A file that was copied or renamed by hand is whole and still wrong.
    if head.shard_id != shard_id or int(stamp[2]) != position:
        raise _corrupt("it belongs elsewhere", shard_id, position)
    batches = _read_batches(body, end, head)
    if batches is None:
        raise _corrupt("its end is missing", shard_id, position)
    if not trusting and any(_has_dictionary(column.type) for column in head.columns):
        for batch in batches:  # joined with others, an index out of bounds reads foreign memory
            batch.validate(full=True)
    _check_rows(batches, shard_id, position, fence=head.fence)
    if sum(batch.num_rows for batch in batches) != head.rows:
        raise _corrupt("it has another number of rows", shard_id, position)
    return Entry(
        position=position,
        epoch=head.epoch,
        generation=head.generation,
        fence=head.fence,
        batches=batches,
        rows=head.rows,
        size=len(body),
        writer=head.writer,
        sequence=int(stamp[3]),
        token=stamp[1].decode(),
        tags=dict(head.tags),
    )


def _has_dictionary(kind: pa.DataType) -> bool:
    inside = (part.type for part in parts_of(kind))
    return pa.types.is_dictionary(kind) or any(map(_has_dictionary, inside))


def _read_batches(body: bytes, start: int, head: _Head) -> tuple[pa.RecordBatch, ...] | None:
    """Return the batches that follow the schema, without copying; None if they do not end well."""
    if len(body) > _PERHAPS_COMPRESSED:
        return _read_stream(body, head)
    source = pa.BufferReader(body)
    source.seek(start)
    batches = []
    for _ in range(head.batches):
        message = ipc.read_message(source)
        if message.type != "record batch":
            return _read_stream(body, head)
        batches.append(align_batch(ipc.read_record_batch(message, head.columns)))
    # Arrow takes a stream that breaks off between two messages for a whole one: the end mark and
    # the number of batches tell.
    return tuple(batches) if body[source.tell() :] == _END else None


def _read_stream(body: bytes, head: _Head) -> tuple[pa.RecordBatch, ...] | None:
    """Return the batches of a stream by its own reader: it alone understands dictionaries."""
    read = _read_all(body)
    if read is None or len(read[1]) != head.batches:
        return None
    return tuple(
        align_batch(pa.RecordBatch.from_arrays(batch.columns, schema=head.columns))
        for batch in read[1]
    )


def _read_all(body: bytes) -> tuple[Mapping[bytes, bytes], tuple[pa.RecordBatch, ...]] | None:
    """Return metadata and batches of a whole stream; None if its end is missing.

    What is decompressed goes into memory of the system's allocator: replayed rows stay for long,
    and Arrow's own would fetch, and clear, far more than it needs.
    """
    source, pool = pa.BufferReader(body), pa.system_memory_pool()
    with ipc.open_stream(source, options=_ONE_THREAD, memory_pool=pool) as reader:
        metadata: Mapping[bytes, bytes] = reader.schema.metadata or {}
        batches = tuple(reader)
    whole = body.endswith(_END) and source.tell() == len(body)
    return (metadata, batches) if whole else None


def _decode_stock(body: bytes, shard_id: str, position: int, *, trusting: bool) -> Entry:
    """Return an entry without a stamp. There is no checksum: look at everything."""
    read = _read_all(body)
    if read is None:
        raise _corrupt("its end is missing", shard_id, position)
    metadata, batches = read
    if any(key.startswith(_OURS) for key in metadata):
        raise _corrupt("its stamp is damaged", shard_id, position)
    for batch in () if trusting else batches:
        batch.validate(full=True)
    fence = metadata.get(b"fence_sentinel") == b"true"
    _check_rows(batches, shard_id, position, fence=fence)
    generation = metadata.get(b"generation")
    return Entry(
        position=position,
        epoch=int(metadata[b"writer_epoch"]),
        generation=None if generation is None else int(generation),
        fence=fence,
        batches=tuple(align_batch(batch.replace_schema_metadata(None)) for batch in batches),
        rows=sum(batch.num_rows for batch in batches),
        size=len(body),
    )


def _check_rows(
    batches: Sequence[pa.RecordBatch], shard_id: str, position: int, *, fence: bool
) -> None:
    if fence == bool(batches) or any(batch.num_rows == 0 for batch in batches):
        raise _corrupt(
            "a fence has no rows, and any other entry no empty batch", shard_id, position
        )


def _check_sum(body: bytes, stamp: re.Match[bytes], shard_id: str, position: int) -> None:
    """Make sure of every byte of an entry by Holdfast."""
    whole = memoryview(body)
    digits_at = stamp.start(4)
    checksum = _checksum(
        whole[: stamp.start()],
        body[stamp.start() : digits_at],
        whole[digits_at + _CHECKSUM_CHARS :],
    )
    if checksum != int(stamp[4], 16):
        raise _corrupt("its checksum does not match", shard_id, position)


def _corrupt(what: str, shard_id: str, position: int) -> CorruptError:
    return CorruptError(
        f"a log entry is damaged: {what}; see `holdfast wal repair`",
        shard_id=shard_id,
        position=position,
    )
