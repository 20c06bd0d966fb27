"""Builds that are open: begun by somebody, and not yet in the table.

A rerun looks here first, and goes on with a build of its own kind instead of a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats import (
    BUILDS_FOLDER,
    BuildRecord,
    attempts_folder,
    build_id_of_record,
    build_record_path,
    decode_build,
    encode_index_record,
    plan_name,
    task_name,
)
from holdfast.index._files import BuildFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInfo:
    """How an open build is getting on.

    Attributes:
        build_id: its id, for `holdfast index finalize`.
        index: the name of the index.
        column: what is indexed.
        version: the table version that it reads.
        tasks: how many there are.
        finished: how many have finished.
        attempts: how many attempts were made.
        frozen: the plan is frozen: only copies and the commit are left.
        started: when, in seconds since 1970.
    """

    build_id: str
    index: str
    column: str
    version: int
    tasks: int
    finished: int
    attempts: int
    frozen: bool
    started: float


def pack(sizes: Mapping[int, int], tasks: int) -> tuple[tuple[int, ...], ...]:
    """Share fragments among tasks so that each gets about as many rows; largest first.

    Raises:
        InvalidInputError: less than one task.
    """
    if tasks < 1:
        raise InvalidInputError("an index is built in at least one task", tasks=tasks)
    bins: list[tuple[int, list[int]]] = [(0, []) for _ in range(min(tasks, len(sizes)))]
    for fragment in sorted(sizes, key=lambda f: (-sizes[f], f)):
        slot = min(range(len(bins)), key=lambda n: (bins[n][0], n))
        rows, held = bins[slot]
        bins[slot] = (rows + sizes[fragment], [*held, fragment])
    return tuple(sorted(tuple(sorted(held)) for _, held in bins))


def start(files: BuildFiles, record: BuildRecord) -> None:
    """Write a build's record; from now on anybody can run its tasks."""
    path, body = build_record_path(record.build_id), encode_index_record(record)
    files.core.retry(path, "put", lambda: files.core.store.put(path, body))


def open_records(files: BuildFiles) -> list[BuildRecord]:
    """Return the builds that are open, oldest first; unreadable records are left out."""
    records = []
    for info in files.list(BUILDS_FOLDER):
        if build_id_of_record(info.path) is None:
            continue
        body = files.get(info.path)
        try:
            record = None if body is None else decode_build(body)
        except CorruptError:
            continue
        if record is not None:
            records.append(record)
    return sorted(records, key=lambda record: (record.started, record.build_id))


def finished_tasks(files: BuildFiles, record: BuildRecord) -> list[int]:
    """Return the tasks of a build whose manifests are decided."""
    return [
        task
        for task in range(len(record.tasks))
        if files.read(task_name(record.build_id, task)) is not None
    ]


def describe(files: BuildFiles, records: Iterable[BuildRecord]) -> list[BuildInfo]:
    """Return how builds are getting on; reads only."""
    return [_describe(files, record) for record in records]


def _describe(files: BuildFiles, record: BuildRecord) -> BuildInfo:
    frozen = files.read(plan_name(record.build_id)) is not None
    finished = len(record.tasks) if frozen else len(finished_tasks(files, record))
    return BuildInfo(
        build_id=record.build_id,
        index=record.name,
        column=record.column,
        version=record.version,
        tasks=len(record.tasks),
        finished=finished,
        attempts=len(files.list(attempts_folder(record.build_id))),
        frozen=frozen,
        started=record.started,
    )
