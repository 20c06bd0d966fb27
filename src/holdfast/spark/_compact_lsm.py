"""`compact_lsm` by Spark: tasks write a generation's rows, or mark a group of fragments.

Both kinds only write files under new names. The driver decides them, with their marker, in
one commit, exactly as `Table.compact_lsm` does; a task that is lost or runs twice leaves
files that `vacuum` takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lance.fragment import FragmentMetadata

from holdfast._ids import RandomIds
from holdfast.errors import HoldfastError
from holdfast.formats import SsTable
from holdfast.options import StorageOptions, resolve
from holdfast.shard import SstableWriter
from holdfast.spark._merge_source import group_fragments
from holdfast.spark._place import Place
from holdfast.spark._progress import Progress, Session
from holdfast.spark._tasks import Answer, run_tasks
from holdfast.storage import open_store
from holdfast.table import Table
from holdfast.upkeep import (
    ROWS_AT_ONCE,
    CompactLsmResult,
    LanceBase,
    LancePass,
    Marked,
    MergeRun,
    RowChanges,
    ShardMerge,
    compact_lsm,
    merge_shard,
)
from holdfast.wal import ShardManifests

_TASK = "holdfast.spark._compact_lsm:execute"


class SparkBase(LanceBase):
    """The base table; its changes are computed by tasks."""

    def __init__(
        self,
        spark: Session,
        table: Table,
        options: Mapping[str, str],
        progress: Progress | None,
    ) -> None:
        super().__init__(table.versions)
        self._spark = spark
        self._uri = table.uri
        self._options = options
        self._progress = progress

    def begin(self, shard_id: str, sstables: Sequence[SsTable]) -> LancePass | None:
        """Let tasks write the changes to the newest version."""
        try:
            work = self.work(shard_id, sstables)
            if work is None:
                return None
            answers = run_tasks(
                self._spark,
                _TASK,
                self._inputs(work),
                description=f"holdfast: merge a log into {self._uri}",
                progress=self._progress,
            )
        except HoldfastError:
            if self.is_merged(shard_id, sstables):
                return None
            raise
        marked = Marked(
            updated=tuple(_fragments(answers, "updated")),
            removed=tuple(number for answer in answers for number in answer["removed"]),
            rows=sum(int(answer["rows"]) for answer in answers),
        )
        return self.ready(work, _fragments(answers, "new"), marked)

    def _inputs(self, work: MergeRun) -> list[dict[str, Any]]:
        given = {
            "uri": self._uri,
            "options": dict(self._options),
            "version": int(work.dataset.version),
            "shard": work.shard_id,
            "folders": [one.path for one in work.sstables],
        }
        parts = (part.metadata for part in work.dataset.get_fragments())
        groups = group_fragments({part.id: int(part.physical_rows) for part in parts})
        return [
            *({**given, "write": [number], "mark": []} for number in range(len(work.sstables))),
            *({**given, "write": [], "mark": list(group)} for group in groups),
        ]


def execute(given: Answer) -> Mapping[str, Any]:
    """Write the rows of generations, and mark base rows in fragments; on an executor."""
    storage = StorageOptions(given["options"])
    dataset = Place(uri=given["uri"], storage=storage).plain(int(given["version"]))
    resolved = {key: resolve(key, value) for key, value in storage.items()}
    store = open_store(given["uri"], storage)
    sstables = SstableWriter(store, given["uri"], resolved, RandomIds())
    opened = [sstables.open(given["shard"], folder) for folder in given["folders"]]
    changes = RowChanges(dataset, opened)
    new = [part for number in given["write"] for part in changes.write(number)]
    marked = changes.mark(given["mark"]) if given["mark"] else Marked()
    return {
        "new": [json.dumps(part.to_json()) for part in new],
        "updated": [json.dumps(part.to_json()) for part in marked.updated],
        "removed": list(marked.removed),
        "rows": marked.rows,
    }


def _fragments(answers: Sequence[Answer], name: str) -> list[FragmentMetadata]:
    return [FragmentMetadata.from_json(text) for answer in answers for text in answer[name]]


def compact_lsm_by_spark(
    spark: Session,
    table: Table,
    options: Mapping[str, str],
    *,
    shards: Sequence[str] | None = None,
    rows: int = ROWS_AT_ONCE,
    progress: Progress | None = None,
) -> CompactLsmResult:
    """Merge what the table's shards have flushed; see `Table.compact_lsm`.

    Raises:
        HoldfastError: as there; or Spark's job failed, and nothing was merged.
    """
    base = SparkBase(spark, table, options, progress)

    def merge(shard_id: str, manifests: ShardManifests) -> ShardMerge:
        return merge_shard(base, manifests, shard_id, rows=rows)

    return compact_lsm(table.versions, shards=shards, rows=rows, merge=merge)
