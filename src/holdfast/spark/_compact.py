"""`compact`: fewer, larger fragments, rewritten by Spark's tasks and committed once.

The driver plans at one version and commits; each task rewrites one group of fragments into
new files. Rows stay as they are, so a compaction that fails or is cut off has changed nothing
but left files that `vacuum` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lance.optimize

from holdfast._clock import Clock, SystemClock
from holdfast.commits import CommitPlan, make_version, report_commits, translate_errors
from holdfast.errors import ConflictError, InvalidInputError, NextStep
from holdfast.options import StorageOptions
from holdfast.spark._place import Place
from holdfast.spark._progress import Progress, Session
from holdfast.spark._tasks import run_tasks
from holdfast.table import Table

optimize: Any = lance.optimize  # Any: its stubs lack `json` and `from_json`

_TASK = "holdfast.spark._compact:execute"
_MOST_ROWS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactResult:
    """What one compaction did.

    Attributes:
        version: the version that holds it; the newest there was, when nothing was to be done.
        rows: how many rows were rewritten.
        fragments_removed: how many fragments are gone.
        fragments_added: how many replace them.
        txn: always None: to repeat a compaction does no harm.
        applied: False when nothing was to be done.
        elapsed: seconds.
    """

    version: int
    rows: int
    fragments_removed: int
    fragments_added: int
    txn: None
    applied: bool
    elapsed: float


def compact(
    spark: Session,
    table: Table,
    options: Mapping[str, str],
    *,
    target_rows: int | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> CompactResult:
    """Rewrite small fragments and those with deleted rows into larger ones.

    Raises:
        InvalidInputError: `target_rows` is no number of rows.
        ConflictError: others changed the same fragments, again and again.
        HoldfastError: Spark's job failed, or the commit; no row has changed.
    """
    clock = clock or SystemClock()
    begun = clock.elapsed()
    settings = {} if target_rows is None else {"target_rows_per_fragment": _rows(target_rows)}

    def rewrite(version: int, tasks: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        given = {"uri": table.uri, "options": dict(options), "version": version}
        inputs = [{**given, "task": task.json()} for task in tasks]
        described = f"holdfast: compact {table.uri}"
        return run_tasks(spark, _TASK, inputs, description=described, progress=progress)

    version, rows, removed, added = make_version(CompactPlan(table, settings, rewrite))
    return CompactResult(
        version=version,
        rows=rows,
        fragments_removed=removed,
        fragments_added=added,
        txn=None,
        applied=bool(removed),
        elapsed=clock.elapsed() - begun,
    )


class CompactPlan(CommitPlan[tuple[int, int, int, int]]):
    """Fragments that tasks rewrite; Lance commits them, by the hook of the table's dataset.

    Its result is the version, and how many rows were rewritten, fragments removed and added.
    """

    builds = 3

    def __init__(
        self,
        table: Table,
        settings: Mapping[str, Any],
        rewrite: Callable[[int, Sequence[Any]], Sequence[Mapping[str, Any]]],
    ) -> None:
        self._table = table
        self._settings = settings
        self._rewrite = rewrite

    def build(self) -> tuple[int, int, int, int] | None:
        """Plan at the newest version, and let tasks rewrite."""
        base = self._table.dataset()
        with translate_errors(self._table.uri):
            tasks = optimize.Compaction.plan(base, dict(self._settings)).tasks
        if not tasks:
            return int(base.version), 0, 0, 0
        self._answers = self._rewrite(int(base.version), tasks)
        return None

    def attempt(self) -> tuple[int, int, int, int]:
        """Commit what the tasks rewrote."""
        table, answers = self._table, self._answers
        rewritten = [optimize.RewriteResult.from_json(answer["rewritten"]) for answer in answers]
        newest = table.dataset()
        with translate_errors(table.uri), report_commits(newest):
            metrics = optimize.Compaction.commit(newest, rewritten)
        rows = sum(int(answer["rows"]) for answer in answers)
        version = int(table.dataset().version)
        return version, rows, int(metrics.fragments_removed), int(metrics.fragments_added)

    def judge(self, error: ConflictError) -> NextStep:
        """Let the tasks rewrite what is there now: they wrote what was there before."""
        del error
        return NextStep.REBUILD


def execute(given: dict[str, Any]) -> dict[str, Any]:
    """Rewrite one group of fragments into new files; a task."""
    place = Place(uri=given["uri"], storage=StorageOptions(given["options"]))
    with translate_errors(given["uri"]):
        # Lance commits nothing here; ids for the new fragments are reserved by the commit.
        done = optimize.CompactionTask.from_json(given["task"]).execute(
            place.plain(given["version"])
        )
    rows = sum(int(part.physical_rows) for part in done.new_fragments)
    return {"rewritten": done.json(), "rows": rows}


def _rows(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 < given < _MOST_ROWS:
        raise InvalidInputError("target_rows is a number of rows", given=repr(given))
    return given
