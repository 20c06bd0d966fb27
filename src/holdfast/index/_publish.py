"""Publish: complete the index, commit it, then sweep what was staged. In this order, always."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from holdfast.arbiter import SupportsSeries
from holdfast.errors import HoldfastError
from holdfast.events import EventKind, emit
from holdfast.formats import (
    Name,
    Plan,
    attempt_of,
    attempt_path,
    build_folder,
    build_record_path,
    index_folder,
    is_task_path,
)
from holdfast.index._files import BuildFiles
from holdfast.index._finalize import Complete, Finalizer
from holdfast.index._progress import Stage, Watch, report


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An index that is in the table.

    Attributes:
        version: the version in which it was found, or that this call made.
        applied: False when it was there already.
        plan: how it was built.
    """

    version: int
    applied: bool
    plan: Plan


class Commits(Protocol):
    """Makes a complete index part of the table."""

    def superseding_version(self, plan: Plan) -> int | None:
        """Return the newest version if the index was committed and replaced since."""
        ...

    def commit(self, complete: Complete) -> tuple[int, bool]:
        """Commit once; return the version and whether this call made it."""
        ...


def publish(
    files: BuildFiles,
    finalizer: Finalizer,
    commits: Commits,
    build_id: str,
    *,
    watch: Watch | None = None,
) -> Published:
    """Bring a build to its end. Safe to repeat from every point, and concurrently.

    Raises:
        NotFoundError: there is no such build, or a task has not finished.
        ConflictError: the table changed so that the index fits no more; it says what to do.
        InvalidInputError: tasks were built with different parameters.
        CorruptError: a part is gone for good, or the marker is no such file.
        CommitUnknownError: the outcome could not be learnt; repeat.
    """
    plan = finalizer.freeze(build_id)
    version = commits.superseding_version(plan)
    if version is not None:
        applied = False
    else:
        complete = finalizer.complete(plan)
        report(watch, build_id, Stage.COMMIT, 0, 1)
        version, applied = commits.commit(complete)
        report(watch, build_id, Stage.COMMIT, 1, 1)
    sweep(files, plan, watch)
    emit(
        EventKind.FINALIZED,
        build=build_id,
        index=plan.name,
        parts=len(plan.parts),
        version=version,
        applied=applied,
    )
    return Published(version=version, applied=applied, plan=plan)


def sweep(files: BuildFiles, plan: Plan, watch: Watch | None = None) -> None:
    """Remove what a committed build staged; best effort, safe to repeat.

    The frozen plan stays: it keeps a finalizer that slept through all this from making
    another one. So do the notes of attempts that do not count: they may still be building,
    and `vacuum` looks after them.
    """
    report(watch, plan.build_id, Stage.CLEAN, 0, 1)
    try:
        _sweep(files, plan)
    except HoldfastError as error:  # the index is in the table: nothing may undo that answer
        emit(EventKind.LEFT_BEHIND, path=build_folder(plan.build_id), reason=error.kind.value)
    report(watch, plan.build_id, Stage.CLEAN, 1, 1)


def _sweep(files: BuildFiles, plan: Plan) -> None:
    seen = [info.path for info in files.list(build_folder(plan.build_id))]
    declared = {attempt for path in seen if (attempt := attempt_of(path))}
    done = True
    for attempt in sorted(declared | set(plan.attempts)):
        done &= files.remove(info.path for info in files.list(index_folder(attempt)))
    tasks = [path for path in seen if is_task_path(path)]
    if isinstance(files.core.arbiter, SupportsSeries):
        for path in tasks:  # the boundary first: a sleeping task must not decide again
            files.core.arbiter.accept(Name.single(path).series, 0)
    notes = [attempt_path(plan.build_id, attempt) for attempt in plan.attempts]
    # The record goes last: as long as it is there, a rerun finds what is left to do.
    if done and files.remove([*tasks, *notes]):
        files.remove([build_record_path(plan.build_id)])
