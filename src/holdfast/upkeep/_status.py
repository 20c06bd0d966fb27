"""`status`: how a table is doing, one result for the command line, the server's page and Spark.

It reads manifests, listings and a few log entries per shard; it writes, fences and probes nothing.
Ages are this machine's clock minus the stamps of the store's objects: to show, not to decide by.
What needs a person is an `Alert`, what `maintain` would do is a `Want`, with what it costs to let
it wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from holdfast.commits import (
    TableStatus,
    Versions,
    list_versions,
    open_dataset,
    read_status,
    read_version,
    records_of,
)
from holdfast.core import TableCore
from holdfast.errors import HoldfastError, PermissionDeniedError, UnavailableError
from holdfast.formats import (
    MAX_FENCE_BYTES,
    MEM_WAL_INDEX,
    MIN_ENTRY_BYTES,
    SSTABLE_MANIFEST,
    VersionFacts,
    read_log_entry,
    sstable_path,
)
from holdfast.storage import ObjectInfo
from holdfast.upkeep._maintain import Policy, is_fence
from holdfast.wal import Log, ShardManifest, ShardManifests

STUCK_AFTER = timedelta(hours=1)
"""How old the oldest unflushed log entry may be before its writer counts as stuck."""
OVERDUE = 8
"""How many times what `maintain` asks for may wait before it counts as overdue."""
_LOOKED_AT = 20
_ENOUGH = 8
"""So many entries with rows, one as small as the next: then the larger ones have rows, too."""
_OLD_VERSIONS = timedelta(days=7)
_MANY_VERSIONS = 100


class AlertKind(StrEnum):
    """What needs a person. Append-only."""

    FOREIGN = "foreign"
    REGRESSED = "regressed"
    MISSING = "missing"
    STUCK = "stuck"
    OVERDUE = "overdue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that needs a person.

    Attributes:
        kind: a stable code.
        what: what it is, in words.
        command: what to run next.
    """

    kind: AlertKind
    what: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Something that `maintain` would do.

    Attributes:
        what: what waits, in words.
        cost: what it costs to let it wait.
        command: the one line that does it.
    """

    what: str
    cost: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    """How one shard is doing.

    Attributes:
        shard: the shard's id.
        epoch: the newest owner's number; 0 before the first claim.
        owner: the id of the writer of the newest log entry; None if it is not known.
        flushed: rows at positions up to this one are in SSTables.
        newest: the last position that has an entry.
        lag_entries: entries beyond the flushed position.
        lag_bytes: their size.
        oldest_unflushed_seconds: the age of the oldest of them; None if there are none.
        last_put_seconds: how long ago the newest entry was written; None without entries.
        generations: SSTables that are not merged yet.
        generation_rows: the rows in them.
        oldest_generation_seconds: the age of the oldest of them; None if there are none.
        sealed: True when nobody may claim it again.
        problem: why it could not be looked at; the rest is empty then.
    """

    shard: str
    epoch: int = 0
    owner: str | None = None
    flushed: int = 0
    newest: int = 0
    lag_entries: int = 0
    lag_bytes: int = 0
    oldest_unflushed_seconds: float | None = None
    last_put_seconds: float | None = None
    generations: int = 0
    generation_rows: int = 0
    oldest_generation_seconds: float | None = None
    sealed: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """How far an index is behind: rows of fragments that it does not cover."""

    name: str
    kind: str
    rows_behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(TableStatus):
    """How a table is doing, with its shards, indexes and upkeep.

    Attributes:
        versions: how many versions are there.
        versions_bytes: the size of their manifests.
        old_versions: how many of them a newer one replaced more than seven days ago.
        manifest_bytes: the size of the newest manifest, which every commit writes again.
        small_fragments: how many fragments are small.
        shards: the shards.
        indexes: the indexes; None if they could not be looked at.
        wants: what `maintain` would do.
        alerts: what needs a person.
    """

    versions: int
    versions_bytes: int
    old_versions: int
    manifest_bytes: int
    small_fragments: int
    shards: tuple[ShardStatus, ...]
    indexes: tuple[IndexStatus, ...] | None
    wants: tuple[Want, ...]
    alerts: tuple[Alert, ...]

    @property
    def ok(self) -> bool:
        """Tell whether nobody needs to look."""
        return not self.alerts


def read_full_status(core: TableCore, *, policy: Policy | None = None) -> Status:
    """Return how a table is doing; changes nothing.

    Raises:
        NotFoundError: the table has no version.
        CorruptError: its newest manifest or a record cannot be read.
        UnavailableError, PermissionDeniedError: a store gave no answer, or refused.
    """
    return _Look(core.for_reading(), policy or Policy()).take()


def _fences(log: Log, entries: Mapping[int, ObjectInfo]) -> set[int]:
    """Return which entries are fences; of many small ones only the smallest are read.

    Raises:
        HoldfastError: one cannot be read.
    """
    small = sorted((info.size, n) for n, info in entries.items() if info.size <= MAX_FENCE_BYTES)
    fences: set[int] = set()
    with_rows = 0
    for size, position in small:
        if size < MIN_ENTRY_BYTES or is_fence(log, position, entries[position]):
            fences.add(position)
            with_rows = 0
        else:
            with_rows += 1
            if with_rows == _ENOUGH:  # fences are the smallest entries of a log
                break
    return fences


class _Look:
    def __init__(self, core: TableCore, policy: Policy) -> None:
        self._core = core
        self._now = core.clock.now()
        self._policy = policy

    def take(self) -> Status:
        base = read_status(self._core)
        listed = list_versions(self._core.store)
        records = records_of(self._core.arbiter, after=base.version - 1)
        record = None if records is None else records.by_version.get(base.version)
        body = read_version(self._core.store, base.version, record) or b""
        facts = VersionFacts(body)
        rows = facts.fragment_rows()
        entry = read_log_entry(body)
        merged = {} if entry is None else entry.merged
        shards = tuple(self._shard(one, merged) for one in self._core.shard_ids())
        status = Status(
            **{one.name: getattr(base, one.name) for one in fields(TableStatus)},
            versions=len(listed),
            versions_bytes=sum(info.size for info in listed.values()),
            old_versions=self._count_old(listed),
            manifest_bytes=len(body),
            small_fragments=sum(n < self._policy.small_rows for n in rows.values()),
            shards=shards,
            indexes=self._indexes(base.version, rows),
            wants=(),
            alerts=(),
        )
        alerts = tuple(self._alerts(status))
        return replace(status, wants=tuple(self._wants(status)), alerts=alerts)

    def _count_old(self, listed: Mapping[int, ObjectInfo]) -> int:
        """Count the versions that a newer one replaced long ago."""
        stamps = [listed[version].modified for version in sorted(listed)]
        limit = self._now - _OLD_VERSIONS.total_seconds()
        return sum(stamp < limit for stamp in stamps[1:])

    def _age(self, infos: Sequence[ObjectInfo], *, newest: bool = False) -> float | None:
        if not infos:
            return None
        stamps = [info.modified for info in infos]
        return round(max(0.0, self._now - (max(stamps) if newest else min(stamps))), 3)

    def _shard(self, shard_id: str, merged: Mapping[str, int]) -> ShardStatus:
        try:
            manifest = ShardManifests(self._core, shard_id).latest()
            if manifest is None:
                return ShardStatus(shard=shard_id, problem="it has no manifest")
            return self._look_at(manifest, merged.get(shard_id, 0))
        except (UnavailableError, PermissionDeniedError):
            raise
        except HoldfastError as error:
            return ShardStatus(shard=shard_id, problem=str(error))

    def _look_at(self, manifest: ShardManifest, merged: int) -> ShardStatus:
        log = Log(self._core, manifest.shard_id)
        listed = log.list_entries()
        beyond = {n: info for n, info in listed.items() if n > manifest.replay_after}
        waiting = [one for one in manifest.sstables if one.generation > merged]
        newest = max(listed, default=manifest.replay_after)
        # A log with nothing but fences beyond the cursor waits for nobody.
        fences = _fences(log, beyond)
        rows = [info for n, info in beyond.items() if n not in fences]
        return ShardStatus(
            shard=manifest.shard_id,
            epoch=manifest.writer_epoch,
            owner=self._owner(log, newest) if newest in listed else None,
            flushed=manifest.replay_after,
            newest=newest,
            lag_entries=len(rows),
            lag_bytes=sum(info.size for info in rows),
            oldest_unflushed_seconds=self._age(rows),
            last_put_seconds=self._age(list(listed.values()), newest=True),
            generations=len(waiting),
            generation_rows=sum(one.physical_rows or 0 for one in waiting),
            oldest_generation_seconds=self._generation_age(manifest, waiting),
            sealed=manifest.sealed,
        )

    def _owner(self, log: Log, position: int) -> str | None:
        with suppress(HoldfastError):
            entry = log.read(position, trusting=True)
            return None if entry is None else entry.writer
        return None

    def _generation_age(self, manifest: ShardManifest, waiting: Sequence[Any]) -> float | None:
        if not waiting:
            return None
        folder = sstable_path(manifest.shard_id, waiting[0].path)
        with suppress(HoldfastError):
            return self._age([self._core.store.head(f"{folder}/{SSTABLE_MANIFEST}")])
        return None

    def _indexes(self, version: int, rows: Mapping[int, int]) -> tuple[IndexStatus, ...] | None:
        """Compare what the indexes cover with the fragments that are there."""
        try:
            dataset = open_dataset(Versions(self._core))
            described = dataset.describe_indices() if int(dataset.version) == version else None
        except (HoldfastError, OSError, ValueError):
            return None
        if described is None:
            return None
        covered: dict[str, set[int]] = {}
        kinds: dict[str, str] = {}
        for one in described:
            if one.name != MEM_WAL_INDEX and one.field_names:
                parts = {part for segment in one.segments for part in segment.fragment_ids}
                covered.setdefault(one.name, set()).update(parts)
                kinds[one.name] = str(one.index_type)
        return tuple(
            IndexStatus(
                name=name,
                kind=kinds[name],
                rows_behind=sum(n for part, n in rows.items() if part not in parts),
            )
            for name, parts in sorted(covered.items())
        )

    # What needs a person.
    def _alerts(self, status: Status) -> Iterator[Alert]:
        look = f"holdfast doctor {self._core.location}"
        for version in status.foreign[:_LOOKED_AT]:
            if self._is_ours(version):
                what = f"the commit store forgot version {version}"
                yield Alert(kind=AlertKind.REGRESSED, what=what, command=look)
            else:
                what = f"version {version} was written past Holdfast"
                yield Alert(kind=AlertKind.FOREIGN, what=what, command=look)
        for version in status.unfinished[-_LOOKED_AT:]:
            records = records_of(self._core.arbiter, after=version - 1)
            record = None if records is None else records.by_version.get(version)
            if read_version(self._core.store, version, record) is None:
                what = f"version {version} is decided, but its bytes are gone"
                yield Alert(kind=AlertKind.MISSING, what=what, command=look)
        for shard in status.shards:
            yield from self._shard_alerts(shard, look)
        yield from self._overdue(status)

    def _is_ours(self, version: int) -> bool:
        """Tell a forgotten decision, which has a token of its own, from a foreign version."""
        tokens = []
        for number in (version, version - 1):
            body = read_version(self._core.store, number, None)
            with suppress(HoldfastError):
                tokens.append(None if body is None else VersionFacts(body).token)
        return bool(tokens) and tokens[0] is not None and tokens[0] not in tokens[1:]

    def _shard_alerts(self, shard: ShardStatus, look: str) -> Iterator[Alert]:
        if shard.problem is not None:
            what = f"shard {shard.shard} cannot be read: {shard.problem}"
            yield Alert(kind=AlertKind.MISSING, what=what, command=look)
        age = shard.oldest_unflushed_seconds or 0.0
        if age > STUCK_AFTER.total_seconds():
            what = (
                f"shard {shard.shard} has rows in its log since {age:,.0f} s that nobody "
                "flushes: is its writer stuck or gone?"
            )
            yield Alert(
                kind=AlertKind.STUCK, what=what, command=f"holdfast maintain {self._core.location}"
            )

    def _overdue(self, status: Status) -> Iterator[Alert]:
        command = f"holdfast maintain {self._core.location}"
        waiting = sum(shard.generations for shard in status.shards)
        many = OVERDUE * self._policy.generations * max(1, len(status.shards))
        if waiting >= many:
            what = f"{waiting} generations wait to be merged"
            yield Alert(kind=AlertKind.OVERDUE, what=what, command=command)
        if status.small_fragments >= OVERDUE * OVERDUE * self._policy.small_fragments:
            what = f"{status.small_fragments} small fragments wait to be compacted"
            yield Alert(kind=AlertKind.OVERDUE, what=what, command=command)

    # What `maintain` would do.
    def _wants(self, status: Status) -> Iterator[Want]:
        command = f"holdfast maintain {self._core.location}"
        if status.small_fragments >= self._policy.small_fragments:
            yield Want(
                what=f"{status.small_fragments} of {status.fragments} fragments are small",
                cost=f"every commit writes a manifest of {status.manifest_bytes:,} bytes, and "
                "every scan opens each fragment",
                command=command,
            )
        waiting = sum(shard.generations for shard in status.shards)
        if waiting >= self._policy.generations:
            rows = sum(shard.generation_rows for shard in status.shards)
            yield Want(
                what=f"{waiting} generations of {rows:,} rows wait to be merged",
                cost="every fresh read looks into each of them",
                command=command,
            )
        for one in status.indexes or ():
            if one.rows_behind:
                yield Want(
                    what=f"index {one.name} lacks {one.rows_behind:,} rows",
                    cost="searches scan these rows",
                    command=command,
                )
        if status.old_versions and status.versions > _MANY_VERSIONS:
            yield Want(
                what=f"{status.old_versions} of {status.versions} versions were replaced more "
                "than seven days ago",
                cost=f"all manifests have {status.versions_bytes:,} bytes, and what only old "
                "versions show stays as well",
                command=f"{command} --set keep_versions_for=7d --confirm",
            )
