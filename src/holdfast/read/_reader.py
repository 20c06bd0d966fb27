"""`Reader`: what users ask of a table; and `TableSnapshot`: the same of one moment.

Every answer is of one snapshot, whole. Files that vanish under a reader make it start over
with a new snapshot; a stream that has given rows away already fails instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

import pyarrow as pa
from lance.query import FullTextQuery

from holdfast.commits import Versions, open_dataset
from holdfast.errors import InvalidInputError, NotFoundError, SnapshotExpiredError
from holdfast.formats import LOG_ID_KEY, SnapshotRecord, read_config, read_log_entry, version_name
from holdfast.read._lookup import Keys, lookup
from holdfast.read._pins import release, take_pinned
from holdfast.read._ranked import Vector, nearest
from holdfast.read._search import search_base, search_view
from holdfast.read._snapshot import (
    BaseVersion,
    Freshness,
    Snapshot,
    check_freshness,
    take_snapshot,
    with_snapshot,
)
from holdfast.read._source import Shards
from holdfast.read._sstables import SstableReader
from holdfast.read._view import View
from holdfast.storage import Handle

T = TypeVar("T")

K = 10
"""How many rows `nearest` and `search` return by default."""


class Reader:
    """Reads one table. Threads may share it.

    Its arbiter is only asked to read.
    """

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._core = core = versions.core
        self._sstables = SstableReader(core.store, core.location, core.resolved)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's word
        *,
        freshness: str = "latest",
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Stream the newest row of every key; see `Table.scan`."""
        check_limit(limit)

        def begin(view: View) -> pa.RecordBatchReader:
            return _stream(view, columns, filter, limit)

        return self.of_view(freshness, begin)

    def to_table(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002
        *,
        freshness: str = "latest",
        limit: int | None = None,
    ) -> pa.Table:
        """Return the newest row of every key in memory; see `Table.to_table`."""
        check_limit(limit)
        return self.of_view(freshness, lambda view: _read_all(view, columns, filter, limit))

    def count(self, filter: str | None = None, *, freshness: str = "latest") -> int:  # noqa: A002
        """Return how many keys there are, or how many newest rows pass; see `Table.count`."""
        return self.of_view(freshness, lambda view: view.count(filter))

    def lookup(
        self, keys: Keys, columns: Sequence[str] | None = None, *, freshness: str = "latest"
    ) -> pa.Table:
        """Return the rows of these keys; see `Table.lookup`."""
        return self.of_view(freshness, lambda view: lookup(view, keys, columns))

    def nearest(
        self,
        column: str,
        query: Vector,
        k: int = K,
        *,
        freshness: str = "latest",
        **named: Any,  # noqa: ANN401 - as `read._ranked.nearest` has them
    ) -> pa.Table:
        """Return the rows with the closest vectors; see `Table.nearest`."""
        return self.of_view(freshness, lambda view: nearest(view, column, query, k, **named))

    def search(
        self,
        column: str,
        query: str | FullTextQuery,
        limit: int | None = K,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002
        version: int | None = None,
        freshness: str = "latest",
    ) -> pa.Table:
        """Return the rows that match best; see `Table.search`."""
        if version is not None:
            return search_base(
                open_dataset(self._versions, version),
                self._core.location,
                column,
                query,
                limit=limit,
                columns=columns,
                filter=filter,
            )
        return self.of_view(
            freshness,
            lambda view: search_view(view, column, query, limit, columns=columns, filter=filter),
        )

    def of_view(self, freshness: str, act: Callable[[View], T]) -> T:
        """Return what `act` makes of a snapshot, taken anew when its files are gone."""
        wanted = check_freshness(freshness)
        return with_snapshot(lambda: self.take(wanted), lambda snapshot: act(self.view(snapshot)))

    def take(self, freshness: Freshness = "latest") -> Snapshot:
        """Take a snapshot."""
        return take_snapshot(Shards(self._core, self._base), freshness)

    def view(self, snapshot: Snapshot) -> View:
        """Open a snapshot."""
        return View(snapshot, self._sstables.open, self._core.location)

    def snapshot(self, freshness: str = "latest", *, pinned: bool = False) -> TableSnapshot:
        """Take a snapshot to read from several times; see `Table.snapshot`."""
        wanted = check_freshness(freshness)
        if not pinned:
            return TableSnapshot(self.view(self.take(wanted)), None)
        token = self._core.ids.token()
        taken = take_pinned(self._core.store, token, lambda: self.take(wanted))
        return TableSnapshot(self.view(taken), lambda: release(self._core.store, token))

    def _base(self) -> BaseVersion:
        dataset = open_dataset(self._versions)
        version = int(dataset.version)
        manifest = self._core.store.get(version_name(version).path)
        entry = read_log_entry(manifest)
        known = read_config(manifest).get(LOG_ID_KEY)
        return BaseVersion(
            version=version,
            compacted={} if entry is None else entry.merged,
            dataset=dataset,
            has_log=entry is not None and known in (None, entry.log_id),
        )


