"""A snapshot read in parts, by processes that know no arbiter: base fragments, and shards.

The record of a snapshot names everything that is needed, so a part is read with the object
store alone. Rows of the base need the keys of all shards above it; rows of a shard's log and
SSTables need only that shard, because a key lives in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import NotFoundError
from holdfast.formats import (
    Entry,
    ShardManifest,
    ShardRecord,
    SnapshotRecord,
    SsTable,
    decode_entry,
    entry_name,
)
from holdfast.read._lance import open_dataset, translate_read_errors
from holdfast.read._reader import expired_error
from holdfast.read._snapshot import BaseVersion, ShardSnapshot, Snapshot
from holdfast.read._sstables import SstableReader
from holdfast.read._view import View
from holdfast.storage import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """What one process reads of a snapshot; it travels.

    Attributes:
        record: the snapshot, or what this part needs of it.
        fragments: of the base table; None for a part above it.
    """

    record: SnapshotRecord
    fragments: tuple[int, ...] | None


def drop_empty_shards(record: SnapshotRecord) -> SnapshotRecord:
    """Return the record without the shards that have no rows above the base table."""
    shards = (
        shard
        for shard in record.shards
        if shard.sstables or shard.last_position > shard.replay_after
    )
    return replace(record, shards=tuple(shards))


def parts_above(record: SnapshotRecord) -> list[SnapshotPart]:
    """Return a part for each shard."""
    return [
        SnapshotPart(record=replace(record, shards=(shard,)), fragments=None)
        for shard in record.shards
    ]


def read_part(
    part: SnapshotPart,
    store: ObjectStore,
    address: str,
    options: Mapping[str, str],
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - Lance's word
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part. All parts together are the snapshot, each row once.

    Raises:
        SnapshotExpiredError: files of the snapshot are gone: plan the read anew.
        Other errors: as for `View.batches`.
    """
    try:
        view = open_view(part.record, store, address, options)
        if part.fragments is None:
            yield from view.batches(columns, filter, fragments=())
        else:
            with translate_read_errors(address):
                fragments = [view.base.get_fragment(number) for number in part.fragments]
            yield from view.batches(columns, filter, fragments=fragments, levels=False)
    except NotFoundError as error:
        raise expired_error() from error


def open_view(
    record: SnapshotRecord, store: ObjectStore, address: str, options: Mapping[str, str]
) -> View:
    """Open a snapshot with the object store alone.

    Raises:
        NotFoundError: a file of the snapshot is gone.
        UnavailableError: the store gave no answer.
    """
    with translate_read_errors(address):
        base = open_dataset(address, options or None, record.base_version)
    shards = tuple(_shard(shard, store) for shard in record.shards)
    snapshot = Snapshot(
        base=BaseVersion(version=record.base_version, compacted={}, dataset=base), shards=shards
    )
    return View(snapshot, SstableReader(store, address, options).open, address)


def _shard(record: ShardRecord, store: ObjectStore) -> ShardSnapshot:
    manifest = ShardManifest(
        shard_id=record.shard_id,
        version=record.manifest_version,
        replay_after=record.replay_after,
    )
    return ShardSnapshot(
        manifest=manifest,
        sstables=tuple(SsTable(generation=number, path=path) for number, path in record.sstables),
        entries=tuple(_entries(record, store)),
    )


def _entries(record: ShardRecord, store: ObjectStore) -> Iterator[Entry]:
    """Yield the entries that the snapshot saw; they were checked when it was taken."""
    for position in range(record.replay_after + 1, record.last_position + 1):
        body = store.get(entry_name(record.shard_id, position).path)
        entry = decode_entry(body, shard_id=record.shard_id, position=position)
        if not entry.fence:
            yield entry
