"""`holdfast shard ls|show|stats|repair URI`: the shards of a table. Never fences."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.cli._table import add_commit_store
from holdfast.cli._wal import add_shard, open_core, shard_id_of
from holdfast.errors import NotFoundError
from holdfast.formats import ShardManifest
from holdfast.wal import ShardManifests, WalTailer

if TYPE_CHECKING:
    from holdfast.upkeep import RepairShardResult


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    noun = verbs.add_parser("shard", help="look at a table's shards", allow_abbrev=False)
    parts = noun.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = parts.add_parser("ls", help="list the shards", allow_abbrev=False)
    add_table(listing)
    add_commit_store(listing)
    add_json(listing)
    listing.set_defaults(run=run_ls)
    counting = parts.add_parser(
        "stats", help="show what waits in the shards' logs and SSTables", allow_abbrev=False
    )
    add_table(counting)
    add_commit_store(counting)
    add_json(counting)
    counting.set_defaults(run=run_stats)
    showing = parts.add_parser("show", help="show one shard's state", allow_abbrev=False)
    add_shard(showing)
    showing.set_defaults(run=run_show)
    repairing = parts.add_parser(
        "repair",
        help="replace generations that cannot be read",
        description="Find flushed generations with rows that nobody can read, or with lost "
        "files, and put SSTables of their other rows in their places. Their files are kept. "
        "Says what it would do until --confirm is given.",
        allow_abbrev=False,
    )
    add_shard(repairing)
    repairing.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    repairing.set_defaults(run=run_repair)


def run_ls(arguments: argparse.Namespace) -> Exit:
    """List the shards."""
    core = open_core(arguments)
    found = []
    for shard_id in core.shard_ids():
        manifest = ShardManifests(core, shard_id).latest()
        if manifest is not None:
            found.append(manifest)
    shown = {"shards": [_manifest(manifest) for manifest in found]}
    text = "\n".join(_line(manifest) for manifest in found) or "no shards"
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK


def run_stats(arguments: argparse.Namespace) -> Exit:
    """Show how much of each shard is flushed, and how much only its log has."""
    core = open_core(arguments)
    found = []
    for shard_id in core.shard_ids():
        manifest = ShardManifests(core, shard_id).latest()
        if manifest is not None:
            found.append(_stats(manifest, WalTailer(core, shard_id)))
    text = "\n".join(
        f"{one['shard']}  epoch {one['writer_epoch']}  next position {one['next_position']}  "
        f"log {one['log_rows']} rows in {one['log_entries']} entries, {one['log_bytes']} bytes  "
        f"SSTables {one['sstable_rows']} rows in {one['sstables']}"
        for one in found
    )
    print_result({"shards": found}, text or "no shards", as_json=arguments.json)
    return Exit.OK


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


def run_show(arguments: argparse.Namespace) -> Exit:
    """Show one shard."""
    core = open_core(arguments)
    shard_id = shard_id_of(arguments, core)
    manifest = ShardManifests(core, shard_id).latest()
    if manifest is None:
        raise NotFoundError("there is no such shard", shard_id=shard_id)
    tables = [
        f"  generation {table.generation}  {table.path}  {table.physical_rows} rows"
        for table in manifest.sstables
    ]
    print_result(_manifest(manifest), "\n".join([_line(manifest), *tables]), as_json=arguments.json)
    return Exit.OK


def run_repair(arguments: argparse.Namespace) -> Exit:
    """Plan or do a repair of a shard's generations."""
    from holdfast.table import open_table  # noqa: PLC0415 - loads Lance

    table = open_table(
        arguments.uri, storage_options(arguments.option), commit_store=arguments.commit_store
    )
    done = table.repair_shard(arguments.shard, confirm=arguments.confirm)
    print_result(asdict(done), _repair_text(done), as_json=arguments.json)
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
