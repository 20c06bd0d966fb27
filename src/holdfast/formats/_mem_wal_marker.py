"""The marker of a merge: how far each shard's SSTables are in the base table, inside its manifest.

`mark_merged` changes the manifest that is about to be decided, so that rows and marker become
visible together or not at all. A generation that is marked already is refused there: whoever
merges it a second time changes nothing. Everything else in the manifest stays as it is.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from typing import Any, TypeAlias

from google.protobuf.message import Message

from holdfast.errors import ConflictError, CorruptError, InvalidInputError, NextStep
from holdfast.formats._lance_messages import View, lance_view
from holdfast.formats._mem_wal_details import MEM_WAL_INDEX
from holdfast.formats._names import check_shard_id
from holdfast.formats._protobuf import (
    BROKEN,
    FOOTER,
    LENGTH,
    main_section,
    read_section,
)

_Made: TypeAlias = Any  # a message of a class that is made at run time

# Only what is changed; the rest passes through.
_VIEW: View = {
    "Manifest": "index_section",
    "IndexSection": "indices",
    "Index": "name details",
    "Details": "compacted",
}


class MergedAlreadyError(ConflictError):
    """The generation is in the base table already; this merge of it was not made."""

    next_step = NextStep.NEVER


def mark_merged(
    manifest: bytes, generations: Mapping[str, int], *, after: Mapping[str, int] | None = None
) -> bytes:
    """Return the manifest with these generations marked as merged, by shard id.

    Args:
        manifest: what is about to be decided.
        generations: the newest merged generation of each shard.
        after: of these shards, the generation that must be marked so far; 0 for none.

    Raises:
        MergedAlreadyError: one is marked already, or a newer one of its shard; or another
            than the one in `after`.
        InvalidInputError: the table has no log.
        CorruptError: these bytes are no manifest.
    """
    try:
        start = main_section(manifest)
        message: _Made
        message, end = read_section(manifest, start, _classes()["Manifest"])
        if not message.HasField("index_section"):
            raise _no_log()
        section: _Made
        section, _ = read_section(manifest, message.index_section, _classes()["IndexSection"])
        _mark(section, generations, after or {})
    except InvalidInputError:
        raise
    except BROKEN as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    # The new section goes in front of the main one; the old one stays, unread, so that no
    # other offset changes. Lance leaves it out of the next version.
    listed: bytes = section.SerializeToString(deterministic=True)
    message.index_section = start
    body: bytes = message.SerializeToString(deterministic=True)
    before = manifest[:start] + LENGTH.pack(len(listed)) + listed
    _, major, minor, magic = FOOTER.unpack_from(manifest, len(manifest) - FOOTER.size)
    between = manifest[end : len(manifest) - FOOTER.size]
    return b"".join(
        (
            before,
            LENGTH.pack(len(body)),
            body,
            between,
            FOOTER.pack(len(before), major, minor, magic),
        )
    )


def _mark(section: _Made, generations: Mapping[str, int], after: Mapping[str, int]) -> None:
    index = next((one for one in section.indices if one.name == MEM_WAL_INDEX), None)
    if index is None:
        raise _no_log()
    details: _Made = _classes()["Details"]()
    details.ParseFromString(index.details.value)
    marked = {one.shard_id.uuid: one for one in details.compacted}
    for shard_id, generation in generations.items():
        key = uuid.UUID(check_shard_id(shard_id)).bytes
        there = marked.get(key)
        recorded = 0 if there is None else there.generation
        if recorded >= generation or recorded != after.get(shard_id, recorded):
            raise MergedAlreadyError(
                "this generation is in the table already",
                shard_id=shard_id,
                generation=generation,
                merged=recorded,
            )
        if there is None:
            there = details.compacted.add()
            there.shard_id.uuid = key
        there.generation = generation
    index.details.value = details.SerializeToString(deterministic=True)


def _no_log() -> InvalidInputError:
    return InvalidInputError("this table has no log: nothing can be merged into it")


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return lance_view("holdfast.marker", _VIEW)
