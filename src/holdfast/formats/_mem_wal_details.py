"""What a table's manifest says of its log: the index entry `__lance_mem_wal`, decoded.

It names the ways rows are divided into shards, the indexes that writers keep up to date, the
defaults of writers, and how far each shard's SSTables are merged into the base table.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from google.protobuf.message import Message

from holdfast.errors import CorruptError
from holdfast.formats._lance_messages import View, lance_view
from holdfast.formats._protobuf import (
    BROKEN,
    main_section,
    read_section,
)

MEM_WAL_INDEX = "__lance_mem_wal"
"""The name of the index entry that makes a table one with a log."""

LOG_ID_KEY = "holdfast.log"
"""The writer default in the log's entry, and the config entry, that hold the log's id."""

_Made: TypeAlias = Any  # a message of a class that is made at run time

DETAILS_TYPE = "/lance.table.MemWalIndexDetails"

_VIEW: View = {
    "Manifest": "index_section",
    "IndexSection": "indices",
    "Index": "uuid fields name details",
    "Details": (
        "snapshot_millis num_shards snapshots specs maintained compacted catchup defaults all"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingField:
    """One value by which rows are divided.

    Attributes:
        field_id: the name of the value.
        source_ids: the ids of the columns it is made of.
        transform: `unsharded`, `bucket` or `identity`; None where an expression says it.
        expression: an SQL expression in place of a transform.
        result_type: the type of the value.
        parameters: of the transform, such as `num_buckets`.
    """

    field_id: str
    source_ids: tuple[int, ...] = ()
    transform: str | None = None
    expression: str | None = None
    result_type: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingSpec:
    """One way of dividing rows; a shard's manifest names its `spec_id`."""

    spec_id: int
    fields: tuple[ShardingField, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemWalDetails:
    """The decoded entry.

    Attributes:
        num_shards: how many shards the sharding makes; 0 where they are named by hand.
        sharding_specs: how rows are divided; none where shards are named by hand.
        maintained_indexes: the base table's indexes that SSTables carry too.
        maintain_all_indexes: all of them, also those to come.
        compacted: by shard id, the newest generation that is merged into the base.
        index_catchup: by index name, the same for what that index covers.
        writer_defaults: recorded settings of writers, in Lance's names.
        log_id: Holdfast's id of the log, kept among the settings; see `formats._log_entry`.
    """

    num_shards: int = 0
    sharding_specs: tuple[ShardingSpec, ...] = ()
    maintained_indexes: tuple[str, ...] = ()
    maintain_all_indexes: bool = True
    compacted: Mapping[str, int] = field(default_factory=dict)
    index_catchup: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    writer_defaults: Mapping[str, str] = field(default_factory=dict)
    log_id: str | None = field(default=None, compare=False)


def decode_details(body: bytes) -> MemWalDetails:
    """Read the details of the entry.

    Raises:
        CorruptError: these bytes are none.
    """
    message: _Made = _classes()["Details"]()
    try:
        message.ParseFromString(body)
        defaults = dict(message.defaults)
        return MemWalDetails(
            num_shards=message.num_shards,
            sharding_specs=tuple(_spec_of(spec) for spec in message.specs),
            maintained_indexes=tuple(message.maintained),
            maintain_all_indexes=message.all,
            compacted=_generations(message.compacted),
            index_catchup={one.index: _generations(one.generations) for one in message.catchup},
            log_id=defaults.pop(LOG_ID_KEY, None),
            writer_defaults=defaults,
        )
    except BROKEN as error:
        raise CorruptError("the details of the table's log cannot be read") from error


def encode_details(details: MemWalDetails) -> bytes:
    """Return the bytes of the details."""
    message: _Made = _classes()["Details"]()
    message.snapshot_millis = 0
    message.num_shards = details.num_shards
    for spec in details.sharding_specs:
        made = message.specs.add(spec_id=spec.spec_id)
        for one in spec.fields:
            part = made.fields.add(field_id=one.field_id, result_type=one.result_type)
            part.source_ids.extend(one.source_ids)
            if one.transform is not None:
                part.transform = one.transform
            if one.expression is not None:
                part.expression = one.expression
            part.parameters.update(one.parameters)
    message.maintained.extend(details.maintained_indexes)
    _add_generations(message.compacted, details.compacted)
    for index, generations in details.index_catchup.items():
        _add_generations(message.catchup.add(index=index).generations, generations)
    message.defaults.update(details.writer_defaults)
    if details.log_id is not None:
        message.defaults[LOG_ID_KEY] = details.log_id
    message.all = details.maintain_all_indexes
    body: bytes = message.SerializeToString(deterministic=True)
    return body


def read_details(manifest: bytes) -> MemWalDetails | None:
    """Return what a table manifest says of the table's log; None when it has none.

    Raises:
        CorruptError: these bytes are no manifest, or the entry cannot be read.
    """
    for index in _indexes(manifest):
        if index.name == MEM_WAL_INDEX:
            return decode_details(index.details.value)
    return None


def _indexes(manifest: bytes) -> list[_Made]:
    try:
        start = main_section(manifest)
        message: _Made = read_section(manifest, start, _classes()["Manifest"])[0]
        if not message.HasField("index_section"):
            return []
        section: _Made = read_section(manifest, message.index_section, _classes()["IndexSection"])[
            0
        ]
    except BROKEN as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    return list(section.indices)


def _spec_of(message: _Made) -> ShardingSpec:
    return ShardingSpec(
        spec_id=message.spec_id, fields=tuple(_field_of(one) for one in message.fields)
    )


def _field_of(message: _Made) -> ShardingField:
    return ShardingField(
        field_id=message.field_id,
        source_ids=tuple(message.source_ids),
        transform=message.transform if message.HasField("transform") else None,
        expression=message.expression if message.HasField("expression") else None,
        result_type=message.result_type,
        parameters=dict(message.parameters),
    )


def _generations(messages: _Made) -> dict[str, int]:
    return {str(uuid.UUID(bytes=one.shard_id.uuid)): one.generation for one in messages}


def _add_generations(target: _Made, generations: Mapping[str, int]) -> None:
    for shard_id, generation in generations.items():
        made = target.add(generation=generation)
        made.shard_id.uuid = uuid.UUID(shard_id).bytes


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return lance_view("holdfast.memwal", _VIEW)
