"""What a shard holds by the plainest reading: SSTables oldest first, then what comes after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmScanner

import holdfast
from holdfast.formats._sstable import TOMBSTONE
from holdfast.shard import ShardWriter
from holdfast.shard._prepare import read_newest_base
from holdfast.shard._rows import fit_entry
from holdfast.wal import ShardManifest, ShardManifests, SsTable, WalTailer
from shard.lsm import key_field, snapshot, sstables_of

Row = dict[str, Any]

KEYED = pa.schema([key_field("k", pa.int64()), pa.field("v", pa.string())])
PLAIN = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])


def manifest_of(table: holdfast.Table, shard_id: str) -> ShardManifest:
    found = ShardManifests(table.core, shard_id).latest()
    assert found is not None
    return found


def tables_of(table: holdfast.Table, shard_id: str) -> tuple[SsTable, ...]:
    return manifest_of(table, shard_id).sstables


def flushed_rows(table: holdfast.Table, shard_id: str) -> list[Row]:
    """Return every row of every SSTable, tombstones too, oldest first."""
    found: list[Row] = []
    for one in tables_of(table, shard_id):
        found += sstables_of(Path(table.uri)).open(shard_id, one.path).to_table().to_pylist()
    return found


def logged_rows(table: holdfast.Table, shard_id: str) -> list[Row]:
    """Return the rows that only the log has."""
    tailer = WalTailer(table.core, shard_id)
    base = read_newest_base(table.versions)
    after = manifest_of(table, shard_id).replay_after
    return [
        row
        for entry in tailer.entries(after)
        for batch in entry.batches
        for row in fit_entry(batch, base).to_pylist()
    ]


def newest(rows: Iterable[Row]) -> dict[int, Any]:
    """Apply rows to a dictionary by their key."""
    found: dict[int, Any] = {}
    for row in rows:
        found.pop(row["k"], None)
        if not row.get(TOMBSTONE):
            found[row["k"]] = row["v"]
    return found


def counted(rows: Iterable[Row]) -> Counter[tuple[int, Any]]:
    """Count rows of a table without a key."""
    return Counter((row["k"], row["v"]) for row in rows)


def stock_rows(table: holdfast.Table, shard_id: str) -> list[Row]:
    """Return what stock's scanner sees of the base table and the SSTables."""
    shot = snapshot(shard_id, tables_of(table, shard_id))
    found: list[Row] = (
        LsmScanner.from_snapshots(lance.dataset(table.uri), [shot]).to_table().to_pylist()
    )
    return found


def held_rows(writer: ShardWriter) -> list[Row]:
    found: list[Row] = writer.to_table().to_pylist()
    return found
