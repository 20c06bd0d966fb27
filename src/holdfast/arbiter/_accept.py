"""Take what a table holds as decided: versions, shards, logs, index builds.

For a table that had versions before it got its commit store, and for a copy under a new id:
the objects count, and nobody decides their numbers again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from holdfast.arbiter._recorded import RecordedDecisions
from holdfast.errors import CorruptError, NotFoundError
from holdfast.formats import (
    BUILDS_FOLDER,
    INDICES_FOLDER,
    MARKER_FILE,
    MEM_WAL_FOLDER,
    VERSIONS_SERIES,
    Name,
    decode_shard_manifest,
    entry_name,
    is_path,
    is_plan_path,
    is_task_path,
    position_of,
    shard_manifest_name,
    shard_of,
    shard_version_of,
    version_name,
    version_of,
)
from holdfast.storage import ObjectStore


def accept_everything(store: ObjectStore, arbiter: RecordedDecisions) -> None:
    """Take all that is there as decided. Stop writers first; safe to repeat.

    Raises:
        UnavailableError, PermissionDeniedError: a store did not do its part; call again.
    """
    arbiter.accept(VERSIONS_SERIES, _newest_version(store))
    accept_shards(store, arbiter)
    for series in build_series(store):
        arbiter.accept(series, 0)


def newest_names(store: ObjectStore) -> list[Name]:
    """Return the newest object of each series: versions, shards and logs; number 0 for none."""
    return [version_name(_newest_version(store)), *_last_names(store)]


def _newest_version(store: ObjectStore) -> int:
    listed = [version_of(info.path) for info in store.list("_versions")]
    return max((number for number in listed if number is not None), default=0)


def _last_names(store: ObjectStore) -> Iterator[Name]:
    """Yield, for every shard that has objects, its last log entry and its last manifest.

    Entries that were flushed may be collected: the manifest says how far they went.
    """
    paths = [info.path for info in store.list(MEM_WAL_FOLDER)]
    flushed = flushed_positions(store, paths)
    for shard_id in sorted({shard for path in paths if (shard := shard_of(path)) is not None}):
        mine = [path for path in paths if shard_of(path) == shard_id]
        position = max((n for path in mine if (n := position_of(path)) is not None), default=0)
        yield entry_name(shard_id, max(position, flushed.get(shard_id, 0)))
        yield shard_manifest_name(shard_id, _newest_manifest(mine))


def _newest_manifest(paths: Iterable[str]) -> int:
    return max((n for path in paths if (n := shard_version_of(path)) is not None), default=0)


def flushed_positions(store: ObjectStore, paths: Sequence[str]) -> dict[str, int]:
    """Return, by shard, up to which position its newest manifest says that its log is flushed."""
    flushed: dict[str, int] = {}
    for shard_id in {shard for path in paths if (shard := shard_of(path)) is not None}:
        version = _newest_manifest(path for path in paths if shard_of(path) == shard_id)
        # A damaged manifest is told of, and put back or not, elsewhere: `doctor`, `repair`.
        with suppress(CorruptError, NotFoundError):
            body = store.get(shard_manifest_name(shard_id, version).path)
            manifest = decode_shard_manifest(body, shard_id=shard_id, version=version)
            flushed[shard_id] = manifest.replay_after
    return flushed


def accept_shards(store: ObjectStore, arbiter: RecordedDecisions) -> None:
    """Take what a table's shards hold as decided, where no record says anything yet.

    Stop stock writers first: they do not ask the commit store, and cannot be fenced.

    Raises:
        UnavailableError, PermissionDeniedError: a store did not do its part; safe to repeat.
    """
    for last in _last_names(store):
        if last.number and arbiter.newest(last.series) is None:
            arbiter.accept(last.series, last.number)


def build_series(store: ObjectStore) -> Iterator[str]:
    """Yield the decided names of index builds, each a series of its own."""
    builds = [info.path for info in store.list(BUILDS_FOLDER) if info.path.endswith(".json")]
    indices = [info.path for info in store.list(INDICES_FOLDER)]
    markers = [path for path in indices if path.endswith(f"/{MARKER_FILE}")]
    for path in filter(is_path, [*builds, *markers]):
        yield Name.single(path).series


def build_names(store: ObjectStore) -> Iterator[Name]:
    """Yield the names of index builds that are there and can only be there decided."""
    for info in store.list(BUILDS_FOLDER):
        if is_task_path(info.path) or is_plan_path(info.path):
            yield Name.single(info.path)
