"""`LogVerbs`: what a table offers of its shards' logs."""

from __future__ import annotations

from holdfast.arbiter import Arbiter
from holdfast.storage import ObjectStore
from holdfast.wal._appender import WalAppender
from holdfast.wal._log import Log
from holdfast.wal._manifests import ShardManifests
from holdfast.wal._shards import ShardState, list_shards
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

    def shard_states(self) -> list[ShardState]:
        """Return how each shard is doing; reads only, and no log entry: fences nobody.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
            CorruptError: a shard's manifest cannot be read.
        """
        found = []
        for shard_id in list_shards(self._store):
            manifest = ShardManifests(self._store, self._arbiter, shard_id).latest()
            if manifest is None:
                continue
            listed = Log(self._store, self._arbiter, shard_id).listed()
            beyond = [info for n, info in listed.items() if n > manifest.replay_after]
            found.append(
                ShardState(
                    shard_id=shard_id,
                    epoch=manifest.writer_epoch,
                    flushed=manifest.replay_after,
                    newest=max(listed, default=manifest.replay_after),
                    log_entries=len(beyond),
                    log_bytes=sum(info.size for info in beyond),
                    generations=len(manifest.sstables),
                    generation_rows=sum(one.physical_rows or 0 for one in manifest.sstables),
                    sealed=manifest.sealed,
                )
            )
        return found

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
