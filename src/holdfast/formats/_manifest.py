"""A Lance table manifest as far as Holdfast reads and edits it.

The file ends with a 16-byte footer (where the message begins, format version, `LANC`); the
message itself is length-prefixed protobuf. Known here are the table config, the writers'
feature flags, and which files a version shows; every other field passes through the
protobuf runtime untouched.
"""

from __future__ import annotations

import functools
import struct
import uuid
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
_FLAG_TABLE_CONFIG = 8  # tells writers that do not know the config to keep away
_DELETION_SUFFIXES = ("arrow", "bin")

# name -> fields: (name, number, type). `*` repeats, `<M` is a message, `{}` a map of strings.
_MESSAGES: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "DataFile": (("path", 1, "string"),),
    "DeletionFile": (
        ("file_type", 1, "uint64"),
        ("read_version", 2, "uint64"),
        ("id", 3, "uint64"),
    ),
    "DataFragment": (
        ("id", 1, "uint64"),
        ("files", 2, "*<DataFile"),
        ("deletion_file", 3, "<DeletionFile"),
    ),
    "Manifest": (
        ("fragments", 2, "*<DataFragment"),
        ("index_section", 6, "uint64"),
        ("writer_feature_flags", 10, "uint64"),
        ("transaction_file", 12, "string"),
        ("config", 16, "{}"),
    ),
    "Uuid": (("uuid", 1, "bytes"),),
    "Index": (("uuid", 1, "<Uuid"),),
    "IndexSection": (("indices", 1, "*<Index"),),
}


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


def shown_files(manifest: bytes) -> set[str]:
    """Return what a version needs to be read: files, and folders of indexes with a slash.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    message, _, _ = _parse(manifest)
    found = {f"data/{file.path}" for part in message.fragments for file in part.files}
    for part in message.fragments:
        if part.HasField("deletion_file"):
            gone = part.deletion_file
            suffix = _DELETION_SUFFIXES[gone.file_type % len(_DELETION_SUFFIXES)]
            found.add(f"_deletions/{part.id}-{gone.read_version}-{gone.id}.{suffix}")
    if message.transaction_file:
        found.add(f"_transactions/{message.transaction_file}")
    if message.HasField("index_section"):
        section: Any = _section(manifest, message.index_section, "IndexSection")[0]
        found.update(f"_indices/{uuid.UUID(bytes=index.uuid.uuid)}/" for index in section.indices)
    return found


def _parse(manifest: bytes) -> tuple[Any, int, int]:  # Any: a class made at run time
    """Return the message, where its length prefix begins, and where it ends."""
    try:
        start, _, _, magic = _FOOTER.unpack_from(manifest, len(manifest) - _FOOTER.size)
        if magic != _MAGIC:
            raise ValueError(magic)
        message, end = _section(manifest, start, "Manifest")
    except (struct.error, ValueError, OverflowError, DecodeError) as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    return message, start, end


def _section(manifest: bytes, start: int, kind: str) -> tuple[Message, int]:
    """Return the length-prefixed message at a position, and where it ends."""
    (length,) = _LENGTH.unpack_from(manifest, start)
    end = start + _LENGTH.size + length
    if end > len(manifest) - _FOOTER.size:
        raise ValueError(end)
    message = _classes()[kind]()
    message.ParseFromString(manifest[start + _LENGTH.size : end])
    return message, end


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    """Make message classes for the fields that matter here."""
    field = descriptor_pb2.FieldDescriptorProto
    # proto2 keeps a zero that was written apart from a field that was not: an index section
    # at position 0 is one.
    file = descriptor_pb2.FileDescriptorProto(
        name="holdfast/manifest.proto", package="holdfast", syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for label, number, kind in fields:
            repeated = kind.startswith(("*", "{"))
            made = message.field.add(name=label, number=number)
            made.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind == "{}":
                _add_map(message, made)
            elif "<" in kind:
                made.type = field.TYPE_MESSAGE
                made.type_name = f".holdfast.{kind.lstrip('*<')}"
            else:
                made.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"holdfast.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(it) for name, it in found.items()}


def _add_map(
    message: descriptor_pb2.DescriptorProto, made: descriptor_pb2.FieldDescriptorProto
) -> None:
    """Describe `map<string, string>`, which protobuf spells as repeated entries."""
    entry = message.nested_type.add(name="ConfigEntry")
    entry.options.map_entry = True
    for number, label in enumerate(("key", "value"), 1):
        part = entry.field.add(name=label, number=number)
        part.type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
        part.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    made.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    made.type_name = f".holdfast.{message.name}.ConfigEntry"
