"""The upkeep verbs of a table, as users call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast._clock import Clock
from holdfast.commits import Versions
from holdfast.upkeep._compact_lsm import ROWS_AT_ONCE, CompactLsmResult, compact_lsm
from holdfast.upkeep._flush_log import (
    IDLE,
    ROWS_PER_GENERATION,
    FlushLogResult,
    flush_log,
)
from holdfast.upkeep._ground import LogGround
from holdfast.upkeep._maintain import MaintainResult, Maintenance, Policy
from holdfast.upkeep._repair_shard import RepairShardResult, repair_shard
from holdfast.upkeep._reset_log import ResetLogResult, Waiting, reset_log
from holdfast.upkeep._waiting import merge_log


class UpkeepVerbs:
    """What a table can do for its own upkeep."""

    _versions: Versions
    _resolved: Mapping[str, str]
    _clock: Clock

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
        return compact_lsm(self._log_ground(), shards=shards, rows=rows_at_once)

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
        return merge_log(self._log_ground())

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
        return flush_log(self._log_ground(), shard_id, rows=rows_per_generation, idle=idle)

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
        return reset_log(self._log_ground(), waiting, confirm=confirm)

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
        return repair_shard(self._log_ground(), shard_id, confirm=confirm)

    def maintain(
        self, policy: Policy | None = None, *, dry_run: bool = False, confirm: bool = False
    ) -> MaintainResult:
        """Do what the table needs now: flush, merge, compact, refresh indexes, vacuum.

        Safe to run anywhere, at any time, in several places at once. A step that others were
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
        table: Any = self  # Any: a table with all its verbs
        run = Maintenance(table, self._log_ground(), policy or Policy())
        return run.run(dry_run=dry_run, confirm=confirm)

    def _log_ground(self) -> LogGround:
        return LogGround(versions=self._versions, options=self._resolved, clock=self._clock)
