"""`holdfast ingest URI FILES|-`: write rows from files into a table's shards, durably."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import pyarrow as pa
from pyarrow import csv, ipc, json, parquet

import holdfast
from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, is_quiet, print_result
from holdfast.cli._sources import Counted
from holdfast.cli._table import add_commit_store
from holdfast.errors import FencedError, InvalidInputError, NotFoundError
from holdfast.formats import check_values
from holdfast.shard import Shard, ShardWriter, ShardWriterConfig, read_newest_base
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
_BAR_WIDTH = 30
_BROKEN = (pa.ArrowException, OSError, ValueError)


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "write rows from files into a table's shards"
    parser = verbs.add_parser("ingest", help=text, description=text, allow_abbrev=False)
    add_table(parser)
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="Arrow, Parquet, CSV or JSON lines; - is stdin"
    )
    parser.add_argument(
        "--format",
        choices=sorted(set(_FORMATS.values())),
        help="what the files are; told by their names unless given, and needed for -",
    )
    parser.add_argument(
        "--shard",
        metavar="SHARD",
        help="unsharded, bucket-N or a shard id; as the table divides its rows by default",
    )
    parser.add_argument(
        "--batch-rows",
        metavar="N",
        type=int,
        help=f"rows in one put, {_BATCH_ROWS} by default",
    )
    parser.add_argument(
        "--txn",
        metavar="ID",
        help="a name for these very rows: run again under it, what is in the log is not written "
        "a second time",
    )
    parser.add_argument(
        "--null",
        metavar="WORD",
        action="append",
        default=[],
        help="in CSV, a word without quotes that is null, such as NA; repeat for more. An empty "
        "field without quotes is null always",
    )
    parser.add_argument(
        "--no-flush", action="store_true", help="leave the rows in the log; flush nothing"
    )
    add_commit_store(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Write every row of every file."""
    rows = _batch_rows(arguments)
    sources = [(name, _format_of(name, arguments.format)) for name in arguments.files]
    options = storage_options(arguments.option)
    opened = holdfast.open_table(arguments.uri, options, commit_store=arguments.commit_store)
    progress = Progress(_total_bytes(arguments.files))
    numbers = itertools.count()
    with closing(opened) as table, _writers(table, arguments) as writers:
        try:
            for name, kind in sources:
                source = Source(name, kind, progress.read, nulls=tuple(arguments.null))
                for batch in _batches(source, table.schema, rows):
                    writers.put(batch, _txn(arguments.txn, next(numbers)))
                    progress.add(int(batch.num_rows))
        except KeyboardInterrupt:
            progress.end()
            _tell_interrupted(arguments, progress.rows)
            raise
        except FencedError as error:
            progress.end()
            raise _owned_by_another(error, progress.rows) from error
    progress.end()
    shards = [
        {"shard": one.shard_id, "rows": one.stats().rows, "flushes": one.stats().flushes}
        for one in writers.opened.values()
    ]
    written = progress.rows - writers.repeated
    shown = {"uri": arguments.uri, "rows": written, "shards": shards}
    if arguments.txn is not None:
        shown |= {"txn": arguments.txn, "repeated": writers.repeated}
    where = f"{len(shards)} shard" + ("" if len(shards) == 1 else "s")
    text = f"wrote {written} rows into {where}"
    if writers.repeated:
        text += f"; {writers.repeated} were there under this txn"
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK


def _tell_interrupted(arguments: argparse.Namespace, rows: int) -> None:
    again = f"run it again with --txn {arguments.txn}" if arguments.txn else "a txn makes it safe"
    print(
        f"holdfast: {rows} rows are durable; the rows of the put under way may be: {again} to "
        "begin anew",
        file=sys.stderr,
    )


def _owned_by_another(error: FencedError, rows: int) -> FencedError:
    """Say whose the shard is now: to try again would only take it back."""
    return FencedError(
        "another process owns this shard now, and this one stopped: let one process write to a "
        "shard, or give each rows of its own",
        **{**error.details, "durable_rows": rows},
    )


def _batch_rows(arguments: argparse.Namespace) -> int:
    """Return how many rows a put has; under a txn always as many, or its numbers would lie."""
    given: int | None = arguments.batch_rows
    if given is not None and given < 1:
        raise InvalidInputError("--batch-rows is 1 or more", batch_rows=given)
    if given is not None and arguments.txn is not None:
        raise InvalidInputError(
            "--batch-rows cannot be given with --txn: each put is known by its number, so that "
            "all runs must divide the rows in the same way",
            batch_rows=given,
        )
    if arguments.txn is not None:
        parse_txn((arguments.txn, 0))
    return _BATCH_ROWS if given is None else given


def _txn(name: str | None, number: int) -> AppTxn | None:
    """Return the id of a put: a shard that gets rows of one has those of all before it."""
    return None if name is None else AppTxn(name, number, in_order=True)


def _writers(table: holdfast.Table, arguments: argparse.Namespace) -> Writers:
    return Writers(table, arguments.shard, flush=not arguments.no_flush)


