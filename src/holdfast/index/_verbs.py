"""The index verbs of a table, as users call them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lance
import pyarrow as pa
from lance.query import FullTextQuery

from holdfast._clock import Clock
from holdfast.arbiter import Arbiter
from holdfast.commits import Versions
from holdfast.errors import InvalidInputError
from holdfast.index._builds import BuildInfo
from holdfast.index._ground import Ground
from holdfast.index._indexes import Indexes
from holdfast.index._progress import Watch
from holdfast.index._query import is_plain, parse_query
from holdfast.index._results import IndexInfo, IndexResult
from holdfast.index._search import search
from holdfast.read import Freshness, Reader, View, search_view
from holdfast.storage import ObjectStore

SEARCH_LIMIT = 10


class IndexVerbs(ABC):
    """What a table can do with full-text indexes."""

    _versions: Versions
    _resolved: Mapping[str, str]
    _store: ObjectStore
    _arbiter: Arbiter
    _clock: Clock

    @abstractmethod
    def dataset(self, version: int | None = None) -> lance.LanceDataset:
        """Return a pylance dataset, the newest or of one version."""

    def create_index(
        self,
        column: str,
        kind: Literal["fts"] = "fts",
        *,
        name: str | None = None,
        replace: bool = False,
        memory_mb: int | None = None,
        tasks: int | None = None,
        progress: Watch | None = None,
        **parameters: Any,  # noqa: ANN401 - Lance's own names, checked
    ) -> IndexResult:
        """Index a text column for search; the index is in the table when this returns.

        Safe to repeat: an index that is there already is left alone (`applied` is False),
        and a build in tasks that was killed goes on where it was. Rows that are appended
        meanwhile are found by searches, too; `refresh_index` indexes them.

        Args:
            column: a column of text, or of lists of text.
            kind: full text.
            name: the index's name; `COLUMN_idx` by default.
            replace: let it take the place of an index with other parameters.
            memory_mb: what a task may build with, in MiB; Lance chooses by default.
            tasks: build in so many tasks, which can be resumed; in one go by default.
            progress: is called as stages get on.
            parameters: how text becomes words, by Lance's names: `base_tokenizer`,
                `language`, `stem`, `with_position` (for phrases), and so on.

        Raises:
            InvalidInputError: no such column, not of text, an unknown parameter, or an index
                of this name that is another one.
            ConflictError: the table changed so that the index fits no more; it says what to do.
            NotFoundError: the version that is indexed was removed meanwhile.
            CommitUnknownError: the outcome could not be learnt; repeat the call.
            CorruptError: files of the build were changed or removed behind its back.
            UnavailableError, PermissionDeniedError: a store did not do its part; repeat.
        """
        if kind != "fts":
            raise InvalidInputError(
                "kind is 'fts'; other indexes are made with table.dataset().create_index or "
                "create_scalar_index",
                kind=repr(kind),
            )
        return self._indexes().create(
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
        return self._indexes().refresh(name, memory_mb=memory_mb, tasks=tasks, watch=progress)

    def finalize_index(self, build_id: str, *, progress: Watch | None = None) -> IndexResult:
        """Bring a build whose tasks have finished to its end. Any number of times, by anyone.

        Raises:
            NotFoundError: there is no such build, or a task has not finished.
            InvalidInputError: no build id, or tasks were built with different parameters.
            Other errors: as for `create_index`.
        """
        return self._indexes().finalize(build_id, progress)

    def indexes(self) -> list[IndexInfo]:
        """Return the indexes of the newest version; reads only."""
        return self._indexes().describe()

    def index_builds(self) -> list[BuildInfo]:
        """Return the index builds that are open: running, or waiting to be run again."""
        return self._indexes().builds()

    def search(
        self,
        column: str,
        query: str | FullTextQuery,
        limit: int | None = SEARCH_LIMIT,
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

        def of_base(table: lance.LanceDataset) -> pa.Table:
            return search(
                table,
                self._versions.location,
                column,
                query,
                limit=limit,
                columns=columns,
                filter=filter,
            )

        def of_view(view: View) -> pa.Table:
            if not view.levels:
                return of_base(view.base)
            parsed = parse_query(query, column) if isinstance(query, str) else query
            return search_view(
                view,
                column,
                parsed,
                limit,
                columns=columns,
                filter=filter,
                plain=is_plain(query),
            )

        if version is not None:
            return of_base(self.dataset(version))
        reader = Reader(
            self._store, self._arbiter, self._versions.location, self._resolved, self.dataset
        )
        return reader.of_view(freshness, of_view)

    def _indexes(self) -> Indexes:
        ground = Ground(store=self._store, arbiter=self._arbiter, clock=self._clock)
        return Indexes(self._versions, self._resolved, ground)
