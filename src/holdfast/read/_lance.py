"""Reading Lance datasets: files that vanish become `NotFoundError`, batches have a bounded size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import lance
import pyarrow as pa

from holdfast.commits import is_foreign, meaning_of
from holdfast.errors import NotFoundError

Dataset: TypeAlias = Any  # lance.LanceDataset, whose types are too narrow for what it takes

_GONE = re.compile(r"not found|no such file", re.IGNORECASE)
_OUR_FAULT = re.compile(r"invalid user input|schema error|no field named", re.IGNORECASE)
_BATCH_BYTES = 8 << 20
_FEWEST_ROWS, _MOST_ROWS = 256, 65_536
_TEXT_BYTES = 64  # what a text or list of unknown length is taken for
MAX_ROWS_PER_FILE = (1 << 31) - 1  # more would wrap around: Lance counts in 32 bits


@contextmanager
def translate_read_errors(location: str) -> Iterator[None]:
    """Raise what an error of Lance means; a file that is gone is a `NotFoundError`."""
    try:
        yield
    except BaseException as error:
        if not is_foreign(error):
            raise
        text = str(error)
        if _GONE.search(text) and not _OUR_FAULT.search(text):
            raise NotFoundError(
                "a file of the table is gone", table=location, reason=" ".join(text.split())[:300]
            ) from error
        raise meaning_of(error, location) from error


def open_dataset(
    address: str, options: Mapping[str, str] | None, version: int | None = None
) -> Dataset:
    """Open a dataset for reading only."""
    given = None if options is None else dict(options)
    return lance.dataset(address, version=version, storage_options=given)


def in_memory(rows: pa.Table) -> Dataset:
    """Return rows as a Lance dataset that only this process sees, and that goes with its handle.

    So filters, text and vectors mean the same for rows in memory and rows on storage.
    """
    return lance.write_dataset(
        rows, "memory://", max_rows_per_file=MAX_ROWS_PER_FILE, max_bytes_per_file=1 << 62
    )


def batch_rows(schema: pa.Schema) -> int:
    """Return how many rows of these columns take some megabytes."""
    width = sum(_width(field.type) for field in schema) or 8
    return max(_FEWEST_ROWS, min(_MOST_ROWS, _BATCH_BYTES // width))


def _width(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_width(field.type) for field in kind)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _TEXT_BYTES
