"""A Lance table manifest as far as Holdfast reads and edits it: its table config.

The file ends with a 16-byte footer (where the message begins, format version, `LANC`); the
message itself is length-prefixed protobuf. Only the config map is known here; every other
field passes through the protobuf runtime untouched.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from holdfast.errors import CorruptError

TOKEN_KEY = "holdfast.token"  # noqa: S105 - the config key under which a decision's mark is kept
"""The config entry that holds the token of the version's decision."""

_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"
_CONFIG_FIELD = 16
_WRITER_FLAGS_FIELD = 10
_FLAG_TABLE_CONFIG = 8  # tells writers that do not know the config to keep away


def read_config(manifest: bytes) -> dict[str, str]:
    """Return the table config of a manifest.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    return dict(_parse(manifest)[0].config)


def edit_config(manifest: bytes, entries: Mapping[str, str | None]) -> bytes:
    """Return the manifest with config entries set, or removed where the value is None.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    message, start, end = _parse(manifest)
    for key, value in entries.items():
        if value is None:
            message.config.pop(key, None)
        else:
            message.config[key] = value
    if message.config:
        message.writer_feature_flags |= _FLAG_TABLE_CONFIG
    body: bytes = message.SerializeToString(deterministic=True)
    return manifest[:start] + _LENGTH.pack(len(body)) + body + manifest[end:]


def _parse(manifest: bytes) -> tuple[Any, int, int]:  # Any: a class made at run time
    """Return the message, where its length prefix begins, and where it ends."""
    try:
        start, _, _, magic = _FOOTER.unpack_from(manifest, len(manifest) - _FOOTER.size)
        if magic != _MAGIC or start > len(manifest):
            raise ValueError(magic)
        (length,) = _LENGTH.unpack_from(manifest, start)
        end = start + _LENGTH.size + length
        if end > len(manifest) - _FOOTER.size:
            raise ValueError(end)
        message: Any = _message_class()()
        message.ParseFromString(manifest[start + _LENGTH.size : end])
    except (struct.error, ValueError, DecodeError) as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    return message, start, end


@functools.cache
def _message_class() -> type[Message]:
    """Describe the two fields that matter: the config map and the writers' feature flags."""
    file = descriptor_pb2.FileDescriptorProto(
        name="holdfast/manifest.proto", package="holdfast", syntax="proto3"
    )
    manifest = file.message_type.add(name="Manifest")
    entry = manifest.nested_type.add(name="ConfigEntry")
    entry.options.map_entry = True
    text = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    optional = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    entry.field.add(name="key", number=1, type=text, label=optional)
    entry.field.add(name="value", number=2, type=text, label=optional)
    manifest.field.add(
        name="writer_feature_flags",
        number=_WRITER_FLAGS_FIELD,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
        label=optional,
    )
    manifest.field.add(
        name="config",
        number=_CONFIG_FIELD,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
        type_name=".holdfast.Manifest.ConfigEntry",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("holdfast.Manifest"))
