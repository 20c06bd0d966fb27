"""`Indexes`: create, refresh, finalize and describe the full-text indexes of one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace as changed
from typing import Any

import lance
import pyarrow as pa

from holdfast.commits import CommitHook, Versions, open_dataset, open_hooked
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import BuildRecord, Part, index_id, read_mark
from holdfast.index._builds import BuildInfo, describe, open_records, pack, start
from holdfast.index._by_lance import SCALAR, VECTOR, create_by_lance
from holdfast.index._commit import TableCommits, txn_of
from holdfast.index._existing import SegmentUse, use_of_segment
from holdfast.index._files import BuildFiles
from holdfast.index._finalize import Finalizer
from holdfast.index._lance import LanceBuilder
from holdfast.index._parameters import (
    IndexDefinition,
    check_memory,
    check_parameters,
    define_index,
    parameters_from,
)
from holdfast.index._plan import same_properties
from holdfast.index._progress import Stage, Watch, report
from holdfast.index._publish import Published, publish
from holdfast.index._results import IndexInfo, IndexResult
from holdfast.index._segments import (
    FULL_TEXT,
    Description,
    description_of,
    descriptions_of,
    live_fragments,
    marker_of,
    properties_of,
)
from holdfast.index._task import TaskDone, run_task

Runner = Callable[[BuildRecord], Iterable[TaskDone]]
"""Runs every task of a build, wherever it likes, and yields each as it finishes."""


class Indexes:
    """The indexes of one table."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._files = self.files = BuildFiles(versions.core)
        self._commits = TableCommits(versions)
        self._builder = LanceBuilder(self._files, self._open)

    def create(
        self,
        column: str,
        *,
        kind: str = "fts",
        name: str | None = None,
        replace: bool = False,
        memory_mb: int | None = None,
        tasks: int | None = None,
        runner: Runner | None = None,
        watch: Watch | None = None,
        parameters: Mapping[str, Any],
    ) -> IndexResult:
        """Index a column: in tasks if `tasks` says how many, else in one step by Lance itself."""
        if kind in {*SCALAR, *VECTOR}:
            if tasks is not None or memory_mb is not None or watch is not None:
                raise InvalidInputError("tasks, memory_mb and progress are for kind 'fts'")
            return create_by_lance(
                lambda: open_dataset(self._versions),
                column,
                kind,
                name=name,
                replace=replace,
                parameters=parameters,
                clock=self._files.core.clock,
            )
        if kind != "fts":
            kinds = ", ".join(["fts", *SCALAR, *VECTOR])
            raise InvalidInputError(f"kind is one of {kinds}", kind=repr(kind))
        begun = self._files.core.clock.elapsed()
        given = check_parameters(parameters)
        check_memory(memory_mb)
        table = self._open()
        definition = define_index(column, _field(table, column), given)
        chosen = name or f"{column.replace('.', '_')}_idx"
        self._finish_committed(chosen)
        if self._exists(table, chosen, column, definition, replace=replace):
            return self._unchanged_result(chosen, begun)
        if tasks is None:
            return self._create_at_once(column, chosen, given, memory_mb, begun)
        record = self._resumable(chosen, column, definition.properties, kept=False, table=table)
        if record is None:
            record = self._begin(
                BuildRecord(
                    token="",
                    build_id="",
                    name=chosen,
                    column=column,
                    version=int(table.version),
                    parameters=given,
                    memory_mb=memory_mb,
                    tasks=_share(live_fragments(table), tasks),
                    properties=definition.properties,
                    replace=replace,
                )
            )
        return self._run(record, runner or self.run_here, watch, begun)

    def refresh(
        self,
        name: str,
        *,
        memory_mb: int | None = None,
        tasks: int = 1,
        runner: Runner | None = None,
        watch: Watch | None = None,
    ) -> IndexResult:
        """Index the fragments that an index does not cover, with its own parameters."""
        begun = self._files.core.clock.elapsed()
        check_memory(memory_mb)
        self._finish_committed(name)
        table = self._open()
        existing = self._full_text(table, name)
        sizes = live_fragments(table)
        if not set(sizes) - existing.fragments:
            return self._unchanged_result(name, begun)
        properties = self._uniform_properties(existing)
        parameters = parameters_from(properties)
        column = existing.columns[0]
        definition = define_index(column, _field(table, column), parameters)
        if not same_properties(definition.properties, properties):
            raise InvalidInputError(
                "this version of Lance builds the index otherwise than it was built: create it "
                "anew with replace=True",
                index=name,
            )
        record = self._resumable(name, column, properties, kept=True, table=table)
        if record is None:
            parts, kept, stays = self._sort_parts(table, existing, sizes)
            todo = {f: rows for f, rows in sizes.items() if f not in kept | stays}
            record = self._begin(
                BuildRecord(
                    token="",
                    build_id="",
                    name=name,
                    column=column,
                    version=int(table.version),
                    parameters=parameters,
                    memory_mb=memory_mb,
                    tasks=_share(todo, tasks),
                    kept=parts,
                    kept_fragments=tuple(sorted(kept)),
                    properties=properties,
                )
            )
        return self._run(record, runner or self.run_here, watch, begun)

    def finalize(self, build_id: str, watch: Watch | None = None) -> IndexResult:
        """Bring a build whose tasks have finished to its end."""
        begun = self._files.core.clock.elapsed()
        with suppress(NotFoundError):  # over, or none
            start(self._files, Finalizer(self._files).record(build_id))  # young for vacuum
        published = self._publish(build_id, watch)
        return self._result(published, begun, reused=len(published.plan.attempts))

    def run_here(self, record: BuildRecord) -> Iterable[TaskDone]:
        """Run the tasks of a build in this process, one after the other."""
        for task in range(len(record.tasks)):
            yield self.run_task(record.build_id, task)

    def run_task(self, build_id: str, task: int) -> TaskDone:
        """Run one task of a build unless it has finished; what tasks on other machines do."""
        return run_task(self._files, self._builder, build_id, task)

    def describe(self) -> list[IndexInfo]:
        """Return the indexes of the newest version."""
        table = self._open()
        live = set(live_fragments(table))
        return [self._info(description, live) for description in descriptions_of(table)]

    def builds(self) -> list[BuildInfo]:
        """Return the builds that are open."""
        return describe(self._files, open_records(self._files))

    def _open(self, version: int | None = None) -> lance.LanceDataset:
        operation = CommitHook(self._versions)
        hook: Any = operation  # Any: Lance wants a namespace and gets one by its methods
        with operation.raising_outcome():
            return open_hooked(hook, version)

    def _begin(self, wanted: BuildRecord) -> BuildRecord:
        token = self._files.core.ids.token()
        record = changed(
            wanted, token=token, build_id=index_id(token), started=self._files.core.clock.now()
        )
        start(self._files, record)
        return record

    def _run(
        self, record: BuildRecord, runner: Runner, watch: Watch | None, begun: float
    ) -> IndexResult:
        done: list[TaskDone] = []
        report(watch, record.build_id, Stage.BUILD, 0, len(record.tasks))
        for one in runner(record):
            done.append(one)
            report(watch, record.build_id, Stage.BUILD, len(done), len(record.tasks))
        published = self._publish(record.build_id, watch)
        return self._result(published, begun, reused=sum(one.reused for one in done))

    def _publish(self, build_id: str, watch: Watch | None) -> Published:
        finalizer = Finalizer(self._files, watch=watch)
        return publish(self._files, finalizer, self._commits, build_id, watch=watch)

    def _result(self, published: Published, begun: float, *, reused: int) -> IndexResult:
        plan = published.plan
        return IndexResult(
            version=published.version,
            rows=plan.documents if published.applied else 0,
            txn=txn_of(plan),
            applied=published.applied,
            elapsed=self._files.core.clock.elapsed() - begun,
            name=plan.name,
            build_id=plan.build_id,
            partitions=len(plan.parts),
            reused=reused,
            uncovered=self._count_uncovered(plan.name),
        )

    def _unchanged_result(self, name: str, begun: float) -> IndexResult:
        table = self._open()
        description = self._full_text(table, name)
        info = self._info(description, set(live_fragments(table)))
        return IndexResult(
            version=int(table.version),
            rows=0,
            txn=None,
            applied=False,
            elapsed=self._files.core.clock.elapsed() - begun,
            name=name,
            build_id=description.segments[-1].id if description.segments else None,
            partitions=info.partitions or 0,
            reused=0,
            uncovered=info.uncovered,
        )

    def _create_at_once(
        self,
        column: str,
        name: str,
        parameters: Mapping[str, Any],
        memory_mb: int | None,
        begun: float,
    ) -> IndexResult:
        """Let Lance write the final files directly and commit them: one process, no staging."""
        operation = CommitHook(self._versions)
        hook: Any = operation
        settings = dict(parameters)
        if memory_mb is not None:
            settings["memory_limit"] = memory_mb
        with operation.raising_outcome():
            table = open_hooked(hook)
            table.create_scalar_index(column, "INVERTED", name=name, replace=True, **settings)
            operation.note_success(int(table.version))
        made = self._unchanged_result(name, begun)
        rows = self._full_text(self._open(), name).rows
        version = int(operation.version or made.version)
        return changed(made, version=version, rows=rows, applied=True)

    def _exists(
        self,
        table: lance.LanceDataset,
        name: str,
        column: str,
        definition: IndexDefinition,
        *,
        replace: bool,
    ) -> bool:
        """Tell whether the index is there already, as it is wanted."""
        description = description_of(table, name)
        if description is None:
            return False
        if description.kind != FULL_TEXT or description.columns != (column,):
            raise InvalidInputError(
                "an index of this name is there already, of another kind or column: choose "
                "another name",
                name=name,
                kind=description.kind,
                columns=", ".join(description.columns),
            )
        alike = all(
            same_properties(self._properties(segment.id), definition.properties)
            for segment in description.segments
        )
        if not alike and not replace:
            raise InvalidInputError(
                "the index is there already with other parameters: say replace=True to build it "
                "anew",
                name=name,
            )
        return alike

    def _properties(self, segment: str) -> Mapping[str, str]:
        try:
            return properties_of(self._files.core.store, segment)
        except NotFoundError:
            return {}

    def _uniform_properties(self, existing: Description) -> Mapping[str, str]:
        properties = [self._properties(segment.id) for segment in existing.segments]
        if not properties or not all(same_properties(properties[0], one) for one in properties):
            raise InvalidInputError(
                "the index has segments with different parameters: build it anew with replace=True",
                index=existing.name,
            )
        return properties[0]

    def _full_text(self, table: lance.LanceDataset, name: str) -> Description:
        description = description_of(table, name)
        if description is None or description.kind != FULL_TEXT:
            raise NotFoundError("there is no full-text index of this name", index=name)
        return description

    def _sort_parts(
        self, table: lance.LanceDataset, existing: Description, live: Mapping[int, int]
    ) -> tuple[tuple[Part, ...], set[int], set[int]]:
        """Return the parts that are taken over, what they cover, and what others cover."""
        if table.has_stable_row_ids:  # then a row's id does not tell its fragment
            return (), set(), existing.fragments
        parts: list[Part] = []
        kept: set[int] = set()
        stays: set[int] = set()
        for segment in existing.segments:
            fate, kept_parts = use_of_segment(
                self._files, segment, live.keys(), self._builder.reader
            )
            if fate is SegmentUse.TAKEN_OVER:
                parts += kept_parts
                kept |= set(segment.fragments)
            elif fate is SegmentUse.STAYS:
                stays |= set(segment.fragments)
        return tuple(parts), kept, stays

    def _resumable(
        self,
        name: str,
        column: str,
        properties: Mapping[str, str],
        *,
        kept: bool,
        table: lance.LanceDataset,
    ) -> BuildRecord | None:
        """Return an open build that would come to what is wanted, if there is one."""
        live = set(live_fragments(table))
        description = description_of(table, name)
        covered = set() if description is None else description.fragments
        floor = read_mark(table.config()).floor  # an older build cannot be committed any more
        for record in open_records(self._files):
            wanted = record.name == name and record.column == column
            alike = same_properties(record.properties or {}, properties)
            own = {fragment for task in record.tasks for fragment in task}
            fits = own <= live and set(record.kept_fragments) <= covered
            fresh = not kept or bool(own - covered)
            fresh = fresh and record.version >= floor
            if wanted and alike and fits and fresh and self._is_readable(record.version):
                start(self._files, record)  # the same bytes again: now it is young for vacuum
                return record
        return None

    def _is_readable(self, version: int) -> bool:
        try:
            self._open(version)
        except NotFoundError:
            return False
        return True

    def _finish_committed(self, name: str) -> None:
        """Sweep builds of this index that are in the table but were not swept."""
        for record in open_records(self._files):
            if record.name != name:
                continue
            plan = Finalizer(self._files).frozen_plan(record.build_id)
            if plan is not None and self._commits.is_committed(plan):
                self._publish(record.build_id, None)

    def _count_uncovered(self, name: str) -> int:
        table = self._open()
        description = description_of(table, name)
        covered = set() if description is None else description.fragments
        return len(set(live_fragments(table)) - covered)

    def _info(self, description: Description, live: set[int]) -> IndexInfo:
        markers = []
        if description.kind == FULL_TEXT:
            markers = [
                marker_of(self._files.core.store, segment.id) for segment in description.segments
            ]
        parameters = parameters_from(markers[0].properties) if markers else {}
        return IndexInfo(
            name=description.name,
            kind=description.kind,
            columns=description.columns,
            rows=description.rows,
            segments=tuple(segment.id for segment in description.segments),
            partitions=sum(len(one.parts) for one in markers) if markers else None,
            covered=len(description.fragments & live),
            uncovered=len(live - description.fragments),
            parameters=parameters,
        )


def _share(sizes: Mapping[int, int], tasks: int) -> tuple[tuple[int, ...], ...]:
    if not sizes:
        raise InvalidInputError("the table is empty: there is nothing to index yet")
    return pack(sizes, tasks)


def _field(table: lance.LanceDataset, column: str) -> pa.Field:
    schema, deepest = table.schema, None
    for name in column.split("."):
        names = [field.name for field in schema]
        if name not in names:
            raise InvalidInputError(
                "there is no such column", column=column, columns=", ".join(table.schema.names)
            )
        deepest = schema.field(name)
        schema = deepest.type if hasattr(deepest.type, "field") else ()
    return deepest
