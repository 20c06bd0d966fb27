"""The way out of `WalGapError` and damaged entries: close the hole, and say what is lost.

Planned first, done with `confirm`. A missing or damaged entry beyond the flushed cursor is
replaced by a fence of the epoch around it, which readers pass over; the entries after it are
read again. An entry with values that nobody can read (text that is no UTF-8, say, which older and
stock writers let pass) is replaced by one with its other rows, at its place. The bytes of every
entry that was there are kept under `_holdfast/quarantine`. Before anything is replaced, the shard
is claimed and fenced, so no writer is at work there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast._ids import Ids
from holdfast.arbiter import SupportsSeries, Won
from holdfast.core import TableCore
from holdfast.errors import (
    CollectedError,
    CommitUnknownError,
    CorruptError,
    ForeignVersionError,
    NotFoundError,
)
from holdfast.formats import (
    Entry,
    EntryDraft,
    draft_entry,
    draft_fence,
    entry_name,
    good_rows,
    only_rows,
    quarantine_path,
)
from holdfast.wal._log import Log
from holdfast.wal._manifests import ShardManifests


class Damage(StrEnum):
    """What is wrong with a position."""

    MISSING = "missing"
    DAMAGED = "damaged"
    POISONED = "poisoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wound:
    """One position that cannot be read.

    Attributes:
        position: where.
        damage: missing; there and unreadable; or poisoned, with rows that nobody can read.
        size: bytes of the entry; 0 for a missing one.
        rows: of a poisoned entry, how many rows cannot be read; None for others.
        quarantine: where its bytes are kept; None before the repair, or if there were none.
    """

    position: int
    damage: Damage
    size: int = 0
    rows: int | None = None
    quarantine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a repair found, and did.

    Attributes:
        shard_id: the shard.
        flushed: entries up to this position are in SSTables and need no repair.
        last: the highest position.
        wounds: what cannot be read. The rows of missing and damaged entries are lost; nothing
            tells how many. Of poisoned ones the good rows stay.
        confirmed: whether they were replaced.
    """

    shard_id: str
    flushed: int
    last: int
    wounds: tuple[Wound, ...]
    confirmed: bool


def repair_log(core: TableCore, shard_id: str, *, confirm: bool = False) -> Repair:
    """Find what cannot be read of a log; with `confirm`, WRITE fences in its place.

    Raises:
        NotFoundError: there is no such shard.
        FencedError: with `confirm`, another writer claimed the shard meanwhile.
        CommitUnknownError: the outcome could not be learnt; repair again.
        UnavailableError, PermissionDeniedError: a store did not do its part; repair again.
        CorruptError: the shard's manifest is damaged.
    """
    log = Log(core, shard_id)
    manifests = ShardManifests(core, shard_id)
    manifest = manifests.latest()
    if manifest is None:
        raise NotFoundError("there is no such shard", shard_id=shard_id)
    examined = _examine(log, manifest.replay_after)
    # A collection beside us looks like damage; a cursor that moved tells them apart.
    while examined.wounds and (cursor := _cursor(manifests)) != examined.flushed:
        examined = _examine(log, cursor)  # others flushed: what is collected is not lost
    if not confirm or not examined.wounds:
        return examined
    # From here on no writer of before can append: a wound that is healed below a living writer
    # could be its next entry.
    epoch = manifests.claim().writer_epoch
    fence, cursor = -1, examined.last
    while fence <= cursor:  # as a claimer does: a fence counts only behind the stored cursor
        fence = _fence_end(core, log, cursor, epoch)
        cursor = manifests.check(epoch).replay_after
    examined = _examine(log, cursor)
    healed = tuple(_heal(core, log, wound) for wound in examined.wounds)
    return replace(examined, wounds=healed, confirmed=True)


