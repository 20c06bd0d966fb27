"""The step of `repair` for generations of logs that cannot be read; see `_repair_shard`."""

from __future__ import annotations

from dataclasses import replace

from holdfast.arbiter import Arbiter
from holdfast.commits import Versions
from holdfast.core import TableCore
from holdfast.errors import HoldfastError, PermissionDeniedError, UnavailableError
from holdfast.upkeep._repair_shard import repair_shard
from holdfast.upkeep._repair_steps import RepairKind, RepairRun, RepairState, RepairStep
from holdfast.upkeep._sstable_exam import SstableWound


def repair_generations(given: RepairRun, arbiter: Arbiter) -> None:
    """Replace generations that cannot be read, of shards that nothing else is planned for."""
    planned = {step.path for step in given.steps if step.state is RepairState.PLANNED}
    core = TableCore(given.store, arbiter, given.uri, given.options)
    versions = Versions(core)
    for shard_id in core.shard_ids():
        if any(shard_id in (path or "") for path in planned):
            continue
        try:
            repair = repair_shard(versions, shard_id, confirm=given.confirm)
        except UnavailableError:
            raise
        except PermissionDeniedError:
            if given.confirm:
                raise
            continue  # a plan does not finish what is unfinished: that step comes first
        except HoldfastError:
            continue  # its manifest, or the table's newest version, is damaged: doctor tells
        given.steps += [_step(shard_id, wound, done=repair.applied) for wound in repair.wounds]


def _step(shard_id: str, wound: SstableWound, *, done: bool) -> RepairStep:
    rows = "its rows" if wound.rows is None else f"{wound.rows} of its rows"
    step = RepairStep(
        kind=RepairKind.GENERATION,
        what=f"generation {wound.generation} of shard {shard_id} cannot be read whole "
        f"({wound.damage.value}): put the {wound.kept} rows that can be read in its place",
        path=f"_mem_wal/{shard_id}/{wound.folder}",
        loses=None if wound.rows == 0 else f"{rows}, unless a backup has the objects",
    )
    if not done:
        return step
    aside = () if wound.quarantine is None else (wound.quarantine,)
    return replace(step, state=RepairState.DONE, kept=aside)
