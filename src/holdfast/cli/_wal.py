"""`holdfast wal ls|show|tail|repair|reset URI`: look into logs; `repair` and `reset` write."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import Literal

from holdfast.arbiter import open_arbiter
from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_result
from holdfast.cli._terminal import table_text
from holdfast.core import TableCore
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import Entry, check_shard_id, shard_id_of_bucket, shard_id_unsharded
from holdfast.storage import open_store
from holdfast.wal import Repair, WalTailer, repair_log


def open_core(target: Target, *, writes: bool = False) -> TableCore:
    """Return a table's stores; with an arbiter that only reads by default."""
    arbiter = open_arbiter(target.uri, target.options, commit_store=target.commit_store)
    core = TableCore(open_store(target.uri, target.options), arbiter, target.uri, target.options)
    return core if writes else core.for_reading()


def shard_id_of(word: str, core: TableCore) -> str:
    """Return the id of the shard that is meant: by its id, `unsharded` or `bucket-3`.

    Raises:
        InvalidInputError: it is none of these.
        NotFoundError: there is no such shard.
    """
    if word == "unsharded":
        shard_id = shard_id_unsharded()
    elif match := re.fullmatch("bucket-([0-9]{1,4})", word):
        shard_id = shard_id_of_bucket(int(match[1]))
    else:
        try:
            shard_id = check_shard_id(word)
        except InvalidInputError as error:
            raise InvalidInputError(
                "a shard is `unsharded`, `bucket-N` or an id that `holdfast shard ls` lists",
                shard=word,
            ) from error
    if shard_id not in core.shard_ids():
        raise NotFoundError(
            "there is no such shard; `holdfast shard ls` lists them", shard=word, shard_id=shard_id
        )
    return shard_id


def _tailer(target: Target, shard: str) -> WalTailer:
    core = open_core(target)
    return WalTailer(core, shard_id_of(shard, core))


def run_ls(target: Target, shard: str, after: int | None) -> Exit:
    """List a log."""
    tailer = _tailer(target, shard)
    entries = list(tailer.entries(after, fences=True))
    shown = {"shard": tailer.shard_id, "entries": [_entry(entry) for entry in entries]}
    head = ("position", "epoch", "rows", "bytes", "by", "tags")
    rows = [
        (
            one.position,
            one.epoch,
            "fence" if one.fence else one.rows,
            one.size,
            one.writer or "stock",
            " ".join(f"{name}={value}" for name, value in sorted(one.tags.items())),
        )
        for one in entries
    ]
    text = table_text(head, rows) if rows else "no entries"
    print_result(shown, text)
    return Exit.OK


def run_show(target: Target, shard: str, position: int) -> Exit:
    """Show an entry."""
    entry = _tailer(target, shard).read(position)
    if entry is None:
        raise NotFoundError("there is no entry at this position", position=position)
    rows = [str(row) for batch in entry.batches for row in batch.to_pylist()]
    shown = {**_entry(entry), "values": rows}
    print_result(shown, "\n".join([_line(entry), *rows]))
    return Exit.OK


def run_tail(target: Target, shard: str, after: int | None, timeout: float | None) -> Exit:
    """Follow a log."""
    limit = None if timeout is None else timedelta(seconds=timeout)
    for entry in _tailer(target, shard).follow(after, timeout=limit, fences=True):
        print_result(_entry(entry), _line(entry))
    return Exit.OK


def run_repair(target: Target, shard: str, *, confirm: bool) -> Exit:
    """Plan or do a repair."""
    core = open_core(target, writes=confirm)
    shard_id = shard_id_of(shard, core)
    done = repair_log(core, shard_id, confirm=confirm)
    print_result(asdict(done), _repair_text(done))
    return Exit.UNFIT if done.wounds and not done.confirmed else Exit.OK


def run_reset(target: Target, waiting: Literal["keep", "discard"], *, confirm: bool) -> Exit:
    """Plan or do a reset."""
    from holdfast.table import open_table  # noqa: PLC0415 - loads Lance

    table = open_table(target.uri, target.options, commit_store=target.commit_store)
    done = table.reset_log(waiting, confirm=confirm)
    fate = "kept" if done.waiting == "keep" else "given up"
    lines = [f"shard {shard_id}: {rows} rows" for shard_id, rows in done.shards.items()]
    last = f"{done.rows} rows are {fate}, in version {done.version}"
    planned = f"nothing was changed; with --confirm {done.rows} rows are {fate}"
    text = "\n".join([*lines, last if done.applied else planned])
    print_result(asdict(done), text)
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
