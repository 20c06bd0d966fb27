"""`repair`: the one way back for a damaged table. It plans; with `confirm` it acts.

    plan = repair("s3://lake/events.lance")
    for step in plan.steps:
        print(step)
    repair("s3://lake/events.lance", confirm=True)

What it can put right, in this order: a pin that is lost or damaged, a table met under an address
that nobody knows, a commit store that is lost, objects that a record still holds, records that a
commit store forgot, and holes in logs. Each kind is one class of steps here; what a crash leaves
after each stands in RFC 0011. What it cannot put right is in `left`, as `doctor` says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from holdfast._clock import Clock, SystemClock
from holdfast.arbiter import (
    EMBEDDED,
    Arbiter,
    Forgotten,
    Repin,
    SupportsSeries,
    Wrong,
    compare,
    for_reading,
    put_back,
    rebuild_records,
)
from holdfast.core import TableCore
from holdfast.errors import (
    CommitStoreRegressedError,
    CorruptError,
    ForeignVersionError,
    NotFoundError,
)
from holdfast.formats import VERSIONS_SERIES, shown_files
from holdfast.options import StorageOptions
from holdfast.storage import ObjectStore, open_store
from holdfast.upkeep._doctor import doctor
from holdfast.upkeep._findings import Finding, FindingKind, Severity
from holdfast.upkeep._repair_generations import repair_generations
from holdfast.upkeep._repair_steps import RepairKind, RepairRun, RepairState, RepairStep
from holdfast.upkeep._repair_tie import open_or_mend
from holdfast.wal import repair_log


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """What `repair` found, and did.

    Attributes:
        uri: the table's address.
        version: the newest version that can be read afterwards; 0 if none can.
        rows: always 0: rows are neither added nor changed.
        txn: None; repeats are harmless.
        applied: whether something was put right.
        confirmed: whether this was more than a plan.
        steps: what was to be done, in order.
        left: what this verb does not put right, as `doctor` tells it.
        elapsed: seconds.
    """

    uri: str
    version: int
    rows: int = 0
    txn: None = None
    applied: bool
    confirmed: bool
    steps: tuple[RepairStep, ...]
    left: tuple[Finding, ...]
    elapsed: float

    @property
    def whole(self) -> bool:
        """Tell whether nothing is left to be put right."""
        return not self.left and all(step.state is RepairState.DONE for step in self.steps)


def repair(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    place: Repin | None = None,
    new_commit_store: str | None = None,
    conditional_put: bool = False,
    commit_store: str | None = None,
    confirm: bool = False,
    clock: Clock | None = None,
) -> RepairResult:
    """Find what can be put right of a table; with `confirm`, WRITE. Safe to repeat.

    Stop all writers first: a table that needs this mostly refuses them anyway.

    Args:
        uri: where the table is.
        storage_options: pylance's storage options.
        place: for a table under an address that nobody knows: `"alias"`, `"moved"` or
            `"copied"`, as in `holdfast.arbiter.repin`.
        new_commit_store: the table's commit store is lost for good; the one at this URL, which
            is set up already, decides from now on. `"sqlite"` for a file in a local table.
        conditional_put: for a lost or damaged pin: this table decides by its object store.
        commit_store: another address of the table's commit store, with credentials, say; for a
            lost pin, where it was.
        confirm: do it; without it this is a plan.
        clock: measures how long it takes.

    Raises:
        NotFoundError: no table is there.
        InvalidInputError: an argument that does not fit the table's state.
        PinMismatchError: `new_commit_store` of a copy: say first what it is.
        FencedError: a writer claimed a shard meanwhile; try again.
        CommitUnknownError: the outcome could not be learnt; repeat.
        UnavailableError, PermissionDeniedError: a store did not do its part; repeat.
    """
    clock = clock or SystemClock()
    begun = clock.elapsed()
    options = StorageOptions(storage_options)
    given = RepairRun(
        uri=uri,
        options=options,
        place=place,
        new_commit_store=new_commit_store,
        conditional_put=conditional_put,
        commit_store=commit_store,
        confirm=confirm,
        store=open_store(uri, options),
    )
    arbiter = open_or_mend(given)
    try:
        if isinstance(arbiter, SupportsSeries):
            _agree(given, arbiter)
        if arbiter is not None:
            looking = arbiter if confirm else for_reading(arbiter)  # a plan finishes nothing
            _logs(given, looking)
            if not _waits_for_versions(given):
                repair_generations(given, looking)
    finally:
        if arbiter is not None:
            arbiter.close()
    if confirm and new_commit_store not in {None, EMBEDDED}:
        commit_store = new_commit_store  # the environment may still name the one that is lost
    examined = doctor(uri, options, commit_store=commit_store)
    left = tuple(one for one in examined.findings if _is_left(one, given))
    return RepairResult(
        uri=uri,
        version=examined.version,
        applied=any(step.state is RepairState.DONE for step in given.steps),
        confirmed=confirm,
        steps=tuple(given.steps),
        left=left,
        elapsed=clock.elapsed() - begun,
    )


def _waits_for_versions(given: RepairRun) -> bool:
    """Tell whether a plan puts versions right first: generations are compared with the newest."""
    return any(
        step.state is RepairState.PLANNED and (step.path or "").startswith("_versions/")
        for step in given.steps
    )


def _is_left(finding: Finding, given: RepairRun) -> bool:
    """Tell whether somebody must look at a finding that no step of this run is about."""
    if finding.severity is Severity.NOTE:
        return False
    command = finding.command or ""
    helps = command.startswith("holdfast repair") or finding.kind is FindingKind.UNFINISHED
    return not (helps and given.steps and not given.confirm)


# Objects and records.
def _agree(given: RepairRun, arbiter: SupportsSeries) -> None:
    """Make objects and records agree again."""
    comparison = compare(given.store, arbiter)
    strange = {one.name.series for one in comparison.undecided}
    for wrong in _put_back_in_order(given.store, comparison.wrong):
        if wrong.name.series not in strange:
            given.do(_object_step(wrong), _putter(given.store, wrong))
    for forgotten in comparison.forgotten:
        given.do(_records_step(forgotten), _rebuilder(arbiter, forgotten))


def _put_back_in_order(store: ObjectStore, wrong: tuple[Wrong, ...]) -> Iterator[Wrong]:
    """Yield what can be put back; versions whose files were cleaned up stay away."""
    there: set[str] | None = None
    for one in wrong:
        if one.body is None:
            continue
        if one.missing and one.name.series == VERSIONS_SERIES:
            if there is None:
                there = {info.path for info in store.list("data")}
            files = {path for path in shown_files(one.body) if path.startswith("data/")}
            if not files <= there:
                continue
        yield one


def _putter(store: ObjectStore, wrong: Wrong) -> Callable[[], object]:
    return lambda: put_back(store, wrong)


def _rebuilder(arbiter: SupportsSeries, forgotten: Forgotten) -> Callable[[], object]:
    return lambda: rebuild_records(arbiter, forgotten)


def _object_step(wrong: Wrong) -> RepairStep:
    state = "is gone" if wrong.missing else "has other bytes than were decided"
    return RepairStep(
        kind=RepairKind.OBJECT,
        what=f"an object {state}: put back the decided bytes, which its record holds",
        path=wrong.name.path,
    )


def _records_step(forgotten: Forgotten) -> RepairStep:
    return RepairStep(
        kind=RepairKind.RECORDS,
        what=f"the commit store forgot {forgotten.series} {forgotten.first} to {forgotten.last}; "
        f"it knows {forgotten.newest_recorded}: what the object store shows counts as decided",
        path=forgotten.path,
    )


# Logs.
def _logs(given: RepairRun, arbiter: Arbiter) -> None:
    """Close the holes of logs; a plan looks only where nothing else is planned for the shard."""
    planned = {step.path for step in given.steps if step.state is RepairState.PLANNED}
    core = TableCore(given.store, arbiter, given.uri, given.options)
    reading = core.for_reading()
    for shard_id in core.shard_ids():
        if any(shard_id in (path or "") for path in planned):
            continue  # its log can be read once the rest is put right
        try:
            repair = repair_log(reading, shard_id)
        except (NotFoundError, CorruptError, CommitStoreRegressedError, ForeignVersionError):
            continue  # its manifest is gone or foreign: doctor tells
        for wound in repair.wounds:
            rows = "its rows" if wound.rows is None else f"{wound.rows} rows of it"
            step = RepairStep(
                kind=RepairKind.LOG,
                what=f"log entry {wound.position} of shard {shard_id} is {wound.damage.value}: "
                "close the hole, after locking all writers of the shard out",
                path=f"_mem_wal/{shard_id}/wal",
                loses=f"{rows}, unless a backup has the object",
            )
            given.steps.append(step)
        if repair.wounds and given.confirm:
            healed = repair_log(core, shard_id, confirm=True)
            _mark_healed(given, shard_id, tuple(w.quarantine for w in healed.wounds))


def _mark_healed(given: RepairRun, shard_id: str, kept: tuple[str | None, ...]) -> None:
    aside = tuple(path for path in kept if path is not None)
    given.steps = [
        replace(step, state=RepairState.DONE, kept=aside)
        if step.kind is RepairKind.LOG and shard_id in (step.path or "")
        else step
        for step in given.steps
    ]
