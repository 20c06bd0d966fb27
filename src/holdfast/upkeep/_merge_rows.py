"""What merging generations changes in the base table: rows to write, rows to mark as deleted.

`RowChanges` reads the keys of some generations of one shard and keeps, of each key, the newest
row. From these it writes new fragments, and deletion files for the rows that they replace:
all under new names, seen by nobody. Both parts can be divided among tasks: by generation for
writing, by fragment for marking.

Memory holds the keys of these generations, and rows in batches only.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, write_fragments

from holdfast.commits import translate_errors
from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats import (
    TOMBSTONE,
    Field,
    counterpart,
    fit_array,
    fit_column,
    key_columns,
    key_values,
    lance_fields,
    newest_per_key,
)
from holdfast.shard import combine_column
from holdfast.upkeep._key_set import Fragment, MergeKeys

_FRAGMENT_BITS = 32
_OFFSET_MASK = (1 << _FRAGMENT_BITS) - 1
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """Base fragments with rows marked as deleted.

    Attributes:
        updated: fragments with a new deletion file.
        removed: fragments of which no row is left.
        rows: how many rows were marked.
    """

    updated: tuple[FragmentMetadata, ...] = ()
    removed: tuple[int, ...] = ()
    rows: int = 0

    @property
    def touched(self) -> set[int]:
        """Return the ids of all fragments that changed."""
        return {*self.removed, *(int(part.id) for part in self.updated)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """The keys of one generation, and which of its rows count."""

    columns: list[pa.Array]
    counts: np.ndarray
    deletes: np.ndarray


class RowChanges:
    """The changes that generations of one shard make to one version of the base table.

    Args:
        dataset: the version.
        generations: their SSTables, oldest first.
    """

    def __init__(
        self, dataset: lance.LanceDataset, generations: Sequence[lance.LanceDataset]
    ) -> None:
        self._dataset = dataset
        self._generations = generations
        self._names = key_columns(dataset.schema)

    @functools.cached_property
    def _keys(self) -> list[_Keys]:
        """Read the keys, and find the newest row of each; without a key every row counts."""
        columns: list[list[pa.Array]] = []
        deletes = []
        for one in self._generations:
            source = columns_in(self._dataset, one)
            marked = TOMBSTONE in one.schema.names
            pairs = [source[name] for name in self._names]
            wanted = [theirs.name for _, theirs in pairs]
            table = _read(one, [*wanted, TOMBSTONE] if marked else wanted)
            columns.append(
                [
                    combine_column(fit_column(table[theirs.name], theirs, ours))
                    for ours, theirs in pairs
                ]
            )
            gone = pc.fill_null(table[TOMBSTONE], False).to_numpy() if marked else None
            deletes.append(np.zeros(one.count_rows(), bool) if gone is None else gone)
        counts = self._newest(columns, [len(one) for one in deletes])
        return [
            _Keys(columns=c, counts=n, deletes=d)
            for c, n, d in zip(columns, counts, deletes, strict=True)
        ]

    def _newest(self, columns: Sequence[Sequence[pa.Array]], sizes: Sequence[int]) -> list[Any]:
        if not self._names:
            return [np.ones(size, bool) for size in sizes]
        counts = np.zeros(sum(sizes), bool)
        joined = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
        counts[newest_per_key(joined).to_numpy()] = True
        return np.split(counts, np.cumsum(sizes)[:-1])

    @functools.cached_property
    def keys(self) -> pa.Array:
        """Return every key once, as one value each."""
        parts = [
            key_values([column.filter(pa.array(one.counts)) for column in one.columns])
            for one in self._keys
        ]
        return pa.concat_arrays(parts)

    @functools.cached_property
    def _key_set(self) -> MergeKeys:
        return MergeKeys(self._names, self.keys)

    def write(self, number: int) -> list[FragmentMetadata]:
        """Write the rows of one generation that count and stay, as new fragments.

        Raises:
            InvalidInputError: the rows do not fit the table any more.
            UnavailableError, PermissionDeniedError: the store did not do its part.
        """
        keys = self._keys[number]
        staying = keys.counts & ~keys.deletes
        if not staying.any():
            return []
        schema = self._dataset.schema
        reader = pa.RecordBatchReader.from_batches(schema, self._rows(number, staying))
        with translate_errors(self._dataset.uri):
            return list(write_fragments(reader, self._dataset, mode="append"))

    def _rows(self, number: int, staying: np.ndarray) -> Iterator[pa.RecordBatch]:
        generation = self._generations[number]
        source = columns_in(self._dataset, generation)
        schema, seen = self._dataset.schema, 0
        names = [theirs.name for _, theirs in source.values()]
        scanner = generation.scanner(columns=list(names), batch_size=_ROWS_AT_ONCE)
        for batch in scanner.to_batches():
            kept = batch.filter(pa.array(staying[seen : seen + batch.num_rows]))
            seen += batch.num_rows
            arrays = [_column(kept, field, source.get(field.name)) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        if seen != len(staying):
            raise CorruptError("an SSTable changed while it was read", rows=seen)

    def mark(self, fragments: Iterable[int] | None = None) -> Marked:
        """Mark the base rows that have one of the keys as deleted, in these fragments or all.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not do its part.
        """
        if not self._names:
            return Marked()
        gone: dict[int, list[np.ndarray]] = defaultdict(list)
        with translate_errors(self._dataset.uri):
            for addresses, _ in self._key_set.matches(self._dataset, fragments):
                parts = addresses >> _FRAGMENT_BITS
                for part in np.unique(parts):
                    gone[int(part)].append(addresses[parts == part] & _OFFSET_MASK)
            updated, removed, rows = [], [], 0
            for part, offsets in sorted(gone.items()):
                rows_of_fragment = np.unique(np.concatenate(offsets))
                rows += len(rows_of_fragment)
                fragment: Fragment = self._dataset.get_fragment(part)
                left = fragment.delete_rows(rows_of_fragment.tolist())
                if left is None:
                    removed.append(part)
                else:
                    updated.append(left)
        return Marked(updated=tuple(updated), removed=tuple(removed), rows=rows)

    def holds_keys_of(self, dataset: lance.LanceDataset, fragments: Sequence[Fragment]) -> bool:
        """Tell whether a row in these fragments of a version has one of the keys."""
        return bool(self._names) and self._key_set.are_in(dataset, fragments)


def _read(dataset: lance.LanceDataset, columns: Sequence[str]) -> pa.Table:
    with translate_errors(dataset.uri):
        return dataset.scanner(columns=list(columns), batch_size=_ROWS_AT_ONCE).to_table()


def columns_in(
    dataset: lance.LanceDataset, generation: lance.LanceDataset
) -> dict[str, tuple[Field, Field]]:
    """Return the base table's columns that a generation has, with its own: paired by id.

    Raises:
        InvalidInputError: a column, or a field inside one, was replaced by another of its name
            since: its values would be lost; or a key column is missing.
    """
    ours = lance_fields(dataset.schema, dataset.lance_schema.fields())
    all_theirs = lance_fields(generation.schema, generation.lance_schema.fields())
    # The tombstone took the next free id; a column that was added since has it by right.
    theirs = [field for field in all_theirs if field.name != TOMBSTONE]
    _refuse_replaced(ours, theirs)
    counterparts = {field.name: counterpart(field, theirs) for field in ours}
    for name in key_columns(dataset.schema):
        if counterparts[name] is None:
            raise InvalidInputError("a generation lacks a column of the key", column=name)
    return {
        field.name: (field, theirs[at])
        for field, at in zip(ours, counterparts.values(), strict=True)
        if at is not None
    }


def _refuse_replaced(ours: Sequence[Field], theirs: Sequence[Field], path: str = "") -> None:
    pairs = [(field, counterpart(field, theirs)) for field in ours]
    paired = {at for _, at in pairs}  # these go on under other names: nothing of them is lost
    gone = {field.name for at, field in enumerate(theirs) if at not in paired}
    for field, at in pairs:
        if at is not None:
            _refuse_replaced(field.inside, theirs[at].inside, f"{path}{field.name}.")
        elif field.name in gone:
            raise InvalidInputError(
                "a column was replaced by another one of its name while rows were waiting in "
                "the log: restore the version before, merge, and change the column then",
                column=path + field.name,
            )


def _column(batch: pa.RecordBatch, field: pa.Field, source: tuple[Field, Field] | None) -> pa.Array:
    if source is None:
        if not field.nullable:
            raise InvalidInputError(
                "rows in the log lack a column that must not be null", column=field.name
            )
        return pa.nulls(batch.num_rows, field.type)
    ours, theirs = source
    return fit_array(batch.column(theirs.name), theirs, ours)
