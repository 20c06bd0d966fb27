"""The way out of `WalGapError` and damaged entries: close the hole, and say what is lost.

Planned first, done with `confirm`. A missing or damaged entry beyond the flushed cursor is
replaced by a fence of the epoch around it, which readers pass over; the entries after it are
read again. The bytes of a damaged entry are kept under `_holdfast/quarantine`. Before anything
is replaced, the shard is claimed and fenced, so no writer is at work there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import Arbiter, RecordedDecisions, Won
from holdfast.errors import (
    CommitUnknownError,
    CorruptError,
    ForeignVersionError,
    NotFoundError,
)
from holdfast.formats._entry import draft_fence
from holdfast.formats._wal_names import entry_name, quarantine_path
from holdfast.storage import ObjectStore
from holdfast.wal._log import Log
from holdfast.wal._manifests import ShardManifests


class Damage(StrEnum):
    """What is wrong with a position."""

    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wound:
    """One position that cannot be read.

    Attributes:
        position: where.
        damage: missing, or there and unreadable.
        size: bytes of a damaged entry; 0 for a missing one.
        quarantine: where its bytes are kept; None before the repair, or if there were none.
    """

    position: int
    damage: Damage
    size: int = 0
    quarantine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a repair found, and did.

    Attributes:
        shard_id: the shard.
        flushed: entries up to this position are in SSTables and need no repair.
        last: the highest position.
        wounds: what cannot be read. The rows of these entries are lost; nothing tells how many.
        confirmed: whether they were replaced.
    """

    shard_id: str
    flushed: int
    last: int
    wounds: tuple[Wound, ...]
    confirmed: bool


def repair_log(
    store: ObjectStore,
    arbiter: Arbiter,
    shard_id: str,
    *,
    confirm: bool = False,
    ids: Ids | None = None,
) -> Repair:
    """Find what cannot be read of a log; with `confirm`, WRITE fences in its place.

    Raises:
        NotFoundError: there is no such shard.
        FencedError: with `confirm`, another writer claimed the shard meanwhile.
        CommitUnknownError: the outcome could not be learnt; repair again.
        UnavailableError, PermissionDeniedError: a store did not do its part; repair again.
        CorruptError: the shard's manifest is damaged.
    """
    ids = ids or RandomIds()
    log = Log(store, arbiter, shard_id)
    manifests = ShardManifests(store, arbiter, shard_id, ids=ids)
    manifest = manifests.latest()
    if manifest is None:
        raise NotFoundError("there is no such shard", shard_id=shard_id)
    found = _examine(log, manifest.replay_after)
    if not confirm or not found.wounds:
        return found
    epoch = manifests.claim().writer_epoch
    _fence_end(arbiter, log, found.last, epoch, ids)
    found = _examine(log, manifest.replay_after)
    manifests.check(epoch)
    healed = tuple(_heal(store, log, wound, ids) for wound in found.wounds)
    return replace(found, wounds=healed, confirmed=True)


def _examine(log: Log, flushed: int) -> Repair:
    listed = log.listed()
    last = max([flushed, *listed])
    wounds = []
    for position in range(flushed + 1, last + 1):
        try:
            if log.read(position) is None:
                wounds.append(Wound(position=position, damage=Damage.MISSING))
        except (CorruptError, ForeignVersionError):
            size = listed[position].size if position in listed else 0
            damage = Damage.DAMAGED if position in listed else Damage.MISSING
            wounds.append(Wound(position=position, damage=damage, size=size))
    return Repair(
        shard_id=log.shard_id,
        flushed=flushed,
        last=last,
        wounds=tuple(wounds),
        confirmed=False,
    )


def _fence_end(arbiter: Arbiter, log: Log, last: int, epoch: int, ids: Ids) -> None:
    """Put a fence behind the last entry, so that a writer that sleeps finds it."""
    draft = draft_fence(shard_id=log.shard_id, epoch=epoch, writer=ids.token()[3:])
    for position in range(last + 1, last + 1025):
        token = ids.token()
        body = draft.stamp(position=position, sequence=0, token=token)
        name = entry_name(log.shard_id, position)
        if isinstance(arbiter, RecordedDecisions) and position == last + 1:
            arbiter.accept(name.series, last)  # what is missing there stays missing
        if isinstance(arbiter.decide(name, body, token), Won):
            return
    raise CommitUnknownError("a writer is at work there: try again", shard_id=log.shard_id)


def _heal(store: ObjectStore, log: Log, wound: Wound, ids: Ids) -> Wound:
    """Replace one entry by a fence that fits its neighbours."""
    name = entry_name(log.shard_id, wound.position)
    kept = None
    if wound.damage is Damage.DAMAGED:
        kept = quarantine_path(log.shard_id, wound.position, ids.token())
        store.copy(name.path, kept)
    epoch = _epoch_before(log, wound.position)
    token = ids.token()
    draft = draft_fence(shard_id=log.shard_id, epoch=epoch, writer=ids.token()[3:])
    body = draft.stamp(position=wound.position, sequence=0, token=token)
    store.put(name.path, body)
    return replace(wound, quarantine=kept)


def _epoch_before(log: Log, position: int) -> int:
    """Return an epoch that may stand at a position: that of the readable entry before it."""
    for earlier in range(position - 1, max(0, position - 1000), -1):
        try:
            entry = log.read(earlier)
        except (CorruptError, ForeignVersionError):
            continue
        if entry is None:
            continue
        return entry.epoch
    return 0
