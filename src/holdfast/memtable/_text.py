"""Text search in a MemTable: Lance's own full-text index, over an in-memory dataset.

The dataset grows with the MemTable. Rows that came after the index was built are searched
without it, until there are many; then they are indexed too. Without it Lance finds plain
words only, so for any other query they are indexed first.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.commits import translate_errors
from holdfast.memtable._filter import NUMBER, number_rows, open_in_memory

_INDEX = "text"


class TextIndex:
    """The words of one column of one MemTable.

    Args:
        column: the column.
        settings: how text is split into words, as Lance's inverted index takes it.
        storage_version: of Lance's files.
        buffer_rows: how many rows may wait for the index.
    """

    def __init__(
        self,
        column: str,
        settings: Mapping[str, object],
        storage_version: str,
        buffer_rows: int,
    ) -> None:
        self._column = column
        self._settings: dict[str, Any] = dict(settings)
        self._storage_version = storage_version
        self._buffer_rows = buffer_rows
        self._lock = threading.Lock()  # one reader at a time brings the index up to date
        self._dataset: lance.LanceDataset | None = None
        self._rows = 0
        self._indexed = 0

    def search(
        self, rows: pa.Table, query: object
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return which of the rows match, and their scores.

        Args:
            rows: all rows of the MemTable.
            query: words, or one of Lance's query objects.
        """
        with self._lock, translate_errors("search"):
            dataset = self._up_to_date(rows, every=not isinstance(query, str))
        if dataset is None:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        asked: Any = (
            {"columns": [self._column], "query": query} if isinstance(query, str) else query
        )
        with translate_errors("search"):
            answer = dataset.to_table(
                columns=[NUMBER, "_score"],
                full_text_query=asked,
                limit=max(1, dataset.count_rows()),
            )
        numbers, scores = answer[NUMBER].to_numpy(), answer["_score"].to_numpy()
        there = numbers < rows.num_rows
        return numbers[there], scores[there]

    def _up_to_date(self, rows: pa.Table, *, every: bool) -> lance.LanceDataset | None:
        """Return the dataset with all rows, and an index over most of them, or over every one."""
        if rows.num_rows > self._rows:
            new = rows.select([self._column]).slice(self._rows)
            if self._dataset is None:
                self._dataset = open_in_memory(new, self._storage_version)
            else:
                self._dataset = lance.write_dataset(
                    number_rows(new, self._rows), self._dataset, mode="append"
                )
            self._rows = rows.num_rows
        may_wait = 0 if every or not self._indexed else self._buffer_rows
        if self._dataset is not None and self._rows - self._indexed > may_wait:
            self._dataset.create_scalar_index(
                self._column, "INVERTED", name=_INDEX, replace=True, **self._settings
            )
            self._indexed = self._rows
        return self._dataset
