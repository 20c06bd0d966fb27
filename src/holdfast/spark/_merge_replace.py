"""`replace_where` by Spark: tasks write the new rows, the driver finds those that go.

The rows are written once, before the first try. Which of them do not meet the condition is
counted by the tasks that write them, in Spark's SQL; the rows that go are found in Lance's.
"""

from __future__ import annotations

from collections.abc import Mapping

import lance
from pyspark.sql import functions as f

from holdfast._ids import RandomIds
from holdfast.edit import ChangeResult, Computed, Counts, Where, apply_change, by_fragment
from holdfast.errors import InvalidInputError
from holdfast.formats import temporary_path
from holdfast.spark._merge import fragments_of, write_changes
from holdfast.spark._merge_join import Frame, quote
from holdfast.spark._merge_source import ADDRESS, COPIES, WRITES, MergeWork, WrittenMerge
from holdfast.spark._progress import describe_jobs
from holdfast.spark._types import check_writable
from holdfast.table import Table
from holdfast.txn import TxnLike


class FrameReplace(Where):
    """Puts the rows of a frame in the place of those that meet a condition."""

    def __init__(self, table: Table, options: Mapping[str, str], df: Frame, where: str) -> None:
        super().__init__(where)
        self._table = table
        self._options = options
        self._frame = df
        self._where = where
        self._parts: list[WrittenMerge] | None = None
        self._version = 0
        self._columns: object = None

    def run(self, txn: TxnLike | None, tries: int, *, over_log: bool) -> ChangeResult:
        """Replace the rows.

        Raises:
            HoldfastError: as for `SparkTable.replace_where`.
        """
        self._table.check_writable()  # before the tasks write files
        with describe_jobs(
            self._frame.sparkSession, f"holdfast: replace rows of {self._table.uri}"
        ):
            return apply_change(self._table.versions, self, txn=txn, tries=tries, over_log=over_log)

    def renew(self) -> None:
        """Write the rows anew."""
        self._parts = None

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Write the rows, the first time; find those that go."""
        if self._parts is None or self._columns != base.lance_schema:
            self._parts = self._write_rows(base)
            self._version, self._columns = int(base.version), base.lance_schema
        strangers = sum(part.changes["deleted"] for part in self._parts)
        if strangers:
            raise InvalidInputError(
                "rows do not meet the condition under which they would replace others: they "
                "would be there twice after a repeat",
                where=self._where[:200],
                rows=strangers,
            )
        gone = by_fragment(self.addresses(base))
        inserted = sum(part.changes["inserted"] for part in self._parts)
        deleted = sum(len(offsets) for offsets in gone.values())
        return Computed(
            gone=gone,
            new=fragments_of(text for part in self._parts for text in part.new),
            counts=Counts(inserted=inserted, deleted=deleted),
            begun_on=self._version,
        )

    def _write_rows(self, base: lance.LanceDataset) -> list[WrittenMerge]:
        check_writable(self._frame.schema, base.schema)
        given = set(self._frame.columns)
        columns = [
            f.col(quote(name)) if name in given else f.lit(None).alias(name)
            for name in base.schema.names
        ]
        meets = f.coalesce(f.expr(self._where).cast("boolean"), f.lit(False))
        marks = [
            f.lit(None).cast("long").alias(ADDRESS),
            f.lit(1).cast("long").alias(COPIES),
            meets.alias(WRITES),
        ]
        work = MergeWork(
            uri=self._table.uri,
            options=dict(self._options),
            version=int(base.version),
            on=(),
            answer=temporary_path(RandomIds().token()),
        )
        return write_changes(self._table, work, self._frame.select(*columns, *marks))
