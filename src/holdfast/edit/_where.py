"""Changes of the rows that meet a condition: update, delete, replace.

Conditions and values are SQL as Lance speaks it. Rows that came meanwhile and meet the condition
make the change begin anew: it ends as if it had run alone, on the version right below its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import lance
import numpy as np
import pyarrow as pa

from holdfast.commits import Data, as_reader, read_any, translate_errors
from holdfast.edit._computed import Computed, Fragment, by_fragment
from holdfast.edit._results import Counts
from holdfast.edit._rows import fit_batch, refuse_unwritable, write_rows
from holdfast.errors import InvalidInputError
from holdfast.formats import key_columns, quote_name, whole_sql
from holdfast.memtable import find_matching
from holdfast.upkeep import ADDRESS


class Where:
    """The rows that meet a condition.

    Args:
        condition: SQL; None for all rows.

    Raises:
        InvalidInputError: it is no text.
    """

    def __init__(self, condition: str | None) -> None:
        given: object = condition
        if given is not None and (not isinstance(given, str) or not given.strip()):
            raise InvalidInputError("a condition is SQL, such as \"day < '2026-01-01'\"",
                                    given=repr(given))  # fmt: skip
        self.condition = None if condition is None else whole_sql(condition)

    def concerns(self, newest: lance.LanceDataset, fragments: Sequence[Fragment]) -> bool:
        """Tell whether a row in these fragments meets the condition."""
        with translate_errors(newest.uri):
            scanner = newest.scanner(
                columns=[],
                filter=self.condition,
                fragments=list(fragments),
                with_row_address=True,
                limit=1,
            )
            return bool(scanner.to_table().num_rows)

    def renew(self) -> None:
        """Do nothing: each try writes its files anew."""

    def addresses(self, base: lance.LanceDataset) -> Iterator[np.ndarray]:
        """Yield the addresses of the rows."""
        with translate_errors(base.uri):
            scanner = base.scanner(columns=[], filter=self.condition, with_row_address=True)
            for batch in scanner.to_batches():
                yield batch.column(ADDRESS).to_numpy()


class Delete(Where):
    """Takes the rows that meet a condition away."""

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Find the rows."""
        gone = by_fragment(self.addresses(base))
        return Computed(gone=gone, counts=Counts(deleted=_size(gone)))


class Update(Where):
    """Gives columns of the rows that meet a condition new values.

    Args:
        condition: SQL; None for all rows.
        values: an SQL expression by column.

    Raises:
        InvalidInputError: the condition is none, or there are no values.
    """

    def __init__(self, condition: str | None, values: Mapping[str, str]) -> None:
        super().__init__(condition)
        self._values = checked_values(values)

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Write the rows with their new values."""
        refuse_unwritable(base, "update")
        refuse_columns(base.schema, self._values)
        addresses: list[np.ndarray] = []
        new = write_rows(base, self._rows(base, addresses))
        gone = by_fragment(addresses)
        return Computed(gone=gone, new=new, counts=Counts(updated=_size(gone)))

    def _rows(
        self, base: lance.LanceDataset, addresses: list[np.ndarray]
    ) -> Iterator[pa.RecordBatch]:
        names = base.schema.names
        columns = {
            name: whole_sql(self._values[name]) if name in self._values else quote_name(name)
            for name in names
        }
        with translate_errors(base.uri):
            scanner = base.scanner(columns=columns, filter=self.condition, with_row_address=True)
            for batch in scanner.to_batches():
                addresses.append(batch.column(ADDRESS).to_numpy())
                yield fit_batch(batch, base.schema)


class Replace(Where):
    """Takes the rows that meet a condition away, and puts others in their place.

    Args:
        condition: SQL.
        rows: the new rows; each meets the condition.
    """

    def __init__(self, condition: str, rows: Data) -> None:
        super().__init__(condition)
        self._given = rows if isinstance(rows, list) else read_any(rows).read_all()

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Find the old rows, and write the new ones."""
        rows = as_reader(self._given, base.schema).read_all()
        self._check(rows, base.data_storage_version)
        gone = by_fragment(self.addresses(base))
        new = write_rows(base, _all_columns(rows, base.schema)) if rows.num_rows else []
        counts = Counts(deleted=_size(gone), inserted=rows.num_rows)
        return Computed(gone=gone, new=new, counts=counts)

    def _check(self, rows: pa.Table, storage_version: str) -> None:
        assert self.condition is not None  # noqa: S101 - there is none only for an update
        if not rows.num_rows:
            return
        meet = find_matching(rows, self.condition, storage_version)
        if len(meet) != rows.num_rows:
            raise InvalidInputError(
                "rows do not meet the condition under which they would replace others: they "
                "would be there twice after a repeat",
                where=self.condition[:200],
                rows=rows.num_rows - len(meet),
            )


def _all_columns(rows: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return rows with all columns of the table; those that they lack are null."""
    there = set(rows.column_names)
    columns = [
        rows[one.name] if one.name in there else pa.nulls(rows.num_rows, one.type) for one in schema
    ]
    batches: list[pa.RecordBatch] = pa.table(columns, schema=schema).to_batches()
    return batches


def checked_values(values: Mapping[str, str]) -> dict[str, str]:
    """Return SQL expressions by column.

    Raises:
        InvalidInputError: they are none.
    """
    given: object = values
    if not isinstance(given, Mapping) or not given:
        raise InvalidInputError('set is a dict of SQL by column, such as {"n": "n + 1"}')
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str) or not value.strip():
            raise InvalidInputError(
                'a new value is SQL, given as text: a number as "5", a text as "\'five\'"',
                column=repr(name),
                given=repr(value),
            )
    return dict(values)


def refuse_columns(schema: pa.Schema, values: Mapping[str, str], on: Sequence[str] = ()) -> None:
    """Refuse new values for columns that are not there, or that are a key.

    Raises:
        InvalidInputError: there is one.
    """
    for name in values:
        if name not in schema.names:
            raise InvalidInputError(
                "a new value is for a column that the table lacks",
                column=name,
                columns=", ".join(schema.names)[:200],
            )
        if name in {*key_columns(schema), *on}:
            raise InvalidInputError(
                "a key does not change: delete the row, and insert one with the other key",
                column=name,
            )


def _size(gone: Mapping[int, np.ndarray]) -> int:
    return sum(len(offsets) for offsets in gone.values())
