"""`take_snapshot`: a base version and all that is newer, so that no acknowledged row is missed.

Per shard, a snapshot is a prefix of the shard's log, whole: every entry acknowledged before
the reading began, none skipped, none twice. Shards are not aligned with each other.

The order of the steps is the promise:

1. Read the manifest of every shard: its flushed cursor, its SSTables.
2. Read its log beyond the cursor.
3. Read the manifests again. Where the cursor has passed the end of what was read, start over.
4. Read the newest base version, with the generations merged into *that* version. Where it has
   one that the manifest of step 1 does not know, start over.

Base first would miss rows that are merged and drained before the manifests are read. Without
step 3, a log that was flushed and collected meanwhile looks like one that ends earlier: only
what is flushed is collected, so a log that was read up to the cursor is whole. Without the
check of step 4, an old log would hide newer rows that reached the base by then. A flush or a
drain as such does no harm: what was read is still a prefix of the log, and a file that is
gone is noticed. SSTables that the base version has merged are left out: they would hide
whatever changed the base since.

Readers only read: nothing here decides a name, claims a shard or writes a hint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from holdfast.commits import lost_log
from holdfast.errors import (
    CorruptError,
    InvalidInputError,
    LogLostError,
    NotFoundError,
    SnapshotExpiredError,
    WalGapError,
)
from holdfast.formats import Entry, ShardManifest, ShardRecord, SnapshotRecord, SsTable

Freshness = Literal["latest", "flushed", "base"]
"""How new rows must be: with the log, with SSTables only, or the base table alone."""

FRESHNESS: tuple[Freshness, ...] = ("latest", "flushed", "base")
TRIES = 8
"""How often a snapshot is taken anew before a reader gives up."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseVersion:
    """One version of the base table.

    Attributes:
        version: its number.
        compacted: by shard id, the newest generation that this very version has merged.
        dataset: the open Lance dataset; only those who read rows look at it.
        has_log: whether it says how far the log is merged; if not, nothing may wait there.
    """

    version: int
    compacted: Mapping[str, int]
    dataset: Any = None
    has_log: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The entries of a shard's log beyond a position, in order.

    Attributes:
        entries: without a hole, as far as they could be read.
        hole: a position that is missing although later ones are there.
    """

    entries: tuple[Entry, ...] = ()
    hole: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSnapshot:
    """What one shard has beyond the base.

    Attributes:
        manifest: the version of its manifest that counts.
        sstables: those that the base has not merged, newest first.
        entries: its log beyond the flushed cursor.
    """

    manifest: ShardManifest
    sstables: tuple[SsTable, ...]
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One consistent view of a table."""

    base: BaseVersion
    shards: tuple[ShardSnapshot, ...] = ()

    @property
    def record(self) -> SnapshotRecord:
        """Return which files this view needs."""
        return SnapshotRecord(
            base_version=self.base.version,
            shards=tuple(_record_of(shard) for shard in self.shards),
        )


class SnapshotSource(Protocol):
    """Where a snapshot is taken from."""

    def shard_ids(self) -> Sequence[str]:
        """Return the shards there are."""
        ...

    def manifest(self, shard_id: str) -> ShardManifest | None:
        """Return the newest manifest of a shard; None for a folder without any."""
        ...

    def tail(self, manifest: ShardManifest) -> LogTail:
        """Return a shard's log beyond the manifest's flushed cursor."""
        ...

    def base(self) -> BaseVersion:
        """Return the newest version of the base table."""
        ...


def check_freshness(freshness: str) -> Freshness:
    """Return `freshness` if it is one.

    Raises:
        InvalidInputError: it is none.
    """
    for known in FRESHNESS:
        if freshness == known:
            return known
    raise InvalidInputError(
        "freshness is 'latest', 'flushed' or 'base'", freshness=repr(freshness)[:80]
    )


def take_snapshot(source: SnapshotSource, freshness: Freshness = "latest") -> Snapshot:
    """Return a view that holds every row acknowledged before the call, per shard.

    Raises:
        SnapshotExpiredError: shards were flushed faster than they could be read.
        WalGapError: a log has a hole.
        CorruptError: an entry or manifest is damaged.
        LogLostError: the base version does not say how far the log is merged, or is older
            than what was drained from a shard.
        UnavailableError, PermissionDeniedError: a store did not tell.
    """
    for _ in range(TRIES):
        snapshot = _take(source, freshness)
        if snapshot is not None:
            return snapshot
    raise SnapshotExpiredError(
        "shards were flushed or merged each time before they were read: read again, or with "
        "freshness='base'",
        tries=TRIES,
    )


