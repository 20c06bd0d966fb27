"""Message classes for the few fields that Holdfast reads of Lance's protobuf files.

A message is described by a table of (name, number, type): `*` repeats (numbers packed, as
Lance writes them), `<M` is another message of the table, `{}` a map from strings to strings,
`{bytes}` one to bytes.
Fields that are not described pass through the protobuf runtime untouched.

Lance's files hold such messages as sections: a 32-bit length, then the bytes. A file ends
with a footer that says where the main section begins.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from holdfast.errors import CorruptError

Described = Mapping[str, tuple[tuple[str, int, str], ...]]

FOOTER = struct.Struct("<QHH4s")
LENGTH = struct.Struct("<I")
MAGIC = b"LANC"
BROKEN = (struct.error, ValueError, OverflowError, DecodeError)
"""What reading a file that is none raises."""

_FIELD = descriptor_pb2.FieldDescriptorProto
_NUMBERS = {_FIELD.TYPE_INT32, _FIELD.TYPE_INT64, _FIELD.TYPE_UINT32, _FIELD.TYPE_UINT64}


def message_classes(package: str, described: Described) -> Mapping[str, type[Message]]:
    """Make a class for every message of a table.

    proto2 keeps a zero that was written apart from a field that was not: an index section at
    position 0 is one.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto2"
    )
    for name, fields in described.items():
        message = file.message_type.add(name=name)
        for label, number, kind in fields:
            made = message.field.add(name=label, number=number)
            repeated = kind.startswith(("*", "{"))
            made.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            _set_type(package, message, made, kind.lstrip("*"))
            if repeated and made.type in _NUMBERS:
                made.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in described}
    return {name: message_factory.GetMessageClass(it) for name, it in descriptors.items()}


def read_section(file: bytes, start: int, kind: type[Message]) -> tuple[Message, int]:
    """Return the message in a section, and where the section ends.

    Raises:
        ValueError, DecodeError: there is none; see `BROKEN`.
    """
    (length,) = LENGTH.unpack_from(file, start)
    end = start + LENGTH.size + length
    if end > len(file) - FOOTER.size:
        raise ValueError(end)
    message = kind()
    message.ParseFromString(file[start + LENGTH.size : end])
    return message, end


def main_section(file: bytes) -> int:
    """Return where the main section of a file begins.

    Raises:
        CorruptError: this is no Lance file.
    """
    try:
        start, _, _, magic = FOOTER.unpack_from(file, len(file) - FOOTER.size)
    except struct.error:
        magic = b""
    if magic != MAGIC:
        raise CorruptError("these bytes are no Lance manifest", size=len(file))
    return int(start)


def _set_type(
    package: str,
    message: descriptor_pb2.DescriptorProto,
    made: descriptor_pb2.FieldDescriptorProto,
    kind: str,
) -> None:
    if kind.startswith("{"):
        _add_map(
            package, message, made, _FIELD.TYPE_BYTES if "bytes" in kind else _FIELD.TYPE_STRING
        )
    elif kind.startswith("<"):
        made.type = _FIELD.TYPE_MESSAGE
        made.type_name = f".{package}.{kind[1:]}"
    else:
        made.type = getattr(_FIELD, f"TYPE_{kind.upper()}")


def _add_map(
    package: str,
    message: descriptor_pb2.DescriptorProto,
    made: descriptor_pb2.FieldDescriptorProto,
    values: descriptor_pb2.FieldDescriptorProto.Type.ValueType,
) -> None:
    """Describe a map from strings, which protobuf spells as repeated entries."""
    entry = message.nested_type.add(name=f"{made.name.title()}Entry")
    entry.options.map_entry = True
    for number, label in enumerate(("key", "value"), 1):
        part = entry.field.add(name=label, number=number)
        part.type = _FIELD.TYPE_STRING if label == "key" else values
        part.label = _FIELD.LABEL_OPTIONAL
    made.type = _FIELD.TYPE_MESSAGE
    made.type_name = f".{package}.{message.name}.{entry.name}"
