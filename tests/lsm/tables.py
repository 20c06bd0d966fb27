"""Tables with a log, generations in them, and what they must hold."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import holdfast
from holdfast._ids import RandomIds
from holdfast.formats import version_name
from holdfast.formats._mem_wal_details import read_details
from holdfast.formats._shard_manifest import ShardManifest, SsTable
from holdfast.formats._sstable import TOMBSTONE
from holdfast.shard._base import Base, read_base
from holdfast.shard._sstables import SstableWriter
from holdfast.wal._manifests import ShardManifests

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
Row = dict[str, Any]


def make_table(
    uri: Path | str,
    rows: Sequence[Row] = (),
    *,
    schema: pa.Schema = SCHEMA,
    key: Sequence[str] = ("k",),
    **options: Any,
) -> holdfast.Table:
    """Return a new table with a log."""
    table = holdfast.create_table(uri, schema, primary_key=list(key), **options)
    if rows:
        table.append(list(rows))
    table.dataset().initialize_mem_wal(maintained_indexes=[])
    return table


def new_shard() -> str:
    return str(uuid.uuid4())


def base_of(table: holdfast.Table) -> Base:
    dataset = table.dataset()
    manifest = table.core.arbiter.read(version_name(int(dataset.version)))
    assert manifest is not None
    return read_base(dataset, manifest)


def sstables_of(table: holdfast.Table) -> SstableWriter:
    return SstableWriter(table.core.store, table.uri, table.core.resolved, RandomIds())


def manifests_of(table: holdfast.Table, shard_id: str) -> ShardManifests:
    return ShardManifests(table.core, shard_id)


def add_generation(table: holdfast.Table, shard_id: str, rows: Sequence[Row]) -> SsTable:
    """Publish one generation, as a writer's flush does."""
    manifests = manifests_of(table, shard_id)
    current = manifests.latest() or manifests.claim()
    base = base_of(table)
    made = pa.Table.from_pylist(
        [{TOMBSTONE: False, **row} for row in rows], schema=base.storage_schema
    )
    written = sstables_of(table).write(base, shard_id, current.current_generation, made)

    def publish(found: ShardManifest) -> ShardManifest:
        return replace(
            found,
            sstables=(*found.sstables, written),
            current_generation=written.generation + 1,
        )

    manifests.update(current.writer_epoch, publish)
    return written


def stock_generation(table: holdfast.Table, shard_id: str, puts: Sequence[Any]) -> None:
    """Let stock Lance write and flush one generation; a list of keys among the puts deletes."""
    schema = table.schema
    with table.dataset().mem_wal_writer(shard_id, max_wal_flush_interval_ms=1) as writer:
        for put in puts:
            if isinstance(put, Mapping):
                writer.put(pa.table(put, schema=schema))
            else:
                writer.delete(pa.table({"k": put}, schema=pa.schema([schema.field("k")])))


def rows_of(table: holdfast.Table | str | Path) -> dict[Any, Any]:
    """Return the base table's rows by key, as stock reads them; no key may be there twice."""
    dataset = (
        lance.dataset(table.uri) if isinstance(table, holdfast.Table) else lance.dataset(table)
    )
    rows = dataset.to_table().to_pylist()
    found = {row["k"]: row["v"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def merged_of(table: holdfast.Table) -> dict[str, int]:
    """Return how far each shard is merged."""
    body = table.core.arbiter.read(version_name(int(table.dataset().version)))
    assert body is not None
    details = read_details(body)
    assert details is not None
    return dict(details.compacted)


def pending_of(table: holdfast.Table, shard_id: str) -> list[int]:
    """Return the generations that the shard's manifest names."""
    current = manifests_of(table, shard_id).latest()
    return [] if current is None else [one.generation for one in current.sstables]
