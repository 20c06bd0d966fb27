"""`holdfast wal ls|show|tail|repair|reset URI`: look into logs; `repair` and `reset` write."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from datetime import timedelta

from holdfast.arbiter import open_arbiter
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.cli._table import add_commit_store
from holdfast.core import TableCore
from holdfast.errors import NotFoundError
from holdfast.formats import Entry, check_shard_id, shard_id_of_bucket, shard_id_unsharded
from holdfast.storage import open_store
from holdfast.wal import Repair, WalTailer, repair_log


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    noun = verbs.add_parser("wal", help="look into a shard's log", allow_abbrev=False)
    parts = noun.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_ls(parts)
    _add_show(parts)
    _add_tail(parts)
    _add_repair(parts)
    _add_reset(parts)


def add_shard(parser: argparse.ArgumentParser) -> None:
    """Add a table, a shard and what every command takes."""
    add_table(parser)
    parser.add_argument(
        "shard", metavar="SHARD", help="unsharded, bucket-N or a shard id; see `holdfast shard ls`"
    )
    add_commit_store(parser)
    add_json(parser)


def open_core(arguments: argparse.Namespace, *, writes: bool = False) -> TableCore:
    """Return a table's stores; with an arbiter that only reads by default."""
    options = storage_options(arguments.option)
    arbiter = open_arbiter(arguments.uri, options, commit_store=arguments.commit_store)
    core = TableCore(open_store(arguments.uri, options), arbiter, arguments.uri, options)
    return core if writes else core.for_reading()


def shard_id_of(arguments: argparse.Namespace, core: TableCore) -> str:
    """Return the id of the shard that is meant: by its id, `unsharded` or `bucket-3`.

    Raises:
        InvalidInputError: it is none of these.
        NotFoundError: there is no such shard.
    """
    word = str(arguments.shard)
    if word == "unsharded":
        shard_id = shard_id_unsharded()
    elif match := re.fullmatch("bucket-([0-9]{1,4})", word):
        shard_id = shard_id_of_bucket(int(match[1]))
    else:
        shard_id = check_shard_id(word)
    if shard_id not in core.shard_ids():
        raise NotFoundError(
            "there is no such shard; `holdfast shard ls` lists them", shard=word, shard_id=shard_id
        )
    return shard_id


def _tailer(arguments: argparse.Namespace) -> WalTailer:
    core = open_core(arguments)
    return WalTailer(core, shard_id_of(arguments, core))


