"""The names of an SSTable's parts, and its manifest with the base table's column ids.

An SSTable is a Lance dataset in a folder of its own: data, a key index and a bloom filter.
Readers pair its columns with the base table's by id, but a fresh dataset numbers its columns
from 0. `renumber_columns` puts that right in the one manifest it has.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from google.protobuf.message import Message

from holdfast.errors import CorruptError
from holdfast.formats._lance_messages import View, lance_view
from holdfast.formats._names import check_path, version_name
from holdfast.formats._protobuf import (
    BROKEN,
    LENGTH,
    main_section,
    read_section,
)
from holdfast.formats._wal_names import shard_folder

TOMBSTONE = "_tombstone"
"""The column that is true in a row that says its key was deleted."""

BLOOM_FILE = "bloom_filter.bin"
KEY_INDEX_DATA = "_pk_index/page_data.lance"
KEY_INDEX_LOOKUP = "_pk_index/page_lookup.lance"
SSTABLE_MANIFEST = version_name(1).path

_Made: TypeAlias = Any  # a message of a class that is made at run time
_AS_BYTES = {"string": "binary", "large_string": "large_binary"}
_FOLDER = re.compile(r"[0-9a-f]{8}_gen_([0-9]{1,19})")
_TOKEN = slice(3, 11)  # of `hf-` and 32 digits, the first eight digits

_VIEW: View = {
    "Manifest": "fields fragments",
    "Field": "name id parent_id logical_type",
    "DataFragment": "id files",
    "DataFile": "path fields",
}


def sstable_folder(token: str, generation: int) -> str:
    """Return a folder name that no other attempt at this generation has."""
    return f"{token[_TOKEN]}_gen_{generation}"


def sstable_path(shard_id: str, folder: str) -> str:
    """Return where an SSTable is, below the table."""
    return check_path(f"{shard_folder(shard_id)}/{folder}")


def generation_of(folder: str) -> int | None:
    """Return the generation that an SSTable's folder is named for; None for other folders."""
    match = _FOLDER.fullmatch(folder)
    return None if match is None else int(match[1])


def column_ids(manifest: bytes) -> dict[tuple[str, ...], int]:
    """Return the id of every column and nested field of a manifest, by its path of names.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    return _paths(_parse(manifest)[0])


def tombstone_id(base: Mapping[tuple[str, ...], int]) -> int:
    """Return the id of the tombstone column beside columns with these ids."""
    return max(base.values(), default=-1) + 1


def renumber_columns(manifest: bytes, base: Mapping[tuple[str, ...], int]) -> bytes:
    """Return the manifest of an SSTable with the base table's ids; the tombstone's comes next.

    Raises:
        CorruptError: these bytes are no manifest, or it has columns that the base has not.
    """
    message, start, end = _parse(manifest)
    wanted = {(TOMBSTONE,): tombstone_id(base), **base}
    paths = _paths(message)
    missing = [".".join(path) for path in paths if path not in wanted]
    if missing:
        raise CorruptError("an SSTable has columns that the table has not", columns=missing[:5])
    new = {old: wanted[path] for path, old in paths.items()}
    if all(old == wanted_id for old, wanted_id in new.items()):
        return manifest
    for field in message.fields:
        field.id = new[field.id]
        if field.parent_id >= 0:
            field.parent_id = new[field.parent_id]
    for fragment in message.fragments:
        for file in fragment.files:
            ids = [new[old] for old in file.fields]
            del file.fields[:]
            file.fields.extend(ids)
    body: bytes = message.SerializeToString(deterministic=True)
    return manifest[:start] + LENGTH.pack(len(body)) + body + manifest[end:]


def text_as_bytes(manifest: bytes) -> bytes:
    """Return the manifest of an SSTable that says bytes where it said text.

    Both are stored alike, but Lance reads no text beside one that is no UTF-8.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    message, start, end = _parse(manifest)
    for field in message.fields:
        field.logical_type = _AS_BYTES.get(field.logical_type, field.logical_type)
    body: bytes = message.SerializeToString(deterministic=True)
    return manifest[:start] + LENGTH.pack(len(body)) + body + manifest[end:]


def _paths(message: _Made) -> dict[tuple[str, ...], int]:
    paths: dict[int, tuple[str, ...]] = {}
    for field in message.fields:
        above = paths.get(field.parent_id, ()) if field.parent_id >= 0 else ()
        paths[field.id] = (*above, field.name)
    return {path: column for column, path in paths.items()}


def _parse(manifest: bytes) -> tuple[_Made, int, int]:
    start = main_section(manifest)
    try:
        message, end = read_section(manifest, start, _classes()["Manifest"])
    except BROKEN as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    return message, start, end


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return lance_view("holdfast.sstable", _VIEW)
