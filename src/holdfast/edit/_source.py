"""The source of a merge as users give it: any data, checked against the table's columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from holdfast.commits import Data, as_reader, read_any
from holdfast.edit._clauses import DELETE_MARK, Clause
from holdfast.edit._computed import Computed, Fragment
from holdfast.edit._merge import MergeChange
from holdfast.errors import InvalidInputError
from holdfast.formats import key_columns
from holdfast.memtable import find_matching


class DataMerge:
    """A merge of data that fits in memory; see `MergeChange`.

    Args:
        data: the rows.
        on: the key columns; the table's primary key by default.
        clauses: what becomes of rows.
        delete_where: SQL on columns of the source, as for `Table.merge_into`.
        may_have_more: whether the source may have columns that the table lacks.

    Raises:
        InvalidInputError: it is no data, or `on` names no columns.
    """

    def __init__(
        self,
        data: Data,
        on: str | Sequence[str] | None,
        clauses: Sequence[Clause],
        *,
        delete_where: str | None,
        may_have_more: bool,
    ) -> None:
        self._data = data if isinstance(data, list) else read_any(data).read_all()
        self._on = None if on is None else named_keys(on)
        self._clauses = clauses
        self._delete_where = delete_where
        self._may_have_more = may_have_more
        self._merge: MergeChange | None = None

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Check the source against the columns of a version, then merge."""
        on = self._on or key_columns(base.schema)
        if not on:
            raise InvalidInputError("this table has no primary key: say on which columns to merge")
        self._merge = MergeChange(self._source(base, on), on, self._clauses)
        return self._merge.compute(base)

    def concerns(self, newest: lance.LanceDataset, fragments: Sequence[Fragment]) -> bool:
        """Tell whether rows in these fragments would have made a difference."""
        return self._merge is None or self._merge.concerns(newest, fragments)

    def renew(self) -> None:
        """Do nothing: each try writes its files anew."""

    def _source(self, base: lance.LanceDataset, on: Sequence[str]) -> pa.Table:
        rows = self._rows(base.schema)
        names = base.schema.names
        whole = any(clause.copies_rows for clause in self._clauses)
        needed = names if whole else list(on)
        refuse_names("the key names columns that the table lacks", set(on) - set(names))
        missing = set(needed) - set(rows.column_names)
        refuse_names("the source lacks columns of the table", missing)
        if not self._may_have_more:
            extra = set(rows.column_names) - set(names)
            refuse_names("the source has columns that the table lacks: drop them", extra)
        fitted = as_reader(rows.select(needed), base.schema).read_all()
        for name in rows.column_names:
            if name not in needed:
                fitted = fitted.append_column(rows.schema.field(name), rows[name])
        return self._mark_deletes(fitted, rows, base.data_storage_version)

    def _mark_deletes(self, fitted: pa.Table, rows: pa.Table, storage_version: str) -> pa.Table:
        """Return the source with a column that says which rows delete."""
        if self._delete_where is None:
            return fitted
        marks = np.zeros(rows.num_rows, bool)
        if rows.num_rows:
            marks[find_matching(rows, self._delete_where, storage_version)] = True
        return fitted.append_column(DELETE_MARK, pa.array(marks))

    def _rows(self, schema: pa.Schema) -> pa.Table:
        if not isinstance(self._data, list):
            return self._data
        given: list[dict[str, Any]] = self._data  # Any: values as users have them
        if not given:
            return schema.empty_table()
        names = list(dict.fromkeys(name for row in given for name in row))
        parts = {name: [{name: row.get(name)} for row in given] for name in names}
        columns = {
            name: read_any(
                part, pa.schema([schema.field(name)]) if name in schema.names else None
            ).read_all()[name]
            for name, part in parts.items()
        }
        return pa.table(columns)


def named_keys(on: str | Sequence[str]) -> tuple[str, ...]:
    """Return key columns as users name them.

    Raises:
        InvalidInputError: they are no names, or one is there twice.
    """
    named: object = on
    keys = (on,) if isinstance(on, str) else tuple(on) if isinstance(named, Iterable) else ()
    given: Sequence[object] = keys
    if not keys or not all(isinstance(key, str) and key for key in given):
        raise InvalidInputError("on names the key columns: a name, or a list of names")
    if len(set(keys)) != len(keys):
        raise InvalidInputError("on names a column twice", on=", ".join(keys))
    return keys


def refuse_names(problem: str, names: set[str]) -> None:
    """Refuse columns.

    Raises:
        InvalidInputError: there are some.
    """
    if names:
        raise InvalidInputError(problem, columns=", ".join(sorted(names)))
