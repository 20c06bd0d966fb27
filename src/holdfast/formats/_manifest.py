"""A Lance table manifest as far as Holdfast reads and edits it.

Known here are the table config, the writers' feature flags, and which files a version shows;
every other field passes through untouched.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message

from holdfast.errors import CorruptError
from holdfast.formats._protobuf import (
    BROKEN,
    LENGTH,
    Described,
    main_section,
    message_classes,
    read_section,
)

TOKEN_KEY = "holdfast.token"  # noqa: S105 - the config key under which a decision's mark is kept
"""The config entry that holds the token of the version's decision."""

_FLAG_TABLE_CONFIG = 8  # tells writers that do not know the config to keep away
_DELETION_SUFFIXES = ("arrow", "bin")

_MESSAGES: Described = {
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
    "Field": (
        ("name", 2, "string"),
        ("id", 3, "int32"),
        ("parent_id", 4, "int32"),
        ("logical_type", 5, "string"),
    ),
    # A manifest without its fragments: they pass through unread, however many there are.
    "Head": (
        ("fields", 1, "*<Field"),
        ("version", 3, "uint64"),
        ("writer_feature_flags", 10, "uint64"),
        ("transaction_file", 12, "string"),
        ("config", 16, "{}"),
    ),
    "Uuid": (("uuid", 1, "bytes"),),
    "Index": (("uuid", 1, "<Uuid"),),
    "IndexSection": (("indices", 1, "*<Index"),),
}


class Column(NamedTuple):
    """A column, or a part of one, as a version's schema has it."""

    name: str
    type: str


class Head:
    """What a manifest says besides its fragments, read once; they are left as they are.

    Reading it costs little more for a table of many fragments than for one of few.
    """

    def __init__(self, manifest: bytes) -> None:
        """Read it.

        Raises:
            CorruptError: these bytes are no manifest.
        """
        self._manifest = manifest
        self._message, self._start, self._end = _parse(manifest, "Head")
        self.config: Mapping[str, str] = dict(self._message.config)

    @property
    def version(self) -> int:
        """Return the version."""
        return int(self._message.version)

    @property
    def transaction_file(self) -> str | None:
        """Return the name of the transaction's file, if the version has one."""
        return self._message.transaction_file or None

    @property
    def read_version(self) -> int | None:
        """Return the version that the transaction was built on; None where nothing tells."""
        number, dash, _ = self._message.transaction_file.partition("-")
        return int(number) if dash and number.isdecimal() else None

    @property
    def columns(self) -> dict[int, Column]:
        """Return every column and part of one, by its id."""
        return {int(f.id): Column(f.name, f.logical_type) for f in self._message.fields}

    def with_config(self, entries: Mapping[str, str | None]) -> bytes:
        """Return the manifest with config entries set, or removed where the value is None."""
        changed: Any = type(self._message)()
        changed.CopyFrom(self._message)
        for key, value in entries.items():
            if value is None:
                changed.config.pop(key, None)
            else:
                changed.config[key] = value
        if changed.config:
            changed.writer_feature_flags |= _FLAG_TABLE_CONFIG
        body: bytes = changed.SerializeToString(deterministic=True)
        before, after = self._manifest[: self._start], self._manifest[self._end :]
        return before + LENGTH.pack(len(body)) + body + after


def read_config(manifest: bytes) -> dict[str, str]:
    """Return the table config of a manifest.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    return dict(Head(manifest).config)


def edit_config(manifest: bytes, entries: Mapping[str, str | None]) -> bytes:
    """Return the manifest with config entries set, or removed where the value is None.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    return Head(manifest).with_config(entries)


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
        section: Any = read_section(manifest, message.index_section, _classes()["IndexSection"])[0]
        found.update(f"_indices/{uuid.UUID(bytes=index.uuid.uuid)}/" for index in section.indices)
    return found


def _parse(
    manifest: bytes, kind: str = "Manifest"
) -> tuple[Any, int, int]:  # Any: a class made at run time
    """Return the message, where its length prefix begins, and where it ends."""
    start = main_section(manifest)
    try:
        message, end = read_section(manifest, start, _classes()[kind])
    except BROKEN as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    return message, start, end


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return message_classes("holdfast.manifest", _MESSAGES)
