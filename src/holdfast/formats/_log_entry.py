"""The log's entry in a table's manifest, carried from one version to the next.

Lance keeps what it knows of a table's log in the index section: how rows are divided, and how far
each shard is merged. An overwrite leaves that section out, a restore brings an old one back. So
the entry of the version below is put into the very bytes that are decided.

The log has an id: in the entry, among the defaults of writers, and in the table's config. Lance
carries the config through an overwrite, and the entry not; who finds the one without the other
knows that the entry was lost, or made anew by somebody who knew nothing of the rows that wait.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from typing import Any, TypeAlias

from google.protobuf.message import Message

from holdfast.errors import CorruptError
from holdfast.formats._lance_messages import View, lance_view
from holdfast.formats._mem_wal_details import (
    DETAILS_TYPE,
    LOG_ID_KEY,
    MEM_WAL_INDEX,
    MemWalDetails,
    encode_details,
)
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
    "Index": "uuid name details",
    "Details": "specs maintained compacted catchup defaults",
    "ShardingSpec": "fields",
    "ShardingField": "source_ids",
    "IndexCatchup": "index",
}


class LogEntry:
    """The entry of a table's log, as bytes that can be changed.

    Args:
        body: of the entry, as an index section holds it.

    Raises:
        CorruptError: these bytes are none.
    """

    def __init__(self, body: bytes) -> None:
        classes: Mapping[str, _Made] = _classes()
        self._index = classes["Index"]()
        self._details = classes["Details"]()
        try:
            self._index.ParseFromString(body)
            self._details.ParseFromString(self._index.details.value)
        except BROKEN as error:
            raise CorruptError("the entry of the table's log cannot be read") from error

    @classmethod
    def new(cls, token: str, details: MemWalDetails) -> LogEntry:
        """Return an entry that no version had."""
        index: _Made = _classes()["Index"]()
        index.name = MEM_WAL_INDEX
        index.uuid.uuid = uuid.UUID(hex=token.removeprefix("hf-"), version=4).bytes
        index.details.type_url = DETAILS_TYPE
        index.details.value = encode_details(details)
        return cls(index.SerializeToString(deterministic=True))

    @property
    def log_id(self) -> str | None:
        """Return the log's id; None when nobody gave it one."""
        identity: str | None = self._details.defaults.get(LOG_ID_KEY)
        return identity

    @property
    def merged(self) -> dict[str, int]:
        """Return, by shard id, the newest generation that is merged or superseded."""
        compacted = self._details.compacted
        return {str(uuid.UUID(bytes=one.shard_id.uuid)): int(one.generation) for one in compacted}

    def give_id(self, log_id: str) -> None:
        """Set the log's id."""
        self._details.defaults[LOG_ID_KEY] = log_id

    def set_merged(self, generations: Mapping[str, int]) -> None:
        """Set the marker of these shards, whatever it was."""
        known = {one.shard_id.uuid: one for one in self._details.compacted}
        for shard_id, generation in generations.items():
            key = uuid.UUID(check_shard_id(shard_id)).bytes
            there = known.get(key)
            if there is None:
                there = self._details.compacted.add()
                there.shard_id.uuid = key
            there.generation = generation

    def fit_columns(self, ids: Mapping[int, int]) -> list[int]:
        """Let the sharding name columns by other ids; return those that have none.

        What was said of indexes goes: the version has others, or none.
        """
        missing = []
        for spec in self._details.specs:
            for part in spec.fields:
                missing += [one for one in part.source_ids if one not in ids]
                changed = [ids.get(one, one) for one in part.source_ids]
                del part.source_ids[:]
                part.source_ids.extend(changed)
        del self._details.catchup[:]
        return missing

    def keep_indexes(self, names: set[str]) -> None:
        """Let writers maintain only indexes that are there."""
        kept = [name for name in self._details.maintained if name in names]
        del self._details.maintained[:]
        self._details.maintained.extend(kept)

    def encode(self) -> bytes:
        """Return the bytes of the entry."""
        made: _Made = type(self._index)()
        made.CopyFrom(self._index)
        made.details.value = self._details.SerializeToString(deterministic=True)
        body: bytes = made.SerializeToString(deterministic=True)
        return body


def read_log_entry(manifest: bytes) -> LogEntry | None:
    """Return the log's entry in a manifest; None when it has none.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    _, section, _, _ = _parse(manifest)
    for index in section.indices:
        if index.name == MEM_WAL_INDEX:
            return LogEntry(index.SerializeToString(deterministic=True))
    return None


def put_log_entry(manifest: bytes, entry: LogEntry) -> bytes:
    """Return the manifest with this entry of the log, in the place of its own if it has one.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    message, section, start, end = _parse(manifest)
    entry.keep_indexes({index.name for index in section.indices})
    kept = [index for index in section.indices if index.name != MEM_WAL_INDEX]
    made: _Made = _classes()["IndexSection"]()
    made.CopyFrom(section)
    del made.indices[:]
    made.indices.extend(kept)
    added: _Made = made.indices.add()
    added.ParseFromString(entry.encode())
    # The new section goes in front of the main one; an old one stays, unread, so that no
    # other offset changes. Lance leaves it out of the next version.
    listed: bytes = made.SerializeToString(deterministic=True)
    message.index_section = start
    body: bytes = message.SerializeToString(deterministic=True)
    before = manifest[:start] + LENGTH.pack(len(listed)) + listed
    _, major, minor, magic = FOOTER.unpack_from(manifest, len(manifest) - FOOTER.size)
    between = manifest[end : len(manifest) - FOOTER.size]
    footer = FOOTER.pack(len(before), major, minor, magic)
    return b"".join((before, LENGTH.pack(len(body)), body, between, footer))


def _parse(manifest: bytes) -> tuple[_Made, _Made, int, int]:
    """Return the main message, the index section, and where the former begins and ends."""
    start = main_section(manifest)
    try:
        message: _Made
        message, end = read_section(manifest, start, _classes()["Manifest"])
        section: _Made = _classes()["IndexSection"]()
        if message.HasField("index_section"):
            section, _ = read_section(manifest, message.index_section, _classes()["IndexSection"])
    except BROKEN as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    return message, section, start, end


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return lance_view("holdfast.log_entry", _VIEW)
