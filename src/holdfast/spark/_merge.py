"""`merge_into`: change a table's rows by key, by Spark, in one commit.

1. Spark computes the source once; its tasks stage it (`holdfast.spark._stage`).
2. The keys are looked up in Arrow, and what changes is written: `holdfast.edit`. Where that
   cannot be, for clauses in Spark's SQL or for more keys than the driver holds, Spark joins
   the source with the table (`holdfast.spark._merge_join`).
3. All of it becomes *the version right after the newest*, or nothing: `apply_change`.

What is staged stays the same for every try, so a source that is computed differently each time
cannot make a key appear twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata
from pyspark.sql import functions as f

from holdfast._ids import Ids, RandomIds
from holdfast.edit import (
    DELETE_MARK,
    TRIES,
    ChangeResult,
    Clause,
    Computed,
    Counts,
    DataMerge,
    Matched,
    NotMatched,
    RowChange,
    apply_change,
    by_fragment,
    check_keys,
    clauses_of,
    named_keys,
    refuse_unwritable,
    write_rows,
)
from holdfast.formats import temporary_path
from holdfast.spark._merge_join import (
    Frame,
    JoinedMerge,
    fragment_groups,
    quote,
    refuse_names,
)
from holdfast.spark._merge_source import SOURCE, WORK, MergeWork, WrittenMerge
from holdfast.spark._progress import describe_jobs
from holdfast.spark._stage import Staged, collect
from holdfast.spark._tasks import failure_of, raise_if_error
from holdfast.spark._types import check_writable
from holdfast.table import Table
from holdfast.txn import TxnLike
from holdfast.upkeep import MergeKeys, key_of

MergeResult: TypeAlias = ChangeResult
"""What one merge did."""

_KEYS_IN_MEMORY = 20_000_000  # of a source, on the driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Clauses:
    """What happens to rows: the clauses of a merge, said in the short way or the long one.

    Attributes:
        matched: to a row of the table that has a row of the source.
        not_matched: to a row of the source that has none of the table.
        delete_where: a condition, in Spark's SQL, on rows of the source: matched ones are
            deleted, others do nothing.
        clauses: all of it in detail.
    """

    matched: Matched | None = None
    not_matched: NotMatched | None = None
    delete_where: str | None = None
    clauses: tuple[Clause, ...] = ()
    all: tuple[Clause, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse clauses that are none.

        Raises:
            InvalidInputError: a word that is not known, both ways, or nothing to do.
        """
        made = clauses_of(self.matched, self.not_matched, self.delete_where, self.clauses)
        object.__setattr__(self, "all", made)

    @property
    def copies_all(self) -> bool:
        """Tell whether every row of the source is written as it is."""
        kinds = {(one.when, one.then) for one in self.all if one.where is None and one.copies_rows}
        return len(self.all) == len(kinds) == 2  # noqa: PLR2004 - matched, and not matched


