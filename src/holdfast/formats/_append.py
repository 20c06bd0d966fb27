"""The manifest of an append, made from the version below it.

An append changes little of a manifest: its fragments come behind those that are there, and
number, time and transaction are new. All else is taken over byte by byte, unread. So `AppendBase`
works only where that is enough: it declines a manifest with any field or feature that it does
not know, and one that another release of Lance wrote; those are left to Lance itself.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from holdfast.errors import CorruptError
from holdfast.formats._lance_messages import View, is_supported, lance_view
from holdfast.formats._log_entry import LogEntry, read_log_entry
from holdfast.formats._manifest import Head
from holdfast.formats._protobuf import (
    BROKEN,
    FOOTER,
    LENGTH,
    main_section,
    read_section,
)
from holdfast.formats._transaction import FragmentEntry, transaction_path

_FLAG_DELETIONS = 1
_FLAG_V2_FILES = 4
_FLAG_TABLE_CONFIG = 8
_KNOWN_FLAGS = _FLAG_DELETIONS | _FLAG_V2_FILES | _FLAG_TABLE_CONFIG
_NANOS = 1_000_000_000
_SETTINGS = "lance."  # config entries that tell Lance what to do at a commit: clean up, say

_VIEW: View = {
    "Manifest": (
        "fields! fragments! version schema_metadata! index_section timestamp "
        "reader_feature_flags writer_feature_flags max_fragment_id transaction_file "
        "writer_version! data_format! config table_metadata! transaction_section"
    ),
    "DataFragment": "id files deletion_file physical_rows",
    "DeletionFile": "num_deleted_rows",
    "Transaction": "read_version uuid append",
    "WriterVersion": "library version",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What rows are written for: the columns with all that is said of them, and the format."""

    fields: tuple[bytes, ...]
    schema_metadata: tuple[bytes, ...]
    data_format: bytes


class AppendTransaction:
    """The transaction of an append: which fragments it adds.

    Args:
        read_version: the version that the fragments were written for.
        token: what makes its name unlike any other.
        added: the fragments.
    """

    def __init__(self, read_version: int, token: str, added: Sequence[FragmentEntry]) -> None:
        self.added = tuple(added)
        self.read_version = read_version
        identity = uuid.UUID(hex=token.removeprefix("hf-"), version=4)
        self.file = f"{read_version}-{identity}.txn"
        message: Any = _classes()["Transaction"](uuid=str(identity))
        if read_version:
            message.read_version = read_version
        message.append.fragments.extend(_fragment(entry, entry.id) for entry in added)
        self.body: bytes = message.SerializeToString(deterministic=True)

    @property
    def path(self) -> str:
        """Return where its file goes."""
        return transaction_path(self.file)

    @property
    def files(self) -> list[str]:
        """Return the data files that it adds, as paths in the table."""
        return [f"data/{file.path}" for entry in self.added for file in entry.files]


