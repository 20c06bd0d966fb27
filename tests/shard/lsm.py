"""What stock Lance reads of a table with SSTables, and small tables to read."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, ShardSnapshot

from holdfast._ids import RandomIds
from holdfast.formats import version_name
from holdfast.formats._shard_manifest import SsTable
from holdfast.formats._sstable import TOMBSTONE
from holdfast.options import StorageOptions
from holdfast.shard._base import Base, read_base
from holdfast.shard._sstables import SstableWriter
from holdfast.storage import open_store

KEY = {"lance-schema:unenforced-primary-key": "true"}


def key_field(name: str, kind: pa.DataType, position: int | None = None) -> pa.Field:
    metadata = dict(KEY)
    if position is not None:
        metadata["lance-schema:unenforced-primary-key:position"] = str(position)
    return pa.field(name, kind, nullable=False, metadata=metadata)


def new_shard() -> str:
    return str(uuid.uuid4())


def base_of(uri: Path) -> Base:
    dataset = lance.dataset(str(uri))
    store = open_store(uri, StorageOptions({}))
    return read_base(dataset, store.get(version_name(dataset.version).path))


def sstables_of(uri: Path) -> SstableWriter:
    return SstableWriter(open_store(uri, StorageOptions({})), str(uri), {}, RandomIds())


def storage_rows(base: Base, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return rows with their tombstones; `{"_tombstone": True}` marks a deleted one."""
    marked = [{TOMBSTONE: False, **row} for row in rows]
    return pa.Table.from_pylist(marked, schema=base.storage_schema)


def snapshot(shard_id: str, tables: Sequence[SsTable]) -> ShardSnapshot:
    found = ShardSnapshot(shard_id).with_current_generation(len(tables) + 1)
    for table in tables:
        found = found.with_sstable(table.generation, table.path)
    return found


def scan(uri: Path, shard_id: str, tables: Sequence[SsTable]) -> list[dict[str, Any]]:
    scanner = LsmScanner.from_snapshots(lance.dataset(str(uri)), [snapshot(shard_id, tables)])
    found: list[dict[str, Any]] = scanner.to_table().to_pylist()
    return found


def look_up(
    uri: Path, shard_id: str, tables: Sequence[SsTable], key: pa.Array
) -> list[dict[str, Any]]:
    planner = LsmPointLookupPlanner(lance.dataset(str(uri)), [snapshot(shard_id, tables)])
    found: list[dict[str, Any]] = planner.plan_lookup(key).to_table().to_pylist()
    return found
