"""`holdfast ingest URI FILES|-`: write rows from files into a table's shards, durably."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

import holdfast
from holdfast.cli._declare import Target
from holdfast.cli._output import SESSION, Exit, print_result, tell
from holdfast.cli._sources import Source, read_batches
from holdfast.cli._terminal import Bar
from holdfast.errors import (
    FencedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PoisonedError,
)
from holdfast.shard import Shard, ShardWriter, ShardWriterConfig, read_newest_base
from holdfast.storage import FullDiskError
from holdfast.txn import AppTxn, parse_txn

_FORMATS = {
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_BATCH_ROWS = 5_000
_STEP_ROWS = 50_000


def run(
    target: Target,
    files: tuple[str, ...],
    *,
    kind: str | None,
    shard: str | None,
    batch_rows: int | None,
    txn: str | None,
    null: tuple[str, ...],
    no_flush: bool,
) -> Exit:
    """Write every row of every file."""
    rows = _batch_rows(batch_rows, txn)
    kinds = {name: _format_of(name, kind) for name in files}
    opened = holdfast.open_table(target.uri, target.options, commit_store=target.commit_store)
    numbers = itertools.count()
    progress = IngestProgress(_total_bytes(files))
    try:  # around all: what is flushed at the end may fail or be interrupted, too
        with (
            closing(opened) as table,
            IngestWriters(table, shard, flush=not no_flush) as writers,
            progress,
        ):
            for name in files:
                source = Source(name, kinds[name], progress.read, nulls=null)
                for batch in read_batches(source, table.schema, rows):
                    writers.put(batch, _txn(txn, next(numbers)))
                    progress.add(int(batch.num_rows))
    except KeyboardInterrupt:
        _tell_interrupted(txn, progress.rows)
        raise
    except HoldfastError as error:
        raise _with_durable(error, progress.rows) from error
    shards = [
        {"shard": one.shard_id, "rows": one.stats().rows, "flushes": one.stats().flushes}
        for one in writers.opened.values()
    ]
    written = progress.rows - writers.repeated
    shown = {"uri": target.uri, "rows": written, "shards": shards}
    if txn is not None:
        shown |= {"txn": txn, "repeated": writers.repeated}
    where = f"{len(shards)} shard" + ("" if len(shards) == 1 else "s")
    text = f"wrote {written} rows into {where}"
    if writers.repeated:
        text += f"; {writers.repeated} were there under this txn"
    print_result(shown, text)
    return Exit.OK


def _tell_interrupted(txn: str | None, rows: int) -> None:
    again = f"run it again with --txn {txn}" if txn else "give --txn ID"
    tell(
        f"{rows} rows are durable, and those of the put under way may be; {again}, and no row is "
        "written twice"
    )


def _with_durable(error: HoldfastError, rows: int) -> HoldfastError:
    """Say how many rows are durable, and if a shard has another owner, what to do about it."""
    message = error.message
    if isinstance(error, FencedError):  # to try again would only take it back
        message = (
            "another process owns this shard now, and this one stopped: let one process write to "
            "a shard, or give each rows of its own"
        )
    elif isinstance(error, PoisonedError) and _is_full(error):
        message = (
            "the disk is full: make room, then run it again with --txn, since rows of the put "
            "under way may be durable"
        )
    return type(error)(message, **{**error.details, "durable_rows": rows})


def _is_full(error: BaseException | None) -> bool:
    """Tell whether a full disk began it."""
    while error is not None and not isinstance(error, FullDiskError):
        error = error.__cause__
    return error is not None


def _batch_rows(given: int | None, txn: str | None) -> int:
    """Return how many rows a put has; under a txn always as many, or its numbers would lie."""
    if given is not None and given < 1:
        raise InvalidInputError("--batch-rows is 1 or more", batch_rows=given)
    if given is not None and txn is not None:
        raise InvalidInputError(
            "--batch-rows cannot be given with --txn: each put is known by its number, so that "
            "all runs must divide the rows in the same way",
            batch_rows=given,
        )
    if txn is not None:
        parse_txn((txn, 0))
    return _BATCH_ROWS if given is None else given


def _txn(name: str | None, number: int) -> AppTxn | None:
    """Return the id of a put: a shard that gets rows of one has those of all before it."""
    return None if name is None else AppTxn(name, number, in_order=True)


class IngestWriters:
    """A writer for each shard that rows belong to, opened when its first row comes."""

    def __init__(self, table: holdfast.Table, shard: str | None, *, flush: bool) -> None:
        self._table = table
        self._shard = shard
        self._flush = flush
        self._router: holdfast.Router | None = None
        self.opened: dict[str, ShardWriter] = {}
        self.repeated = 0  # rows that were there before
        details = read_newest_base(table.versions).details
        is_divided = details is not None and bool(details.sharding_specs)
        if shard is None and is_divided:
            self._router = table.router()
        elif shard is None:
            self._shard = "unsharded"
        elif shard.startswith("bucket-") and not is_divided:
            raise InvalidInputError(
                "this table does not divide its rows into buckets: leave out --shard", shard=shard
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for writer in self.opened.values():
                writer.close(flush=self._flush)
        else:
            for writer in self.opened.values():
                writer.abort()

    def put(self, batch: pa.RecordBatch, txn: AppTxn | None) -> None:
        """Write rows where they belong."""
        whole: list[tuple[str | Shard, Any]] = [(str(self._shard), batch)]
        for shard, rows in whole if self._router is None else self._router.split(batch):
            done = self._writer(shard).put(rows, txn=txn)
            if not done.applied:
                self.repeated += done.rows

    def _writer(self, shard: str | Shard) -> ShardWriter:
        key = shard if isinstance(shard, str) else shard.shard_id
        if key not in self.opened:
            self.opened[key] = self._table.claim_writer(shard, config=ShardWriterConfig())
        return self.opened[key]


class IngestProgress(Bar):
    """A bar on stderr at a terminal; elsewhere a line now and then."""

    def __init__(self, total: int | None) -> None:
        super().__init__(quiet=SESSION.quiet)
        self._total = total
        self._read = 0
        self._said = 0
        self.rows = 0

    def read(self, size: int) -> None:
        """Count bytes that were read of a file."""
        self._read += size
        self._draw()

    def add(self, rows: int) -> None:
        """Count rows that are durable."""
        self.rows += rows
        self._draw()
        if self.rows >= self._said + _STEP_ROWS and not (self.is_shown or SESSION.quiet):
            self._said = self.rows
            print(f"wrote {self.rows} rows", file=sys.stderr)

    def _draw(self) -> None:
        self.show(f"{self.rows} rows", self._read, self._total)


def _format_of(name: str, given: str | None) -> str:
    if name != "-" and not Path(name).is_file():
        raise NotFoundError("there is no such file", file=name)
    if given is not None:
        return given
    format_name = _FORMATS.get(Path(name).suffix.lower())
    if format_name is None:
        raise InvalidInputError(
            "say with --format what this is: arrow, parquet, csv or jsonl", file=name
        )
    return format_name


def _total_bytes(names: Sequence[str]) -> int | None:
    return None if "-" in names else sum(Path(name).stat().st_size for name in names)
