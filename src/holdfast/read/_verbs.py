"""The reading verbs of a table, as users call them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa

from holdfast.arbiter import Arbiter
from holdfast.read._lookup import Keys, lookup
from holdfast.read._ranked import Vector, nearest
from holdfast.read._reader import Reader, TableSnapshot
from holdfast.read._snapshot import Freshness
from holdfast.storage import ObjectStore

K = 10


class ReadVerbs(ABC):
    """What a table can answer.

    Every verb takes `freshness`: `"latest"` sees every row that was acknowledged before the
    call, `"flushed"` leaves out what is only in logs, `"base"` sees the base table alone.
    An answer is of one moment of each shard: a prefix of its log, whole. Shards are not
    aligned with each other.
    """

    _uri: str
    _resolved: Mapping[str, str]
    _store: ObjectStore
    _arbiter: Arbiter

    @abstractmethod
    def dataset(self, version: int | None = None) -> lance.LanceDataset:
        """Return a pylance dataset, the newest or of one version."""

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
        return self._reader().scan(columns, filter, freshness=freshness, limit=limit)

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
        return self._reader().to_table(columns, filter, freshness=freshness, limit=limit)

    def count(self, filter: str | None = None, *, freshness: Freshness = "latest") -> int:  # noqa: A002
        """Return how many keys there are, or how many newest rows pass a filter.

        Raises:
            As for `scan`.
        """
        return self._reader().of_view(freshness, lambda view: view.count(filter))

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
        return self._reader().of_view(freshness, lambda view: lookup(view, keys, columns))

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
        return self._reader().of_view(
            freshness,
            lambda view: nearest(
                view,
                column,
                query,
                k,
                columns=columns,
                filter=filter,
                metric=metric,
                options=options,
            ),
        )

    def snapshot(self, *, freshness: Freshness = "latest", pinned: bool = False) -> TableSnapshot:
        """Return the table as it is now, to read from any number of times.

        With `pinned`, a small object in the table keeps its files until the snapshot is
        closed, or `max_pin_age` of `vacuum` has passed. That is the only thing that reading
        ever writes. Clean-up by stock Lance knows no pins.

        Raises:
            As for `scan`.
        """
        return self._reader().snapshot(freshness, pinned=pinned)

    def _reader(self) -> Reader:
        return Reader(self._store, self._arbiter, self._uri, self._resolved, self.dataset)
