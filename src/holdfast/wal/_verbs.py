"""`LogVerbs`: what a table offers of its shards' logs."""

from __future__ import annotations

from holdfast.arbiter import Arbiter
from holdfast.storage import ObjectStore
from holdfast.wal._appender import WalAppender
from holdfast.wal._shards import list_shards
from holdfast.wal._tailer import WalTailer


class LogVerbs:
    """Verbs of a table that has a store and an arbiter."""

    _store: ObjectStore
    _arbiter: Arbiter

    def shards(self) -> list[str]:
        """Return the ids of the table's shards, sorted.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        return list_shards(self._store)

    def claim_appender(self, shard_id: str) -> WalAppender:
        """Claim a shard's log for writing. This WRITES: an epoch, and a fence that ends others.

        The lowest level: entries of Arrow batches, no MemTable. See `claim_writer` for rows.

        Raises:
            As for `WalAppender.claim`.
        """
        return WalAppender.claim(self._store, self._arbiter, shard_id)

    def tailer(self, shard_id: str) -> WalTailer:
        """Return a reader of a shard's log, which never writes.

        Raises:
            InvalidInputError: the shard id is no UUID.
        """
        return WalTailer(self._store, self._arbiter, shard_id)
