"""`Slots`: one shard's log in the hands of many tasks, each of which writes one entry, once.

    slots = Slots.of(appender, memory)          # on the driver, once per run: claimed, fenced
    slots.holds(txn)                            # a batch that is in the log: hand out nothing
    slot = slots.next                           # plain data: it travels to a task
    append_at(arbiter, slot, rows, [txn])       # in the task: one decision at that position
    slots.advance([(position, [txn])])          # on the driver, once the batch is done

A task that runs twice, late, or in two places decides the same position under the same ids. Who
comes second finds its own ids there, and has nothing left to do. A task of an earlier run finds
the fence of the next one in its place, for ever: fences are never collected. See RFC 0013.

| stopped after                   | others see                      | who goes on                 |
|---------------------------------|---------------------------------|-----------------------------|
| the claim                       | a fence                         | the next run claims again   |
| the entry, unanswered           | the entry, with its ids         | the same task, tried again  |
| the entry, its run dead         | the entry, below the next fence | the next run reads its ids  |
| nothing; a twin wrote the entry | the twin's entry                | nothing is left to do       |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import Arbiter, Lost
from holdfast.errors import CollectedError, UnavailableError
from holdfast.formats import (
    TXNS_TAG,
    Entry,
    EntryDraft,
    decode_entry,
    draft_entry,
    entry_name,
    txns_of,
    txns_tag,
)
from holdfast.txn import Txn
from holdfast.wal._appender import WalAppender
from holdfast.wal._manifests import fenced_error
from holdfast.wal._memory import LogMemory

_STEPS = 4096
"""How many late fences of overtaken claimers are stepped over."""
_KEEP_EVERY = 1_000
"""After so many entries a run writes down which ids the log has: the next run reads the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The place of one entry: what a task needs to decide it.

    Attributes:
        shard_id: the shard.
        epoch: what the run claimed.
        writer: the run's writer, in each of its entries.
        position: where the entry goes, but for late fences there.
        sequence: the number of the entry among the writer's.
    """

    shard_id: str
    epoch: int
    writer: str
    position: int
    sequence: int

    def after(self, position: int) -> Slot:
        """Return the place after an entry of the same run."""
        return replace(self, position=position + 1, sequence=self.sequence + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A place that is decided for the ids that were asked for.

    Attributes:
        position: where they are.
        applied: False when another try of the same task had written them.
        size: bytes of the entry.
    """

    position: int
    applied: bool
    size: int = 0


class Slots:
    """Hands out the places of one shard's log, for one run that claimed it.

    Args:
        appender: the shard's log, claimed.
        memory: which transactions the log has applied, read up to the claim's fence.
    """

    def __init__(self, appender: WalAppender, memory: LogMemory) -> None:
        self._memory = memory
        self._unkept = 0  # entries of this run whose ids are in no memory
        self.flushed = appender.manifest.replay_after  # as far as the run has heard
        self.next = Slot(
            shard_id=appender.shard_id,
            epoch=appender.epoch,
            writer=appender.writer,
            position=appender.next_position,
            sequence=1,
        )

    @classmethod
    def of(cls, appender: WalAppender, memory: LogMemory) -> Slots:
        """Read what the log has applied below the claim's fence, and begin to hand out.

        The order is the safety: the ids are read behind the fence, when nobody of an earlier
        run can add one, and a memory is there before the first id is written.

        Raises:
            As for `LogMemory.read` and `LogMemory.prepare`.
        """
        # Reading first and fencing later would miss an entry of the run before that lands in
        # between.
        memory.read(appender.fence_position)
        memory.prepare(appender.fence_position)
        return cls(appender, memory)

    @property
    def lag(self) -> int:
        """Return how many entries are not flushed yet, fences included."""
        return max(0, self.next.position - 1 - self.flushed)

    def holds(self, txn: Txn) -> bool:
        """Tell whether the log had applied a transaction when the shard was claimed.

        Raises:
            HoldfastError: as for `LogMemory.holds`.
        """
        return self._memory.holds(txn)

    def advance(self, entries: Sequence[tuple[int, Sequence[Txn]]]) -> None:
        """Go on behind the entries of a batch that is done; never raises an error of the stores.

        Now and then a memory is put, so that the next run has few entries to read, however long
        this one goes on without a flush.

        Args:
            entries: their positions, and the ids that they have.
        """
        for position, txns in entries:
            self.next = self.next.after(position)
            self._memory.add(position, txns)
            self._unkept += 1
        if self._unkept >= _KEEP_EVERY:
            self._memory.put_flushed(self.next.position - 1)
            self._unkept = 0


def append_at(
    arbiter: Arbiter,
    slot: Slot,
    rows: pa.RecordBatch,
    txns: Sequence[Txn],
    *,
    ids: Ids | None = None,
) -> Taken:
    """Write rows as one entry at a place, unless these transactions are there already.

    Atomic and durable; safe to repeat, also at the same time elsewhere, with the same slot and
    transactions: exactly one of them writes.

    Args:
        arbiter: who decides for the table.
        slot: the place.
        rows: the rows, in the columns of the log.
        txns: what they apply; not empty.
        ids: where ids come from.

    Raises:
        FencedError: the place belongs to somebody else: the run was overtaken. Final.
        CommitUnknownError: the outcome could not be learnt; repeat.
        UnavailableError, PermissionDeniedError: nothing was sent; repeat.
        InvalidInputError: the rows cannot be an entry.
        CorruptError: what lies there cannot be read.
        CommitStoreRegressedError, ForeignVersionError: a name is not what was decided. Final.
        StaleHandleError: another table is in the place of this one. Final.
    """
    draft = draft_entry(
        [rows],
        shard_id=slot.shard_id,
        epoch=slot.epoch,
        writer=slot.writer,
        tags={TXNS_TAG: txns_tag(txns)},
    )
    for position in range(slot.position, slot.position + _STEPS):
        entry = _decide(arbiter, slot, draft, position, ids or RandomIds())
        if entry is None:
            return Taken(position=position, applied=True, size=draft.size)
        there = txns_of(entry.tags, shard_id=slot.shard_id, position=position)
        if set(txns) <= set(there):
            return Taken(position=position, applied=False, size=entry.size)
        if not (entry.fence and entry.epoch < slot.epoch):
            raise fenced_error(slot.shard_id, slot.epoch, entry.epoch, position=position)
    raise UnavailableError(
        "too many late fences lie in the log: try again",
        shard_id=slot.shard_id,
        position=slot.position,
    )


def _decide(
    arbiter: Arbiter, slot: Slot, draft: EntryDraft, position: int, ids: Ids
) -> Entry | None:
    """Decide one position: None when it is ours, else the entry that is there."""
    token = ids.token()
    body = draft.stamp(position=position, sequence=slot.sequence, token=token)
    arbiter.confirm_place(if_cheap=True)
    try:
        decision = arbiter.decide(entry_name(slot.shard_id, position), body, token)
    except CollectedError as error:
        # Flushed and collected: somebody went on long ago, a twin of this task or another run.
        raise fenced_error(slot.shard_id, slot.epoch, None, position=position) from error
    if not isinstance(decision, Lost):
        return None
    return decode_entry(decision.body, shard_id=slot.shard_id, position=position)
