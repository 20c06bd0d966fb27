"""`SparkTable`: the verbs of `Table`, done by Spark.

    t = holdfast.spark.table(spark, "s3://lake/events.lance")
    t.merge_into(changes, on="id")
    spark.sql("SELECT count(*) FROM {t}", t=t.df())

What a verb changes is in one version, or not at all. Verbs may be called from any thread.
The table is opened where the caller is; Spark's tasks get its address and options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from lance.query import FullTextQuery
from pyspark.sql import functions as f

from holdfast._clock import SystemClock
from holdfast._ids import RandomIds
from holdfast.commits import CommitResult, VersionInfo
from holdfast.edit import ChangeResult, Clause
from holdfast.errors import InvalidInputError
from holdfast.formats import temporary_path
from holdfast.index import IndexResult, Kind, Watch
from holdfast.options import StorageOptions
from holdfast.read import Freshness, K, Keys, Vector, check_limit
from holdfast.spark._answers import frame_of
from holdfast.spark._compact import CompactResult, compact
from holdfast.spark._compact_lsm import compact_lsm_by_spark
from holdfast.spark._index import SparkBuilds
from holdfast.spark._merge import (
    TRIES,
    Clauses,
    Frame,
    Matched,
    MergeResult,
    NotMatched,
    SparkMerge,
    fragments_of,
    write_changes,
)
from holdfast.spark._merge_replace import FrameReplace
from holdfast.spark._merge_source import ADDRESS, COPIES, WRITES, MergeWork
from holdfast.spark._options import as_s3
from holdfast.spark._progress import Progress, Session, describe_jobs, is_connect
from holdfast.spark._types import check_writable
from holdfast.table import Table, open_table
from holdfast.txn import TxnLike
from holdfast.upkeep import GRACE, ROWS_AT_ONCE, CompactLsmResult, Status, VacuumResult

_QUERY = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewResult:
    """A view that was made: its name, and the version that it shows."""

    name: str
    version: int


class SparkTable:
    """A table whose verbs Spark does. Made by `holdfast.spark.table`."""

    def __init__(
        self,
        spark: Session,
        uri: str | Path,
        storage_options: Mapping[str, str] | None = None,
        *,
        commit_store: str | None = None,
    ) -> None:
        self._spark = spark
        self._options = StorageOptions(storage_options)
        self._commit_store = commit_store
        address = as_s3(uri) if isinstance(uri, str) else uri
        self._table = open_table(address, self._options, commit_store=commit_store)

    def __repr__(self) -> str:
        return f"SparkTable({self._table.uri})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SparkTable holds a session and stays on the driver: send its uri, and call "
            "holdfast.open_table there"
        )

    @property
    def uri(self) -> str:
        """Return the address."""
        return self._table.uri

    @property
    def table(self) -> Table:
        """Return the table itself, for all that needs no Spark."""
        return self._table

    def df(
        self,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's and Spark's word
    ) -> Frame:
        """Return one version as a DataFrame; the newest by default.

        Which version it sees is fixed here. Ask again to see what was written since.

        Args:
            version: the version.
            columns: only these columns; Spark cannot leave out others by itself here.
            filter: only rows that meet this condition, in Lance's SQL.

        Raises:
            NotFoundError: there is no such version.
            InvalidInputError: a column is not there, or Spark has no type for it.
        """
        reader = self._reader().option("versionAsOf", str(self._version(version)))
        return self._choose_rows(reader, columns, filter).load(self.uri)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's and Spark's word
        *,
        freshness: Freshness = "latest",
        limit: int | None = None,
    ) -> Frame:
        """Return the newest row of every key as a DataFrame; see `Table.scan`.

        Raises:
            InvalidInputError: unknown columns or freshness, a filter Lance does not understand.
        """
        check_limit(limit)
        reader = self._choose_rows(self._reader().option("freshness", freshness), columns, filter)
        frame = reader.load(self.uri)
        return frame if limit is None else frame.limit(limit)

    def count(self, filter: str | None = None, *, freshness: Freshness = "latest") -> int:  # noqa: A002
        """Return how many keys there are, or how many newest rows pass; see `Table.count`.

        Done by Lance where the caller is.

        Raises:
            As for `Table.count`.
        """
        return self._table.count(filter, freshness=freshness)

    def lookup(
        self,
        keys: Keys,
        columns: Sequence[str] | None = None,
        *,
        freshness: Freshness = "latest",
    ) -> Frame:
        """Return the rows of these keys as a DataFrame; see `Table.lookup`.

        Done by Lance where the caller is: for keys that fit in memory.

        Raises:
            As for `Table.lookup`.
        """
        return frame_of(self._spark, self._table.lookup(keys, columns, freshness=freshness))

    def nearest(
        self,
        column: str,
        query: Vector,
        k: int = K,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002
        metric: str | None = None,
        freshness: Freshness = "latest",
        **options: Any,  # noqa: ANN401 - Lance's own names
    ) -> Frame:
        """Return the `k` rows whose vectors are closest as a DataFrame; see `Table.nearest`.

        Done by Lance where the caller is.

        Raises:
            As for `Table.nearest`.
        """
        rows = self._table.nearest(
            column,
            query,
            k,
            columns=columns,
            filter=filter,
            metric=metric,
            freshness=freshness,
            **options,
        )
        return frame_of(self._spark, rows)

    def search(
        self,
        column: str,
        query: str | FullTextQuery,
        limit: int | None = K,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002
        version: int | None = None,
        freshness: Freshness = "latest",
    ) -> Frame:
        """Return the rows that match best as a DataFrame; see `Table.search`.

        Done by Lance where the caller is; the options `searchColumn` and `searchQuery` of a load
        let a task do it.

        Raises:
            As for `Table.search`.
        """
        rows = self._table.search(
            column,
            query,
            limit,
            columns=columns,
            filter=filter,
            version=version,
            freshness=freshness,
        )
        return frame_of(self._spark, rows)

    def append(self, df: Frame, *, txn: TxnLike | None = None) -> CommitResult:
        """Add the rows of a frame. They are in the table, durably, when this returns.

        Args:
            df: the rows; columns that it lacks are null.
            txn: makes a repeat harmless: `(app, number)` or a string.

        Raises:
            InvalidInputError: no rows, columns that do not fit, a malformed txn.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            ConflictError: other writers changed the table in a way that excludes this.
            HoldfastError: Spark's job failed; nothing was added.
        """
        clock = SystemClock()
        begun = clock.elapsed()
        base = self._table.dataset()
        if txn is not None and self._table.writes.is_repeat(txn):
            elapsed = clock.elapsed() - begun
            return CommitResult(
                version=int(base.version), rows=0, txn=txn, applied=False, elapsed=elapsed
            )
        check_writable(df.schema, base.schema)
        given = [f.col(_quote(name)) if name in df.columns else f.lit(None).alias(name)
                 for name in base.schema.names]  # fmt: skip
        marks = [
            f.lit(None).cast("long").alias(ADDRESS),
            f.lit(1).cast("long").alias(COPIES),
            f.lit(True).alias(WRITES),
        ]
        work = MergeWork(
            uri=self.uri,
            options=dict(self._options),
            version=int(base.version),
            on=(),
            answer=temporary_path(RandomIds().token()),
        )
        with describe_jobs(df.sparkSession, f"holdfast: append to {self.uri}"):
            parts = write_changes(self._table, work, df.select(*given, *marks))
        fragments = fragments_of(text for part in parts for text in part.new)
        done = self._table.commit(fragments, txn=txn, read_version=int(base.version))
        return replace(done, elapsed=clock.elapsed() - begun)

    def merge_into(
        self,
        df: Frame,
        on: str | Sequence[str],
        *,
        when_matched: Matched | None = None,
        when_not_matched: NotMatched | None = None,
        delete_where: str | None = None,
        clauses: Sequence[Clause] = (),
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> MergeResult:
        """Change rows by key: update, insert, delete; all in one version.

        Merges that run at the same time never make a key appear twice: the commit is made
        right on top of what was looked at. Merges of different keys do not disturb each
        other; when another writer changed rows of these keys meanwhile, the merge begins
        anew. The rows of `df` are taken once, so it need not give the same ones each time.

        Args:
            df: the source; one row for each key, never null.
            on: the key columns.
            when_matched: what becomes of a row that the source has too: `"update"` (replaced
                by the source's row, the default), `"delete"` or `"ignore"`.
            when_not_matched: what becomes of a row of the source that the table lacks:
                `"insert"` (the default) or `"ignore"`.
            delete_where: a condition on the source in Spark's SQL, such as `op = 'D'`; rows
                that meet it delete what they match and are never inserted. With it or with
                `clauses` the source may have columns that the table lacks.
            clauses: what becomes of rows in detail, instead of the three above, in Spark's SQL
                on `source.x` and `target.x`; see `holdfast.when_matched_update` and its like.
            txn: makes a repeat harmless: `(app, number)` or a string.
            tries: how often to begin.
            over_log: merge although rows wait in the table's log. They win over these once
                they are merged, so no key must be in both.

        Raises:
            InvalidInputError: keys that are null or there more than once (the error names
                them), columns that do not fit, an unknown clause, a malformed txn.
            RowConflictError: other writers changed the same rows first, `tries` times.
            LogWaitsError: rows wait in the table's log that cannot be merged now.
            LogLostError: the table does not say how far its log is merged.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            HoldfastError: Spark's job failed; nothing was changed.
        """
        chosen = Clauses(
            matched=when_matched,
            not_matched=when_not_matched,
            delete_where=delete_where,
            clauses=tuple(clauses),
        )
        if tries < 1:
            raise InvalidInputError("tries is at least 1", tries=tries)
        merge = SparkMerge(self._table, self._options, df, on, chosen, over_log=over_log)
        return merge.run(txn, tries)

    def update(
        self,
        where: str | None,
        set: Mapping[str, str],  # noqa: A002 - SQL's word
        *,
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Give columns of the rows that meet a condition new values; see `Table.update`.

        Done by Lance where the caller is, not by Spark's tasks; conditions and values are Lance's
        SQL, as `filter` of `df` is.

        Raises:
            HoldfastError: as for `Table.update`.
        """
        return self._table.update(where, set, txn=txn, tries=tries, over_log=over_log)

    def delete(
        self,
        where: str,
        *,
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Delete the rows that meet a condition; see `Table.delete`.

        Done by Lance where the caller is; the condition is Lance's SQL.

        Raises:
            HoldfastError: as for `Table.delete`.
        """
        return self._table.delete(where, txn=txn, tries=tries, over_log=over_log)

    def replace_where(
        self,
        df: Frame,
        where: str,
        *,
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Put the rows of a frame in the place of those that meet a condition, in one version.

        Tasks write the new rows; `df` is computed once.

        Args:
            df: the new rows; each meets the condition.
            where: a condition that Lance's SQL and Spark's both know, such as `day = 5`.
            txn: makes a repeat harmless: `(app, number)` or a string.
            tries: how often to begin, when others change the same rows.
            over_log: as for `merge_into`.

        Raises:
            InvalidInputError: a row does not meet the condition, or does not fit.
            RowConflictError: other writers changed the same rows first, `tries` times.
            HoldfastError: as for `merge_into`.
        """
        change = FrameReplace(self._table, self._options, df, where)
        return change.run(txn, tries, over_log=over_log)

    def restore(self, version: int, *, txn: TxnLike | None = None) -> CommitResult:
        """Make an older version the newest one, by a new version; see `Table.restore`.

        Raises:
            HoldfastError: as for `Table.restore`.
        """
        return self._table.restore(version, txn=txn)

    def upsert_batch(
        self,
        on: str | Sequence[str],
        *,
        app: str | None = None,
        when_matched: Matched | None = None,
        when_not_matched: NotMatched | None = None,
        delete_where: str | None = None,
        clauses: Sequence[Clause] = (),
    ) -> Callable[[Frame, int], None]:
        """Return a function for `foreachBatch` that merges each batch exactly once.

        A batch that Spark repeats is found in the table and left out. Batches are known by
        the query's id, which the checkpoint keeps; on Spark Connect, where it cannot be
        learnt, by `app`.

        Warning:
            When one query merges twice into the same table, give each merge an `app` of its
            own: the second would be taken for a repeat of the first.

        Args:
            on: the key columns.
            app: the name under which batches are counted; for ever the same for one query.
            when_matched: see `merge_into`.
            when_not_matched: see `merge_into`.
            delete_where: see `merge_into`.
            clauses: see `merge_into`.

        Raises:
            InvalidInputError: an unknown clause.
        """
        chosen = Clauses(
            matched=when_matched,
            not_matched=when_not_matched,
            delete_where=delete_where,
            clauses=tuple(clauses),
        )
        return UpsertBatch(
            uri=self.uri,
            options=dict(self._options),
            commit_store=self._commit_store,
            on=(on,) if isinstance(on, str) else tuple(on),
            clauses=chosen,
            app=app,
        )

    def compact(
        self, *, target_rows: int | None = None, progress: Progress | None = None
    ) -> CompactResult:
        """Rewrite small fragments, and those with deleted rows, into larger ones.

        Args:
            target_rows: how many rows a fragment should have; about a million by default.
            progress: hears how many tasks are done, and how many there are.

        Raises:
            InvalidInputError: `target_rows` is no number of rows.
            ConflictError: others changed the same fragments, again and again.
            HoldfastError: Spark's job failed, or the commit; no row has changed.
        """
        return compact(
            self._spark, self._table, self._options, target_rows=target_rows, progress=progress
        )

    def compact_lsm(
        self,
        *,
        shards: Sequence[str] | None = None,
        rows_at_once: int = ROWS_AT_ONCE,
        progress: Progress | None = None,
    ) -> CompactLsmResult:
        """Merge what writers have flushed into the base table; see `Table.compact_lsm`.

        Tasks write the rows of generations and mark those they replace; one commit per shard
        and `rows_at_once` rows holds them with their marker.

        Raises:
            HoldfastError: as for `Table.compact_lsm`; or Spark's job failed.
        """
        return compact_lsm_by_spark(
            self._spark,
            self._table,
            self._options,
            shards=shards,
            rows=rows_at_once,
            progress=progress,
        )

    def vacuum(
        self,
        *,
        what: Collection[str] | None = None,
        grace: timedelta = GRACE,
        keep_versions_for: timedelta | None = None,
        confirm: bool = False,
    ) -> VacuumResult:
        """Find what nobody needs and, when confirmed, delete it; see `Table.vacuum`.

        Raises:
            HoldfastError: as for `Table.vacuum`.
        """
        return self._table.vacuum(
            what=what, grace=grace, keep_versions_for=keep_versions_for, confirm=confirm
        )

    def create_index(
        self,
        column: str,
        kind: Kind = "fts",
        *,
        name: str | None = None,
        replace: bool = False,
        memory_mb: int | None = None,
        tasks: int | None = None,
        progress: Watch | None = None,
        **parameters: Any,  # noqa: ANN401 - Lance's own names, checked
    ) -> IndexResult:
        """Index a column; full text is built by Spark. See `Table.create_index`.

        Safe to repeat: tasks that had finished are not built again, whatever was killed.

        Args:
            column: the column.
            kind: `fts` for text (the default), or one that Lance builds where the caller is: see
                `Table.create_index`.
            name: the index's name; `COLUMN_idx` by default.
            replace: let it take the place of an index with other parameters.
            memory_mb: what a task may build with, in MiB; Lance chooses by default.
            tasks: how many; as many as Spark runs at the same time.
            progress: is called as stages get on.
            parameters: Lance's own.

        Raises:
            HoldfastError: as for `Table.create_index`, or Spark's job failed; call it again.
        """
        if kind != "fts":
            return self._table.create_index(
                column, kind, name=name, replace=replace, memory_mb=memory_mb, tasks=tasks,
                progress=progress, **parameters,
            )  # fmt: skip
        return self._builds().create(
            column,
            name=name,
            replace=replace,
            memory_mb=memory_mb,
            tasks=tasks,
            watch=progress,
            parameters=parameters,
        )

    def refresh_index(
        self,
        name: str,
        *,
        memory_mb: int | None = None,
        tasks: int | None = None,
        progress: Watch | None = None,
    ) -> IndexResult:
        """Index what was added since, built by Spark; see `Table.refresh_index`.

        Raises:
            HoldfastError: as for `Table.refresh_index`, or Spark's job failed; call it again.
        """
        return self._builds().refresh(name, memory_mb=memory_mb, tasks=tasks, watch=progress)

    def _builds(self) -> SparkBuilds:
        return SparkBuilds(
            spark=self._spark,
            table=self._table,
            options=dict(self._options),
            commit_store=self._commit_store,
        )

    def snapshot_view(self, name: str, version: int | None = None) -> ViewResult:
        """Make a temporary view of one version, for SQL; it shows that version for ever.

        Raises:
            NotFoundError: there is no such version.
        """
        fixed = self._version(version)
        self.df(fixed).createOrReplaceTempView(name)
        return ViewResult(name=name, version=fixed)

    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """Return the versions, newest first; see `Table.history`.

        Raises:
            InvalidInputError: a limit below 1.
        """
        return self._table.history(limit)

    def status(self) -> Status:
        """Return how the table is doing; see `Table.status`.

        Raises:
            NotFoundError: the table has no version.
        """
        return self._table.status()

    def applied(self, txns: Sequence[TxnLike]) -> list[bool]:
        """Tell of each transaction whether the newest version holds it.

        Raises:
            InvalidInputError: a malformed txn.
        """
        return self._table.applied(txns)

    def close(self) -> None:
        """Let go of connections; the table is not used afterwards."""
        self._table.close()

    def _version(self, version: int | None) -> int:
        return int(self._table.dataset(version).version)

    def _choose_rows(
        self,
        reader: Any,  # noqa: ANN401 - of either kind of session
        columns: Sequence[str] | None,
        filter: str | None,  # noqa: A002
    ) -> Any:  # noqa: ANN401 - as above
        """Return a reader of these columns, of rows that pass the filter."""
        if columns is not None:
            quoted = ("`" + name.replace("`", "``") + "`" for name in columns)
            reader = reader.option("columns", ",".join(quoted))
        return reader if filter is None else reader.option("filter", filter)

    def _reader(self) -> Any:  # noqa: ANN401 - of either kind of session
        reader = self._spark.read.format("holdfast")
        for key, value in self._options.items():
            reader = reader.option(f"storage.{key}", value)
        if self._commit_store is not None:
            reader = reader.option("commitStoreUrl", self._commit_store)
        return reader


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertBatch:
    """Merges one batch of a stream, once. Travels: it holds an address, no live handle."""

    uri: str
    options: Mapping[str, str] = field(repr=False)
    commit_store: str | None = field(repr=False)
    on: tuple[str, ...]
    clauses: Clauses
    app: str | None

    def __call__(self, df: Frame, batch_id: int) -> None:
        """Merge the batch, unless it is in the table.

        Raises:
            InvalidInputError: the query's id cannot be learnt and there is no `app`; or as
                for `merge_into`.
            HoldfastError: as for `merge_into`.
        """
        app = self.app or _query_of(df.sparkSession)
        table = open_table(self.uri, self.options, commit_store=self.commit_store)
        try:
            merge = SparkMerge(table, self.options, df, self.on, self.clauses)
            merge.run((app, int(batch_id)), TRIES)
        finally:
            table.close()


def _query_of(spark: Session) -> str:
    """Return the app under which the batches of the query that runs here are counted."""
    query = None if is_connect(spark) else spark.sparkContext.getLocalProperty(_QUERY)
    if not query:
        raise InvalidInputError(
            "the id of the streaming query cannot be learnt here (on Spark Connect it never "
            "can): give upsert_batch an app, the same for all time"
        )
    return f"spark-upsert-{query}"


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def table(
    spark: Session,
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
) -> SparkTable:
    """Open a table for Spark.

    Args:
        spark: the session, classic or of Spark Connect.
        uri: where the table is, for this process and for Spark's workers alike.
        storage_options: pylance's storage options; secrets as `env:NAME`.
        commit_store: another address of the table's commit store, with credentials, say.

    Raises:
        NotFoundError: there is no Holdfast table.
        PinMismatchError, UnsafeStoreError: see `holdfast.open_table`.
    """
    return SparkTable(spark, uri, storage_options, commit_store=commit_store)


__all__ = ["SparkTable", "UpsertBatch", "ViewResult", "table"]
