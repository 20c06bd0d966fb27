"""`holdfast shard ls|show|stats|repair URI`: the shards of a table. Never fences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_result
from holdfast.cli._terminal import table_text
from holdfast.cli._wal import open_core, shard_id_of
from holdfast.errors import NotFoundError
from holdfast.formats import ShardManifest
from holdfast.wal import ShardManifests, WalTailer

if TYPE_CHECKING:
    from holdfast.upkeep import RepairShardResult


def run_ls(target: Target) -> Exit:
    """List the shards."""
    manifests = [manifest for manifest, _ in _shards(target)]
    rows = [
        (
            one.shard_id,
            one.writer_epoch,
            one.version,
            one.replay_after,
            len(one.sstables),
            "sealed" if one.sealed else "",
        )
        for one in manifests
    ]
    head = ("shard", "epoch", "version", "flushed to", "SSTables", "")
    text = table_text(head, rows) if rows else "no shards"
    print_result({"shards": [_manifest(one) for one in manifests]}, text)
    return Exit.OK


def run_stats(target: Target) -> Exit:
    """Show how much of each shard is flushed, and how much only its log has."""
    shards = [_stats(manifest, tailer) for manifest, tailer in _shards(target)]
    columns = {
        "shard": "shard",
        "epoch": "writer_epoch",
        "next position": "next_position",
        "log rows": "log_rows",
        "log entries": "log_entries",
        "log bytes": "log_bytes",
        "SSTable rows": "sstable_rows",
        "SSTables": "sstables",
    }
    rows = [[one[field] for field in columns.values()] for one in shards]
    text = table_text(tuple(columns), rows) if rows else "no shards"
    print_result({"shards": shards}, text)
    return Exit.OK


def _shards(target: Target) -> Iterator[tuple[ShardManifest, WalTailer]]:
    core = open_core(target)
    for shard_id in core.shard_ids():
        manifest = ShardManifests(core, shard_id).latest()
        if manifest is not None:
            yield manifest, WalTailer(core, shard_id)


def _stats(manifest: ShardManifest, tailer: WalTailer) -> dict[str, object]:
    entries = rows = size = 0
    position = manifest.replay_after
    for entry in tailer.entries(manifest.replay_after, fences=True):
        position = entry.position
        entries, rows = entries + (not entry.fence), rows + entry.rows
        size += entry.size if not entry.fence else 0
    return {
        "shard": manifest.shard_id,
        "writer_epoch": manifest.writer_epoch,
        "next_position": position + 1,
        "flushed": manifest.replay_after,
        "log_entries": entries,
        "log_rows": rows,
        "log_bytes": size,
        "sstables": len(manifest.sstables),
        "sstable_rows": sum(table.physical_rows or 0 for table in manifest.sstables),
    }


def run_show(target: Target, shard: str) -> Exit:
    """Show one shard."""
    core = open_core(target)
    shard_id = shard_id_of(shard, core)
    manifest = ShardManifests(core, shard_id).latest()
    if manifest is None:
        raise NotFoundError("there is no such shard", shard_id=shard_id)
    tables = [
        f"  generation {table.generation}  {table.path}  {table.physical_rows} rows"
        for table in manifest.sstables
    ]
    print_result(_manifest(manifest), "\n".join([_line(manifest), *tables]))
    return Exit.OK


def run_repair(target: Target, shard: str, *, confirm: bool) -> Exit:
    """Plan or do a repair of a shard's generations."""
    from holdfast.table import open_table  # noqa: PLC0415 - loads Lance

    table = open_table(target.uri, target.options, commit_store=target.commit_store)
    shard_id = shard_id_of(shard, table.core)
    done = table.repair_shard(shard_id, confirm=confirm)
    print_result(asdict(done), _repair_text(done))
    return Exit.UNFIT if done.wounds and not done.applied else Exit.OK


def _repair_text(done: RepairShardResult) -> str:
    if not done.wounds:
        return "nothing to repair: every generation that waits can be read"
    lines = []
    for one in done.wounds:
        gone = "all rows" if one.rows is None else f"{one.rows} rows"
        files = f", its files are kept in {one.quarantine}" if one.quarantine else ""
        lines.append(
            f"generation {one.generation}: {one.damage.value}, {gone} cannot be read, "
            f"{one.kept} can{files}"
        )
    last = (
        "replaced by the rows that can be read; the others are given up"
        if done.applied
        else "nothing was changed; --confirm keeps the rows that can be read and gives up the "
        "others"
    )
    return "\n".join([*lines, last])


def _manifest(manifest: ShardManifest) -> dict[str, object]:
    return {
        "shard": manifest.shard_id,
        "version": manifest.version,
        "writer_epoch": manifest.writer_epoch,
        "flushed": manifest.replay_after,
        "current_generation": manifest.current_generation,
        "sstables": [asdict(table) for table in manifest.sstables],
        "sealed": manifest.sealed,
    }


def _line(manifest: ShardManifest) -> str:
    sealed = "  sealed" if manifest.sealed else ""
    return (
        f"{manifest.shard_id}  epoch {manifest.writer_epoch}  version {manifest.version}  "
        f"flushed to {manifest.replay_after}  {len(manifest.sstables)} SSTables{sealed}"
    )