class AppendBase:
    """The version that an append goes on top of.

    Args:
        manifest: its bytes.
        release: the release of Lance that must have written it.
    """

    def __init__(self, manifest: bytes, release: str) -> None:
        """Read it.

        Raises:
            CorruptError: these bytes are no manifest.
        """
        self.manifest = manifest
        start = main_section(manifest)
        self._release = release
        self._message: Any  # its class is made at run time
        try:
            self._message, _ = read_section(manifest, start, _classes()["Manifest"])
        except BROKEN as error:
            raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
        self.config: Mapping[str, str] = dict(self._message.config)

    @property
    def version(self) -> int:
        """Return the version."""
        return int(self._message.version)

    def has_md5(self, digest: str | None) -> bool:
        """Tell whether this is the MD5 of these bytes, as object stores report it."""
        return digest == hashlib.md5(self.manifest, usedforsecurity=False).hexdigest()

    @property
    def shape(self) -> Shape:
        """Return what rows must have been written for to be appended here."""
        message = self._message
        return Shape(
            tuple(message.fields), tuple(sorted(message.schema_metadata)), message.data_format
        )

    @property
    def log_entry(self) -> LogEntry | None:
        """Return the entry of the table's log; None when it has none."""
        has = self._message.HasField("index_section")
        return read_log_entry(self.manifest) if has else None

    @property
    def has_key(self) -> bool:
        """Tell whether a column is marked as one of the primary key, in any way."""
        return Head(self.manifest).has_key

    @property
    def is_plain(self) -> bool:
        """Tell whether an append changes nothing but what is known here."""
        message = self._message
        flags = message.reader_feature_flags | message.writer_feature_flags
        return (
            not len(UnknownFieldSet(message))
            and not flags & ~_KNOWN_FLAGS
            and is_supported(self._release)
            and message.writer_version == _words("lance", self._release)
            and not any(key.startswith(_SETTINGS) for key in self.config)
            and (message.HasField("max_fragment_id") or not message.fragments)
        )

    def takes(self, added: Sequence[FragmentEntry]) -> bool:
        """Tell whether these fragments are in the table's own file format, and in its folder."""
        return all(
            file.base_id is None
            and self._message.data_format == _words("lance", f"{file.major}.{file.minor}")
            for entry in added
            for file in entry.files
        )

    def append(
        self, transaction: AppendTransaction, config: Mapping[str, str | None], now: float
    ) -> bytes:
        """Return the manifest of the next version.

        Args:
            transaction: what it adds.
            config: entries to set, or to remove where the value is None.
            now: seconds since 1970.
        """
        indexes = self._index_section()
        made: Any = type(self._message)()
        made.CopyFrom(self._message)
        first = made.max_fragment_id + 1 if made.HasField("max_fragment_id") else 0
        for number, entry in enumerate(transaction.added, first):
            made.fragments.append(_fragment(entry, number).SerializeToString(deterministic=True))
            made.max_fragment_id = number
        made.version = self.version + 1
        seconds, nanos = divmod(int(now * _NANOS), _NANOS)
        made.timestamp.seconds, made.timestamp.nanos = seconds, nanos
        made.transaction_file = transaction.file
        made.transaction_section = len(indexes)
        if indexes:
            made.index_section = 0
        for key, value in config.items():
            if value is None:
                made.config.pop(key, None)
            else:
                made.config[key] = value
        if made.config:
            made.writer_feature_flags |= _FLAG_TABLE_CONFIG
        before = indexes + LENGTH.pack(len(transaction.body)) + transaction.body
        body = made.SerializeToString(deterministic=True)
        _, major, minor, magic = FOOTER.unpack(self.manifest[-FOOTER.size :])
        footer = FOOTER.pack(len(before), major, minor, magic)
        return before + LENGTH.pack(len(body)) + bytes(body) + footer

    def _index_section(self) -> bytes:
        """Return the section that describes the indexes, with its length; empty for none."""
        if not self._message.HasField("index_section"):
            return b""
        start = self._message.index_section
        (length,) = LENGTH.unpack_from(self.manifest, start)
        return self.manifest[start : start + LENGTH.size + length]


# Any: the classes of messages are made at run time.
def _fragment(entry: FragmentEntry, number: int) -> Any:  # noqa: ANN401
    """Return a fragment as Lance writes it: no field for a zero."""
    made: Any = _classes()["DataFragment"]()
    if number:
        made.id = number
    if entry.rows:
        made.physical_rows = entry.rows
    for file in entry.files:
        part = made.files.add(path=file.path, fields=file.fields)
        part.column_indices.extend(file.column_indices)
        numbers = {
            "file_major_version": file.major,
            "file_minor_version": file.minor,
            "file_size_bytes": file.size,
        }
        for name, value in numbers.items():
            if value:
                setattr(part, name, value)
    return made


@functools.lru_cache(maxsize=16)
def _words(first: str, second: str) -> bytes:
    """Return two words as Lance keeps its release, or the format of its files."""
    message: Any = _classes()["WriterVersion"](library=first, version=second)
    body: bytes = message.SerializeToString(deterministic=True)
    return body


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return lance_view("holdfast.append", _VIEW)
