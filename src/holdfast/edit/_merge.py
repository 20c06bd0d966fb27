"""`MergeChange`: change rows of a table by key, with rows of a source that is held in memory.

Keys of the table are read in Arrow and looked up among the source's. What matches is changed by
the clauses; conditions and values are SQL, which Lance evaluates over a dataset in memory with
two columns, `source` and `target`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from holdfast.commits import translate_errors
from holdfast.edit._clauses import Clause, When
from holdfast.edit._computed import Computed, Fragment, by_fragment
from holdfast.edit._results import Counts
from holdfast.edit._rows import fit_batch, refuse_unwritable, write_rows
from holdfast.edit._where import refuse_columns
from holdfast.errors import InvalidInputError
from holdfast.formats import whole_sql
from holdfast.memtable import NUMBER, open_in_memory
from holdfast.shard import combine_column
from holdfast.upkeep import ADDRESS, MergeKeys, key_of

SOURCE, TARGET = "source", "target"
_SHOWN_KEYS = 10
_ROWS_AT_ONCE = 1 << 16


@dataclass(slots=True)
class _MergeChanges:
    """What clauses have made of rows so far."""

    gone: list[np.ndarray] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)
    updated: int = 0
    inserted: int = 0
    deleted: int = 0


class MergeChange:
    """A merge of rows that are held in memory.

    Args:
        source: the rows; a key once, and never null. Those of its columns that are copied have
            the table's types.
        on: the key columns.
        clauses: what becomes of rows.

    Raises:
        InvalidInputError: a key is null, or there more than once.
    """

    def __init__(self, source: pa.Table, on: Sequence[str], clauses: Sequence[Clause]) -> None:
        self._source = source
        self._on = tuple(on)
        self._clauses = clauses
        keys = key_of(source, self._on)
        check_keys(source, keys, self._on)
        self._keys = MergeKeys(self._on, keys)

    def concerns(self, newest: lance.LanceDataset, fragments: Sequence[Fragment]) -> bool:
        """Tell whether a row in these fragments has one of the keys, or is none of the source's."""
        if any(clause.when == "not_matched_by_source" for clause in self._clauses):
            with translate_errors(newest.uri):
                return any(part.count_rows() for part in fragments)
        return self._keys.are_in(newest, fragments)

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Find the rows, and write what takes their place."""
        refuse_unwritable(base, "merge_into")
        for clause in self._clauses:
            refuse_columns(base.schema, clause.values or {}, self._on)
        addresses, positions = self._pairs(base)
        made = _MergeChanges()
        self._change_matched(base, made, addresses, positions)
        self._insert(base, made, positions)
        self._change_others(base, made)
        batches = [batch for table in made.rows for batch in table.to_batches(_ROWS_AT_ONCE)]
        return Computed(
            gone=by_fragment(made.gone),
            new=write_rows(base, batches) if batches else [],
            counts=Counts(updated=made.updated, inserted=made.inserted, deleted=made.deleted),
        )

    def _pairs(self, base: lance.LanceDataset) -> tuple[np.ndarray, np.ndarray]:
        """Return addresses of rows that match, in order, and which row of the source does."""
        pairs = [np.zeros((2, 0), np.int64)]
        with translate_errors(base.uri):
            for addresses, keys in self._keys.matches(base):
                pairs.append(np.stack([addresses, self._keys.positions(keys)]))
        both = np.concatenate(pairs, axis=1)
        both = both[:, np.argsort(both[0], kind="stable")]
        return both[0], both[1]

    def _change_matched(
        self,
        base: lance.LanceDataset,
        made: _MergeChanges,
        addresses: np.ndarray,
        positions: np.ndarray,
    ) -> None:
        clauses = self._of("matched")
        target = _Target(base, addresses, clauses)
        joined = _Joined(
            len(addresses),
            clauses,
            base.data_storage_version,
            {SOURCE: (self._source.schema, lambda names: self._take_rows(names, positions)),
             TARGET: (base.schema, target.columns)},
        )  # fmt: skip
        for clause, chosen in joined.choose_rows():
            made.gone.append(addresses[chosen])
            if clause.then == "delete":
                made.deleted += len(chosen)
                continue
            made.updated += len(chosen)
            if clause.values is None:
                rows = self._source.select(base.schema.names).take(pa.array(positions[chosen]))
            else:
                kept = target.rows().take(pa.array(chosen))
                rows = _with_values(kept, joined.values(clause.values, chosen), base.schema)
            made.rows.append(rows)

    def _insert(self, base: lance.LanceDataset, made: _MergeChanges, positions: np.ndarray) -> None:
        lonely = np.ones(self._source.num_rows, bool)
        lonely[positions] = False
        numbers = np.flatnonzero(lonely)
        joined = _Joined(
            len(numbers),
            self._of("not_matched"),
            base.data_storage_version,
            {SOURCE: (self._source.schema, lambda names: self._take_rows(names, numbers))},
        )
        for clause, chosen in joined.choose_rows():
            made.inserted += len(chosen)
            taken = pa.array(numbers[chosen])
            if clause.values is None:
                made.rows.append(self._source.select(base.schema.names).take(taken))
            else:
                keys = self._source.select(list(self._on)).take(taken)
                empty = _nulls(base.schema, keys)
                values = joined.values(clause.values, chosen)
                made.rows.append(_with_values(empty, values, base.schema))

    def _change_others(self, base: lance.LanceDataset, made: _MergeChanges) -> None:
        """Change rows of the table that have no row of the source, many at a time."""
        clauses = self._of("not_matched_by_source")
        if not clauses:
            return
        with translate_errors(base.uri):
            for addresses in self._lonely(base):
                target = _Target(base, addresses, clauses)
                joined = _Joined(
                    len(addresses),
                    clauses,
                    base.data_storage_version,
                    {TARGET: (base.schema, target.columns)},
                )
                for clause, chosen in joined.choose_rows():
                    made.gone.append(addresses[chosen])
                    if clause.values is None:
                        made.deleted += len(chosen)
                        continue
                    made.updated += len(chosen)
                    kept = target.rows().take(pa.array(chosen))
                    values = joined.values(clause.values, chosen)
                    made.rows.append(_with_values(kept, values, base.schema))

    def _lonely(self, base: lance.LanceDataset) -> Iterator[np.ndarray]:
        scanner = base.scanner(
            columns=list(self._on), with_row_address=True, batch_size=_ROWS_AT_ONCE
        )
        for batch in scanner.to_batches():
            lot = pa.Table.from_batches([batch])
            lonely = ~self._keys.contains(key_of(lot, self._on))
            yield batch.column(ADDRESS).to_numpy()[lonely].astype(np.int64)

    def _of(self, when: When) -> list[Clause]:
        return [clause for clause in self._clauses if clause.when == when]

    def _take_rows(self, names: Sequence[str], numbers: np.ndarray) -> pa.Table:
        return self._source.select(list(names)).take(pa.array(numbers))


class _Target:
    """Rows of the table that clauses look at; they are read when one asks for them."""

    def __init__(
        self, base: lance.LanceDataset, addresses: np.ndarray, clauses: Sequence[Clause]
    ) -> None:
        self._base = base
        self._addresses = addresses
        self._whole = any(one.then == "update" and one.values is not None for one in clauses)
        self._rows: pa.Table | None = None

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return some of their columns."""
        if self._whole:
            return self.rows().select(list(names))
        return self._read(names)

    def rows(self) -> pa.Table:
        """Return all of their columns."""
        if self._rows is None:
            self._rows = self._read(self._base.schema.names)
        return self._rows

    def _read(self, names: Sequence[str]) -> pa.Table:
        base: Any = self._base  # Any: pylance takes rows by address, and says so nowhere
        with translate_errors(self._base.uri):
            return base._take_rows(self._addresses.tolist(), columns=list(names))  # noqa: SLF001


