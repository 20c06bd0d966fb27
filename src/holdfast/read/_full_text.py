"""Full text by the rules of the base table's index, wherever a row is.

Lance searches rows that no index covers by comparing their words. That finds the same rows
for plain words only: letters that may differ are not tried, and phrases of n-grams are read
otherwise. So rows that the index does not cover (appended or merged since) are given one in
memory, with its settings, and so are SSTables that have none, or one with other settings: it
was made before `create_index(replace=True)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.read._lance import Dataset, in_memory
from holdfast.read._levels import ADDRESS, Level
from holdfast.shard import KeptIndex, kept_index

SCORE = "_score"
INVERTED = "INVERTED"

_NUMBER = "_holdfast_number"
_CHUNK_BYTES = 64 << 20  # of rows that are indexed in memory at a time
_FRAGMENT = 32  # an address is a fragment and, in the lower bits, a row


@dataclass(frozen=True, slots=True, kw_only=True)
class FullText:
    """One question to the full-text indexes of a base table.

    Attributes:
        query: one of `lance.query`'s objects.
        plain: Lance answers it alike with an index and without.
        indexes: those of the base that it may need.
        filter: an SQL expression that rows must pass.
    """

    query: object
    plain: bool
    indexes: Sequence[KeptIndex]
    filter: str | None

    def of_base(self, base: Dataset, names: Sequence[str], count: int | None) -> pa.Table:
        """Return the best rows of the base, best first, with their scores."""
        uncovered = set() if self.plain else _uncovered_fragments(base, self.indexes)
        if not uncovered:
            return self.of(base, names, count)
        # With one index nothing is found twice; with several, a row may be in some of them.
        asked = count if len(self.indexes) == 1 else None
        matches = self.of(base, names, asked, fast_search=True)
        covered = ~np.isin(matches[ADDRESS].to_numpy() >> _FRAGMENT, list(uncovered))
        parts = [matches.filter(pa.array(covered)).select([*names, SCORE])]
        chunks = self._chunks(base, uncovered, names)
        parts += [self._of_rows(rows, names, count) for rows in chunks]
        rows = pa.concat_tables(parts)
        best = pc.sort_indices(rows, sort_keys=[(SCORE, "descending")])
        return rows.take(best if count is None else best[:count])

    def of(
        self, dataset: Dataset, names: Sequence[str], count: int | None, **options: object
    ) -> pa.Table:
        """Return the best rows of a dataset as Lance finds them, with scores and addresses."""
        return dataset.scanner(
            columns=[*names, SCORE],
            full_text_query=self.query,
            limit=count if count is not None else max(1, dataset.count_rows()),
            filter=self.filter,
            prefilter=True,
            with_row_address=True,
            **options,
        ).to_table()

    def has_index(self, level: Level) -> bool:
        """Tell whether a level has these indexes, with the same settings."""
        return all(index in text_indexes(level.dataset) for index in self.indexes)

    def copy_of(self, level: Level) -> Dataset:
        """Return a copy of a level's rows in memory that has these indexes."""
        key = repr(sorted(map(repr, self.indexes)))
        copy = level.copies.get(key)
        if copy is None:
            rows = pa.Table.from_batches(level.batches(level.dataset.schema.names))
            copy = level.copies[key] = self._index_copy(rows)
        return copy

    def _index_copy(self, rows: pa.Table) -> Dataset:
        copy = in_memory(rows)
        for index in self.indexes:
            settings: dict[str, Any] = dict(index.settings)  # Any: what Lance's index takes
            copy.create_scalar_index(index.column, INVERTED, name=index.name, **settings)
        return copy

    def _chunks(
        self, base: Dataset, fragments: set[int], names: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Yield the rows of fragments that pass the filter, some megabytes at a time."""
        chosen = [part for part in base.get_fragments() if part.fragment_id in fragments]
        columns = list(dict.fromkeys([*names, *self._columns(base.schema)]))
        scanner = base.scanner(columns=columns, filter=self.filter, fragments=chosen)
        yield from _in_chunks(scanner.to_reader())

    def _of_rows(self, rows: pa.Table, names: Sequence[str], count: int | None) -> pa.Table:
        """Return the best of these rows."""
        texts = rows.select(self._columns(rows.schema))
        numbers = pa.array(np.arange(rows.num_rows))
        copy = self._index_copy(texts.append_column(_NUMBER, numbers))
        matches = copy.scanner(
            columns=[_NUMBER, SCORE],
            full_text_query=self.query,
            limit=count if count is not None else rows.num_rows,
        ).to_table()
        taken = rows.select(list(names)).take(matches[_NUMBER])
        return taken.append_column(SCORE, matches[SCORE])

    def _columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns that the indexes are on, or are inside of."""
        paths = [index.column for index in self.indexes]
        tops = [path if path in schema.names else path.partition(".")[0] for path in paths]
        return list(dict.fromkeys(tops))


def text_indexes(dataset: Dataset) -> list[KeptIndex]:
    """Return the full-text indexes of a dataset, each on one column."""
    indexes = [kept_index(one) for one in dataset.describe_indices() if len(one.field_names) == 1]
    return [index for index in indexes if index is not None and index.kind == INVERTED]


def _uncovered_fragments(base: Dataset, indexes: Sequence[KeptIndex]) -> set[int]:
    """Return the fragments that one of the indexes does not cover."""
    fragments = {int(part.fragment_id) for part in base.get_fragments()}
    names = {index.name for index in indexes}
    uncovered: set[int] = set()
    for described in base.describe_indices():
        if described.name in names:
            covered = {int(f) for part in described.segments for f in part.fragment_ids}
            uncovered |= fragments - covered
    return uncovered


def _in_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(int(one.nbytes) for one in held) >= _CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
