"""Where `ingest` reads rows from: files that tell how far they are read, and whole CSV only."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
from pyarrow import csv, ipc, json, parquet

from holdfast.errors import InvalidInputError
from holdfast.formats import check_values

_QUOTE = b'"'
_BLOCK = 1 << 20  # what a reader of text takes in one step
_BROKEN = (pa.ArrowException, OSError, ValueError)


class Stoppable(io.RawIOBase):
    """A file that Arrow's threads read until they are told to stop.

    One that still read while Python ends would crash the process.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._reading = threading.Lock()
        self._is_stopped = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read some bytes; none after `stop`."""
        with self._reading:
            if self._is_stopped:
                return 0
            view = memoryview(buffer)  # type: ignore[arg-type]
            data = self._source.read(len(view))
            view[: len(data)] = data
            self.look_at(data)
            return len(data)

    def look_at(self, data: bytes) -> None:
        """See what was read; nothing at the end of the file."""

    def stop(self) -> bool:
        """End the file here; tell whether nobody reads any more, who may wait for a pipe."""
        self._is_stopped = True
        is_idle = self._reading.acquire(timeout=1)
        if is_idle:
            self._reading.release()
        return is_idle


class WholeQuotes(Stoppable):
    """A CSV file whose quotes are counted.

    A field whose quote is never closed would swallow every row behind it, and the parser takes
    that for a long text. Two quotes in a row, as CSV writes one inside a text, leave the count
    as it is.
    """

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__(source)
        self._lines = 1
        self._open_since: int | None = None  # the line of a quote that is not closed yet

    def look_at(self, data: bytes) -> None:
        """Count quotes.

        Raises:
            InvalidInputError: the file ends inside a quoted field.
        """
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
    """A file, what it is, and who hears how much of it was taken."""

    name: str
    kind: str
    tell: Callable[[int], None]
    nulls: tuple[str, ...] = ()


def read_batches(source: Source, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in the table's columns, so many at a time.

    How much was taken is told when the rows of that part were taken, not when a reader that
    reads ahead has read it.

    Raises:
        InvalidInputError: it is not what it should be; rows before that were yielded.
    """
    name = source.name
    with ExitStack() as stack:
        file: Any = sys.stdin.buffer if name == "-" else stack.enter_context(open(name, "rb"))  # noqa: PTH123
        size = os.fstat(file.fileno()).st_size if name != "-" else 0
        try:
            tables = _fitted_parts(_read(file, source, schema, batch_rows), source, schema, size)
            yield from _divide_batches(tables, batch_rows)
        except InvalidInputError as error:
            if "file" in error.details:
                raise
            raise InvalidInputError(error.message, file=name, **error.details) from error
        except _BROKEN as error:
            raise InvalidInputError(
                f"the file cannot be read as {source.kind}: {error}"[:300], file=name
            ) from error


def _fitted_parts(
    parts: Iterator[tuple[pa.RecordBatch, float]], source: Source, schema: pa.Schema, size: int
) -> Iterator[pa.Table]:
    """Yield parts with the table's types, and tell how far the file is after each."""
    told = 0
    for batch, position in parts:
        yield _fit_table(pa.Table.from_batches([batch]), schema, source.name)
        now = max(told, min(size, int(position)))
        source.tell(now - told)
        told = now
    source.tell(size - told)


def _divide_batches(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.RecordBatch]:
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
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Yield parts of a file, each with the position behind it, as far as that is known."""
    if source.kind == "arrow":
        return _read_arrow(file)
    if source.kind == "parquet":
        return _read_parquet(file, batch_rows)
    if source.kind == "csv":
        text: Stoppable = WholeQuotes(file)
        reader = csv.open_csv(
            text,
            read_options=csv.ReadOptions(block_size=_BLOCK),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types={one.name: one.type for one in schema},
                strings_can_be_null=True,
                # What is null is said, never guessed: NA and NULL are words like others.
                null_values=["", *source.nulls],
                quoted_strings_can_be_null=False,
            ),
        )
    else:
        text = Stoppable(file)
        reader = json.open_json(
            text,
            read_options=json.ReadOptions(block_size=_BLOCK),
            parse_options=json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="error"
            ),
        )
    return _read_text(reader, text)


def _read_text(reader: Any, text: Stoppable) -> Iterator[tuple[pa.RecordBatch, float]]:  # noqa: ANN401 - pyarrow's
    try:
        for number, batch in enumerate(reader, 1):
            yield batch, number * _BLOCK
    finally:
        if text.stop():
            with suppress(*_BROKEN):
                for _ in reader:  # what was read ahead
                    pass


def _read_parquet(file: IO[bytes], batch_rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Yield parts; a position is the share of their rows in all rows."""
    whole: Any = file if file.seekable() else pa.BufferReader(file.read())
    opened = parquet.ParquetFile(whole)
    size = whole.seek(0, io.SEEK_END)
    rows = 0
    for batch in opened.iter_batches(batch_size=batch_rows):
        rows += batch.num_rows
        yield batch, size * rows / opened.metadata.num_rows


def _read_arrow(file: IO[bytes]) -> Iterator[tuple[pa.RecordBatch, float]]:
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
    return ((batch, body.tell()) for batch in batches)


def _fit_table(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
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