class Writers:
    """A writer for each shard that rows belong to, opened when its first row comes."""

    def __init__(self, table: holdfast.Table, shard: str | None, *, flush: bool) -> None:
        self._table = table
        self._shard = shard
        self._flush = flush
        self._router: holdfast.Router | None = None
        self.opened: dict[str, ShardWriter] = {}
        self.repeated = 0  # rows that were there before
        details = read_newest_base(table.versions).details
        if shard is None and details is not None and details.sharding_specs:
            self._router = table.router()
        elif shard is None:
            self._shard = "unsharded"

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


class Progress:
    """A bar on stderr at a terminal; elsewhere a line now and then."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._read = 0
        self._said = 0
        self._bar = sys.stderr.isatty() and not is_quiet()
        self.rows = 0

    def read(self, size: int) -> None:
        """Count bytes that were read of a file."""
        self._read += size
        if self._bar:
            self._draw()

    def add(self, rows: int) -> None:
        """Count rows that are durable."""
        self.rows += rows
        if self._bar:
            self._draw()
        elif self.rows >= self._said + _STEP_ROWS and not is_quiet():
            self._said = self.rows
            print(f"wrote {self.rows} rows", file=sys.stderr)

    def end(self) -> None:
        """Leave the line."""
        if self._bar:
            print(file=sys.stderr)

    def _draw(self) -> None:
        bar = ""
        if self._total:
            full = round(_BAR_WIDTH * self._read / self._total)
            bar = f"[{'#' * full}{'.' * (_BAR_WIDTH - full)}] "
        print(f"\r{bar}{self.rows} rows", end="", file=sys.stderr, flush=True)


def _format_of(name: str, given: str | None) -> str:
    if name != "-" and not Path(name).is_file():
        raise NotFoundError("there is no such file", file=name)
    if given is not None:
        return given
    found = _FORMATS.get(Path(name).suffix.lower())
    if found is None:
        raise InvalidInputError(
            "say with --format what this is: arrow, parquet, csv or jsonl", file=name
        )
    return found


def _total_bytes(names: list[str]) -> int | None:
    return None if "-" in names else sum(Path(name).stat().st_size for name in names)


@dataclass(frozen=True, slots=True)
class Source:
    """A file, what it is, and who hears how far it is read."""

    name: str
    kind: str
    tell: Callable[[int], None]
    nulls: tuple[str, ...] = ()


def _batches(source: Source, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in the table's columns, so many at a time."""
    name, kind = source.name, source.kind
    with ExitStack() as stack:
        file: Any = sys.stdin.buffer if name == "-" else stack.enter_context(open(name, "rb"))  # noqa: PTH123
        try:
            tables = (_fitted(one, schema, name) for one in _read(file, source, schema, batch_rows))
            yield from _divided(tables, batch_rows)
        except InvalidInputError as error:
            if "file" in error.details:
                raise
            raise InvalidInputError(error.message, file=name, **error.details) from error
        except _BROKEN as error:
            raise InvalidInputError(
                f"the file cannot be read as {kind}: {error}"[:300], file=name
            ) from error


def _divided(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of so many rows each, and the rest, however the reader divided them."""
    waiting: pa.Table | None = None
    for table in tables:
        waiting = table if waiting is None else pa.concat_tables([waiting, table])
        while waiting.num_rows >= rows:
            yield _one_batch(waiting.slice(0, rows))
            waiting = waiting.slice(rows)
    if waiting is not None and waiting.num_rows:
        yield _one_batch(waiting)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    (batch,) = table.combine_chunks().to_batches()
    return batch


def _read(
    file: IO[bytes], source: Source, schema: pa.Schema, batch_rows: int
) -> Iterator[pa.Table]:
    if source.kind == "arrow":
        yield from _read_arrow(file)
    elif source.kind == "parquet":
        whole: Any = file if file.seekable() else pa.BufferReader(file.read())
        for batch in parquet.ParquetFile(whole).iter_batches(batch_size=batch_rows):
            yield pa.Table.from_batches([batch])
    elif source.kind == "csv":
        counted: Any = Counted(file, source.tell, quoted=True)
        for batch in csv.open_csv(
            counted,
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types={one.name: one.type for one in schema},
                strings_can_be_null=True,
                # What is null is said, never guessed: NA and NULL are words like others.
                null_values=["", *source.nulls],
                quoted_strings_can_be_null=False,
            ),
        ):
            yield pa.Table.from_batches([batch])
    else:
        lines: Any = Counted(file, source.tell)
        parsing = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        for batch in json.open_json(lines, parse_options=parsing):
            yield pa.Table.from_batches([batch])


def _read_arrow(source: IO[bytes]) -> Iterator[pa.Table]:
    start = source.read(6)
    body: Any = source
    if source.seekable():
        source.seek(0)
    else:
        body = pa.BufferReader(start + source.read())
    if start == b"ARROW1":
        reader = ipc.open_file(body)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])
        return
    for batch in ipc.open_stream(body):
        yield pa.Table.from_batches([batch])


def _fitted(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Return the rows with the table's types; what cannot be cast is refused."""
    unknown = [column for column in table.column_names if column not in schema.names]
    if unknown:
        raise InvalidInputError(
            "the file has columns that the table has not", file=name, columns=", ".join(unknown)
        )
    for batch in table.to_batches():
        check_values(batch)  # a cast takes them on trust
    wanted = pa.schema([schema.field(column) for column in table.column_names])
    return table.cast(wanted)