def with_snapshot(take: Callable[[], Snapshot], act: Callable[[Snapshot], T]) -> T:
    """Return what `act` makes of a snapshot; taken anew when its files are gone.

    Files go when somebody merges, drains and collects while we read. `act` gives nothing away
    before it is complete, so its result is of one snapshot, never of two.

    Raises:
        SnapshotExpiredError: files went each time before they were read.
        CorruptError: a file is gone that the table still names.
        Other errors: as for `take_snapshot`, and what `act` raises.
    """
    before: SnapshotRecord | None = None
    for _ in range(TRIES):
        snapshot = take()
        # The same files are gone that were gone the last time: nobody collected them behind our
        # back.
        if before is not None and snapshot.record == before:
            raise CorruptError(
                "a file that the table names is gone: see `holdfast doctor`",
                base_version=before.base_version,
            )
        try:
            return act(snapshot)
        except NotFoundError:
            before = snapshot.record
    raise SnapshotExpiredError("files were collected each time before they were read", tries=TRIES)


def _take(source: SnapshotSource, freshness: Freshness) -> Snapshot | None:
    """Try once; None when a shard moved meanwhile."""
    if freshness == "base":
        return Snapshot(base=source.base())
    manifests = [
        manifest
        for shard_id in source.shard_ids()
        if (manifest := source.manifest(shard_id)) is not None
    ]
    # Manifests before logs, and manifests again below: entries that are flushed and collected in
    # between would be in neither.
    tails = [source.tail(one) if freshness == "latest" else LogTail() for one in manifests]
    pairs = list(zip(manifests, tails, strict=True))
    if freshness == "latest" and any(
        _cut_off(one, tail, source.manifest(one.shard_id)) for one, tail in pairs
    ):
        return None
    # The base last. A merge that lands in between is in it, and its generations are left out of the
    # levels above; a base that is older than the manifests would lack what they have drained.
    base = source.base()
    if not base.has_log:
        return _without_log(base, pairs)
    # The base has merged a generation that this manifest does not know of yet: rows of its log are
    # in the base by now, and would come twice.
    if any(base.compacted.get(one.shard_id, 0) >= one.current_generation for one in manifests):
        return None
    return Snapshot(base=base, shards=tuple(_shard(*pair, base) for pair in pairs))


def _without_log(base: BaseVersion, pairs: Sequence[tuple[ShardManifest, LogTail]]) -> Snapshot:
    """Return a base that says nothing of a log, if no row waits that could count or not."""
    for manifest, tail in pairs:
        if manifest.sstables or tail.entries or tail.hole is not None:
            raise lost_log(base_version=base.version, shard_id=manifest.shard_id)
    return Snapshot(base=base)


def _cut_off(before: ShardManifest, tail: LogTail, after: ShardManifest | None) -> bool:
    """Tell whether entries may have been flushed and collected before they were read."""
    end = tail.entries[-1].position if tail.entries else before.replay_after
    # A cursor beyond the last entry we read covers entries that we did not: they may have been
    # collected before we came to them.
    return after is None or after.replay_after > end


def _shard(manifest: ShardManifest, tail: LogTail, base: BaseVersion) -> ShardSnapshot:
    if tail.hole is not None:
        raise WalGapError(
            "a log entry is missing while later ones are there: see `holdfast wal`",
            shard_id=manifest.shard_id,
            position=tail.hole,
        )
    merged = base.compacted.get(manifest.shard_id, 0)
    unmerged = [one for one in manifest.sstables if one.generation > merged]
    _check_whole(manifest, unmerged, merged, base)
    unmerged.sort(key=lambda one: one.generation, reverse=True)
    return ShardSnapshot(manifest=manifest, sstables=tuple(unmerged), entries=tail.entries)


def _check_whole(
    manifest: ShardManifest, unmerged: Sequence[SsTable], merged: int, base: BaseVersion
) -> None:
    """Refuse a base version that was put back behind what the shard has drained."""
    there = {one.generation for one in unmerged}
    oldest = max(merged + 1, 1)
    for generation in range(oldest, manifest.current_generation):
        if generation not in there:
            raise LogLostError(
                "a generation is neither merged into this base version nor in its shard: the "
                "table was restored to an older version past Holdfast. Say what becomes of the "
                "rows that wait: `holdfast wal reset URI --keep` or `--discard`; "
                "freshness='base' reads without them",
                shard_id=manifest.shard_id,
                generation=generation,
                base_version=base.version,
            )


def _record_of(shard: ShardSnapshot) -> ShardRecord:
    after = shard.manifest.replay_after
    return ShardRecord(
        shard_id=shard.manifest.shard_id,
        manifest_version=shard.manifest.version,
        replay_after=after,
        last_position=shard.entries[-1].position if shard.entries else after,
        sstables=tuple((one.generation, one.path) for one in shard.sstables),
    )
