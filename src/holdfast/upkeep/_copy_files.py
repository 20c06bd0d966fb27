"""Copy the files of a table to another place, between any two object stores.

What is copied is what the table *is*: data, versions, logs, transaction ids. Left out is what ties
it to its arbiter, and what open work left under `_holdfast`: the copy is tied anew, and work on
it begins anew. Files get their names once and never change, so a file that is there with the
right size is not copied again; the few small ones that do change always are.

| cut off                          | what is at the new place                                  |
|----------------------------------|-----------------------------------------------------------|
| before the first version         | files that no reader sees                                 |
| between versions                 | an older table, whole, that nobody is tied to             |
| after the last one               | the table; the same call again copies little, and checks  |
| while the copy is tied           | no pin: as before. A pin: `holdfast adopt` finishes it    |

Versions come last and in order, so whatever shows a version shows all its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.errors import AlreadyExistsError, ConflictError, InvalidInputError
from holdfast.formats import (
    BUILDS_FOLDER,
    EMBEDDED_PATH,
    HINT_PATH,
    LOG_OWNER_PATH,
    PIN_PATH,
    PROBE_FOLDER,
    QUEUE_PATH,
    SNAPSHOT_PINS_FOLDER,
    STAGED_FOLDER,
    TEMPORARY_FOLDER,
    version_of,
)
from holdfast.storage import ObjectInfo, ObjectStore

_LEFT_OUT = (
    *(f"{folder}/" for folder in (BUILDS_FOLDER, PROBE_FOLDER, STAGED_FOLDER)),
    *(f"{folder}/" for folder in (SNAPSHOT_PINS_FOLDER, TEMPORARY_FOLDER)),
    *(PIN_PATH, LOG_OWNER_PATH, EMBEDDED_PATH, QUEUE_PATH),
)
_LARGE_BYTES = 16 << 20  # a file is held in memory while it is copied: large ones one by one
_SMALL_BYTES = 1 << 20  # files that change are all below this
_THREADS = 8
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """What a copy has to do: `files` to copy, of `total_files` that the table has."""

    files: tuple[ObjectInfo, ...]
    total_files: int
    total_bytes: int


def plan_copy(source: ObjectStore, target: ObjectStore) -> CopyPlan:
    """Return what is to be copied. Writes nothing.

    Raises:
        InvalidInputError: both are one place.
        AlreadyExistsError: the target is a table already, or holds files that the source does not.
    """
    if source.location == target.location:
        raise InvalidInputError("source and target are one place", location=source.location)
    files = _files(source)
    there = {info.path: info for info in target.list()}
    if PIN_PATH in there:
        raise AlreadyExistsError(
            "a Holdfast table is there already; if a copy was cut off there, `holdfast adopt` "
            "finishes it and `holdfast doctor` checks it",
            location=target.location,
        )
    # What a cut-off try left under `_holdfast` while it tied the copy is no file of another table.
    others = {path for path in there if not path.startswith(_LEFT_OUT)}
    strangers = sorted(others - {info.path for info in files})
    if strangers:
        raise AlreadyExistsError(
            "the target holds files that are not of this table: take an empty place, or remove "
            "them",
            location=target.location,
            files=len(strangers),
            first=", ".join(strangers[:_NAMED]),
        )
    to_copy = [info for info in files if not _is_there(info, there.get(info.path))]
    return CopyPlan(
        files=tuple(sorted(to_copy, key=_order)),
        total_files=len(files),
        total_bytes=sum(info.size for info in files),
    )


def copy_files(source: ObjectStore, target: ObjectStore, plan: CopyPlan) -> None:
    """Copy what is planned, then check that source and target hold the same files.

    Raises:
        ConflictError: the source changed meanwhile: stop its writers, and plan and copy again.
    """
    small = [info for info in plan.files if info.size < _LARGE_BYTES and not _order(info)[0]]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-copy") as threads:
        list(threads.map(lambda info: _copy(source, target, info), small))
    # Versions last and in order: whoever opens the target half way finds no table, or a version
    # whose files are all there.
    for info in sorted(set(plan.files) - set(small), key=_order):
        _copy(source, target, info)
    # By listing both again: a writer that went on while we copied shows here.
    _compare(source, target)


def _copy(source: ObjectStore, target: ObjectStore, info: ObjectInfo) -> None:
    body = source.get(info.path)
    if len(body) != info.size:
        raise _changed_error([info.path])
    target.put(info.path, body)


def _compare(source: ObjectStore, target: ObjectStore) -> None:
    before = {info.path: info.size for info in _files(target)}
    after = {info.path: info.size for info in _files(source)}
    different = sorted(path for path in before | after if before.get(path) != after.get(path))
    if different:
        raise _changed_error(different)


def _changed_error(paths: Sequence[str]) -> ConflictError:
    return ConflictError(
        "the table was written while it was copied, and the copy is not complete: stop its "
        "writers and give the same command again; only what changed is copied then",
        files=len(paths),
        first=", ".join(paths[:_NAMED]),
    )


def _files(store: ObjectStore) -> list[ObjectInfo]:
    return [info for info in store.list() if not info.path.startswith(_LEFT_OUT)]


def _is_there(info: ObjectInfo, there: ObjectInfo | None) -> bool:
    """Tell whether a file need not be copied: it never changes, and its size is right."""
    # Only large files are never written twice under one name; hints, tags and manifests may be.
    return there is not None and there.size == info.size and info.size >= _SMALL_BYTES


def _order(info: ObjectInfo) -> tuple[int, int, str]:
    """Sort versions behind all else, the oldest first, and then the hint at the newest."""
    version = version_of(info.path)
    if version is not None:
        return (1, version, info.path)
    return (2 if info.path == HINT_PATH else 0, 0, info.path)