def _examine(log: Log, flushed: int) -> Repair:
    listed = log.list_entries()
    last = max([flushed, *listed])
    wounds = []
    for position in range(flushed + 1, last + 1):
        size = listed[position].size if position in listed else 0
        try:
            entry = log.read(position, trusting=True)
        except (CorruptError, ForeignVersionError):
            damage = Damage.DAMAGED if position in listed else Damage.MISSING
            wounds.append(Wound(position=position, damage=damage, size=size))
            continue
        if entry is None:
            wounds.append(Wound(position=position, damage=Damage.MISSING))
            continue
        bad = sum(int((~good_rows(batch)).sum()) for batch in entry.batches)
        if bad:
            poisoned = Damage.POISONED
            wounds.append(Wound(position=position, damage=poisoned, size=size, rows=bad))
    return Repair(
        shard_id=log.shard_id,
        flushed=flushed,
        last=last,
        wounds=tuple(wounds),
        confirmed=False,
    )


def _cursor(manifests: ShardManifests) -> int:
    manifest = manifests.latest()
    return 0 if manifest is None else manifest.replay_after


def _fence_end(core: TableCore, log: Log, last: int, epoch: int) -> int:
    """Put a fence behind the last entry, so that a writer that sleeps finds it; return where."""
    arbiter, ids = core.arbiter, core.ids
    draft = draft_fence(shard_id=log.shard_id, epoch=epoch, writer=ids.token()[3:])
    for position in range(last + 1, last + 1025):
        token = ids.token()
        body = draft.stamp(position=position, sequence=0, token=token)
        name = entry_name(log.shard_id, position)
        if isinstance(arbiter, SupportsSeries) and position == last + 1:
            # A commit store would refuse the fence: the name before it has neither record nor
            # object.
            arbiter.accept(name.series, last)  # what is missing there stays missing
        try:
            decision = arbiter.decide(name, body, token)
        except CollectedError:
            return -1  # flushed and collected meanwhile
        if isinstance(decision, Won):
            return position
    raise CommitUnknownError("a writer is at work there: try again", shard_id=log.shard_id)


def _heal(core: TableCore, log: Log, wound: Wound) -> Wound:
    """Replace one entry by its good rows, or by a fence that fits its neighbours."""
    store, ids = core.store, core.ids
    name = entry_name(log.shard_id, wound.position)
    kept = None
    if wound.damage is not Damage.MISSING:
        kept = quarantine_path(log.shard_id, wound.position, ids.token())
        # Before anything is replaced, so a crash leaves the damaged bytes in one of two places.
        store.copy(name.path, kept)
    poisoned = wound.damage is Damage.POISONED
    entry = log.read(wound.position, trusting=True) if poisoned else None
    draft = None if entry is None else _good_part(log.shard_id, entry, ids)
    if draft is None:
        epoch = _epoch_before(log, wound.position) if entry is None else entry.epoch
        draft = draft_fence(shard_id=log.shard_id, epoch=epoch, writer=ids.token()[3:])
    sequence = 0 if entry is None else entry.sequence or 0
    body = draft.stamp(position=wound.position, sequence=sequence, token=ids.token())
    # The one place where a decided name is overwritten: the shard is fenced, an operator confirmed
    # it, and the old bytes are kept.
    store.put(name.path, body)
    return replace(wound, quarantine=kept)


def _good_part(shard_id: str, entry: Entry, ids: Ids) -> EntryDraft | None:
    """Return an entry with the rows that can be read; None if there are none."""
    parts = [only_rows(batch, good_rows(batch)) for batch in entry.batches]
    parts = [part for part in parts if part.num_rows]
    if not parts:
        return None
    return draft_entry(
        parts,
        shard_id=shard_id,
        epoch=entry.epoch,
        writer=entry.writer or ids.token()[3:],
        generation=entry.generation,
        tags=entry.tags,
    )


def _epoch_before(log: Log, position: int) -> int:
    """Return an epoch that may stand at a position: that of the readable entry before it."""
    for earlier in range(position - 1, max(0, position - 1000), -1):
        try:
            entry = log.read(earlier, trusting=True)
        except (CorruptError, ForeignVersionError):
            continue
        if entry is None:
            continue
        return entry.epoch
    return 0
