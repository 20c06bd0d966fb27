"""What `vacuum` takes of shards: flushed log entries, old shard manifests, unnamed SSTables.

Log entries go behind a durable boundary, which is raised first; fences stay as `collect_log`
says. An SSTable goes when its shard's manifest does not name it *and* its number is taken: one
that may still be published has the number of the next generation, and stays however old it is.
So no clock protects rows; the grace period only spares readers and stock writers, who keep a
manifest in mind for a while.

What a pinned snapshot names stays. Pins are read after it is known what is garbage; while one
is being taken, nothing goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from holdfast.formats import MEM_WAL_FOLDER, ShardManifest, generation_of, shard_of, sstable_path
from holdfast.read import SnapshotPin, read_pins
from holdfast.storage import ObjectInfo
from holdfast.upkeep._leftovers import Contents
from holdfast.wal import LogCollection, ShardManifests, carry_out, collect_log

_FOLDER_DEPTH = 3  # _mem_wal, the shard, the SSTable


def find_log(contents: Contents) -> Iterator[tuple[ObjectInfo, str]]:
    """Log entries that were flushed, and shard manifests that are old."""
    for collection in _collections(contents):
        for path in collection.paths:
            info = contents.objects.get(path)
            if info is not None and contents.is_old(info):
                yield info, f"flushed: the shard's cursor is at {collection.boundary}"


def take_log(contents: Contents, paths: Collection[str]) -> set[str]:
    """Raise the boundaries, then delete these entries and manifests; return what went."""
    gone: set[str] = set()
    for collection in _collections(contents):
        going = tuple(path for path in collection.paths if path in set(paths))
        if going:
            carry_out(contents.core, replace(collection, paths=going))
            gone.update(going)
    return gone


def _collections(contents: Contents) -> Iterator[LogCollection]:
    """Yield what may go of each shard whose log no pinned snapshot needs."""
    due = [collect_log(contents.core, shard_id) for shard_id in _shards(contents)]
    pins = _pins(contents)
    if pins is None:
        return
    for collection in due:
        if not any(_needs_log(pin, collection) for pin in pins):
            yield collection


def _needs_log(pin: SnapshotPin, collection: LogCollection) -> bool:
    shards = () if pin.record is None else pin.record.shards
    return any(
        shard.shard_id == collection.shard_id
        and shard.replay_after < min(shard.last_position, collection.boundary)
        for shard in shards
    )


def find_sstables(contents: Contents) -> Iterator[tuple[ObjectInfo, str]]:
    """SSTables that were merged and drained, or whose number another one took."""
    folders = _folders(contents.objects)
    spare = _spare(contents, folders)
    for folder in sorted(spare):
        files = folders[folder]
        if all(contents.is_old(info) for info in files):
            for info in files:
                yield info, "an SSTable that its shard does not name, and cannot name any more"


def take_sstables(contents: Contents, paths: Collection[str]) -> set[str]:
    """Delete files of SSTables that still nobody needs; return what went."""
    folders = _folders({path: contents.objects[path] for path in paths})
    spare = _spare(contents, folders)
    gone = [info.path for folder in sorted(spare) for info in folders[folder]]
    contents.core.store.delete(gone)
    return set(gone)


def _spare(contents: Contents, folders: Collection[str]) -> set[str]:
    """Return the folders that no manifest names or can name, and no pin."""
    shards = {shard_of(f"{folder}/x") for folder in folders} - {None}
    manifests = {shard_id: _latest(contents, shard_id) for shard_id in shards if shard_id}
    spare = {folder for folder in folders if _is_spare(folder, manifests)}
    pins = _pins(contents)
    if pins is None:
        return set()
    return spare - {
        sstable_path(shard.shard_id, folder)
        for pin in pins
        for shard in (() if pin.record is None else pin.record.shards)
        for _, folder in shard.sstables
    }


def _is_spare(folder: str, manifests: Mapping[str, ShardManifest | None]) -> bool:
    name = folder.rpartition("/")[2]
    manifest = manifests.get(shard_of(f"{folder}/x") or "")
    generation = generation_of(name)
    if manifest is None or generation is None:
        return False
    taken = generation < manifest.current_generation  # so nobody can publish this one now
    return taken and name not in {one.path for one in manifest.sstables}


def _pins(contents: Contents) -> list[SnapshotPin] | None:
    """Return the pins; None while one is being taken: then everything stays."""
    pins = read_pins(contents.core.store, contents.now)
    return None if any(pin.record is None for pin in pins) else pins


def _shards(contents: Contents) -> list[str]:
    shard_ids = {
        shard_of(path) for path in contents.objects if path.startswith(f"{MEM_WAL_FOLDER}/")
    }
    return sorted(shard_id for shard_id in shard_ids if shard_id is not None)


def _latest(contents: Contents, shard_id: str) -> ShardManifest | None:
    return ShardManifests(contents.core, shard_id).latest()


def _folders(objects: Mapping[str, ObjectInfo]) -> dict[str, list[ObjectInfo]]:
    """Return the files of SSTables by folder."""
    folders: dict[str, list[ObjectInfo]] = defaultdict(list)
    for path, info in objects.items():
        parts = path.split("/")
        if shard_of(path) and len(parts) > _FOLDER_DEPTH and generation_of(parts[2]) is not None:
            folders["/".join(parts[:_FOLDER_DEPTH])].append(info)
    return dict(folders)
