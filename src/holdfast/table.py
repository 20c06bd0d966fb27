"""`Table`: a real Lance table whose every version is decided by Holdfast.

    table = holdfast.create_table("s3://bucket/events.lance", schema, commit_store="postgresql://db/lake")
    result = table.append(rows, txn=("job7", 42))
    result.applied  # False: this transaction was in the table already

An append that returned is in the table, durably. Repeated under the same transaction id it
is there once. Stock pylance reads every version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.query import FullTextQuery

from holdfast.arbiter import open_arbiter
from holdfast.changes import (
    ChangeCursor,
    Changes,
    Lag,
    Since,
    Until,
    find_cursor,
    read_changes,
    read_lag,
)
from holdfast.commits import (
    CommitResult,
    Data,
    LanceOperation,
    VersionInfo,
    Versions,
    Writes,
    open_dataset,
    read_history,
    touch,
)
from holdfast.core import TableCore
from holdfast.edit import (
    TRIES,
    ChangeResult,
    Clause,
    Matched,
    NotMatched,
    delete_where,
    merge_into,
    replace_where,
    update_where,
)
from holdfast.errors import HoldfastError
from holdfast.formats import Pin
from holdfast.index import BuildInfo, Indexes, IndexInfo, IndexResult, Kind, Watch
from holdfast.options import StorageOptions
from holdfast.read import Freshness, K, Keys, Reader, TableSnapshot, Vector
from holdfast.shard import (
    Router,
    Shard,
    Sharding,
    ShardWriter,
    ShardWriterConfig,
    claim_writer,
    prepare_writers,
    read_newest_base,
)
from holdfast.storage import open_store
from holdfast.txn import TxnLike
from holdfast.upkeep import (
    GRACE,
    IDLE,
    ROWS_AT_ONCE,
    ROWS_PER_GENERATION,
    CompactLsmResult,
    FlushLogResult,
    MaintainResult,
    Maintenance,
    Policy,
    RepairShardResult,
    ResetLogResult,
    Status,
    VacuumResult,
    Waiting,
    compact_lsm,
    flush_log,
    merge_log,
    merge_waiting,
    read_full_status,
    repair_shard,
    reset_log,
    vacuum_table,
)
from holdfast.wal import ShardState, WalAppender, WalTailer, read_shard_states


class Table:
    """A Lance table that commits through Holdfast. Threads may share it.

    It travels to other processes as its address and options; live handles do not. Give
    secrets in them as `env:NAME`, so that they stay at home.

    Every verb that reads takes `freshness`: `"latest"` sees every row that was acknowledged
    before the call, `"flushed"` leaves out what is only in logs, `"base"` sees the base table
    alone. An answer is of one moment of each shard: a prefix of its log, whole. Shards are not
    aligned with each other.

    Every verb that changes rows makes one version, or none; under a `txn` it is applied once.
    Changes of different rows do not disturb each other, even inside one fragment. One that finds
    its rows changed by another writer begins anew, `tries` times at most.
    """

    def __init__(self, core: TableCore, *, commit_store: str | None = None) -> None:
        self._core = core
        self._commit_store = commit_store
        self._versions = Versions(core)
        self._writes = Writes(self._versions, merge_waiting)

    def __repr__(self) -> str:
        return f"Table({self.uri})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self.uri, dict(self._core.options), self._commit_store))

    @property
    def uri(self) -> str:
        """Return the address."""
        return self._core.location

    @property
    def pin(self) -> Pin | None:
        """Return what ties the table to its arbiter."""
        return self._core.arbiter.pin

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the newest version."""
        return self.dataset().schema

    @property
    def core(self) -> TableCore:
        """Return the table's stores, options, clock and ids; for engines upon Holdfast."""
        return self._core

    @property
    def versions(self) -> Versions:
        """Return the table's versions; for engines upon Holdfast."""
        return self._versions

    @property
    def writes(self) -> Writes:
        """Return what commits to the table; for engines upon Holdfast."""
        return self._writes

    def dataset(self, version: int | None = None, *, over_log: bool = False) -> lance.LanceDataset:
        """Return a pylance dataset, the newest or of one version; its commits are decided.

        Use it for everything pylance can do. Do not pickle it: a dataset loses its hook on
        the way to another process. Send this table instead.

        Warning:
            Rows that wait in the table's log would win over what is changed here once they are
            merged. So changes of a table with a key are refused while any wait: with a
            `LogWaitsError`, unless the dataset went through pylance's functions
            (`lance.write_dataset(rows, dataset)`); those report a commit whose result is
            unknown, and the log says why. `merge_log` merges what waits. A restore supersedes it.

        Args:
            version: which one; the newest by default.
            over_log: change keyed rows although some wait; if no key is in both, say.

        Raises:
            NotFoundError: there is no such version.
            UnavailableError: a store gave no answer.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: the newest version is
                not the one that was decided.
        """
        return open_dataset(self._versions, version, over_log=over_log)

    # Reading.

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's word
        *,
        freshness: Freshness = "latest",
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Stream the newest row of every key; deleted keys are left out.

        In bounded memory: the keys above the base table, the log, and a few megabytes of
        rows. The snapshot is taken by this call. Rows come in no particular order.

        Args:
            columns: which columns; all by default.
            filter: an SQL expression. It sees the newest row of a key only, so an older row
                that would pass does not come up again.
            freshness: see the class.
            limit: at most so many rows.

        Raises:
            InvalidInputError: unknown columns or freshness, a filter Lance does not understand.
            SnapshotExpiredError: files were collected under the reader; read again. Rows that
                the stream gave out before are of that snapshot, and not all of it.
            WalGapError, CorruptError: a log or SSTable is damaged: `freshness="base"` still
                reads.
            UnavailableError, PermissionDeniedError: a store did not tell.
            CommitStoreRegressedError, ForeignVersionError: a name is not what was decided.
        """
        reader = Reader(self._versions)
        return reader.scan(columns, filter, freshness=freshness, limit=limit)

    def to_table(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002
        *,
        freshness: Freshness = "latest",
        limit: int | None = None,
    ) -> pa.Table:
        """Return the newest row of every key, in memory; begins anew when files vanish.

        Raises:
            As for `scan`.
        """
        reader = Reader(self._versions)
        return reader.to_table(columns, filter, freshness=freshness, limit=limit)

    def count(self, filter: str | None = None, *, freshness: Freshness = "latest") -> int:  # noqa: A002
        """Return how many keys there are, or how many newest rows pass a filter.

        Raises:
            As for `scan`.
        """
        return Reader(self._versions).count(filter, freshness=freshness)

    def lookup(
        self,
        keys: Keys,
        columns: Sequence[str] | None = None,
        *,
        freshness: Freshness = "latest",
    ) -> pa.Table:
        """Return the rows of these keys in the order of the keys; missing ones are left out.

        Asks the newest level first and stops at the first that knows a key. In the base
        table an index on the key column (`BTREE`) is used where there is one.

        Args:
            keys: a list of values; for a key of several columns, of tuples or dicts; or Arrow.
            columns: which columns; all by default.
            freshness: see the class.

        Raises:
            InvalidInputError: keys that are none of this table, or it has no primary key.
            Other errors: as for `scan`.
        """
        return Reader(self._versions).lookup(keys, columns, freshness=freshness)

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
    ) -> pa.Table:
        """Return the `k` rows whose vectors are closest, closest first, with `_distance`.

        Rows above the base table are compared one by one, indexed or not. In the base an
        index finds the candidates, and their distances are computed exactly; so distances of
        all levels compare.

        Args:
            column: the column of vectors.
            query: the vector to compare with.
            k: how many rows.
            columns: which columns come out beside the distance; all by default.
            filter: an SQL expression that rows must pass.
            metric: `l2`, `cosine` or `dot`; by default that of the base's index, else `l2`.
            freshness: see the class.
            options: of the base's index: `nprobes`, `ef`, `refine_factor`.

        Raises:
            InvalidInputError: no such column of vectors, a `k` below 1, a bad filter.
            Other errors: as for `scan`.
        """
        return Reader(self._versions).nearest(
            column,
            query,
            k,
            columns=columns,
            filter=filter,
            metric=metric,
            freshness=freshness,
            options=options,
        )

    def search(
        self,
        column: str,
        query: str | FullTextQuery,
        limit: int | None = K,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - pylance's word
        version: int | None = None,
        freshness: Freshness = "latest",
    ) -> pa.Table:
        """Return the rows that match best, with their `_score`, highest first.

        Rows in logs and SSTables, and those that the index does not cover yet, are found by
        the same rules: they are indexed in memory, as the table's index says now. Each level
        scores its own rows: how rare a word is, is counted where the row is.

        Args:
            column: where to look.
            query: words with AND, OR, NOT, quotes for phrases, `word~1` for spelling; or an
                object of `lance.query`.
            limit: how many rows; None for all.
            columns: which columns to return; all by default.
            filter: an SQL condition that rows must meet, too.
            version: an older version of the base table alone; the newest by default.
            freshness: `latest`, `flushed` or `base`, as for `scan`.

        Raises:
            InvalidInputError: no such column, or a malformed query or filter.
            NotFoundError: there is no such version.
            Other errors: as for `scan`.
        """
        return Reader(self._versions).search(
            column,
            query,
            limit,
            columns=columns,
            filter=filter,
            version=version,
            freshness=freshness,
        )

    def snapshot(self, *, freshness: Freshness = "latest", pinned: bool = False) -> TableSnapshot:
        """Return the table as it is now, to read from any number of times.

        With `pinned`, a small object in the table keeps its files until the snapshot is
        closed, or `max_pin_age` of `vacuum` has passed. That is the only thing that reading
        ever writes. Clean-up by stock Lance knows no pins.

        Raises:
            As for `scan`.
        """
        return Reader(self._versions).snapshot(freshness, pinned=pinned)

    def changes(
        self,
        since: Since = None,
        until: Until = None,
        *,
        freshness: str | None = None,
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
        max_files: int | None = None,
        max_entries: int | None = None,
    ) -> Changes:
        """Return every insert, update and delete since a point, each once; reads only.

        Applied in order to the state at `since`, the change rows give exactly the state at
        the returned `cursor`. Rows that are only moved, by compaction or from the log to the
        base table, and rows that are written again with the same values, are no changes.

        Args:
            since: None for a snapshot: all rows there are, as inserts; a version, a time or
                `"now"` for what came after it; or the cursor, or its text, of an earlier call.
            until: a version, a time or a cursor, or its text; what is newest now by default,
                and for a time that has not come.
            freshness: `"latest"` (default) follows base table and log, `"base"` the base
                table alone. A cursor remembers it.
            columns: which columns come out; all that the table has now by default. A change
                of other columns is then no change.
            max_rows: end after about so many rows.
            max_files: end after so many fragments.
            max_entries: end after so many log entries. Memory holds the entries of a call, of
                a table with a key, and the rows that one version rewrote.

        Raises:
            InvalidInputError: a cursor of another table or of one that was made anew, an end
                before the start, unknown columns, a limit below 1.
            NotFoundError: there is no such version yet.
            CollectedError: what lies behind `since` was collected: begin with a snapshot.
            LogLostError: a version does not say how far the log is merged.
            WalGapError, CorruptError: a log or SSTable is damaged.
            UnavailableError, PermissionDeniedError: a store did not tell.
            CommitStoreRegressedError, ForeignVersionError: a name is not what was decided.
        """
        return read_changes(
            self._versions,
            since,
            until,
            freshness=freshness,
            columns=columns,
            max_rows=max_rows,
            max_files=max_files,
            max_entries=max_entries,
        )

    def change_cursor(self, since: Since = "now", *, freshness: str | None = None) -> ChangeCursor:
        """Return the cursor of a point in the table's life; now by default.

        Raises:
            As for `changes`.
        """
        return find_cursor(self._versions, since, freshness=freshness)

    def change_lag(self, cursor: str | ChangeCursor) -> Lag:
        """Return how far a cursor is behind the table: versions, and entries of each shard.

        Raises:
            As for `changes`.
        """
        return read_lag(self._versions, cursor)

    # Writing.

    def check_writable(self) -> None:
        """Return if this table's versions can be decided, before files are written for one.

        The first call on an object store that decides by itself probes it, if nobody did lately.

        Raises:
            UnsafeStoreError: the store failed the probe.
            PermissionDeniedError: it cannot be written to.
        """
        self._core.check_writable()

    def append(self, data: Data, *, txn: TxnLike | None = None) -> CommitResult:
        """Add rows. They are in the table, durably, when this returns.

        On a table with a key and a log, what waits there is merged first: so older rows do not
        come back over these.

        Args:
            data: anything with Arrow's stream interface, or a list of dicts.
            txn: makes a repeat harmless: `(app, number)` or a string.

        Raises:
            InvalidInputError: no rows, columns that do not fit, a malformed txn.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            ConflictError: other writers changed the table in a way that excludes this.
            StaleWorkError: it took so long that vacuum may have taken its files.
            LogWaitsError: rows wait in the log that cannot be merged now.
            LogLostError: the table does not say how far its log is merged.
            UnavailableError, PermissionDeniedError: a store did not do its part; nothing was
                added.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: the newest version is
                not the one that was decided; nothing was added.
        """
        return self._writes.append(data, txn)

    def append_all(
        self, items: Sequence[tuple[pa.Table | list[dict[str, Any]], TxnLike | None]]
    ) -> list[CommitResult | HoldfastError]:
        """Add the rows of several callers as one version and one fragment, where that can be.

        Each is added once under its own transaction id, as by `append`, and has its own
        outcome: a result, or the error that `append` would have raised. Those that cannot be
        joined with the others are added one by one.

        Args:
            items: rows, and what makes a repeat of them harmless; for a server that takes many
                small inserts.

        Raises:
            HoldfastError: as for `dataset`; nothing was added.
        """
        return self._writes.append_all(items)

    def commit(
        self,
        fragments: Iterable[Any],  # Any: Lance's FragmentMetadata
        *,
        txn: TxnLike | None = None,
        read_version: int | None = None,
    ) -> CommitResult:
        """Append fragments that were written elsewhere, as engines do.

        Args:
            fragments: what `lance.fragment.write_fragments` returned.
            txn: makes a repeat harmless: `(app, number)` or a string.
            read_version: the version for which they were written. Without it they must fit
                the columns as they are now: an overwrite with others goes unnoticed; and each
                file is looked for, once the table was vacuumed.

        Raises:
            StaleWorkError: they were written so long ago that vacuum may have taken them.
            InvalidInputError: no rows, no fragments of this table, or a malformed txn.
            NotFoundError: a data file is not there (looked for on local disk only).
            Other errors: as for `append`.
        """
        return self._writes.commit_fragments(fragments, txn, read_version)

    def commit_operation(
        self,
        operation: LanceOperation,
        *,
        read_version: int,
        txn: TxnLike | None = None,
    ) -> CommitResult:
        """Commit what was built elsewhere, as engines do; once per transaction id.

        An append goes on top of whatever is newest. Any other operation does so only where
        Lance finds that it still fits; where it does not, nobody but its maker can build it
        anew, so it fails with a conflict and changes nothing.

        Args:
            operation: one of `lance.LanceOperation`.
            read_version: the version it was built on.
            txn: makes a repeat harmless: `(app, number)` or a string.

        Raises:
            InvalidInputError: no operation, no version number, a malformed txn.
            NotFoundError: there is no such version, or a file that the operation shows is
                not there (looked for on local disk only).
            ConflictError: others changed what it was built on. `next_step` is `rebuild` when
                reading again and building it anew may help.
            StaleWorkError: it was built so long ago that vacuum may have taken its files.
            LogWaitsError: it changes keyed rows, and rows wait in the table's log: merge them
                with `merge_log`, read again and rebuild.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            Other errors: as for `append`; nothing was committed.
        """
        return self._writes.commit_operation(operation, read_version=read_version, txn=txn)

    def restore(self, version: int, *, txn: TxnLike | None = None) -> CommitResult:
        """Make the rows and columns of an older version the newest ones, by a new version.

        What came since stays readable in its versions. Transactions that were applied since are
        taken back with their rows: repeated, they are applied again. Rows that wait in the
        table's log are superseded.

        Args:
            version: the version to go back to.
            txn: makes a repeat harmless: `(app, number)` or a string.

        Raises:
            InvalidInputError: no version number, a malformed txn.
            NotFoundError: there is no such version.
            ConflictError: others were faster each time; nothing was changed.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            Other errors: as for `append`; nothing was changed.
        """
        return self._writes.restore(version, txn)

    def applied(self, txns: Sequence[TxnLike]) -> list[bool]:
        """Tell of each transaction whether the newest version holds it.

        Raises:
            InvalidInputError: a malformed txn.
        """
        return self._writes.applied(txns)

    # Changing rows.

    def merge_into(
        self,
        rows: Data,
        on: str | Sequence[str] | None = None,
        *,
        when_matched: Matched | None = None,
        when_not_matched: NotMatched | None = None,
        delete_where: str | None = None,
        clauses: Sequence[Clause] = (),
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Change rows by key: update, insert, delete; all in one version.

        The rows are held in memory; for larger sources see `SparkTable.merge_into`. Merges that
        run at the same time never make a key appear twice.

        Args:
            rows: the source; one row for each key, never null. Anything with Arrow's stream
                interface, or a list of dicts.
            on: the key columns; the table's primary key by default.
            when_matched: what becomes of a row that the source has too: `"update"` (replaced by
                the source's row, the default), `"delete"` or `"ignore"`.
            when_not_matched: what becomes of a row of the source that the table lacks:
                `"insert"` (the default) or `"ignore"`.
            delete_where: a condition on columns of the source, such as `op = 'D'`, in Lance's
                SQL; rows that meet it delete what they match and are never inserted. With it
                or with `clauses` the source may have columns that the table lacks.
            clauses: what becomes of rows in detail, instead of the three above; see
                `holdfast.when_matched_update` and its like.
            txn: makes a repeat harmless: `(app, number)` or a string.
            tries: how often to begin.
            over_log: merge although rows wait in the table's log. They win over these once
                they are merged, so no key must be in both.

        Raises:
            InvalidInputError: keys that are null or there more than once (the error names them),
                columns that do not fit, an unknown clause, a malformed txn.
            RowConflictError: other writers changed the same rows first, `tries` times.
            ConflictError: others were faster each time; nothing was changed.
            LogWaitsError: rows wait in the table's log that cannot be merged now.
            LogLostError: the table does not say how far its log is merged.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            HoldfastError: a store did not do its part; nothing was changed.
        """
        return merge_into(
            self._versions,
            rows,
            on,
            when_matched=when_matched,
            when_not_matched=when_not_matched,
            delete_where=delete_where,
            clauses=clauses,
            txn=txn,
            tries=tries,
            over_log=over_log,
        )

    def update(
        self,
        where: str | None,
        set: Mapping[str, str],  # noqa: A002 - SQL's word
        *,
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Give columns of the rows that meet a condition new values, in one version.

        Args:
            where: a condition in Lance's SQL, such as `day < '2026-01-01'`; None for all rows.
            set: an SQL expression by column: `{"n": "n + 1", "word": "'new'"}`. A key does not
                change.
            txn: as for `merge_into`.
            tries: as for `merge_into`.
            over_log: as for `merge_into`.

        Raises:
            InvalidInputError: Lance does not understand a condition or an expression, or its
                values do not fit the column.
            Other errors: as for `merge_into`.
        """
        return update_where(self._versions, where, set, txn=txn, tries=tries, over_log=over_log)

    def delete(
        self,
        where: str,
        *,
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Delete the rows that meet a condition, in one version.

        Args:
            where: a condition in Lance's SQL; `true` for all rows.
            txn: as for `merge_into`.
            tries: as for `merge_into`.
            over_log: as for `merge_into`.

        Raises:
            InvalidInputError: Lance does not understand the condition.
            Other errors: as for `merge_into`.
        """
        return delete_where(self._versions, where, txn=txn, tries=tries, over_log=over_log)

    def replace_where(
        self,
        rows: Data,
        where: str,
        *,
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Put rows in the place of those that meet a condition, in one version.

        Args:
            rows: the new rows, held in memory; each meets the condition. There may be none.
            where: a condition in Lance's SQL, such as `day = '2026-01-01'`.
            txn: as for `merge_into`.
            tries: as for `merge_into`.
            over_log: as for `merge_into`.

        Raises:
            InvalidInputError: a row does not meet the condition, or does not fit.
            Other errors: as for `merge_into`.
        """
        return replace_where(self._versions, rows, where, txn=txn, tries=tries, over_log=over_log)

    # Indexes.

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
        """Index a column; the index is in the table when this returns.

        Safe to repeat: an index that is there already is left alone (`applied` is False),
        and a build in tasks that was killed goes on where it was. Rows that are appended
        meanwhile are found by searches, too; `refresh_index` indexes them.

        Args:
            column: for `fts` a column of text, or of lists of text.
            kind: `fts` for text (the default); `btree`, `bitmap` or `label_list` for conditions
                on single values; `ivf_flat`, `ivf_pq`, `ivf_sq`, `ivf_hnsw_pq` or `ivf_hnsw_sq`
                for the nearest vectors. All but `fts` are built by Lance in one process.
            name: the index's name; `COLUMN_idx` by default.
            replace: let it take the place of an index with other parameters.
            memory_mb: what a task may build with, in MiB; Lance chooses by default.
            tasks: build in so many tasks, which can be resumed; in one go by default.
            progress: is called as stages get on.
            parameters: Lance's own. For `fts`, how text becomes words: `base_tokenizer`,
                `language`, `stem`, `with_position` (for phrases), and so on; for vectors
                `metric`, `num_partitions`, `num_sub_vectors`.

        Raises:
            InvalidInputError: no such column, not of text, an unknown parameter, or an index
                of this name that is another one.
            ConflictError: the table changed so that the index fits no more; it says what to do.
            NotFoundError: the version that is indexed was removed meanwhile.
            CommitUnknownError: the outcome could not be learnt; repeat the call.
            CorruptError: files of the build were changed or removed behind its back.
            UnavailableError, PermissionDeniedError: a store did not do its part; repeat.
        """
        return Indexes(self._versions).create(
            column,
            kind=kind,
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
        tasks: int = 1,
        progress: Watch | None = None,
    ) -> IndexResult:
        """Index what was added since: only fragments that no segment of the index covers.

        Uses the index's own parameters. Its parts become parts of the new segment as they
        are, unless rows in them were rewritten; then their segment stays beside it. Safe to
        repeat.

        Raises:
            NotFoundError: there is no full-text index of this name.
            InvalidInputError: its segments have different parameters.
            Other errors: as for `create_index`.
        """
        indexes = Indexes(self._versions)
        return indexes.refresh(name, memory_mb=memory_mb, tasks=tasks, watch=progress)

    def finalize_index(self, build_id: str, *, progress: Watch | None = None) -> IndexResult:
        """Bring a build whose tasks have finished to its end. Any number of times, by anyone.

        Raises:
            NotFoundError: there is no such build, or a task has not finished.
            InvalidInputError: no build id, or tasks were built with different parameters.
            Other errors: as for `create_index`.
        """
        return Indexes(self._versions).finalize(build_id, progress)

    def indexes(self) -> list[IndexInfo]:
        """Return the indexes of the newest version; reads only."""
        return Indexes(self._versions).describe()

    def index_builds(self) -> list[BuildInfo]:
        """Return the index builds that are open: running, or waiting to be run again."""
        return Indexes(self._versions).builds()

    # Shards and their logs.

    def claim_writer(
        self, shard: str | Shard, *, config: ShardWriterConfig | None = None
    ) -> ShardWriter:
        """Claim a shard for writing. This WRITES: it locks the shard's previous writer out.

        What earlier writers got acknowledged and not flushed is replayed from the log. The
        first writer of a table also prepares it, by one commit, so that every Lance reader
        knows of its shards; see `prepare_writers`.

        Args:
            shard: `"unsharded"`, `"bucket-3"`, a UUID, or a shard that a `router` named. One
                that is not there is made.
            config: how the writer works; as the table recorded it by default.

        Raises:
            FencedError: another writer claimed the shard at the same time, or since.
            SealedError: the shard is sealed.
            InvalidInputError: the table has no such shard, or cannot have a log, or the
                config does not fit.
            WalGapError, CorruptError: the log is damaged; see `holdfast wal repair`.
            ConflictError: others changed the table while it was prepared: try again.
            CommitUnknownError: an outcome could not be learnt; claim again.
            UnavailableError, PermissionDeniedError: a store did not do its part.
            CommitStoreRegressedError, ForeignVersionError: a name is not what was decided.
        """
        return claim_writer(self._versions, shard, config)

    def prepare_writers(
        self,
        *,
        sharding: Sharding | None = None,
        maintained_indexes: Sequence[str] | None = None,
        defaults: ShardWriterConfig | None = None,
    ) -> bool:
        """Prepare the table for writers, by one commit; a table is prepared once.

        Args:
            sharding: how rows are divided into shards; shards are named by hand by default.
            maintained_indexes: the indexes that SSTables carry, too; all by default.
            defaults: settings for writers that say nothing else.

        Returns:
            False when it was prepared before; then nothing is changed.

        Raises:
            InvalidInputError: the sharding does not fit, or there is no such index.
            ConflictError, CommitUnknownError: as for `append`; call it again.
        """
        return prepare_writers(
            self._versions,
            sharding=sharding,
            maintained_indexes=maintained_indexes,
            defaults=defaults,
        )

    def router(self) -> Router:
        """Return what divides rows among the table's shards.

        Raises:
            InvalidInputError: the table's shards are named by hand.
        """
        return Router(read_newest_base(self._versions))

    def shards(self) -> list[str]:
        """Return the ids of the table's shards, sorted.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        return self._core.shard_ids()

    def shard_states(self) -> list[ShardState]:
        """Return how each shard is doing; reads only, and no log entry: fences nobody.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
            CorruptError: a shard's manifest cannot be read.
        """
        return read_shard_states(self._core)

    def claim_appender(self, shard_id: str) -> WalAppender:
        """Claim a shard's log for writing. This WRITES: an epoch, and a fence that ends others.

        The lowest level: entries of Arrow batches, no MemTable. See `claim_writer` for rows.

        Raises:
            As for `WalAppender.claim`.
        """
        return WalAppender.claim(self._core, shard_id)

    def tailer(self, shard_id: str) -> WalTailer:
        """Return a reader of a shard's log, which never writes.

        Raises:
            InvalidInputError: the shard id is no UUID.
        """
        return WalTailer(self._core, shard_id)

    # Upkeep.

    def compact_lsm(
        self, *, shards: Sequence[str] | None = None, rows_at_once: int = ROWS_AT_ONCE
    ) -> CompactLsmResult:
        """Merge what writers have flushed into the base table; each generation exactly once.

        Rows and the marker that says so are one commit. Repeated, at the same time elsewhere,
        or killed anywhere and run again: the rows are the same. Live writers go on.

        Args:
            shards: only these; all by default.
            rows_at_once: merge generations together up to so many rows: memory holds their
                keys.

        Raises:
            InvalidInputError: the table has no log, or its columns changed so that waiting
                rows do not fit.
            NotFoundError: there is no such shard.
            ConflictError: others changed the same rows each time first; try again.
            CommitUnknownError: the outcome could not be learnt; repeat.
            CorruptError: the table was restored to an older version, so that a generation is
                missing; or stored bytes are damaged.
            UnavailableError, PermissionDeniedError: a store did not do its part; repeat.
        """
        return compact_lsm(self._versions, shards=shards, rows=rows_at_once)

    def merge_log(self) -> CompactLsmResult:
        """Flush and merge everything that waits in the table's log now.

        Rows that were acknowledged before the call are in the base table when it returns. Live
        writers go on. Safe to repeat, and at the same time elsewhere.

        Raises:
            LogWaitsError: a writer of stock Lance is at work, and would be locked out.
            InvalidInputError: the table has no log.
            LogLostError: the table does not say how far its log is merged.
            Other errors: as for `flush_log` and `compact_lsm`.
        """
        return merge_log(self._versions)

    def flush_log(
        self,
        shard_id: str,
        *,
        rows_per_generation: int = ROWS_PER_GENERATION,
        idle: timedelta = IDLE,
    ) -> FlushLogResult:
        """Turn what a shard's log holds beyond its flushed cursor into generations.

        For shards whose writer does not do so: one without MemTables, or one that is gone.
        Nobody is fenced, and appends go on. Repeated, or at the same time elsewhere, it
        changes nothing.

        Args:
            shard_id: the shard.
            rows_per_generation: how many rows become one generation.
            idle: how long a writer with MemTables must have been silent; until then its
                entries stay in the log, and `waits` says so. One that wakes up later may
                have to open its shard again; nothing is lost.

        Raises:
            InvalidInputError: the table has no log, or the shard id is no UUID.
            NotFoundError: there is no such shard.
            ConflictError: others flushed it each time first.
            WalGapError, CorruptError: the log is damaged.
            CommitUnknownError: the outcome could not be learnt; repeat.
            UnavailableError, PermissionDeniedError: a store did not do its part; repeat.
        """
        return flush_log(self._versions, shard_id, rows=rows_per_generation, idle=idle)

    def reset_log(self, waiting: Waiting, *, confirm: bool = False) -> ResetLogResult:
        """Say what becomes of the rows in the log of a table that was overwritten past Holdfast.

        The way out of `LogLostError`. With `confirm` this WRITES: it locks every writer out,
        and makes a version that says anew how far the log is merged. Safe to repeat.

        Args:
            waiting: `"keep"`: the rows that the shards have go over what the table holds now,
                also those that were merged before and not drained yet; `"discard"`: they are
                given up.
            confirm: do it; without it this is a plan.

        Raises:
            InvalidInputError: another word, a table without shards, or rows to keep that were
                written for other columns.
            FencedError: another writer claimed a shard meanwhile; try again.
            CommitUnknownError: the outcome could not be learnt; repeat.
            WalGapError, CorruptError: a log is damaged: repair it first.
            UnavailableError, PermissionDeniedError: a store did not do its part; repeat.
        """
        return reset_log(self._versions, waiting, confirm=confirm)

    def repair_shard(self, shard_id: str, *, confirm: bool = False) -> RepairShardResult:
        """Find generations of a shard that cannot be read; give up those rows, keep all others.

        The way out when a flushed SSTable holds values that nobody can read, or lacks a file.
        With `confirm` this WRITES: the rows that can be read take the damaged SSTable's place,
        whose files are kept under `_holdfast/quarantine`. No writer is locked out. Keys of rows
        that are given up have the value again that they had before. Safe to repeat. For the
        log itself see `holdfast wal repair`.

        Args:
            shard_id: the shard.
            confirm: do it; without it this is a plan.

        Raises:
            InvalidInputError: the table has no log, or its columns changed so that waiting rows
                do not fit.
            NotFoundError: there is no such shard.
            LogLostError: the table does not say how far its log is merged.
            ConflictError: the shard's writers were faster each time; try again.
            CommitUnknownError: the outcome could not be learnt; repeat.
            CorruptError: the shard's manifest is damaged.
            UnavailableError, PermissionDeniedError: a store did not do its part; repeat.
        """
        return repair_shard(self._versions, shard_id, confirm=confirm)

    def maintain(
        self, policy: Policy | None = None, *, dry_run: bool = False, confirm: bool = False
    ) -> MaintainResult:
        """Do what the table needs now: flush, merge, compact, refresh indexes, vacuum.

        Safe to run anywhere, at any time, in several places concurrently. A step that others were
        faster at waits for the next run; one that fails stops no other. Nothing is deleted
        without `confirm`.

        Args:
            policy: when a step is due.
            dry_run: only say what would be done.
            confirm: let `vacuum` delete.

        Raises:
            UnavailableError, PermissionDeniedError: a store did not tell what is there.
            CorruptError: stored bytes are damaged.
        """
        maintenance = Maintenance(self, self._versions, policy or Policy())
        return maintenance.run(dry_run=dry_run, confirm=confirm)

    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """Return the versions, newest first: what, when, by which transactions, decided by whom.

        Raises:
            InvalidInputError: a limit below 1.
        """
        return read_history(self._core, limit)

    def status(self) -> Status:
        """Return how the table is doing, its shards, indexes and upkeep included; reads only.

        Raises:
            NotFoundError: the table has no version.
            CorruptError: its newest manifest or a record cannot be read.
            UnavailableError, PermissionDeniedError: a store gave no answer, or refused.
        """
        return read_full_status(self._core)

    def vacuum(
        self,
        *,
        what: Collection[str] | None = None,
        grace: timedelta = GRACE,
        keep_versions_for: timedelta | None = None,
        confirm: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> VacuumResult:
        """Find what nobody needs and, when confirmed, delete it; see `holdfast.upkeep.vacuum`.

        Args:
            what: the kinds of leftovers; all by default.
            grace: how old a leftover must be; longer than the longest job.
            keep_versions_for: how long a version stays after a newer one came; seven days at
                least, for ever by default.
            confirm: delete; without it this is a plan.
            progress: hears how many of how many versions were read.

        Raises:
            InvalidInputError: an unknown kind, a grace period below an hour, versions kept
                for less than seven days, or a table with appends to rescue.
            NotFoundError: the table has no version.
            CorruptError: a version cannot be read, so nobody knows which files it shows.
            UnavailableError, PermissionDeniedError: a store gave no answer, or refused.
        """
        return vacuum_table(
            self._core,
            touch=lambda edit: touch(self._versions, edit),
            what=what,
            grace=grace,
            keep_versions_for=keep_versions_for,
            confirm=confirm,
            progress=progress,
            remember=True,
        )

    def close(self) -> None:
        """Let go of connections; the table is not used afterwards."""
        self._core.arbiter.close()


def open_table(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    commit_store: str | None = None,
) -> Table:
    """Open a table; it knows its own commit store.

    Args:
        uri: where the table is.
        storage_options: pylance's storage options.
        commit_store: another address of the table's commit store, with credentials, say.

    Raises:
        NotFoundError: there is no Holdfast table.
        PinMismatchError, UnsafeStoreError: see `open_arbiter`.
    """
    options = StorageOptions(storage_options)
    store = open_store(uri, options)
    arbiter = open_arbiter(uri, options, commit_store=commit_store)
    return Table(TableCore(store, arbiter, uri, options), commit_store=commit_store)


def _reopen(uri: str, options: Mapping[str, str], commit_store: str | None) -> Table:
    return open_table(uri, options, commit_store=commit_store)


__all__ = ["Table", "open_table"]
