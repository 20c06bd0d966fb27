"""`maintain`: what a table needs now, by policy: flush, merge, compact, refresh, vacuum.

    done = table.maintain()
    for one in done.steps:
        print(one)

Every step can be repeated and runs beside writers, readers and other maintainers; a step that
loses against them waits for the next run. Run it every few minutes, from wherever. Nothing is
deleted unless confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import lance.optimize

from holdfast.commits import Versions, open_dataset, translate_errors
from holdfast.errors import ConflictError, HoldfastError, InvalidInputError, NotFoundError
from holdfast.formats import (
    MAX_FENCE_BYTES,
    MEM_WAL_INDEX,
    SSTABLE_MANIFEST,
    ShardManifest,
    sstable_path,
)
from holdfast.shard import read_merged
from holdfast.storage import ObjectInfo
from holdfast.upkeep._compact_lsm import CompactLsmResult
from holdfast.upkeep._flush_log import IDLE, FlushLogResult
from holdfast.upkeep._vacuum import GRACE, VacuumResult
from holdfast.wal import Log, ShardManifests, store_time

optimize: Any = lance.optimize  # Any: its stubs lack much of it
Dataset: TypeAlias = Any
"""pylance's dataset, whose types are too narrow for what it takes."""


class StepKind(StrEnum):
    """What a step does. Append-only."""

    FLUSH_LOG = "flush_log"
    COMPACT_LSM = "compact_lsm"
    COMPACT = "compact"
    REFRESH_INDEX = "refresh_index"
    VACUUM = "vacuum"


