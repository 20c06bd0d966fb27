"""A table with rows on every level, moved from one to the next by hand; and what it must hold."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable, LsmScanner, ShardSnapshot

import holdfast
from holdfast._ids import RandomIds
from holdfast.formats import version_name
from holdfast.formats._keys import newest_per_key
from holdfast.formats._shard_manifest import ShardManifest
from holdfast.formats._sstable import TOMBSTONE, sstable_path
from holdfast.formats._wal_names import entry_name
from holdfast.shard._base import Base, read_base
from holdfast.shard._sstables import SstableWriter
from holdfast.wal._appender import WalAppender
from holdfast.wal._log import Log
from holdfast.wal._manifests import ShardManifests

Row = Mapping[str, Any]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("note", pa.string())])


def append_over_log(table: holdfast.Table, rows: pa.Table) -> None:
    """Append to the base and leave the levels above it as they are."""
    given = pa.Table.from_arrays(rows.columns, schema=table.schema)
    lance.write_dataset(given, table.dataset(over_log=True), mode="append")


class Lake:
    """A table whose levels a test fills.

    Args:
        folder: where it is made.
        schema: its columns.
        key: its primary key.
        shards: how many.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema = SCHEMA,
        key: Sequence[str] = ("k",),
        *,
        shards: int = 1,
    ) -> None:
        self.key = tuple(key)
        self.table = holdfast.create_table(folder / "t.lance", schema, primary_key=list(key))
        self.table.dataset().initialize_mem_wal(maintained_indexes=[])
        self.shards = [str(uuid.UUID(int=number + 1)) for number in range(shards)]
        self.model: dict[Any, Row] = {}
        self._appenders: dict[str, WalAppender] = {}

    def key_of(self, row: Row) -> Any:
        values = tuple(row[name] for name in self.key)
        return values[0] if len(values) == 1 else values

    def shard_of(self, row: Row) -> str:
        return self.shards[hash(self.key_of(row)) % len(self.shards)]

    def append(self, rows: Sequence[Row]) -> None:
        """Put rows into the base table, past what waits: `Table.append` would merge that."""
        append_over_log(self.table, pa.Table.from_pylist(list(rows), schema=self.table.schema))
        self.model.update({self.key_of(row): row for row in rows})

    def put(self, rows: Sequence[Row], *, deleted: bool = False) -> None:
        """Put rows into the log of their shard, acknowledged."""
        for shard in self.shards:
            mine = [{**row, TOMBSTONE: deleted} for row in rows if self.shard_of(row) == shard]
            if mine:
                table = pa.Table.from_pylist(mine, schema=self.base().log_schema)
                self.appender(shard).append(table.combine_chunks().to_batches())
        for row in rows:
            if deleted:
                self.model.pop(self.key_of(row), None)
            else:
                self.model[self.key_of(row)] = row

    def delete(self, keys: Iterable[Any]) -> None:
        rows = [
            dict(zip(self.key, key if len(self.key) > 1 else (key,), strict=True)) for key in keys
        ]
        self.put(rows, deleted=True)

    def flush(self, shard: str) -> int | None:
        """Turn the log of a shard into a generation; None when there are no rows."""
        current = self.manifest(shard)
        if current is None:
            return None
        log = Log(self.table.core, shard)
        last = max(log.list_entries(), default=0)
        entries = list(log.entries(current.replay_after, last))
        batches = [batch for entry in entries for batch in entry.batches]
        if not batches:
            return None
        base = self.base()
        rows = pa.Table.from_batches(batches).combine_chunks()
        if self.key:
            keys = [rows[name].combine_chunks() for name in self.key]
            rows = rows.take(newest_per_key(keys))
        written = self.sstables().write(base, shard, current.current_generation, rows)

        def publish(found: ShardManifest) -> ShardManifest:
            return replace(
                found,
                sstables=(*found.sstables, written),
                current_generation=written.generation + 1,
                replay_after=last,
            )

        self.manifests(shard).update(current.writer_epoch, publish)
        return written.generation

    def merge(self, shard: str, generation: int) -> None:
        """Merge one generation into the base, the stock way."""
        (found,) = [one for one in self.manifest(shard).sstables if one.generation == generation]
        rows = self.sstables().open(shard, found.path).to_table()
        gone = rows.filter(rows[TOMBSTONE]).drop_columns([TOMBSTONE])
        kept = rows.filter(pa.compute.invert(rows[TOMBSTONE])).drop_columns([TOMBSTONE])
        marker = [CompactedSsTable(shard, generation)]
        if gone.num_rows:
            stock = self.table.dataset(over_log=True)
            merge = stock.merge_insert(list(self.key)).when_matched_delete()
            merge.execute(gone)
        merge = self.table.dataset().merge_insert(list(self.key)).when_matched_update_all()
        merge.when_not_matched_insert_all().mark_sstables_as_compacted(marker).execute(kept)

    def drain(self, shard: str, through: int) -> list[str]:
        """Take merged generations out of the shard's manifest; return their folders."""
        current = self.manifest(shard)
        out = [one.path for one in current.sstables if one.generation <= through]

        def change(found: ShardManifest) -> ShardManifest:
            left = tuple(one for one in found.sstables if one.generation > through)
            return replace(found, sstables=left)

        self.manifests(shard).update(current.writer_epoch, change)
        return out

    def collect(self, shard: str, folders: Sequence[str] = ()) -> None:
        """Delete flushed log entries and drained folders, without any grace."""
        current = self.manifest(shard)
        paths = [entry_name(shard, n).path for n in range(1, current.replay_after + 1)]
        self.table.core.store.delete(paths)
        for folder in folders:
            shutil.rmtree(f"{self.table.uri}/{sstable_path(shard, folder)}", ignore_errors=True)

    def appender(self, shard: str) -> WalAppender:
        if shard not in self._appenders:
            self._appenders[shard] = WalAppender.claim(self.table.core, shard)
        return self._appenders[shard]

    def manifests(self, shard: str) -> ShardManifests:
        return ShardManifests(self.table.core, shard)

    def manifest(self, shard: str) -> Any:
        return self.manifests(shard).latest()

    def sstables(self) -> SstableWriter:
        return SstableWriter(self.table.core.store, self.table.uri, {}, RandomIds())

    def base(self) -> Base:
        dataset = self.table.dataset()
        return read_base(dataset, self.table.core.store.get(version_name(dataset.version).path))

    def stock_rows(self) -> list[dict[str, Any]]:
        """Return what stock's own scanner reads: no logs."""
        snapshots = []
        for shard in self.shards:
            manifest = self.manifest(shard)
            if manifest is None:
                continue
            found = ShardSnapshot(shard).with_current_generation(manifest.current_generation)
            for one in manifest.sstables:
                found = found.with_sstable(one.generation, one.path)
            snapshots.append(found)
        return list(
            LsmScanner.from_snapshots(self.table.dataset(), snapshots).to_table().to_pylist()
        )

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        """Return what the table reads."""
        return list(self.table.to_table(**options).to_pylist())

    def wanted(self) -> list[dict[str, Any]]:
        """Return what it must read: all columns of every row of the model."""
        names = self.table.schema.names
        return [{name: row.get(name) for name in names} for row in self.model.values()]

    def close(self) -> None:
        for appender in self._appenders.values():
            appender.close()
        self.table.close()


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def row(k: Any, v: int | None, note: str | None = None) -> dict[str, Any]:
    return {"k": k, "v": v, "note": note}
