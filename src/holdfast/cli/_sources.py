"""Where `ingest` reads rows from: files that tell how far they are read, and whole CSV only."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
from pyarrow import csv, ipc, json, parquet

from holdfast.errors import InvalidInputError
from holdfast.formats import check_values

_QUOTE = b'"'
_BROKEN = (pa.ArrowException, OSError, ValueError)


class Counted(io.RawIOBase):
    """A file that tells how many bytes were read of it.

    With `quoted`, its quotes are counted, too: a field whose quote is never closed would swallow
    every row behind it, and the parser takes that for a long text. Two quotes in a row, as CSV
    writes one inside a text, leave the count as it is.
    """

    def __init__(
        self, source: IO[bytes], tell: Callable[[int], None], *, quoted: bool = False
    ) -> None:
        self._source = source
        self._tell = tell
        self._quoted = quoted
        self._lines = 1
        self._open_since: int | None = None  # the line of a quote that is not closed yet

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read some bytes.

        Raises:
            InvalidInputError: the file ends inside a quoted field.
        """
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._source.read(len(view))
        view[: len(data)] = data
        self._tell(len(data))
        if self._quoted:
            self._count_quotes(data)
        return len(data)

    def _count_quotes(self, data: bytes) -> None:
        if not data and self._open_since is not None:
            raise InvalidInputError(
                "a quote is never closed, so nobody knows where its row ends: close it, or write "
                "it twice if it is part of a text",
                line=self._open_since,
            )
        lines = data.split(b"\n")
        for number, line in enumerate(lines):
            if line.count(_QUOTE) % 2:
                is_open = self._open_since is not None
                self._open_since = None if is_open else self._lines + number
        self._lines += len(lines) - 1


@dataclass(frozen=True, slots=True)
class Source:
    """A file, what it is, and who hears how far it is read."""

    name: str
    kind: str
    tell: Callable[[int], None]
    nulls: tuple[str, ...] = ()


def read_batches(source: Source, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
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
        yield from _read_arrow(file, source.tell)
    elif source.kind == "parquet":
        yield from _read_parquet(file, source.tell, batch_rows)
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


def _read_parquet(
    file: IO[bytes], tell: Callable[[int], None], batch_rows: int
) -> Iterator[pa.Table]:
    """Yield rows; how far the file is read is their share of all its rows."""
    whole: Any = file if file.seekable() else pa.BufferReader(file.read())
    opened = parquet.ParquetFile(whole)
    size = whole.seek(0, io.SEEK_END)
    told = rows = 0
    for batch in opened.iter_batches(batch_size=batch_rows):
        rows += batch.num_rows
        now = size * rows // opened.metadata.num_rows
        tell(now - told)
        told = now
        yield pa.Table.from_batches([batch])


def _read_arrow(file: IO[bytes], tell: Callable[[int], None]) -> Iterator[pa.Table]:
    start = file.read(6)
    body: Any = file
    if file.seekable():
        file.seek(0)
    else:
        body = pa.BufferReader(start + file.read())
    if start == b"ARROW1":
        reader = ipc.open_file(body)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        batches = iter(ipc.open_stream(body))
    told = 0
    for batch in batches:
        now = int(body.tell())
        tell(max(0, now - told))
        told = max(told, now)
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
