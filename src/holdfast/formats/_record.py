"""`Record`: what a commit store keeps of one decision.

One line of JSON, then the decided bytes themselves if they are few:

    {"v":1,"token":"hf-...","path":"_versions/...","size":424,"sha256":"...","state":"inline"}
    <bytes>

`inline`: the bytes are in the record; `"codec":"zstd"` says that they are compressed there, while
size and checksum are always those of the decided bytes. `staged`: they wait under `staged` and
are copied to `path` by whoever meets the record. `final`: they are at `path`, nothing is staged.

`after` is the token of the decision before it in its series, as the decider knew it: a
reader that knows another one there has found a commit store that forgot.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from holdfast.errors import CorruptError, HoldfastError, UpgradeError
from holdfast.formats._names import check_path, staged_path

_FORMAT = 1
_CODEC = "zstd"
_LEVEL = 3
_WORTH_PACKING_BYTES = 4 * 1024
_MOST_PACKED_BYTES = 1024 * 1024  # of the decided bytes: more is not tried, and not believed
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class RecordState(StrEnum):
    """Where the decided bytes are."""

    INLINE = "inline"
    STAGED = "staged"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One decision: whose bytes, which bytes, and where they are.

    `packed` is `body` compressed, as the record keeps it; None if it is kept as it is.
    """

    token: str
    path: str
    size: int
    sha256: str
    state: RecordState
    after: str | None = None
    staged: str | None = None
    body: bytes | None = None
    packed: bytes | None = None

    def matches(self, body: bytes) -> bool:
        """Tell whether `body` is exactly what was decided."""
        # Size and checksum, not the token: a foreign version carries our token in the config that
        # Lance copies from version to version.
        return len(body) == self.size and digest(body) == self.sha256

    def to_finished(self) -> Record:
        """Return the record of the same decision once its bytes have their name."""
        return replace(self, state=RecordState.FINAL, staged=None, body=None, packed=None)


def digest(body: bytes) -> str:
    """Return the checksum that records carry."""
    return hashlib.sha256(body).hexdigest()


def _codec(level: int | None) -> Any:  # noqa: ANN401 - pyarrow ships no types
    import pyarrow as pa  # noqa: PLC0415 - most commands of the command line need none of it

    return pa.Codec(_CODEC, level)


def pack_body(body: bytes) -> bytes | None:
    """Return the bytes compressed, as a record may keep them; None where that is not worth it.

    A manifest names each data file by random digits, so it shrinks to about a fifth.
    """
    if not _WORTH_PACKING_BYTES < len(body) <= _MOST_PACKED_BYTES:
        return None
    codec = _codec(_LEVEL)
    packed: bytes = codec.compress(body, asbytes=True)
    return packed if len(packed) < len(body) else None


def _unpack_body(packed: bytes, size: int) -> bytes:
    # Before anything is unpacked: a damaged size must not reserve gigabytes.
    if size > _MOST_PACKED_BYTES:
        raise CorruptError("a commit store record is larger than any that is made", size=size)
    codec = _codec(None)
    body: bytes = codec.decompress(packed, size, asbytes=True)
    return body


def make_record(
    path: str,
    body: bytes,
    token: str,
    *,
    after: str | None,
    inline: bool,
    packed: bytes | None = None,
) -> Record:
    """Describe `body` as a decision of `path`; `packed` is what `pack_body` returned.

    The staged name holds the token and checksums of path and body: neither another body nor
    another name under the same token can ever touch bytes that were decided.
    """
    checksum = digest(body)
    unique = f"{token}-{digest(path.encode())[:8]}-{checksum[:16]}"
    return Record(
        token=token,
        path=path,
        size=len(body),
        sha256=checksum,
        state=RecordState.INLINE if inline else RecordState.STAGED,
        after=after,
        staged=None if inline else staged_path(unique),
        body=body if inline else None,
        packed=packed if inline else None,
    )


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record."""
    head = {
        "v": _FORMAT,
        "token": record.token,
        "path": record.path,
        "size": record.size,
        "sha256": record.sha256,
        "state": record.state.value,
    }
    if record.after is not None:
        head["after"] = record.after
    if record.staged is not None:
        head["staged"] = record.staged
    kept = record.body or b""
    if record.packed is not None:
        head["codec"], kept = _CODEC, record.packed
    return _ENCODER.encode(head).encode() + b"\n" + kept


def _unknown_format(number: object) -> HoldfastError:
    if isinstance(number, int) and number > _FORMAT:
        return UpgradeError(
            "a newer Holdfast wrote this table: upgrade", format=number, known=_FORMAT
        )
    return CorruptError("a commit store record cannot be read", format=repr(number)[:40])


def decode_record(value: bytes) -> Record:
    """Return the record behind its bytes.

    Raises:
        UpgradeError: a newer Holdfast made it.
        CorruptError: they are no record.
    """
    line, _, kept = bytes(value).partition(b"\n")
    try:
        head = json.loads(line)
        if head["v"] != _FORMAT:
            raise _unknown_format(head["v"])
        state = RecordState(head["state"])
        inline, codec = state is RecordState.INLINE, head.get("codec")
        if codec not in (None, _CODEC):
            raise UpgradeError("a newer Holdfast wrote this table: upgrade", codec=repr(codec)[:40])
        packed = kept if inline and codec is not None else None
        body = kept if packed is None else _unpack_body(packed, int(head["size"]))
        record = Record(
            token=str(head["token"]),
            path=check_path(head["path"]),
            size=int(head["size"]),
            sha256=str(head["sha256"]),
            state=state,
            after=None if head.get("after") is None else str(head["after"]),
            staged=check_path(head["staged"]) if state is RecordState.STAGED else None,
            body=body if inline else None,
            packed=packed,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError("a commit store record cannot be read") from error
    if record.body is not None and not record.matches(record.body):
        raise CorruptError("a commit store record does not match its checksum", path=record.path)
    return record
