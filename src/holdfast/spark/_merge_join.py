"""A merge that Spark joins: for clauses in Spark's SQL, and for sources of any size.

The source is kept by Spark, as it was computed once (`localCheckpoint`): if a part of it gets lost,
the merge fails and changes nothing. Tasks get each row of the source with the row of the
table that it matches, write new rows, and tell which ones go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata
from pyspark.sql import Window
from pyspark.sql import functions as f

from holdfast.edit import Clause, Computed, Counts
from holdfast.errors import InvalidInputError
from holdfast.spark._merge_source import (
    ADDRESS,
    COPIES,
    SOURCE,
    WORK,
    WRITES,
    MergeWork,
    WrittenMerge,
    group_fragments,
    unpacked_offsets,
)
from holdfast.spark._types import check_writable, spark_schema

Frame: TypeAlias = Any
"""A Spark DataFrame, classic or of Spark Connect: they share no class."""
Column: TypeAlias = Any
"""A Spark column, likewise."""

_CLAUSE = "__holdfast_clause"
_MATCHED = "__holdfast_matched"
_SHOWN_KEYS = 10


class JoinedMerge:
    """A merge that Spark joins.

    Args:
        source: the source; it is computed once, at the first use.
        on: the key columns.
        clauses: what becomes of rows, in Spark's SQL.
        work: returns what tasks need to know, for a version.
        write: lets tasks write the rows of a frame.
    """

    def __init__(
        self,
        source: Frame,
        on: Sequence[str],
        clauses: Sequence[Clause],
        work: Callable[[lance.LanceDataset], MergeWork],
        write: Callable[[MergeWork, Frame], list[WrittenMerge]],
    ) -> None:
        self._given = source
        self._spark = source.sparkSession
        self._on = list(on)
        self._clauses = clauses
        self._work = work
        self._write = write
        self._kept: Frame | None = None

    @property
    def _source(self) -> Frame:
        if self._kept is None:
            self._kept = self._given.localCheckpoint()
        return self._kept

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Let Spark find and write the changes; nobody sees them yet."""
        self._check_columns(base.schema)
        work = self._work(base)
        parts = self._write(work, self._changes(base, work))
        refuse_keys(parts, self._on)
        return computed_of(parts)

    def renew(self) -> None:
        """Do nothing: files are written anew by each try."""

    def concerns(self, newest: lance.LanceDataset, fragments: Sequence[Any]) -> bool:
        """Tell whether a row in these fragments has one of the keys, or is none of the source's."""
        if any(clause.when == "not_matched_by_source" for clause in self._clauses):
            return any(part.count_rows() for part in fragments)
        numbers = {part.fragment_id for part in fragments}
        work = replace(self._work(newest), fragments=fragment_groups(newest, numbers))
        fresh = self._table(newest, work, self._on).select(*map(quote, self._on))
        keys = self._source.select(*map(quote, self._on))
        return bool(keys.join(fresh, self._on, "left_semi").limit(1).collect())

    def _changes(self, base: lance.LanceDataset, work: MergeWork) -> Frame:
        """Return rows to write and to take away, with the address that each one replaces."""
        copies = f.count(f.lit(1)).over(Window.partitionBy(*map(quote, self._on)))
        source = self._source.withColumn(COPIES, copies).alias("source")
        names = base.schema.names if self._needs_target() else self._on
        target = self._table(base, work, names).withColumn(_MATCHED, f.lit(True)).alias("target")
        same = [f.col(f"source.{quote(key)}") == f.col(f"target.{quote(key)}") for key in self._on]
        condition = same[0]
        for one in same[1:]:
            condition = condition & one
        lonely = any(clause.when == "not_matched_by_source" for clause in self._clauses)
        joined = source.join(target, condition, "full_outer" if lonely else "left")
        return self._choose_rows(joined, base.schema)

    def _choose_rows(self, joined: Frame, schema: pa.Schema) -> Frame:
        number: Column = f.lit(None).cast("int")
        for at, clause in reversed(list(enumerate(self._clauses))):
            number = f.when(self._is_for(clause), f.lit(at)).otherwise(number)
        wrong = f.col(f"source.{COPIES}") > 1
        for key in self._on:
            here = f.col(f"source.{COPIES}").isNotNull()
            wrong = wrong | (here & f.col(f"source.{quote(key)}").isNull())
        chosen = joined.withColumn(_CLAUSE, number)
        chosen = chosen.where(f.col(_CLAUSE).isNotNull() | f.coalesce(wrong, f.lit(False)))
        deletes = [at for at, one in enumerate(self._clauses) if one.then == "delete"]
        writes = ~f.coalesce(f.col(_CLAUSE).isin(deletes), f.lit(True))
        columns = [self._value(one, schema).alias(one) for one in schema.names]
        return chosen.select(
            *columns,
            f.col(f"target.{ADDRESS}").alias(ADDRESS),
            f.coalesce(f.col(f"source.{COPIES}"), f.lit(0)).alias(COPIES),
            writes.alias(WRITES),
        )

    def _is_for(self, clause: Clause) -> Column:
        here, there = f.col(f"source.{COPIES}").isNotNull(), f.col(f"target.{_MATCHED}").isNotNull()
        rows = {
            "matched": here & there,
            "not_matched": here & ~there,
            "not_matched_by_source": ~here & there,
        }[clause.when]
        if clause.where is None:
            return rows
        return rows & f.coalesce(f.expr(clause.where).cast("boolean"), f.lit(False))

    def _value(self, name: str, schema: pa.Schema) -> Column:
        """Return a column's new value, by the clause that a row falls under."""
        kind = spark_schema(schema, [name])[name].dataType
        key = name in self._on
        value: Column = f.lit(None).cast(kind)
        if key:
            value = f.coalesce(f.col(f"source.{quote(name)}"), f.col(f"target.{quote(name)}"))
        for at, clause in enumerate(self._clauses):
            one = self._value_by(clause, name)
            if one is not None:
                value = f.when(f.col(_CLAUSE) == at, one.cast(kind)).otherwise(value)
        return value

    def _value_by(self, clause: Clause, name: str) -> Column | None:
        if clause.then == "delete" or name in self._on:
            return None
        if clause.values is None:
            return f.col(f"source.{quote(name)}")
        if name in clause.values:
            return f.expr(clause.values[name])
        return None if clause.then == "insert" else f.col(f"target.{quote(name)}")

    def _needs_target(self) -> bool:
        return any(one.where is not None or one.values is not None for one in self._clauses)

    def _table(self, base: lance.LanceDataset, work: MergeWork, names: Sequence[str]) -> Frame:
        """Return columns of a version, with the addresses of its rows."""
        columns = spark_schema(base.schema, list(names)).add(ADDRESS, "long")
        reader = self._spark.read.format(SOURCE).schema(columns)
        return reader.option(WORK, replace(work, columns=tuple(names)).encode()).load()

    def _check_columns(self, schema: pa.Schema) -> None:
        names, given = list(schema.names), list(self._given.columns)
        whole = any(clause.copies_rows for clause in self._clauses)
        needed = names if whole else self._on
        refuse_names("the key names columns that the table lacks", set(self._on) - set(names))
        refuse_names("the source lacks columns of the table", set(needed) - set(given))
        chosen = self._given.select(*map(quote, needed))
        check_writable(chosen.schema, pa.schema([schema.field(name) for name in needed]))
        for clause in self._clauses:
            refuse_names("a new value is for a column that the table lacks",
                         set(clause.values or ()) - set(names))  # fmt: skip
            if set(clause.values or ()) & set(self._on):
                raise InvalidInputError(
                    "a key does not change: delete the row, and insert one with the other key",
                    on=", ".join(self._on),
                )