class SparkMerge:
    """One merge into one table."""

    def __init__(
        self,
        table: Table,
        options: Mapping[str, str],
        source: Frame,
        on: str | Sequence[str],
        clauses: Clauses,
        *,
        over_log: bool = False,
        ids: Ids | None = None,
    ) -> None:
        self._over_log = over_log
        self._table = table
        self._options = options
        self._given = source
        self._spark = source.sparkSession
        self._on = named_keys(on)
        self._clauses = clauses
        self._ids = ids or RandomIds()
        self._change: RowChange | None = None
        self._columns: object = None  # of the version that the source was staged for

    def run(self, txn: TxnLike | None, tries: int) -> MergeResult:
        """Merge; anew as long as other writers change the same rows, `tries` times at most.

        Raises:
            RowConflictError: they did so every time.
            InvalidInputError: the source does not fit.
            CommitUnknownError: the outcome could not be learnt.
        """
        self._table.check_writable()  # before the tasks write files
        with describe_jobs(self._spark, f"holdfast: merge into {self._table.uri}"):
            return apply_change(
                self._table.versions, self, txn=txn, tries=tries, over_log=self._over_log
            )

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Stage the source, the first time; then compute the changes to a version."""
        refuse_unwritable(base, "merge_into")
        if self._change is None or self._columns != base.lance_schema:
            self._change, self._columns = self._choose_change(base), base.lance_schema
        computed = self._change.compute(base)
        if isinstance(self._change, StagedUpsert) and self._change.meets_twice:
            # A key that the table has twice: each of its rows gets a row, and there is one.
            self._change = self._join_source(self._checked_source(base), self._clauses.all)
            computed = self._change.compute(base)
        return computed

    def concerns(self, newest: lance.LanceDataset, fragments: Sequence[Any]) -> bool:
        """Tell whether rows in these fragments would have made a difference."""
        return self._change is None or self._change.concerns(newest, fragments)

    def renew(self) -> None:
        """Stage the source anew."""
        self._change = None

    def _choose_change(self, base: lance.LanceDataset) -> RowChange:
        """Return how this merge is computed."""
        if self._clauses.clauses:
            return self._join_source(self._given, self._clauses.all)
        source = self._checked_source(base)
        stage = "rows" if self._clauses.copies_all else "small"
        work = MergeWork(
            uri=self._table.uri,
            options=dict(self._options),
            version=int(base.version),
            on=self._on,
            answer=temporary_path(self._ids.token()),
            stage=stage,
        )
        parts = write_changes(self._table, work, source)
        staged = collect(parts, self._table.core.store, int(base.version))
        keys = 0 if staged.keys is None else staged.keys.num_rows
        if staged.too_many or keys > _KEYS_IN_MEMORY:
            return self._join_source(source, self._clauses.all)
        if not staged.fragments:
            rows = base.schema.empty_table() if staged.rows is None else staged.rows
            return DataMerge(
                rows, self._on, self._clauses.all, delete_where=None, may_have_more=True
            )
        return StagedUpsert(staged, self._on)

    def _join_source(self, source: Frame, clauses: Sequence[Clause]) -> JoinedMerge:
        def write(work: MergeWork, frame: Frame) -> list[WrittenMerge]:
            return write_changes(self._table, work, frame)

        return JoinedMerge(source, self._on, clauses, self._work, write)

    def _work(self, base: lance.LanceDataset) -> MergeWork:
        return MergeWork(
            uri=self._table.uri,
            options=dict(self._options),
            version=int(base.version),
            on=self._on,
            fragments=fragment_groups(base),
            answer=temporary_path(self._ids.token()),
        )

    def _checked_source(self, base: lance.LanceDataset) -> Frame:
        """Return the columns that are needed, and a mark on rows that delete.

        Raises:
            InvalidInputError: columns are missing, have other types, or are not the table's.
        """
        names, given = list(base.schema.names), list(self._given.columns)
        whole = any(clause.copies_rows for clause in self._clauses.all)
        needed = names if whole else list(self._on)
        refuse_names("the key names columns that the table lacks", set(self._on) - set(names))
        refuse_names("the source lacks columns of the table", set(needed) - set(given))
        chosen = self._given.select(*map(quote, needed))
        where = self._clauses.delete_where
        if where is None:
            extra = set(given) - set(names)
            refuse_names("the source has columns that the table lacks: drop them", extra)
        check_writable(chosen.schema, pa.schema([base.schema.field(name) for name in needed]))
        if where is None:
            return chosen
        mark = f.coalesce(f.expr(where).cast("boolean"), f.lit(False))
        return self._given.withColumn(DELETE_MARK, mark).select(*map(quote, needed), DELETE_MARK)


class StagedUpsert:
    """An upsert whose rows are written already: what is left are the rows that they replace.

    Args:
        staged: the source.
        on: the key columns.

    Raises:
        InvalidInputError: a key is null, or there more than once.
    """

    def __init__(self, staged: Staged, on: Sequence[str]) -> None:
        self._staged = staged
        self._on = tuple(on)
        parts = [] if staged.keys is None else [staged.keys.select(list(on))]
        if staged.rows is not None:
            parts.append(staged.rows.select(list(on)))
        keys = pa.concat_tables(parts)
        values = key_of(keys, self._on)
        check_keys(keys, values, self._on)
        self._keys = MergeKeys(self._on, values)
        self._new: list[FragmentMetadata] | None = None
        self.meets_twice = False

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Find the rows that are replaced."""
        addresses_of_tasks: list[np.ndarray] = []
        matched = np.zeros(len(self._keys.keys), bool)
        for addresses, keys in self._keys.matches(base):
            addresses_of_tasks.append(addresses)
            matched[self._keys.positions(keys)] = True
        gone = by_fragment(addresses_of_tasks)
        replaced = sum(len(offsets) for offsets in gone.values())
        inserted = int((~matched).sum())
        self.meets_twice = replaced > len(matched) - inserted
        return Computed(
            gone=gone,
            new=self._fragments(base),
            counts=Counts(updated=replaced, inserted=inserted),
            begun_on=self._staged.begun_on,
        )

    def concerns(self, newest: lance.LanceDataset, fragments: Sequence[Any]) -> bool:
        """Tell whether a row in these fragments has one of the keys."""
        return self._keys.are_in(newest, fragments)

    def renew(self) -> None:
        """Do nothing: `SparkMerge` stages anew."""

    def _fragments(self, base: lance.LanceDataset) -> list[FragmentMetadata]:
        if self._new is None:
            rows = self._staged.rows
            more = [] if rows is None else write_rows(base, rows.cast(base.schema).to_batches())
            self._new = [*self._staged.fragments, *more]
        return self._new


def write_changes(table: Table, work: MergeWork, frame: Frame) -> list[WrittenMerge]:
    """Let Spark's tasks write files for the rows of a frame; nobody sees them yet.

    Raises:
        HoldfastError: a row does not fit, or the job failed.
    """
    try:
        frame.write.format(SOURCE).option(WORK, work.encode()).mode("append").save()
    except Exception as error:
        raise failure_of(error, f"write into {table.uri}") from error
    store = table.core.store
    bodies = json.loads(store.get(work.answer))
    store.delete([work.answer])
    parts = [WrittenMerge(**json.loads(body)) for body in bodies]
    for part in parts:
        raise_if_error(part.error or {})
    return parts


def fragments_of(texts: Iterable[str]) -> list[FragmentMetadata]:
    """Return fragments from Lance's JSON."""
    return [FragmentMetadata.from_json(text) for text in texts]


__all__ = [
    "TRIES",
    "Clauses",
    "Frame",
    "Matched",
    "MergeResult",
    "NotMatched",
    "SparkMerge",
    "fragments_of",
    "write_changes",
]
