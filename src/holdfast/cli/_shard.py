"""`holdfast shard ls|show URI`: the shards of a table. Never fences."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from holdfast.cli._arguments import add_json, add_table
from holdfast.cli._output import Exit, print_result
from holdfast.cli._table import add_commit_store
from holdfast.cli._wal import add_shard, opened
from holdfast.errors import NotFoundError
from holdfast.formats._shard_manifest import ShardManifest
from holdfast.wal import ShardManifests, list_shards


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    noun = verbs.add_parser("shard", help="look at a table's shards", allow_abbrev=False)
    parts = noun.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = parts.add_parser("ls", help="list the shards", allow_abbrev=False)
    add_table(listing)
    add_commit_store(listing)
    add_json(listing)
    listing.set_defaults(run=run_ls)
    showing = parts.add_parser("show", help="show one shard's state", allow_abbrev=False)
    add_shard(showing)
    showing.set_defaults(run=run_show)


def run_ls(arguments: argparse.Namespace) -> Exit:
    """List the shards."""
    store, arbiter = opened(arguments)
    found = []
    for shard_id in list_shards(store):
        manifest = ShardManifests(store, arbiter, shard_id).latest()
        if manifest is not None:
            found.append(manifest)
    shown = {"shards": [_manifest(manifest) for manifest in found]}
    text = "\n".join(_line(manifest) for manifest in found) or "no shards"
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK


def run_show(arguments: argparse.Namespace) -> Exit:
    """Show one shard."""
    store, arbiter = opened(arguments)
    manifest = ShardManifests(store, arbiter, arguments.shard).latest()
    if manifest is None:
        raise NotFoundError("there is no such shard", shard_id=arguments.shard)
    tables = [
        f"  generation {table.generation}  {table.path}  {table.physical_rows} rows"
        for table in manifest.sstables
    ]
    print_result(_manifest(manifest), "\n".join([_line(manifest), *tables]), as_json=arguments.json)
    return Exit.OK


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