def computed_of(parts: Sequence[WrittenMerge]) -> Computed:
    """Return what tasks have written as one change."""
    lots: dict[int, list[Any]] = {}
    for part in parts:
        for number, text in part.gone.items():
            lots.setdefault(int(number), []).append(unpacked_offsets(text))
    counts = {
        name: sum(part.changes[name] for part in parts)
        for name in ("updated", "inserted", "deleted")
    }
    return Computed(
        gone={number: np.unique(np.concatenate(some)) for number, some in sorted(lots.items())},
        new=[FragmentMetadata.from_json(text) for part in parts for text in part.new],
        counts=Counts(**counts),
    )


def refuse_keys(parts: Sequence[WrittenMerge], on: Sequence[str]) -> None:
    """Refuse keys that are null, or there more than once.

    Raises:
        InvalidInputError: there is one; the error names them.
    """
    nulls = sum(part.nulls for part in parts)
    if nulls:
        raise InvalidInputError(
            "the source has rows without a key: filter them out", on=", ".join(on), nulls=nulls
        )
    repeated = [key for part in parts for key in part.repeated]
    if repeated:
        raise InvalidInputError(
            "the source has keys more than once, so it is not clear which row counts: keep one "
            "row for each",
            on=", ".join(on),
            keys=", ".join(repeated[:_SHOWN_KEYS]),
        )


def refuse_names(problem: str, names: Collection[str]) -> None:
    """Refuse columns.

    Raises:
        InvalidInputError: there are some.
    """
    if names:
        raise InvalidInputError(problem, columns=", ".join(sorted(names)))


def fragment_groups(
    table: lance.LanceDataset, only: Collection[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return fragments in groups that one task reads; all, or only some."""
    parts = (part.metadata for part in table.get_fragments())
    sizes = {part.id: int(part.physical_rows) for part in parts if only is None or part.id in only}
    return group_fragments(sizes)


def quote(name: str) -> str:
    """Return a column's name as Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