Side = tuple[pa.Schema, Any]
"""The columns of a side of a merge, and a function that returns some of them."""  # Any: as a call


class _Joined:
    """Pairs of rows, over which Lance evaluates SQL.

    Args:
        size: how many.
        clauses: all that will be asked.
        storage_version: of Lance's files.
        sides: `source`, `target` or both, with their columns.
    """

    def __init__(
        self,
        size: int,
        clauses: Sequence[Clause],
        storage_version: str,
        sides: Mapping[str, Side],
    ) -> None:
        self._size = size
        self._clauses = clauses
        self._storage_version = storage_version
        self._sides = sides
        self._made: lance.LanceDataset | None = None

    def choose_rows(self) -> Iterator[tuple[Clause, np.ndarray]]:
        """Yield each clause that has rows, with the numbers of its rows."""
        left = np.ones(self._size, bool)
        for clause in self._clauses:
            if not left.any():
                return
            mine = left & self._true(clause.where)
            left &= ~mine
            if mine.any():
                yield clause, np.flatnonzero(mine)

    def _true(self, where: str | None) -> np.ndarray:
        met = np.zeros(self._size, bool)
        if where is None:
            return ~met
        with _explained(where):
            told = self._dataset.to_table(columns=[NUMBER], filter=whole_sql(where))
        met[told[NUMBER].to_numpy()] = True
        return met

    def values(self, expressions: Mapping[str, str], chosen: np.ndarray) -> pa.Table:
        """Return new values of some rows."""
        with _explained("; ".join(expressions.values())):
            asked = {name: whole_sql(sql) for name, sql in expressions.items()}
            told = self._dataset.to_table(columns={NUMBER: NUMBER, **asked})
        order = np.argsort(told[NUMBER].to_numpy(), kind="stable")
        return told.drop_columns([NUMBER]).take(pa.array(order[chosen]))

    @property
    def _dataset(self) -> lance.LanceDataset:
        if self._made is None:
            text = " ".join(sql for one in self._clauses for sql in one.expressions).lower()
            there = {}
            for side, (schema, read) in self._sides.items():
                names = [name for name in schema.names if name.lower() in text]
                if names:
                    there[side] = _struct(read(names))
            rows = pa.table(there) if there else pa.table({"_": pa.nulls(self._size, pa.int8())})
            self._made = open_in_memory(rows, self._storage_version)
        return self._made


