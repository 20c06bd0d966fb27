"""`Shards`: the shards of a table as a snapshot needs them, through the table's own stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core import TableCore
from holdfast.errors import CollectedError, WalGapError
from holdfast.formats import Entry, ShardManifest
from holdfast.read._snapshot import BaseVersion, LogTail
from holdfast.wal import Chain, ShardManifests, WalTailer


class Shards:
    """A `Source` over an object store, for one snapshot.

    Args:
        core: the table; its arbiter is only asked to read.
        base: returns the newest version of the base table.
    """

    def __init__(self, core: TableCore, base: Callable[[], BaseVersion]) -> None:
        self._core = core
        self._base = base
        self._manifests: dict[str, ShardManifests] = {}

    def shard_ids(self) -> Sequence[str]:
        """Return the shards there are.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        return self._core.shard_ids()

    def manifest(self, shard_id: str) -> ShardManifest | None:
        """Return the newest manifest of a shard; None for a folder without any.

        Raises:
            As for `ShardManifests.latest`.
        """
        if shard_id not in self._manifests:
            self._manifests[shard_id] = ShardManifests(self._core, shard_id)
        return self._manifests[shard_id].latest()

    def tail(self, manifest: ShardManifest) -> LogTail:
        """Return a shard's log beyond the manifest's flushed cursor, fences left out.

        Entries that were collected meanwhile end it like a hole: who asks looks at the
        manifest again.

        Raises:
            CorruptError: an entry is damaged, or cannot follow the one before.
            UnavailableError, PermissionDeniedError: a store did not tell.
        """
        tailer = WalTailer(self._core, manifest.shard_id)
        chain = Chain(manifest.shard_id)
        position = manifest.replay_after
        entries: list[Entry] = []
        try:
            for entry in tailer.entries(after=position, fences=True):
                chain.check(entry)
                position = entry.position
                if not entry.fence:
                    entries.append(entry)
        except (WalGapError, CollectedError):
            return LogTail(entries=tuple(entries), hole=position + 1)
        return LogTail(entries=tuple(entries))

    def base(self) -> BaseVersion:
        """Return the newest version of the base table."""
        return self._base()
