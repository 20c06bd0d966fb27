"""What `doctor` says of a table's log: whether the table knows how far it is merged."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.commits import changes_rows, check_log_id
from holdfast.errors import LogLostError
from holdfast.formats import (
    MEM_WAL_FOLDER,
    Head,
    LogEntry,
    ShardManifest,
    decode_shard_manifest,
    read_log_entry,
    shard_of,
    shard_version_of,
)
from holdfast.storage import ObjectStore
from holdfast.upkeep._survey import Survey


def find_lost_log(store: ObjectStore, seen: Survey) -> str | None:
    """Return why the table does not say how far its log is merged; None if it does.

    Raises:
        CorruptError: a shard's manifest cannot be read.
        UnavailableError, PermissionDeniedError: the store gave no answer, or refused.
    """
    entry = read_log_entry(seen.manifest)
    newest = _newest_manifests(seen)
    try:
        check_log_id(Head(seen.manifest).config, entry, version=seen.version)
    except LogLostError as error:
        return str(error)
    if entry is None:
        return f"the table has {len(newest)} shards, and no entry of a log" if newest else None
    for shard_id, path in newest.items():
        version = shard_version_of(path) or 0
        manifest = decode_shard_manifest(store.get(path), shard_id=shard_id, version=version)
        if missing := _missing_generation(manifest, entry):
            return f"generation {missing} of shard {shard_id} is neither merged nor in the shard"
    return None


def _newest_manifests(seen: Survey) -> dict[str, str]:
    """Return, by shard id, the path of the newest manifest that the listing shows."""
    newest: dict[str, tuple[int, str]] = {}
    for path in seen.objects:
        if path.startswith(f"{MEM_WAL_FOLDER}/"):
            shard_id, version = shard_of(path), shard_version_of(path)
            if shard_id is not None and version is not None:
                newest[shard_id] = max(newest.get(shard_id, (0, "")), (version, path))
    return {shard_id: path for shard_id, (_, path) in newest.items()}


def _missing_generation(manifest: ShardManifest, entry: LogEntry) -> int | None:
    merged = entry.merged.get(manifest.shard_id, 0)
    there = {one.generation for one in manifest.sstables}
    expected = range(merged + 1, manifest.current_generation)
    return next((number for number in expected if number not in there), None)


def find_past_log(seen: Survey) -> Iterator[tuple[int, str]]:
    """Yield versions that changed rows beside a log, past Holdfast, with what they did.

    A stock writer carries the token of the version below on.
    """
    if not Head(seen.manifest).has_key:
        return
    for version, trace in sorted(seen.traces.items()):
        below = seen.traces.get(version - 1)
        ours = below is None or trace.token is None or trace.token != below.token
        if not ours and trace.has_log and trace.transaction is not None:
            operation = trace.transaction.operation
            if changes_rows(operation):
                yield version, operation
