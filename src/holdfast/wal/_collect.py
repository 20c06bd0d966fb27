"""Collecting a shard's log: entries that were flushed go, fences stay.

The order is the safety: read the flushed cursor, raise the boundary to it, durably, and only
then delete. A fence is what a sleeping writer finds in the place of its next entry, so fences
stay; one goes only when the boundary above it has stood for `RETENTION` by the store's own
stamps, by which time every writer that slept so long looks at the boundary before it
acknowledges anything. No clock of a writer's machine is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast._clock import Clock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import Arbiter, RecordedDecisions
from holdfast.errors import CorruptError
from holdfast.events import EventKind, emit
from holdfast.formats import Name
from holdfast.formats._entry import MAX_FENCE_BYTES
from holdfast.formats._wal_names import (
    BoundaryKind,
    entry_name,
    shard_manifest_folder,
    shard_manifest_name,
    shard_version_of,
)
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.wal._boundary import RETENTION, Boundary, store_time
from holdfast.wal._log import Log
from holdfast.wal._manifests import ShardManifests


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCollection:
    """What a collection removed, or would remove.

    Attributes:
        shard_id: the shard.
        boundary: entries up to this position are flushed.
        entries: how many entries with rows.
        fences: how many fences.
        fences_kept: how many fences below the boundary stay.
        manifests: how many old versions of the shard's manifest.
        size: bytes of all these.
        paths: the objects.
    """

    shard_id: str
    boundary: int
    entries: int
    fences: int
    fences_kept: int
    manifests: int
    size: int
    paths: tuple[str, ...]


def collect_log(
    store: ObjectStore,
    arbiter: Arbiter,
    shard_id: str,
    *,
    confirm: bool = False,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> LogCollection:
    """Remove log entries that were flushed, and manifests that are old. Safe beside writers.

    Args:
        store: the table's object store.
        arbiter: who decides for the table.
        shard_id: the shard.
        confirm: False only says what would go, and changes nothing but one passing object that
            asks the store for its time.
        clock: time.
        ids: where ids come from.

    Raises:
        UnavailableError, PermissionDeniedError: a store did not do its part; run it again.
        CorruptError: the shard's manifest cannot be read.
        CommitStoreRegressedError, ForeignVersionError: it is not the decided one.
    """
    ids = ids or RandomIds()
    log = Log(store, arbiter, shard_id)
    manifest = ShardManifests(store, arbiter, shard_id, clock=clock, ids=ids).latest()
    if manifest is None:
        return _nothing(log.shard_id)
    now = store_time(store, log.shard_id, ids)
    collected = _plan(store, log, manifest.replay_after, manifest.version, now)
    if confirm:
        carry_out(store, arbiter, collected)
    return collected


def _plan(
    store: ObjectStore, log: Log, flushed: int, newest_version: int, now: float
) -> LogCollection:
    settled = Boundary(store, log.shard_id, BoundaryKind.LOG).settled(now)
    entries, fences, kept = [], [], 0
    for position, info in log.listed().items():
        if position > flushed:
            break
        if info.size > MAX_FENCE_BYTES or not _may_be_fence(log, position):
            entries.append(info)
        elif position <= settled:
            fences.append(info)
        else:
            kept += 1
    manifests = _old_manifests(store, log.shard_id, newest_version, now)
    going = [*entries, *fences, *manifests]
    return LogCollection(
        shard_id=log.shard_id,
        boundary=flushed,
        entries=len(entries),
        fences=len(fences),
        fences_kept=kept,
        manifests=len(manifests),
        size=sum(info.size for info in going),
        paths=tuple(info.path for info in going),
    )


def _may_be_fence(log: Log, position: int) -> bool:
    """Tell whether an entry is, or might have been, a fence."""
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
    found = {shard_version_of(i.path): i for i in store.list(shard_manifest_folder(shard_id))}
    old: list[ObjectInfo] = []
    for version in sorted(v for v in found if v is not None and v < newest):
        if found[version].modified > limit:
            break
        old.append(found[version])
    return old


def carry_out(store: ObjectStore, arbiter: Arbiter, collected: LogCollection) -> None:
    """Raise the boundaries, durably, and only then delete what was planned.

    Raises:
        UnavailableError, PermissionDeniedError: a store did not do its part; run it again.
    """
    shard_id = collected.shard_id
    versions = [v for path in collected.paths if (v := shard_version_of(path)) is not None]
    if collected.boundary > 0:
        name = entry_name(shard_id, collected.boundary)
        _raise(store, arbiter, shard_id, BoundaryKind.LOG, name)
    if versions:
        name = shard_manifest_name(shard_id, max(versions))
        _raise(store, arbiter, shard_id, BoundaryKind.MANIFEST, name)
    store.delete(collected.paths)
    emit(
        EventKind.COLLECTED,
        series=f"log/{shard_id}",
        through=collected.boundary,
        records=len(collected.paths),
    )


def _raise(
    store: ObjectStore, arbiter: Arbiter, shard_id: str, kind: BoundaryKind, last: Name
) -> None:
    """Make sure that no number up to the last one is ever decided again."""
    Boundary(store, shard_id, kind).raise_to(last.number)
    if isinstance(arbiter, RecordedDecisions):
        arbiter.accept(last.series, last.number)


def _nothing(shard_id: str) -> LogCollection:
    return LogCollection(
        shard_id=shard_id,
        boundary=0,
        entries=0,
        fences=0,
        fences_kept=0,
        manifests=0,
        size=0,
        paths=(),
    )
