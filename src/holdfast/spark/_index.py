"""Index builds on Spark: each task of the build is a task of Spark.

The driver begins or resumes a build, Spark runs the tasks that have not finished, and the
driver finalizes. All of it can be killed: what was decided stays decided, and the same call
again goes on from there. The tasks decide their own manifests, so on a table with a commit
store they connect to it, too: give its password as `env:NAME` where they can read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.formats import BuildRecord
from holdfast.index import Indexes, IndexResult, Stage, TaskDone, Watch, finished_tasks, report
from holdfast.spark._progress import Session, is_connect
from holdfast.spark._tasks import run_tasks
from holdfast.table import Table, open_table

_TASK = "holdfast.spark._index:build"
_TASKS_ON_CONNECT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkBuilds:
    """Builds indexes of one table with one session."""

    spark: Session
    table: Table
    options: Mapping[str, str]
    commit_store: str | None

    def create(
        self,
        column: str,
        *,
        name: str | None,
        replace: bool,
        memory_mb: int | None,
        tasks: int | None,
        watch: Watch | None,
        parameters: Mapping[str, Any],
    ) -> IndexResult:
        """Index a column; see `Table.create_index`."""
        indexes = self._indexes()
        return indexes.create(
            column,
            name=name,
            replace=replace,
            memory_mb=memory_mb,
            tasks=tasks or self._parallelism(),
            runner=lambda record: self._run(indexes, record, watch),
            watch=watch,
            parameters=parameters,
        )

    def refresh(
        self, name: str, *, memory_mb: int | None, tasks: int | None, watch: Watch | None
    ) -> IndexResult:
        """Index what was added since; see `Table.refresh_index`."""
        indexes = self._indexes()
        return indexes.refresh(
            name,
            memory_mb=memory_mb,
            tasks=tasks or self._parallelism(),
            runner=lambda record: self._run(indexes, record, watch),
            watch=watch,
        )

    def _indexes(self) -> Indexes:
        return Indexes(self.table.versions)

    def _run(
        self, indexes: Indexes, record: BuildRecord, watch: Watch | None
    ) -> Iterator[TaskDone]:
        """Let Spark run the tasks that have not finished."""
        finished = set(finished_tasks(indexes.files, record))
        todo = [task for task in range(len(record.tasks)) if task not in finished]
        place = {
            "uri": self.table.uri,
            "options": dict(self.options),
            "commit_store": self.commit_store,
            "build_id": record.build_id,
        }
        answers = run_tasks(
            self.spark,
            _TASK,
            [{**place, "task": task} for task in todo],
            description=f"holdfast: index {record.column} of {self.table.uri}",
            progress=lambda done, _: report(
                watch, record.build_id, Stage.BUILD, done + len(finished), len(record.tasks)
            ),
        )
        yield from (TaskDone(task=task, reused=True, documents=0) for task in sorted(finished))
        for answer in answers:
            yield TaskDone(
                task=int(answer["task"]),
                reused=bool(answer["reused"]),
                documents=int(answer["documents"]),
            )

    def _parallelism(self) -> int:
        """Return how many tasks the session runs concurrently."""
        if is_connect(self.spark):
            return _TASKS_ON_CONNECT
        return max(1, int(self.spark.sparkContext.defaultParallelism))


def build(given: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON
    """Run one task of a build; on an executor."""
    table = open_table(given["uri"], given["options"], commit_store=given["commit_store"])
    try:
        done = Indexes(table.versions).run_task(given["build_id"], int(given["task"]))
    finally:
        table.close()
    return {"task": done.task, "reused": done.reused, "documents": done.documents}
