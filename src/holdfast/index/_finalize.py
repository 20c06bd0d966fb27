"""`Finalizer`: from decided task manifests to a complete index. Repeat it, race it, kill it.

    plan = finalizer.freeze(build_id)     # decided: everyone follows the same plan
    complete = finalizer.complete(plan)   # copied, verified, marked

| killed after            | what a reader sees | who goes on                                  |
|-------------------------|--------------------|----------------------------------------------|
| the plan is frozen      | no index           | any finalizer, by the same plan              |
| some parts are copied   | no index           | any finalizer: a copy is made again, whole   |
| the marker is decided   | no index yet       | any finalizer: it verifies, then commits     |

A copy may be made over an equal one, because the plan names the source: same bytes. Nothing
final is ever deleted, and nothing staged is deleted here.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.arbiter import Won
from holdfast.errors import CorruptError, HoldfastError, NotFoundError
from holdfast.formats import (
    MARKER_FILE,
    BuildRecord,
    Part,
    PartFile,
    Plan,
    TaskManifest,
    build_record_path,
    decode_build,
    decode_plan,
    decode_task,
    encode_index_record,
    index_folder,
    marker_name,
    part_file,
    part_path,
    plan_name,
    task_name,
)
from holdfast.index._files import BuildFiles
from holdfast.index._marker import LanceMarkers, Marker, Markers
from holdfast.index._plan import make_plan
from holdfast.index._progress import Stage, Watch, report
from holdfast.storage import ObjectInfo

COPIES_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """An index that is complete and verified.

    Attributes:
        plan: how it came about.
        files: exactly the files that belong to it, by their names in its folder, with sizes.
    """

    plan: Plan
    files: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Copy:
    """One file of a part, and the final name it gets."""

    part: Part
    file: PartFile
    target: str

    @property
    def source(self) -> str:
        return self.part.path(self.file)


class Finalizer:
    """Completes builds of one table."""

    def __init__(
        self,
        files: BuildFiles,
        markers: Markers | None = None,
        *,
        at_once: int = COPIES_AT_ONCE,
        watch: Watch | None = None,
    ) -> None:
        self._files = files
        self._markers = markers or LanceMarkers()
        self._at_once = at_once
        self._watch = watch

    def freeze(self, build_id: str) -> Plan:
        """Return the frozen plan of a build; freeze it when all tasks are in.

        Raises:
            NotFoundError: there is no such build, or a task has not finished.
            InvalidInputError: tasks were built with different parameters.
            CorruptError: a record cannot be read.
            CommitUnknownError: whether the plan is frozen could not be learnt; repeat.
        """
        # The plan first: once it is frozen, tasks and build record may have been swept.
        plan = self.frozen_plan(build_id)
        if plan is not None:
            return plan
        try:
            return self._freeze(build_id)
        except (NotFoundError, CorruptError):
            # Another finalizer may have frozen the plan, finished and cleaned up meanwhile.
            plan = self.frozen_plan(build_id)
            if plan is None:
                raise
            return plan

    def frozen_plan(self, build_id: str) -> Plan | None:
        """Return the plan if it is frozen."""
        body = self._files.read(plan_name(build_id))
        return None if body is None else decode_plan(body)

    def complete(self, plan: Plan) -> Complete:
        """Make the index of a frozen plan complete, and verify that it is.

        Raises:
            CorruptError: a part is gone for good, or the marker is no such file.
            CommitUnknownError: whether it is complete could not be learnt; repeat.
        """
        # The marker comes last, after every part was seen at its final name: readers take an index
        # with a marker for whole.
        body = self._files.read(marker_name(plan.build_id))
        if body is None:
            # No marker, so nobody has shown that the copies are whole: all are made again.
            self._copy(plan, self._copies(plan))
            self._verify(plan)
            body = self._mark(plan)
        else:
            self._check_marker(plan, body)
            self._copy(plan, self._differing_files(plan))
            self._verify(plan)
        # Also after our own decision: another body may have won it.
        self._check_marker(plan, body)
        parts = [
            (part_file(number, file.file), file.size)
            for number, part in enumerate(plan.parts)
            for file in part.files
        ]
        return Complete(plan=plan, files=((MARKER_FILE, len(body)), *parts))

    def _freeze(self, build_id: str) -> Plan:
        record = self.record(build_id)
        manifests = [self._manifest(record, task) for task in range(len(record.tasks))]
        plan = make_plan(record, manifests, self._files.core.ids.token())
        name = plan_name(build_id)
        # A task that is built again later may bring other parts. Deciding the plan fixes which ones
        # count, so that two finalizers copy the same bytes to the same names.
        decision = self._files.core.arbiter.decide(name, encode_index_record(plan), plan.token)
        return plan if isinstance(decision, Won) else decode_plan(decision.body)

    def record(self, build_id: str) -> BuildRecord:
        """Return what an open build is to build.

        Raises:
            NotFoundError: there is no such build, or it is over.
        """
        body = self._files.get(build_record_path(build_id))
        if body is None:
            raise NotFoundError("there is no such index build, or it is over", build_id=build_id)
        return decode_build(body)

    def _manifest(self, record: BuildRecord, task: int) -> TaskManifest:
        body = self._files.read(task_name(record.build_id, task))
        if body is None:
            raise NotFoundError(
                "not all tasks of the build have finished: run it again, it goes on where it was",
                build_id=record.build_id,
                task=task,
            )
        return decode_task(body)

    def _copies(self, plan: Plan) -> list[_Copy]:
        folder = index_folder(plan.build_id)
        return [
            _Copy(part, file, part_path(folder, number, file.file))
            for number, part in enumerate(plan.parts)
            for file in part.files
        ]

    def _copy(self, plan: Plan, copies: list[_Copy]) -> None:
        """Copy; of a source that is gone, the verification afterwards decides."""
        for done, _ in enumerate(self._each(copies), 1):
            report(self._watch, plan.build_id, Stage.COPY, done, len(copies))

    def _each(self, copies: list[_Copy]) -> Iterable[None]:
        if self._at_once == 1:
            yield from map(self._copy_one, copies)
            return
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="holdfast-copy") as pool:
            yield from pool.map(self._copy_one, copies)

    def _copy_one(self, copy: _Copy) -> None:
        try:
            self._files.core.retry(
                copy.target, "copy", lambda: self._files.core.store.copy(copy.source, copy.target)
            )
        except NotFoundError:
            # Swept by a finalizer that was faster; `_verify` tells whether the target is whole.
            return

    def _verify(self, plan: Plan) -> None:
        differing = self._differing_files(plan)
        if differing:
            raise CorruptError(
                "parts of the index are gone and so is what they were copied from: build again",
                build_id=plan.build_id,
                missing=", ".join(copy.target for copy in differing[:6]),
            )

    def _differing_files(self, plan: Plan) -> list[_Copy]:
        """Return the files that are not, or not as they must be, at their final names."""
        listed = {info.path: info for info in self._files.list(index_folder(plan.build_id))}
        differing = []
        for copy in self._copies(plan):
            if self._is_there(copy, listed.get(copy.target)):
                continue
            # A listing may lag behind; the object itself does not.
            if not self._is_there(copy, self._files.head(copy.target)):
                differing.append(copy)
        return differing

    def _is_there(self, copy: _Copy, info: ObjectInfo | None) -> bool:
        if info is None or info.size != copy.file.size:
            return False
        if info.md5 is None or copy.file.md5 is None or info.md5 == copy.file.md5:
            return True
        # The store's tags may be something else than an MD5 (encrypted objects, say). They
        # are one if the staged file's tag is the MD5 that the task computed.
        source = self._files.head(copy.source)
        return source is None or source.md5 != copy.file.md5

    def _mark(self, plan: Plan) -> bytes:
        """Decide the marker and return the bytes that have its name."""
        token = self._files.core.ids.token()
        marker = Marker(parts=tuple(range(len(plan.parts))), properties=plan.properties)
        body = self._markers.encode(marker, token)
        decision = self._files.core.arbiter.decide(marker_name(plan.build_id), body, token)
        return body if isinstance(decision, Won) else decision.body

    def _check_marker(self, plan: Plan, body: bytes) -> None:
        """Parse the marker: that something has its name proves nothing."""
        try:
            marker = self._markers.decode(body)
        except HoldfastError as error:
            error.details["build_id"] = plan.build_id
            raise
        wanted = Marker(parts=tuple(range(len(plan.parts))), properties=plan.properties)
        if marker != wanted:
            raise CorruptError("the marker is of another index", build_id=plan.build_id)