class TableSnapshot(Handle):
    """A table as it was at one moment. Use it in a `with` block, or `close` it.

    What was read from it once can be read again, and is the same. Without a pin its files may
    be collected some time after the table moved on; then reading raises
    `SnapshotExpiredError`. It does not travel to other processes.
    """

    def __init__(self, view: View, release: Callable[[], None] | None) -> None:
        self._view = view
        self._release = release

    def __enter__(self) -> Self:
        """Return the snapshot."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release it."""
        self.close()

    @property
    def version(self) -> int:
        """Return the version of the base table."""
        return self._view.snapshot.base.version

    @property
    def record(self) -> SnapshotRecord:
        """Return which files it needs."""
        return self._view.snapshot.record

    @property
    def pinned(self) -> bool:
        """Tell whether a pin keeps its files."""
        return self._release is not None

    @property
    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self._view.columns.schema

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002
        *,
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Stream the rows; see `Table.scan`.

        Raises:
            SnapshotExpiredError: files of the snapshot are gone.
            Other errors: as for `Table.scan`.
        """
        check_limit(limit)
        return self._of(lambda view: _stream(view, columns, filter, limit))

    def to_table(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002
        *,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the rows in memory; see `Table.to_table`.

        Raises:
            As for `scan`.
        """
        check_limit(limit)
        return self._of(lambda view: _read_all(view, columns, filter, limit))

    def count(self, filter: str | None = None) -> int:  # noqa: A002
        """Return how many rows there are, or pass the filter.

        Raises:
            As for `scan`.
        """
        return self._of(lambda view: view.count(filter))

    def lookup(self, keys: Keys, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of these keys; see `Table.lookup`.

        Raises:
            As for `scan`.
        """
        return self._of(lambda view: lookup(view, keys, columns))

    def nearest(
        self,
        column: str,
        query: Vector,
        k: int = K,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002
        metric: str | None = None,
        **options: Any,  # noqa: ANN401 - Lance's own names
    ) -> pa.Table:
        """Return the rows with the closest vectors; see `Table.nearest`.

        Raises:
            As for `scan`.
        """
        return self._of(
            lambda view: nearest(
                view,
                column,
                query,
                k,
                columns=columns,
                filter=filter,
                metric=metric,
                options=options,
            )
        )

    def search(
        self,
        column: str,
        query: str | FullTextQuery,
        limit: int | None = K,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002
    ) -> pa.Table:
        """Return the rows that match best; see `Table.search`.

        Raises:
            As for `scan`.
        """
        return self._of(
            lambda view: search_view(view, column, query, limit, columns=columns, filter=filter)
        )

    def close(self) -> None:
        """Release the pin, if there is one; safe to call again."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def _of(self, act: Callable[[View], T]) -> T:
        try:
            return act(self._view)
        except NotFoundError as error:
            raise expired_error() from error


def check_limit(limit: int | None) -> None:
    """Refuse a limit that is no number of rows.

    Raises:
        InvalidInputError: it is none.
    """
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidInputError("a limit is a number of rows", limit=repr(limit)[:80])


def expired_error() -> SnapshotExpiredError:
    """Return the error of a snapshot whose files are gone."""
    return SnapshotExpiredError(
        "files of this snapshot were collected: take a new one, or a pinned one to keep them"
    )


def _stream(
    view: View,
    columns: Sequence[str] | None,
    wanted: str | None,
    limit: int | None,
) -> pa.RecordBatchReader:
    """Begin a stream and read its first batch, so that it may begin elsewhere instead."""
    schema = view.schema(columns)
    batches = view.batches(columns, wanted, limit)
    first = next(batches, None)

    def rest() -> Iterator[pa.RecordBatch]:
        if first is None:
            return
        yield first
        try:
            yield from batches
        except NotFoundError as error:
            raise expired_error() from error

    return pa.RecordBatchReader.from_batches(schema, rest())


def _read_all(
    view: View,
    columns: Sequence[str] | None,
    wanted: str | None,
    limit: int | None,
) -> pa.Table:
    return pa.Table.from_batches(view.batches(columns, wanted, limit), view.schema(columns))


__all__ = ["K", "Keys", "Reader", "TableSnapshot", "Vector"]