def _add_ls(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = parts.add_parser("ls", help="list the entries", allow_abbrev=False)
    add_shard(parser)
    parser.add_argument("--after", type=int, metavar="POSITION", help="only later entries")
    parser.set_defaults(run=run_ls)


def _add_show(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = parts.add_parser("show", help="show one entry with its rows", allow_abbrev=False)
    add_shard(parser)
    parser.add_argument("position", type=int, metavar="POSITION")
    parser.set_defaults(run=run_show)


def _add_tail(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = parts.add_parser(
        "tail",
        help="print entries as they are written",
        description="Follow the log: one line per entry, with --json one JSON object per line. "
        "Never fences.",
        allow_abbrev=False,
    )
    add_shard(parser)
    parser.add_argument("--after", type=int, metavar="POSITION", help="only later entries")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end after so long without an entry"
    )
    parser.set_defaults(run=run_tail)


def _add_repair(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = parts.add_parser(
        "repair",
        help="close holes in a damaged log",
        description="Find missing and damaged entries and put fences in their places, and of "
        "entries with values that nobody can read the other rows, after locking all writers out. "
        "Says what it would do until --confirm is given.",
        allow_abbrev=False,
    )
    add_shard(parser)
    parser.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    parser.set_defaults(run=run_repair)


def _add_reset(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = parts.add_parser(
        "reset",
        help="say what becomes of a log after the table was overwritten past Holdfast",
        description="The way out of LogLostError: lock all writers out and say anew how far the "
        "log is merged. Says what it would do until --confirm is given.",
        allow_abbrev=False,
    )
    add_table(parser)
    add_commit_store(parser)
    add_json(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--keep",
        dest="waiting",
        action="store_const",
        const="keep",
        help="the rows that wait go over what the table holds now",
    )
    which.add_argument(
        "--discard",
        dest="waiting",
        action="store_const",
        const="discard",
        help="the rows that wait are given up",
    )
    parser.add_argument("--confirm", action="store_true", help="do it; without, only say what")
    parser.set_defaults(run=run_reset)


def run_ls(arguments: argparse.Namespace) -> Exit:
    """List a log."""
    tailer = _tailer(arguments)
    entries = list(tailer.entries(arguments.after, fences=True))
    shown = {"shard": tailer.shard_id, "entries": [_entry(entry) for entry in entries]}
    text = "\n".join(_line(entry) for entry in entries) or "no entries"
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK


def run_show(arguments: argparse.Namespace) -> Exit:
    """Show an entry."""
    entry = _tailer(arguments).read(arguments.position)
    if entry is None:
        raise NotFoundError("there is no entry at this position", position=arguments.position)
    rows = [str(row) for batch in entry.batches for row in batch.to_pylist()]
    shown = {**_entry(entry), "values": rows}
    print_result(shown, "\n".join([_line(entry), *rows]), as_json=arguments.json)
    return Exit.OK


def run_tail(arguments: argparse.Namespace) -> Exit:
    """Follow a log."""
    timeout = None if arguments.timeout is None else timedelta(seconds=arguments.timeout)
    for entry in _tailer(arguments).follow(arguments.after, timeout=timeout, fences=True):
        print_result(_entry(entry), _line(entry), as_json=arguments.json)
    return Exit.OK


def run_repair(arguments: argparse.Namespace) -> Exit:
    """Plan or do a repair."""
    core = open_core(arguments, writes=arguments.confirm)
    shard_id = shard_id_of(arguments, core)
    done = repair_log(core, shard_id, confirm=arguments.confirm)
    print_result(asdict(done), _repair_text(done), as_json=arguments.json)
    return Exit.UNFIT if done.wounds and not done.confirmed else Exit.OK


def run_reset(arguments: argparse.Namespace) -> Exit:
    """Plan or do a reset."""
    from holdfast.table import open_table  # noqa: PLC0415 - loads Lance

    table = open_table(
        arguments.uri, storage_options(arguments.option), commit_store=arguments.commit_store
    )
    done = table.reset_log(arguments.waiting, confirm=arguments.confirm)
    fate = "kept" if done.waiting == "keep" else "given up"
    lines = [f"shard {shard_id}: {rows} rows" for shard_id, rows in done.shards.items()]
    last = f"{done.rows} rows are {fate}, in version {done.version}"
    planned = f"nothing was changed; with --confirm {done.rows} rows are {fate}"
    text = "\n".join([*lines, last if done.applied else planned])
    print_result(asdict(done), text, as_json=arguments.json)
    return Exit.OK


def _entry(entry: Entry) -> dict[str, object]:
    return {
        "position": entry.position,
        "epoch": entry.epoch,
        "generation": entry.generation,
        "fence": entry.fence,
        "rows": entry.rows,
        "size": entry.size,
        "writer": entry.writer,
        "sequence": entry.sequence,
        "tags": dict(entry.tags),
    }


def _line(entry: Entry) -> str:
    what = "fence" if entry.fence else f"{entry.rows} rows"
    tags = "".join(f"  {name}={value}" for name, value in sorted(entry.tags.items()))
    by = "" if entry.writer else "  by stock"
    return f"{entry.position:>8}  epoch {entry.epoch}  {what}  {entry.size} bytes{by}{tags}"


def _repair_text(done: Repair) -> str:
    if not done.wounds:
        return f"nothing to repair: positions {done.flushed + 1} to {done.last} are readable"
    lines = []
    for wound in done.wounds:
        kept = f", its bytes are kept in {wound.quarantine}" if wound.quarantine else ""
        rows = "" if wound.rows is None else f", {wound.rows} rows cannot be read"
        lines.append(f"position {wound.position}: {wound.damage.value}{rows}{kept}")
    closed = (
        "replaced by fences, poisoned ones by their other rows; what cannot be read is given up"
    )
    planned = (
        "nothing was changed; --confirm puts fences in their places, of poisoned ones all rows "
        "that can be read, and gives up the others"
    )
    return "\n".join([*lines, closed if done.confirmed else planned])