class _explained:  # noqa: N801 - reads as a word where it is used
    """Says of which SQL Lance complains."""

    def __init__(self, sql: str) -> None:
        self._sql = sql

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, InvalidInputError):
            raise InvalidInputError(
                "Lance does not understand a clause; columns are named as source.x and target.x",
                sql=self._sql[:200],
                reason=str(error)[:300],
            ) from error


def _struct(rows: pa.Table) -> pa.Array:
    for field_ in rows.schema:
        if pa.types.is_dictionary(field_.type):
            at = rows.schema.get_field_index(field_.name)
            rows = rows.set_column(at, field_.name, rows.column(at).cast(field_.type.value_type))
    fields = [one.remove_metadata().with_nullable(nullable=True) for one in rows.schema]
    return pa.StructArray.from_arrays(
        [combine_column(column) for column in rows.columns], fields=fields
    )


def _with_values(rows: pa.Table, values: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with some columns replaced, in the table's types."""
    columns = {name: rows[name] for name in schema.names}
    columns |= {name: values[name] for name in values.column_names}
    made = pa.table([combine_column(columns[name]) for name in schema.names], names=schema.names)
    fitted = [fit_batch(batch, schema) for batch in made.to_batches()]
    return pa.Table.from_batches(fitted, schema=schema)


def _nulls(schema: pa.Schema, keys: pa.Table) -> pa.Table:
    columns = {
        one.name: keys[one.name] if one.name in keys.column_names
        else pa.nulls(keys.num_rows, one.type)
        for one in schema
    }  # fmt: skip
    return pa.table(columns)


def check_keys(source: pa.Table, keys: pa.Array, on: Sequence[str]) -> None:
    """Refuse keys that are null, or there more than once.

    Raises:
        InvalidInputError: there is one; the error names them.
    """
    nulls = max((int(source[name].null_count) for name in on), default=0)
    if nulls:
        raise InvalidInputError(
            "the source has rows without a key: filter them out", on=", ".join(on), nulls=nulls
        )
    encoded = keys.dictionary_encode()
    if len(encoded.dictionary) == len(keys):
        return
    codes = encoded.indices.to_numpy()
    copies = np.bincount(codes)
    first = np.unique(codes, return_index=True)[1]
    repeated = source.select(list(on)).take(pa.array(first[copies > 1][:_SHOWN_KEYS]))
    raise InvalidInputError(
        "the source has keys more than once, so it is not clear which row counts: keep one row "
        "for each",
        on=", ".join(on),
        keys=", ".join(str(list(row.values())) for row in repeated.to_pylist()),
    )
