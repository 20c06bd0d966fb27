"""Rows that wait in logs and generations, before the base table is changed past them.

| verb                                | what waits                                                |
|-------------------------------------|-----------------------------------------------------------|
| append, a Spark write, `merge_into` | is merged first (`merge_waiting`), then the rows go on top|
| an overwrite, a restore             | is superseded (`Keeper.supersede`)                        |
| what is built elsewhere, or by      | refuses the change (`Keeper.waiting_shards`)              |
| pylance on `Table.dataset()`        |                                                           |

All three are checked in the bytes that are decided: `holdfast.commits._log_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import lance

from holdfast.commits import After, Versions, open_dataset, register_keeper
from holdfast.errors import ConflictError, LogWaitsError, SealedError
from holdfast.formats import key_columns
from holdfast.shard import read_entry_at, read_log_base, read_merged
from holdfast.upkeep._compact_lsm import CompactLsmResult, compact_lsm
from holdfast.upkeep._flush_log import IDLE, FlushLogResult, claim_epoch, flush_log
from holdfast.wal import ShardManifests, WalTailer

_NOW = timedelta(0)
_TRIES = 4


class Keeper:
    """Looks after the shards of one table; see `holdfast.commits._log_rules.LogKeeper`."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def waiting_shards(self, merged: After) -> list[str]:
        """Return the shards with rows that a version with this marker has not merged.

        Raises:
            WalGapError, CorruptError: a log is damaged.
            UnavailableError, PermissionDeniedError: a store did not tell.
        """
        versions = self._versions
        return [
            one for one in versions.core.shard_ids() if _waits(versions, one, merged.get(one, 0))
        ]

    def supersede(self, *, fence: bool) -> dict[str, int]:
        """Flush all that waits, and return by shard the newest generation.

        Raises:
            ConflictError: writers were faster each time.
            Other errors: as for `Table.flush_log`.
        """
        generations = {}
        for shard_id in self._versions.core.shard_ids():
            if ShardManifests(self._versions.core, shard_id).latest() is not None:
                generations[shard_id] = _flush(
                    self._versions, shard_id, fence=fence, stock_idle=_NOW
                )
        return generations


def _waits(versions: Versions, shard_id: str, merged: int) -> bool:
    manifest = ShardManifests(versions.core, shard_id).latest()
    if manifest is None:
        return False
    if any(one.generation > merged for one in manifest.sstables):
        return True
    entries = WalTailer(versions.core, shard_id).entries(after=manifest.replay_after)
    return next(iter(entries), None) is not None


def _flush(versions: Versions, shard_id: str, *, fence: bool, stock_idle: timedelta) -> int:
    """Turn what a shard's log holds now into generations; return the newest."""
    owner = None
    if fence:
        try:
            owner = claim_epoch(versions, shard_id)
        except SealedError:
            owner = None  # nobody writes there
    done: FlushLogResult = flush_log(
        versions, shard_id, idle=_NOW, stock_idle=stock_idle, owner=owner
    )
    if done.waits is not None:
        raise LogWaitsError(
            "rows wait in the table's log, and cannot be merged now: a writer of stock Lance is "
            "at work, or another one claimed the shard; close it, then try again",
            shard_id=shard_id,
            reason=done.waits,
            retryable=True,
        )
    newest = ShardManifests(versions.core, shard_id).latest()
    return 0 if newest is None else newest.current_generation - 1


class WaitingShards(Protocol):
    """The shards of a table, as far as merging all that waits needs them."""

    def shard_ids(self) -> Sequence[str]:
        """Return those that somebody claimed."""
        ...

    def flush(self, shard_id: str) -> int:
        """Flush what waits in a shard's log now; return its newest generation."""
        ...

    def merged_generations(self) -> Mapping[str, int]:
        """Return, by shard id, the newest generation that the newest version has merged."""
        ...

    def merge(self, shard_ids: Sequence[str]) -> None:
        """Merge the generations of these shards."""
        ...


def merge_all(shards: WaitingShards) -> dict[str, int]:
    """Merge what waits now; return how far, by shard: a version with this marker holds it.

    Raises:
        ConflictError: the table was set back meanwhile, again and again.
        Other errors: as for `Table.flush_log` and `Table.compact_lsm`.
    """
    after = {one: shards.flush(one) for one in shards.shard_ids()}
    for _ in range(_TRIES):
        merged = shards.merged_generations()
        behind = [one for one, generation in after.items() if merged.get(one, 0) < generation]
        if not behind:
            return after
        shards.merge(behind)
    raise ConflictError("the table was set back each time while its log was merged: try again")


class _TableShards:
    """The shards of a real table."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self.done: CompactLsmResult | None = None

    def shard_ids(self) -> Sequence[str]:
        ids = self._versions.core.shard_ids()
        return [one for one in ids if ShardManifests(self._versions.core, one).latest() is not None]

    def flush(self, shard_id: str) -> int:
        return _flush(self._versions, shard_id, fence=False, stock_idle=IDLE)

    def merged_generations(self) -> Mapping[str, int]:
        return read_merged(self._versions.core, open_dataset(self._versions))

    def merge(self, shard_ids: Sequence[str]) -> None:
        self.done = compact_lsm(self._versions, shards=shard_ids)


def merge_waiting(versions: Versions) -> After | None:
    """Merge what waits in the log of a table with a key; return how far, for the commit's check.

    What writers put meanwhile may be merged, too, or not. Live writers go on.

    Returns:
        None when the table has no log; then the commit looks again.

    Raises:
        LogWaitsError: a live writer of stock Lance would be locked out.
        Other errors: as for `Table.flush_log` and `Table.compact_lsm`.
    """
    dataset = open_dataset(versions)
    if read_entry_at(versions.core, dataset) is None:
        return None
    return merge_all(_TableShards(versions)) if key_columns(dataset.schema) else {}


def merged_in(versions: Versions, dataset: lance.LanceDataset) -> After | None:
    """Return how far the log is merged in a version, as `merge_waiting` does; merges nothing.

    Raises:
        LogLostError: the version has shards, but their entry is lost.
        NotFoundError: the version is gone.
    """
    if read_entry_at(versions.core, dataset) is None:
        return None
    return read_merged(versions.core, dataset) if key_columns(dataset.schema) else {}


def merge_log(versions: Versions) -> CompactLsmResult:
    """Flush and merge all that waits now; see `Table.merge_log`."""
    read_log_base(versions.core, open_dataset(versions))  # refuses a table without a log
    shards = _TableShards(versions)
    merge_all(shards)
    return shards.done or compact_lsm(versions, shards=())


def _keeper_of(versions: Versions) -> Keeper:
    return Keeper(versions)


register_keeper(_keeper_of)
