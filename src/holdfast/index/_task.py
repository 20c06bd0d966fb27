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
from holdfast.index._ground import Ground


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


def run_task(ground: Ground, builder: Builder, build_id: str, task: int) -> TaskDone:
    """Build one task unless it is built already. Safe to repeat, and to run twice at once.

    Raises:
        NotFoundError: there is no such build, or the version it reads is gone.
        CommitUnknownError: whether this attempt counts could not be learnt; repeat.
        CorruptError: a record cannot be read, or what was staged changed under our hands.
    """
    try:
        body = ground.read(task_name(build_id, task))
    except CorruptError:
        # What was decided is gone. That is in order once the build is finished and swept.
        if ground.read(plan_name(build_id)) is None:
            raise
        return TaskDone(task=task, reused=True, documents=0)
    if body is not None:
        return _reused(body)
    record = _record(ground, build_id, task)
    if record is None:
        return TaskDone(task=task, reused=True, documents=0)
    return _attempt(ground, builder, record, task)


def _attempt(ground: Ground, builder: Builder, record: BuildRecord, task: int) -> TaskDone:
    attempt = index_id(ground.ids.token())
    _declare(ground, record.build_id, task, attempt)
    try:
        manifest = _build(ground, builder, record, task, attempt)
    except (NotFoundError, CorruptError):
        # Others finished the build meanwhile, and swept what this attempt had staged.
        if ground.read(plan_name(record.build_id)) is None:
            raise
        discard(ground, attempt)
        return TaskDone(task=task, reused=True, documents=0)
    return _decide(ground, manifest)


def _build(
    ground: Ground, builder: Builder, record: BuildRecord, task: int, attempt: str
) -> TaskManifest:
    begun = ground.clock.elapsed()
    built = builder.build(record, record.tasks[task], attempt)
    parts = tuple(_summed(ground, part) for part in built.parts)
    ground.make_durable(part.path(file) for part in parts for file in part.files)
    return TaskManifest(
        token=ground.ids.token(),
        build_id=record.build_id,
        task=task,
        attempt=attempt,
        fragments=record.tasks[task],
        parts=parts,
        properties=built.properties,
        details=built.details,
        documents=built.documents,
        seconds=ground.clock.elapsed() - begun,
    )


def _decide(ground: Ground, manifest: TaskManifest) -> TaskDone:
    name = task_name(manifest.build_id, manifest.task)
    try:
        decision = ground.arbiter.decide(name, encode_index_record(manifest), manifest.token)
    except (CollectedError, CorruptError):
        if not _is_over(ground, manifest):
            raise
        discard(ground, manifest.attempt)
        return TaskDone(task=manifest.task, reused=True, documents=0)
    if not isinstance(decision, Won):
        discard(ground, manifest.attempt)
        return _reused(decision.body)
    if _is_over(ground, manifest):
        # The task's name was free again because the build was finished and swept.
        discard(ground, manifest.attempt)
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


def discard(ground: Ground, attempt: str) -> None:
    """Remove what an attempt that does not count has staged; best effort."""
    ground.remove(info.path for info in ground.list(index_folder(attempt)))


def _reused(body: bytes) -> TaskDone:
    manifest = decode_task(body)
    return TaskDone(task=manifest.task, reused=True, documents=manifest.documents)


def _record(ground: Ground, build_id: str, task: int) -> BuildRecord | None:
    """Return what is to be built; None when the plan is frozen, so nothing is."""
    if ground.read(plan_name(build_id)) is not None:
        return None
    body = ground.get(build_record_path(build_id))
    if body is None:
        raise NotFoundError("there is no such index build, or it is over", build_id=build_id)
    record = decode_build(body)
    if not 0 <= task < len(record.tasks):
        raise NotFoundError("the build has no such task", build_id=build_id, task=task)
    return record


def _declare(ground: Ground, build_id: str, task: int, attempt: str) -> None:
    """Leave a note of the attempt, so that its folder is found whatever becomes of it."""
    note = json.dumps({"v": 1, "task": task, "started": ground.clock.now()}).encode()
    path = attempt_path(build_id, attempt)
    ground.ask(path, "put", lambda: ground.store.put(path, note))


def _summed(ground: Ground, part: Part) -> Part:
    """Return a part with the checksums of its files, read back from the store."""
    files = tuple(
        PartFile(file=file.file, size=file.size, md5=ground.md5(part.path(file), file.size))
        for file in part.files
    )
    return Part(folder=part.folder, id=part.id, files=files)


def _is_over(ground: Ground, manifest: TaskManifest) -> bool:
    """Tell whether the plan was frozen without this attempt."""
    body = ground.read(plan_name(manifest.build_id))
    return body is not None and manifest.attempt not in decode_plan(body).attempts
