"""Filters in the SQL that Lance itself speaks: Lance answers them, over an in-memory dataset.

The columns that a filter names go into a dataset at `memory://`, with the number of each row,
at the first filter that names them; Lance filters it. So nulls, LIKE, casts and functions mean
what they mean on the table.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.commits import translate_errors
from holdfast.errors import InvalidInputError
from holdfast.formats import whole_sql

PLACE = "memory://"
NUMBER = "_holdfast_number"
"""The column with the number of a row."""

_PLAIN = re.compile(r"\w+")


class Filtered:
    """Filters over one MemTable, by the columns they name; rows are added as they come.

    Args:
        storage_version: of Lance's files.
    """

    def __init__(self, storage_version: str) -> None:
        self._storage_version = storage_version
        self._lock = threading.Lock()  # one reader at a time brings a dataset up to date
        self._datasets: dict[tuple[str, ...], tuple[lance.LanceDataset, int]] = {}

    def find_matching(self, rows: pa.Table, condition: str) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows for which an SQL condition is true, ascending.

        Args:
            rows: all rows of the MemTable, replaced ones included.
            condition: SQL.

        Raises:
            InvalidInputError: the condition is none, or names columns that are not there.
        """
        asked = whole_sql(condition)
        names = _columns_in(rows.schema, condition)
        with self._lock, translate_errors("filter"):
            dataset = self._up_to_date(rows, tuple(names))
        numbers = _ask(dataset, asked)
        there: npt.NDArray[np.int64] = numbers[numbers < rows.num_rows]
        return there

    def _up_to_date(self, rows: pa.Table, names: tuple[str, ...]) -> lance.LanceDataset:
        dataset, known = self._datasets.get(names, (None, 0))
        if dataset is None:
            dataset = open_in_memory(rows.select(names), self._storage_version)
        elif rows.num_rows > known:
            new = rows.select(names).slice(known)
            dataset = lance.write_dataset(number_rows(new, known), dataset, mode="append")
        else:
            return dataset
        self._datasets[names] = dataset, rows.num_rows
        return dataset


def find_matching(rows: pa.Table, condition: str, storage_version: str) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows for which an SQL condition is true, in ascending order.

    Raises:
        InvalidInputError: the condition is none, or names columns that are not there.
    """
    asked = whole_sql(condition)
    return _ask(
        open_in_memory(rows.select(_columns_in(rows.schema, condition)), storage_version), asked
    )


def _ask(dataset: lance.LanceDataset, condition: str) -> npt.NDArray[np.int64]:
    try:
        with translate_errors("filter"):
            answer = dataset.to_table(columns=[NUMBER], filter=condition)
    except InvalidInputError:
        raise
    except Exception as error:
        raise InvalidInputError(
            "Lance does not understand this filter", filter=condition[:200], reason=str(error)[:300]
        ) from error
    numbers: npt.NDArray[np.int64] = np.sort(answer[NUMBER].to_numpy())
    return numbers


def open_in_memory(rows: pa.Table, storage_version: str, first: int = 0) -> lance.LanceDataset:
    """Return a dataset of these rows and their numbers."""
    version: Any = storage_version  # pylance lists the versions of today
    return lance.write_dataset(number_rows(rows, first), PLACE, data_storage_version=version)


def number_rows(rows: pa.Table, first: int = 0) -> pa.Table:
    """Return the rows with a column of their numbers."""
    numbers = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
    fields = [one.remove_metadata() for one in rows.schema]
    schema = pa.schema([*fields, pa.field(NUMBER, pa.int64())])
    return pa.Table.from_arrays([*rows.columns, numbers], schema=schema)


def _columns_in(schema: pa.Schema, condition: str) -> list[str]:
    """Return the columns that a filter may mean: too many do no harm, one too few would."""
    text = condition.lower()
    return [name for name in schema.names if not _PLAIN.fullmatch(name) or name.lower() in text]