class StepState(StrEnum):
    """What became of a step. Append-only."""

    PLANNED = "planned"
    DONE = "done"
    WAITS = "waits"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When a table is looked after.

    Attributes:
        log_bytes: flush a log that its writer does not flush, from so many bytes on;
        log_age: or when its oldest entry is so old.
        generations: merge a shard that has so many generations waiting;
        generation_bytes: or so many bytes in them;
        generation_age: or one that is so old.
        idle: how long a writer with MemTables must be silent before its log is flushed.
        small_fragments: compact when so many fragments are small.
        small_rows: which fragments are small.
        index_rows: refresh an index that lacks so many rows.
        grace: how old a leftover must be.
        keep_versions_for: let go of versions that a newer one replaced so long ago; never,
            by default.
    """

    log_bytes: int = 64 << 20
    log_age: timedelta = timedelta(minutes=5)
    generations: int = 4
    generation_bytes: int = 256 << 20
    generation_age: timedelta = timedelta(minutes=15)
    idle: timedelta = IDLE
    small_fragments: int = 8
    small_rows: int = 100_000
    index_rows: int = 1
    grace: timedelta = GRACE
    keep_versions_for: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            InvalidInputError: a number below 1, or a negative time.
        """
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None:
                continue
            wrong = value < timedelta(0) if isinstance(value, timedelta) else value < 1
            if wrong:
                raise InvalidInputError(
                    "a policy has numbers from 1 and times from 0", name=one.name
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that a table needs.

    Attributes:
        kind: what is done.
        target: to what: a shard, an index, or the table.
        reason: why.
        state: what became of it.
        outcome: what it did, or why it waits.
    """

    kind: StepKind
    target: str
    reason: str
    state: StepState = StepState.PLANNED
    outcome: str = ""

    def __str__(self) -> str:
        """Return one line."""
        end = f": {self.outcome}" if self.outcome else ""
        return f"{self.state.value:<8} {self.kind.value} {self.target} ({self.reason}){end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainResult:
    """What one run did.

    Attributes:
        version: the newest version afterwards.
        rows: how many rows were merged into the base.
        txn: None; repeats are harmless.
        applied: whether anything was done.
        elapsed: seconds.
        steps: what was to be done, in order, and what became of it.
    """

    version: int
    rows: int
    txn: None = None
    applied: bool
    elapsed: float
    steps: tuple[Step, ...]


class Maintained(Protocol):
    """The verbs of a table that are used here."""

    def flush_log(self, shard_id: str, *, idle: timedelta = ...) -> FlushLogResult:
        """See `Table`; so below."""
        ...

    def compact_lsm(self, *, shards: Sequence[str] | None = ...) -> CompactLsmResult:
        """Merge generations."""
        ...

    def refresh_index(self, name: str) -> Any:  # noqa: ANN401 - the index's own result
        """Index what was added."""
        ...

    def vacuum(
        self,
        *,
        grace: timedelta = ...,
        keep_versions_for: timedelta | None = ...,
        confirm: bool = ...,
    ) -> VacuumResult:
        """Plan what to delete, or delete it."""
        ...


Act = Callable[[Step], Step]


class Maintenance:
    """One run over one table."""

    def __init__(self, table: Maintained, versions: Versions, policy: Policy) -> None:
        self._table = table
        self._versions = versions
        self._policy = policy
        self._rows = 0

    def run(self, *, dry_run: bool, confirm: bool) -> MaintainResult:
        """Find out what is needed, and do it unless it is a dry run.

        Each kind of step is planned after the ones before it were done: a merge makes
        fragments that are compacted then.
        """
        begun = self._versions.core.clock.elapsed()
        plans: list[tuple[Callable[[], Iterator[Step]], Act]] = [
            (self._logs, self._flush_log),
            (self._shards, self._compact_lsm),
            (self._fragments, self._compact),
            (self._indexes, self._refresh),
            (self._leftovers, self._vacuum if confirm else _leave_unconfirmed),
        ]
        steps: list[Step] = []
        for plan, act in plans:
            steps += [
                step if dry_run or step.state is StepState.FAILED else _try_step(act, step)
                for step in plan()
            ]
        return MaintainResult(
            version=int(open_dataset(self._versions).version),
            rows=self._rows,
            applied=any(step.state is StepState.DONE for step in steps),
            elapsed=self._versions.core.clock.elapsed() - begun,
            steps=tuple(steps),
        )

    def _logs(self) -> Iterator[Step]:
        for shard_id in self._versions.core.shard_ids():
            manifest = ShardManifests(self._versions.core, shard_id).latest()
            if manifest is not None and (reason := self._log_reason(manifest)):
                yield Step(kind=StepKind.FLUSH_LOG, target=shard_id, reason=reason)

    def _log_reason(self, manifest: ShardManifest) -> str:
        log = Log(self._versions.core, manifest.shard_id)
        beyond = {n: info for n, info in log.list_entries().items() if n > manifest.replay_after}
        oldest = next((info for n, info in beyond.items() if not is_fence(log, n, info)), None)
        if oldest is None:
            return ""
        size = sum(info.size for info in beyond.values())
        age = self._age([oldest], manifest.shard_id)
        if size >= self._policy.log_bytes:
            return f"{size:,} bytes in its log"
        return f"rows in its log for {_format_age(age)}" if age >= self._policy.log_age else ""

    def _flush_log(self, step: Step) -> Step:
        done = self._table.flush_log(step.target, idle=self._policy.idle)
        if done.waits is not None and not done.applied:
            return replace(step, state=StepState.WAITS, outcome=done.waits)
        outcome = f"{len(done.generations)} generations of {done.rows} rows"
        return replace(step, state=StepState.DONE, outcome=outcome)

    def _shards(self) -> Iterator[Step]:
        merged = read_merged(self._versions.core, open_dataset(self._versions))
        for shard_id in self._versions.core.shard_ids():
            manifest = ShardManifests(self._versions.core, shard_id).latest()
            if manifest is None:
                continue
            reason = self._merge_reason(manifest, merged.get(shard_id, 0))
            if reason:
                yield Step(kind=StepKind.COMPACT_LSM, target=shard_id, reason=reason)

    def _merge_reason(self, manifest: ShardManifest, merged: int) -> str:
        waiting = [one for one in manifest.sstables if one.generation > merged]
        if not waiting:
            return "merged generations to drain" if manifest.sstables else ""
        size = sum(one.in_memory_bytes or 0 for one in waiting)
        if len(waiting) >= self._policy.generations:
            return f"{len(waiting)} generations wait"
        if size >= self._policy.generation_bytes:
            return f"{size:,} bytes wait"
        folder = sstable_path(manifest.shard_id, waiting[0].path)
        try:
            age = self._age(
                [self._versions.core.store.head(f"{folder}/{SSTABLE_MANIFEST}")], manifest.shard_id
            )
        except NotFoundError:  # written by another release: its age is not known
            return "a generation of unknown age waits"
        return (
            f"a generation waits for {_format_age(age)}"
            if age >= self._policy.generation_age
            else ""
        )

    def _compact_lsm(self, step: Step) -> Step:
        done = self._table.compact_lsm(shards=[step.target])
        self._rows += done.rows
        (shard,) = done.shards
        outcome = f"{len(shard.generations)} generations of {done.rows} rows merged"
        return replace(step, state=StepState.DONE, outcome=f"{outcome}, {shard.drained} drained")

    def _fragments(self) -> Iterator[Step]:
        dataset = open_dataset(self._versions)
        parts = dataset.get_fragments()
        small = [one for one in parts if one.count_rows() < self._policy.small_rows]
        if len(small) < self._policy.small_fragments:
            return
        with translate_errors(self._versions.core.location):
            tasks = int(optimize.Compaction.plan(dataset, {}).num_tasks())
        if tasks:  # Lance joins only fragments that the same indexes cover
            reason = f"{len(small)} of {len(parts)} fragments are small"
            yield Step(kind=StepKind.COMPACT, target="the table", reason=reason)

    def _compact(self, step: Step) -> Step:
        dataset: Dataset = open_dataset(self._versions)
        with translate_errors(self._versions.core.location):
            done = dataset.optimize.compact_files()
        outcome = f"{done.fragments_removed} fragments became {done.fragments_added}"
        return replace(step, state=StepState.DONE, outcome=outcome)

    def _indexes(self) -> Iterator[Step]:
        dataset: Dataset = open_dataset(self._versions)
        for one in dataset.describe_indices():
            if one.name == MEM_WAL_INDEX or not one.field_names:
                continue
            try:
                with translate_errors(self._versions.core.location):
                    lacks = int(dataset.stats.index_stats(one.name).get("num_unindexed_rows", 0))
            except HoldfastError as error:  # a file of it is gone, say: the rest goes on
                yield Step(
                    kind=StepKind.REFRESH_INDEX,
                    target=one.name,
                    reason="its state cannot be read: see `holdfast doctor`",
                    state=StepState.FAILED,
                    outcome=str(error)[:300],
                )
                continue
            if lacks >= self._policy.index_rows:
                reason = f"{lacks} rows are not in it"
                yield Step(kind=StepKind.REFRESH_INDEX, target=one.name, reason=reason)

    def _refresh(self, step: Step) -> Step:
        dataset: Dataset = open_dataset(self._versions)
        kinds = {one.name: str(one.index_type).upper() for one in dataset.describe_indices()}
        if kinds.get(step.target) == "INVERTED":
            self._table.refresh_index(step.target)
        else:
            with translate_errors(self._versions.core.location):
                dataset.optimize.optimize_indices(index_names=[step.target])
        return replace(step, state=StepState.DONE, outcome="up to date")

    def _leftovers(self) -> Iterator[Step]:
        plan = self._table.vacuum(
            grace=self._policy.grace, keep_versions_for=self._policy.keep_versions_for
        )
        unneeded = [*plan.leftovers, *(plan.waiting if plan.raised else ())]
        if unneeded:
            size = sum(one.size for one in unneeded)
            reason = f"{len(unneeded)} objects of {size:,} bytes that nobody needs"
            yield Step(kind=StepKind.VACUUM, target="the table", reason=reason)

    def _vacuum(self, step: Step) -> Step:
        gone = self._table.vacuum(
            grace=self._policy.grace,
            keep_versions_for=self._policy.keep_versions_for,
            confirm=True,
        )
        outcome = f"{len(gone.leftovers)} objects of {gone.size:,} bytes deleted"
        if gone.raised:
            outcome += f", {len(gone.waiting)} listed for a later run"
        return replace(step, state=StepState.DONE, outcome=outcome)

    def _age(self, objects: Sequence[ObjectInfo], shard_id: str) -> timedelta:
        """Return how old the oldest of these is, by the store's own stamps."""
        now = store_time(self._versions.core.store, shard_id, self._versions.core.ids)
        return timedelta(seconds=max(0.0, now - min(info.modified for info in objects)))


def is_fence(log: Log, position: int, info: ObjectInfo) -> bool:
    """Tell whether a log entry has no rows; its size says so of most.

    Raises:
        HoldfastError: it cannot be read.
    """
    if info.size > MAX_FENCE_BYTES:
        return False
    entry = log.read(position)
    return entry is None or entry.fence


def _leave_unconfirmed(step: Step) -> Step:
    return replace(step, state=StepState.WAITS, outcome="not confirmed")


def _try_step(act: Act, step: Step) -> Step:
    """Do a step; one that others were faster at waits, and one that fails stops no other."""
    try:
        return act(step)
    except ConflictError as error:
        return replace(step, state=StepState.WAITS, outcome=error.message)
    except HoldfastError as error:
        return replace(step, state=StepState.FAILED, outcome=str(error)[:300])


def _format_age(age: timedelta) -> str:
    return f"{age.total_seconds():,.0f} s"
