"""`drain`: take merged generations out of a shard's manifest. Its writer goes on undisturbed.

The manifest is decided with the epoch that is stored, so no writer is fenced: a live one
collides, reads what was drained, and applies its own change on top. Only what a decided
version of the base table has merged is taken out; the files stay until `vacuum`.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.errors import ConflictError, FencedError
from holdfast.formats import ShardManifest
from holdfast.wal import ShardManifests

_TRIES = 16


def drain(manifests: ShardManifests, merged: int) -> int:
    """Take out the generations up to `merged`; return how many this call took out.

    Safe to repeat, and beside writers, mergers and readers.

    Args:
        manifests: of the shard.
        merged: the newest generation that a decided base version holds.

    Raises:
        ConflictError: writers claimed the shard each time first; try again.
        CommitUnknownError: the outcome could not be learnt; repeat.
        Other errors: as for `ShardManifests.latest`.
    """
    taken = 0

    def change(current: ShardManifest) -> ShardManifest:
        nonlocal taken
        kept = tuple(one for one in current.sstables if one.generation > merged)
        taken = len(current.sstables) - len(kept)
        return replace(current, sstables=kept) if taken else current

    for _ in range(_TRIES):
        current = manifests.latest()
        if current is None or change(current) == current:
            return 0
        try:
            manifests.update(current.writer_epoch, change)
        except FencedError:
            continue  # a new owner; the same change fits its manifest, too
        return taken
    raise ConflictError("the shard's writers were faster each time: try again")
