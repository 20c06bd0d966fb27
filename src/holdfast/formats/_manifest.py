"""A Lance table manifest as far as Holdfast reads and edits it.

Known here are the table config, the writers' feature flags, and which files a version shows;
every other field passes through untouched.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from typing import Any

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
    return manifest[:start] + LENGTH.pack(len(body)) + body + manifest[end:]


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


def _parse(manifest: bytes) -> tuple[Any, int, int]:  # Any: a class made at run time
    """Return the message, where its length prefix begins, and where it ends."""
    start = main_section(manifest)
    try:
        message, end = read_section(manifest, start, _classes()["Manifest"])
    except BROKEN as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    return message, start, end


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return message_classes("holdfast.manifest", _MESSAGES)
