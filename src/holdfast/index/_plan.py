"""From task manifests to the plan: pure, so that every finalizer computes the same one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats import BuildRecord, Part, Plan, TaskManifest


def make_plan(record: BuildRecord, manifests: Sequence[TaskManifest], token: str) -> Plan:
    """Order the parts: those of the existing index first, then by their original ids.

    Raises:
        InvalidInputError: tasks were built with different parameters.
        CorruptError: the manifests do not belong together.
    """
    first = manifests[0]
    for number, manifest in enumerate(manifests):
        _check_task(record, number, manifest)
        _check_same(first, manifest)
    if record.properties is not None and not same_properties(record.properties, first.properties):
        raise InvalidInputError(
            "the tasks were built with other parameters than the existing index",
            differs=_difference(record.properties, first.properties),
        )
    built = sorted((part for m in manifests for part in m.parts), key=lambda part: part.id)
    _check_distinct(built)
    return Plan(
        token=token,
        build_id=record.build_id,
        name=record.name,
        column=record.column,
        version=record.version,
        replace=record.replace,
        fragments=record.fragments,
        parts=(*record.kept, *built),
        attempts=tuple(manifest.attempt for manifest in manifests),
        properties=first.properties,
        details=first.details,
        documents=sum(manifest.documents for manifest in manifests),
    )


def same_properties(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Tell whether two sets of parts were made alike and may stand in one index."""
    return not _difference(one, other)


def _difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the names of what differs; JSON values are compared by meaning."""
    keys = [key for key in sorted({*one, *other}) if not _alike(one.get(key), other.get(key))]
    return ", ".join(keys)


def _alike(one: str | None, other: str | None) -> bool:
    if one == other or one is None or other is None:
        return one == other
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def _check_task(record: BuildRecord, number: int, manifest: TaskManifest) -> None:
    belongs = manifest.build_id == record.build_id and manifest.task == number
    if not belongs or manifest.fragments != record.tasks[number]:
        raise CorruptError(
            "a task's manifest is not of this task", build_id=record.build_id, task=number
        )


def _check_same(first: TaskManifest, manifest: TaskManifest) -> None:
    differs = _difference(first.properties, manifest.properties)
    if differs or first.details != manifest.details:
        raise InvalidInputError(
            "tasks of one build have different parameters: remove the build and build again",
            build_id=first.build_id,
            task=manifest.task,
            differs=differs or "details",
        )


def _check_distinct(parts: Sequence[Part]) -> None:
    ids = [part.id for part in parts]
    if len(set(ids)) != len(ids):
        raise CorruptError("two tasks built parts of the same id", ids=ids[:20])
