"""Collecting a shard's log: entries that were flushed go, fences stay for ever.

The order is the safety: read the flushed cursor, write down which transaction ids the entries up
to it have (`_memory`), raise the boundary to it, durably, and only then delete. A fence is what a
sleeping writer finds in the place of its next entry, however long it slept, so no fence ever
goes. Old manifests go one by one, the oldest first: who reads them counts on that order. Their
age, by the store's own stamps, is a courtesy to readers that keep a manifest in mind; no clock
protects anything.

| stopped after            | others see                    | who goes on          |
|--------------------------|-------------------------------|----------------------|
| putting the memory       | entries that nobody needs     | the next collection  |
| raising the boundary     | entries that nobody needs     | the next collection  |
| some deletions           | fewer of them                 | the next collection  |
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass

from holdfast.arbiter import SupportsSeries
from holdfast.core import TableCore
from holdfast.errors import CorruptError
from holdfast.events import EventKind, emit
from holdfast.formats import (
    MAX_FENCE_BYTES,
    MIN_ENTRY_BYTES,
    BoundaryKind,
    Name,
    entry_name,
    shard_manifest_folder,
    shard_manifest_name,
    shard_version_of,
)
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.wal._boundary import RETENTION, Boundary, store_time
from holdfast.wal._log import Log
from holdfast.wal._manifests import ShardManifests
from holdfast.wal._memory import Memories, remember


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCollection:
    """What a collection removed, or would remove.

    Attributes:
        shard_id: the shard.
        boundary: entries up to this position are flushed.
        entries: how many entries with rows.
        fences_kept: how many fences below the boundary stay.
        manifests: how many old versions of the shard's manifest.
        memories: how many memories of transaction ids that newer ones replaced.
        size: bytes of all these.
        paths: the objects.
    """

    shard_id: str
    boundary: int
    entries: int
    fences_kept: int
    manifests: int
    memories: int = 0
    size: int
    paths: tuple[str, ...]


def collect_log(core: TableCore, shard_id: str, *, confirm: bool = False) -> LogCollection:
    """Remove log entries that were flushed, and manifests that are old. Safe beside writers.

    Args:
        core: the table.
        shard_id: the shard.
        confirm: False only says what would go, and changes nothing but one passing object that
            asks the store for its time.

    Raises:
        UnavailableError, PermissionDeniedError: a store did not do its part; run it again.
        CorruptError: the shard's manifest cannot be read, or ids of its log.
        WalGapError: an entry whose ids are not remembered yet is missing.
        CommitStoreRegressedError, ForeignVersionError: it is not the decided one.
    """
    log = Log(core, shard_id)
    manifest = ShardManifests(core, shard_id).latest()
    if manifest is None:
        return _nothing(log.shard_id)
    now = store_time(core.store, log.shard_id, core.ids)
    collected = _plan(core.store, log, manifest.replay_after, manifest.version, now)
    if confirm:
        carry_out(core, collected)
    return collected


def _plan(
    store: ObjectStore, log: Log, flushed: int, newest_version: int, now: float
) -> LogCollection:
    entries, kept = [], 0
    for position, info in log.list_entries().items():
        # The cursor is that of the stored manifest: what only a writer's memory calls flushed
        # stays.
        if position > flushed:
            break
        # Fences stay for ever, below the boundary, too. A writer that slept through everything
        # finds one in its place, and that is all that stops it where put-if-absent decides.
        if _may_be_fence(log, position, info):
            kept += 1
        else:
            entries.append(info)
    manifests = _old_manifests(store, log.shard_id, newest_version, now)
    memories = Memories(store, log.shard_id).spare()
    going = [*entries, *manifests, *memories]
    return LogCollection(
        shard_id=log.shard_id,
        boundary=flushed,
        entries=len(entries),
        fences_kept=kept,
        manifests=len(manifests),
        memories=len(memories),
        size=sum(info.size for info in going),
        paths=tuple(info.path for info in going),
    )


def _may_be_fence(log: Log, position: int, info: ObjectInfo) -> bool:
    """Tell whether an entry is, or might have been, a fence; its size often says so."""
    if not MIN_ENTRY_BYTES <= info.size <= MAX_FENCE_BYTES:
        # Too small for an entry with rows: damaged, or something unknown. What is not understood
        # stays.
        return info.size < MIN_ENTRY_BYTES
    try:
        entry = log.read(position)
    except CorruptError:
        return True
    return entry is not None and entry.fence


def _old_manifests(store: ObjectStore, shard_id: str, newest: int, now: float) -> list[ObjectInfo]:
    """Return the versions before the newest that are older than `RETENTION`, oldest first.

    Only the oldest ones up to the first that is younger: versions go without a hole.
    """
    limit = now - RETENTION.total_seconds()
    infos = {shard_version_of(i.path): i for i in store.list(shard_manifest_folder(shard_id))}
    old: list[ObjectInfo] = []
    for version in sorted(v for v in infos if v is not None and v < newest):
        # Not skipped but ended at: readers take a missing version for the end, so none may go
        # before an older one.
        if infos[version].modified > limit:
            break
        old.append(infos[version])
    return old


def carry_out(core: TableCore, collected: LogCollection) -> None:
    """Remember ids, raise the boundaries, durably, and only then delete what was planned.

    Raises:
        WalGapError, CorruptError: an entry or a memory is damaged; nothing goes.
        UnavailableError, PermissionDeniedError: a store did not do its part; run it again.
    """
    store, shard_id = core.store, collected.shard_id
    planned = {v for path in collected.paths if (v := shard_version_of(path)) is not None}
    # The plan may be minutes old. Another collector may have deleted some of it since, and versions
    # that it kept must not get a hole below them.
    versions = _without_hole(store, shard_id, planned) if planned else []
    if collected.boundary > 0:
        # Before the boundary: who opens the shard reads no entries below it.
        remember(core, shard_id, collected.boundary)
        name = entry_name(shard_id, collected.boundary)
        _raise(core, shard_id, BoundaryKind.LOG, name)
    if versions:
        name = shard_manifest_name(shard_id, max(versions))
        _raise(core, shard_id, BoundaryKind.MANIFEST, name)
    store.delete(path for path in collected.paths if shard_version_of(path) is None)
    # One request each, oldest first: a batch delete has no order, and a crash in it could leave an
    # old version behind a hole.
    for version in versions:
        store.delete([shard_manifest_name(shard_id, version).path])
    emit(
        EventKind.COLLECTED,
        series=f"log/{shard_id}",
        through=collected.boundary,
        records=len(collected.paths),
    )


def _without_hole(store: ObjectStore, shard_id: str, planned: Collection[int]) -> list[int]:
    """Return the planned versions up to the first that stays: none may go before an older one."""
    versions = {shard_version_of(i.path) for i in store.list(shard_manifest_folder(shard_id))}
    there = sorted(version for version in versions if version is not None)
    return list(itertools.takewhile(lambda version: version in planned, there))


def _raise(core: TableCore, shard_id: str, kind: BoundaryKind, last: Name) -> None:
    """Make sure that no number up to the last one is ever decided again."""
    Boundary(core.store, shard_id, kind).raise_to(last.number)
    if isinstance(core.arbiter, SupportsSeries):
        core.arbiter.accept(last.series, last.number)


def _nothing(shard_id: str) -> LogCollection:
    return LogCollection(
        shard_id=shard_id,
        boundary=0,
        entries=0,
        fences_kept=0,
        manifests=0,
        size=0,
        paths=(),
    )
