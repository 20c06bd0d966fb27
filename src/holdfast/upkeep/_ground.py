"""`LogGround`: a table with a log, as its upkeep needs it: versions, shards, SSTables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import lance

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import Arbiter
from holdfast.commits import LongLived, Versions, opened
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import MEM_WAL_FOLDER, LogEntry, shard_of, version_name
from holdfast.shard import Base, Sstables, read_base, read_entry
from holdfast.storage import ObjectStore
from holdfast.wal import ShardManifests, WalTailer


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGround:
    """One table's versions, stores and options, with a clock and ids."""

    versions: Versions
    options: Mapping[str, str] = field(repr=False)
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)

    @property
    def store(self) -> ObjectStore:
        """Return the table's object store."""
        return self.versions.store

    @property
    def arbiter(self) -> Arbiter:
        """Return who decides for the table."""
        return self.versions.arbiter

    @property
    def sstables(self) -> Sstables:
        """Return what writes and opens SSTables."""
        return Sstables(self.store, self.versions.location, self.options, self.ids)

    def dataset(self) -> lance.LanceDataset:
        """Return the newest version.

        Raises:
            NotFoundError, UnavailableError: it is not there, or cannot be reached.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: it is not the
                decided one.
        """
        live = LongLived(self.versions, self.options)
        hook: Any = live  # Any: Lance wants a namespace and gets one by its methods
        with live.settled():
            return opened(hook)

    def base(self, dataset: lance.LanceDataset) -> Base:
        """Return what the manifest of a version says.

        Raises:
            InvalidInputError: the table has no log, or can have none.
            LogLostError: it has shards, but their entry is lost.
            NotFoundError: the version is gone.
        """
        if self.entry(dataset) is None:
            raise InvalidInputError(
                "this table has no log: there is nothing to flush or merge",
                table=self.versions.location,
            )
        return read_base(dataset, self._manifest(int(dataset.version)))

    def entry(self, dataset: lance.LanceDataset) -> LogEntry | None:
        """Return the entry of the log that a version has; None when the table has no log.

        Raises:
            LogLostError: it has shards, but their entry is lost.
            NotFoundError: the version is gone.
        """
        return read_entry(self._manifest(int(dataset.version)), self.shard_ids)

    def merged(self, dataset: lance.LanceDataset) -> dict[str, int]:
        """Return, by shard id, the newest generation that a version has merged.

        Raises:
            LogLostError: it has shards, but their entry is lost.
            NotFoundError: the version is gone.
        """
        entry = self.entry(dataset)
        return {} if entry is None else entry.merged

    def shard_ids(self) -> list[str]:
        """Return the shards there are.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        found = {shard_of(info.path) for info in self.store.list(MEM_WAL_FOLDER)}
        return sorted(shard_id for shard_id in found if shard_id is not None)

    def manifests(self, shard_id: str) -> ShardManifests:
        """Return the manifests of a shard."""
        return ShardManifests(self.store, self.arbiter, shard_id, ids=self.ids)

    def tailer(self, shard_id: str) -> WalTailer:
        """Return a reader of a shard's log."""
        return WalTailer(self.store, self.arbiter, shard_id, clock=self.clock)

    def _manifest(self, version: int) -> bytes:
        body = self.arbiter.read(version_name(version))
        if body is None:
            raise NotFoundError("there is no such version", version=version)
        return body
