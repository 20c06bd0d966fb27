"""One task of a build: built in an attempt's own folder, then decided to be what counts.

| killed after               | left behind                | who goes on                       |
|----------------------------|----------------------------|-----------------------------------|
| the attempt is declared    | a note, perhaps some files | another attempt; they are swept   |
| it is built                | files nobody counts        | another attempt; they are swept   |
| the manifest is decided    | a finished task            | nobody: reruns reuse it           |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.arbiter import Won
from holdfast.errors import CollectedError, CorruptError, NotFoundError
from holdfast.events import EventKind, emit
from holdfast.formats import (
    BuildRecord,
    Details,
    Part,
    PartFile,
    TaskManifest,
    attempt_path,
    build_record_path,
    decode_build,
    decode_plan,
    decode_task,
    encode_index_record,
    index_folder,
    index_id,
    plan_name,
    task_name,
)
from holdfast.index._files import BuildFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a builder staged: parts with sizes, and what Lance says of them."""

    parts: tuple[Part, ...]
    properties: Mapping[str, str]
    details: Details
    documents: int


class Builder(Protocol):
    """Builds parts; the one thing of a task that is not protocol."""

    def build(self, record: BuildRecord, fragments: tuple[int, ...], attempt: str) -> Built:
        """Stage the parts of some fragments in the attempt's folder."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDone:
    """A task that has finished.

    Attributes:
        reused: another attempt counts; this one built nothing, or in vain.
        documents: how many documents it indexed; 0 when the build is over.
    """

    task: int
    reused: bool
    documents: int


def run_task(files: BuildFiles, builder: Builder, build_id: str, task: int) -> TaskDone:
    """Build one task unless it is built already. Safe to repeat, and to run twice concurrently.

    Raises:
        NotFoundError: there is no such build, or the version it reads is gone.
        CommitUnknownError: whether this attempt counts could not be learnt; repeat.
        CorruptError: a record cannot be read, or what was staged changed under our hands.
    """
    try:
        body = files.read(task_name(build_id, task))
    except CorruptError:
        # What was decided is gone. That is in order once the build is finished and swept.
        if files.read(plan_name(build_id)) is None:
            raise
        return TaskDone(task=task, reused=True, documents=0)
    if body is not None:
        return _reused_task(body)
    record = _record(files, build_id, task)
    if record is None:
        return TaskDone(task=task, reused=True, documents=0)
    return _attempt(files, builder, record, task)


def _attempt(files: BuildFiles, builder: Builder, record: BuildRecord, task: int) -> TaskDone:
    attempt = index_id(files.core.ids.token())
    # Before anything is staged: a killed attempt leaves no folder without a note.
    _declare(files, record.build_id, task, attempt)
    try:
        manifest = _build(files, builder, record, task, attempt)
    except (NotFoundError, CorruptError):
        # Others finished the build meanwhile, and swept what this attempt had staged.
        if files.read(plan_name(record.build_id)) is None:
            raise
        discard(files, attempt)
        return TaskDone(task=task, reused=True, documents=0)
    return _decide(files, manifest)


def _build(
    files: BuildFiles, builder: Builder, record: BuildRecord, task: int, attempt: str
) -> TaskManifest:
    begun = files.core.clock.elapsed()
    built = builder.build(record, record.tasks[task], attempt)
    parts = tuple(_with_checksums(files, part) for part in built.parts)
    # Before the manifest is decided: Lance does not fsync what it writes.
    files.make_durable(part.path(file) for part in parts for file in part.files)
    return TaskManifest(
        token=files.core.ids.token(),
        build_id=record.build_id,
        task=task,
        attempt=attempt,
        fragments=record.tasks[task],
        parts=parts,
        properties=built.properties,
        details=built.details,
        documents=built.documents,
        seconds=files.core.clock.elapsed() - begun,
    )


def _decide(files: BuildFiles, manifest: TaskManifest) -> TaskDone:
    name = task_name(manifest.build_id, manifest.task)
    try:
        decision = files.core.arbiter.decide(name, encode_index_record(manifest), manifest.token)
    except (CollectedError, CorruptError):
        if not _is_over(files, manifest):
            raise
        discard(files, manifest.attempt)
        return TaskDone(task=manifest.task, reused=True, documents=0)
    if not isinstance(decision, Won):
        discard(files, manifest.attempt)
        return _reused_task(decision.body)
    if _is_over(files, manifest):
        # The task's name was free again because the build was finished and swept.
        discard(files, manifest.attempt)
        return TaskDone(task=manifest.task, reused=True, documents=0)
    emit(
        EventKind.BUILT,
        build=manifest.build_id,
        task=manifest.task,
        parts=len(manifest.parts),
        documents=manifest.documents,
        elapsed=manifest.seconds,
    )
    return TaskDone(task=manifest.task, reused=False, documents=manifest.documents)


def discard(files: BuildFiles, attempt: str) -> None:
    """Remove what an attempt that does not count has staged; best effort."""
    files.remove(info.path for info in files.list(index_folder(attempt)))


def _reused_task(body: bytes) -> TaskDone:
    manifest = decode_task(body)
    return TaskDone(task=manifest.task, reused=True, documents=manifest.documents)


def _record(files: BuildFiles, build_id: str, task: int) -> BuildRecord | None:
    """Return what is to be built; None when the plan is frozen, so nothing is."""
    if files.read(plan_name(build_id)) is not None:
        return None
    body = files.get(build_record_path(build_id))
    if body is None:
        raise NotFoundError("there is no such index build, or it is over", build_id=build_id)
    record = decode_build(body)
    if not 0 <= task < len(record.tasks):
        raise NotFoundError("the build has no such task", build_id=build_id, task=task)
    return record


def _declare(files: BuildFiles, build_id: str, task: int, attempt: str) -> None:
    """Leave a note of the attempt, so that its folder is found whatever becomes of it."""
    note = json.dumps({"v": 1, "task": task, "started": files.core.clock.now()}).encode()
    path = attempt_path(build_id, attempt)
    files.core.retry(path, "put", lambda: files.core.store.put(path, note))


def _with_checksums(files: BuildFiles, part: Part) -> Part:
    """Return a part with the checksums of its files, read back from the store."""
    summed = tuple(
        PartFile(file=file.file, size=file.size, md5=files.md5(part.path(file), file.size))
        for file in part.files
    )
    return Part(folder=part.folder, id=part.id, files=summed)


def _is_over(files: BuildFiles, manifest: TaskManifest) -> bool:
    """Tell whether the plan was frozen without this attempt."""
    body = files.read(plan_name(manifest.build_id))
    return body is not None and manifest.attempt not in decode_plan(body).attempts
