"""Up to which position of a shard's log a generation reaches."""

from __future__ import annotations

from holdfast.wal._manifests import ShardManifests


def find_covered(manifests: ShardManifests, generation: int) -> int | None:
    """Return the last position whose rows are in this generation or an older one.

    Every manifest with the next generation's number says so, and manifests are kept for a week
    at least; None when none is left.

    Raises:
        As for `ShardManifests.latest`.
    """
    newest = manifests.latest()
    if newest is None:
        return None
    if newest.current_generation <= generation + 1:
        return newest.replay_after
    # Generations only rise from version to version, so a binary search finds the right manifest
    # without reading thousands of them.
    low, high = 1, newest.version - 1
    while low <= high:
        middle = (low + high) // 2
        manifest = manifests.read(middle)
        if manifest is not None and manifest.current_generation == generation + 1:
            return manifest.replay_after
        if manifest is None or manifest.current_generation <= generation:
            low = middle + 1  # versions go from the oldest on
        else:
            high = middle - 1
    # A shard of a cloned table begins behind the generations that the original had merged.
    first = manifests.read(1)
    return None if first is None or first.current_generation <= generation else first.replay_after
