"""`ShardManifest`: who owns a shard and how far its log is flushed; protobuf, as stock reads it.

Each version is immutable and decided once. A token in a private field marks whose version it
is: two claims of one shard are equal in every other byte. Fields of a newer Lance pass through
an update untouched.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from holdfast.errors import CorruptError
from holdfast.formats._lance_messages import View, lance_view
from holdfast.formats._names import check_shard_id
from holdfast.formats._protobuf import BROKEN

_VIEW: View = {
    "ShardManifest": (
        "version writer_epoch replay_after last_seen current_generation sstables shard_spec_id "
        "shard_id field_entries status token"
    ),
}
_NUMBERS = (
    "version",
    "writer_epoch",
    "replay_after",
    "last_seen",
    "current_generation",
    "shard_spec_id",
)
_ESTIMATES = ("in_memory_bytes", "physical_rows", "primary_key_bytes")
_SEALED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SsTable:
    """One published generation.

    Attributes:
        generation: its number; higher is newer.
        path: the name of its folder inside the shard's.
        in_memory_bytes: an estimate; None when nobody wrote one. So the two below.
        physical_rows: rows in the file, hidden ones included.
        primary_key_bytes: what its keys take in memory.
    """

    generation: int
    path: str
    in_memory_bytes: int | None = None
    physical_rows: int | None = None
    primary_key_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardManifest:
    """One version of a shard's state.

    Attributes:
        shard_id: the shard.
        version: 1, 2, 3 ...
        writer_epoch: the newest owner's number; 0 before the first claim.
        replay_after: the flushed cursor: rows at positions up to it are in SSTables; 0 for none.
        last_seen: a position somebody saw; a hint.
        current_generation: the number that the next SSTable gets.
        sstables: what is published, oldest first.
        shard_spec_id: how rows were routed here; 0 for by hand.
        field_entries: the values that the routing gave this shard.
        sealed: True when nobody may claim it again.
        token: who decided this version; None for a stock writer's.
    """

    shard_id: str
    version: int
    writer_epoch: int = 0
    replay_after: int = 0
    last_seen: int = 0
    current_generation: int = 1
    sstables: tuple[SsTable, ...] = ()
    shard_spec_id: int = 0
    field_entries: tuple[tuple[str, bytes], ...] = ()
    sealed: bool = False
    token: str | None = None
    source: bytes = field(default=b"", compare=False, repr=False)  # carries unknown fields on


def encode_shard_manifest(manifest: ShardManifest) -> bytes:
    """Return the bytes of a manifest; zeros are left out, as stock does."""
    message: Any = _message_class()()
    if manifest.source:
        message.ParseFromString(manifest.source)
    for name in _NUMBERS:
        _set(message, name, getattr(manifest, name) or None)
    _set(message, "status", _SEALED if manifest.sealed else None)
    _set(message, "token", manifest.token)
    message.shard_id.uuid = uuid.UUID(check_shard_id(manifest.shard_id)).bytes
    message.ClearField("sstables")
    for table in manifest.sstables:
        part = message.sstables.add(generation=table.generation, path=table.path)
        for name in _ESTIMATES:
            _set(part, name, getattr(table, name))
    message.ClearField("field_entries")
    for field_id, value in manifest.field_entries:
        message.field_entries.add(field_id=field_id, value=value)
    body: bytes = message.SerializeToString(deterministic=True)
    return body


def decode_shard_manifest(body: bytes, *, shard_id: str, version: int) -> ShardManifest:
    """Return the manifest behind its bytes.

    Raises:
        CorruptError: they are no manifest of this shard and version.
    """
    message: Any = _message_class()()
    try:
        message.ParseFromString(body)
        owner = str(uuid.UUID(bytes=message.shard_id.uuid))
    except BROKEN as error:
        raise CorruptError(
            "a shard manifest cannot be read", shard_id=shard_id, version=version
        ) from error
    if owner != shard_id or message.version != version:
        raise CorruptError(
            "a shard manifest has another's name",
            shard_id=shard_id,
            version=version,
            found_shard_id=owner,
            found_version=message.version,
        )
    return ShardManifest(
        shard_id=owner,
        **{name: getattr(message, name) for name in _NUMBERS},
        sstables=tuple(_sstable(part) for part in message.sstables),
        field_entries=tuple((part.field_id, part.value) for part in message.field_entries),
        sealed=message.status == _SEALED,
        token=message.token or None,
        source=body,
    )


def _sstable(part: Any) -> SsTable:  # noqa: ANN401 - a protobuf message made at run time
    known = {name: getattr(part, name) for name in _ESTIMATES if part.HasField(name)}
    return SsTable(generation=part.generation, path=part.path, **known)


def _set(message: Any, name: str, value: object) -> None:  # noqa: ANN401 - as above
    if value is None:
        message.ClearField(name)
    else:
        setattr(message, name, value)


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return lance_view("holdfast.shard", _VIEW)


def _message_class() -> type[Message]:
    return _classes()["ShardManifest"]
