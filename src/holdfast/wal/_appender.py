"""`WalAppender`: the one writer of a shard's log.

    appender = WalAppender.claim(store, arbiter, shard_id)   # writes: an epoch, then a fence
    for entry in appender.replay():                          # what earlier writers left
        ...
    appender.append(batch).position                          # durable, or an error

An append that returned is in the log and is found by every later writer. One request on a
table that decides by conditional put; no manifest is read.

Claiming, step by step, and what a crash after each leaves:

| step                                             | left behind by a crash                   |
|--------------------------------------------------|------------------------------------------|
| 1 check the arguments                            | nothing                                  |
| 2 decide a manifest with a higher epoch          | a claim; the next claimer is one higher  |
| 3 list the log once; a hole is an error          | the same                                 |
| 4 decide a fence after the highest position,     | a fence that readers pass over           |
|   going forward past whoever was faster          |                                          |
| 5 read the epoch again: it must still be ours    | the same                                 |
| 6 replay: after the flushed cursor, to our fence | the same                                 |

The fence comes before replay: what the writer before us got acknowledged is below the fence,
and replayed; what it sends later finds the fence in its place. Step 5 is for a claimer that was
overtaken: its fence may lie after the fence of a newer owner.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self, TypeAlias

import pyarrow as pa

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import Arbiter, Lost
from holdfast.errors import (
    CollectedError,
    CommitUnknownError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    PermissionDeniedError,
    PoisonedError,
    UnavailableError,
    WalGapError,
)
from holdfast.events import EventKind, emit
from holdfast.formats._entry import Entry, EntryDraft, decode_entry, draft_entry, draft_fence
from holdfast.formats._shard_manifest import ShardManifest
from holdfast.formats._wal_names import BoundaryKind, entry_name
from holdfast.storage import Handle, ObjectStore
from holdfast.wal._boundary import CHECK_AFTER, Boundary
from holdfast.wal._log import Chain, Log
from holdfast.wal._manifests import ShardManifests, fenced

_STEPS = 4096
"""How often a claimer goes forward past faster writers before it gives up."""

# What a decision raises when it sent nothing that could decide: the caller may try again.
_HARMLESS = (PermissionDeniedError, UnavailableError, InvalidInputError)

Rows: TypeAlias = pa.RecordBatch | pa.Table | Sequence[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """One acknowledged append.

    Attributes:
        position: its place in the log.
        epoch: the writer's epoch.
        rows: how many rows.
        size: bytes on storage.
        elapsed: seconds.
    """

    position: int
    epoch: int
    rows: int
    size: int
    elapsed: float


class WalAppender(Handle):
    """Appends to one shard's log; made by `WalAppender.claim`. One thread at a time.

    Attributes:
        shard_id: the shard.
        epoch: what this writer claimed.
        writer: the random id of this writer, in each of its entries.
        manifest: the shard's state as it was claimed.
        manifests: for updates under this epoch.
        fence_position: where this writer's fence is: replay ends there.
        next_position: where the next entry goes.
    """

    @classmethod
    def claim(
        cls,
        store: ObjectStore,
        arbiter: Arbiter,
        shard_id: str,
        *,
        shard_spec_id: int = 0,
        field_entries: Sequence[tuple[str, bytes]] = (),
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> WalAppender:
        """Claim a shard for writing. This WRITES: a new epoch, and a fence that ends other writers.

        Args:
            store: the table's object store.
            arbiter: who decides for the table.
            shard_id: a UUID; a shard that is not there is made.
            shard_spec_id: how rows are routed to a new shard; 0 for by hand.
            field_entries: the routing's values for a new shard.
            clock: time.
            ids: where ids come from.

        Raises:
            FencedError: another writer claimed the shard at the same time, or since.
            SealedError: the shard is sealed.
            WalGapError: an entry that was not flushed yet is missing.
            CorruptError: an entry or manifest is damaged.
            CommitUnknownError: the outcome could not be learnt; claim again.
            UnavailableError, PermissionDeniedError: a store did not do its part.
            CommitStoreRegressedError, ForeignVersionError: a name is not what was decided.
            InvalidInputError: the shard id is no UUID.
        """
        clock, ids = clock or SystemClock(), ids or RandomIds()
        begun = clock.elapsed()
        manifests = ShardManifests(store, arbiter, shard_id, clock=clock, ids=ids)
        manifest = manifests.claim(shard_spec_id=shard_spec_id, field_entries=field_entries)
        self = cls(store, arbiter, manifests, manifest, clock=clock, ids=ids)
        self._fence()
        manifests.check(self.epoch)
        emit(
            EventKind.CLAIMED,
            shard_id=self.shard_id,
            epoch=self.epoch,
            position=self.fence_position,
            elapsed=clock.elapsed() - begun,
        )
        return self

    def __init__(
        self,
        store: ObjectStore,
        arbiter: Arbiter,
        manifests: ShardManifests,
        manifest: ShardManifest,
        *,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self.shard_id = manifest.shard_id
        self.epoch = manifest.writer_epoch
        self.writer = ids.token().removeprefix("hf-")
        self.manifest = manifest
        self.manifests = manifests
        self.fence_position = 0
        self.next_position = 0
        self._replay_after = manifest.replay_after
        self._log = Log(store, arbiter, manifest.shard_id)
        self._boundary = Boundary(store, manifest.shard_id, BoundaryKind.LOG)
        self._arbiter = arbiter
        self._clock = clock
        self._ids = ids
        self._confirmed = clock.elapsed()
        self._sequence = 0
        self._stopped: HoldfastError | None = None
        self._busy = threading.Lock()  # never waited for: a second caller is refused

    def __repr__(self) -> str:
        return f"WalAppender({self.shard_id}, epoch {self.epoch}, next {self.next_position})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def replay(self) -> Iterator[Entry]:
        """Yield what the log holds beyond the flushed cursor, up to this writer's own fence.

        Entries with rows only, in order. Reads; may be called again.

        Raises:
            WalGapError, CorruptError: the log is damaged; nothing after it is yielded.
            FencedError: another writer claimed the shard since, and collected what it flushed.
            UnavailableError, PermissionDeniedError: a store did not tell.
        """
        self._refuse_stopped(())
        chain = Chain(self.shard_id)
        try:
            for entry in self._log.entries(self._replay_after, self.fence_position):
                if entry.epoch > self.epoch:
                    self._stop(fenced(self.shard_id, self.epoch, entry.epoch))
                chain.check(entry)
                if not entry.fence:
                    yield entry
        except WalGapError:
            self.manifests.check(self.epoch)  # a newer owner's collection explains it
            raise

    def draft(
        self,
        rows: Rows,
        *,
        generation: int | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> EntryDraft:
        """Encode rows for a later `append`; any thread may. No I/O.

        Raises:
            InvalidInputError: no rows, an empty batch, or batches that differ in columns.
        """
        return draft_entry(
            _batches(rows),
            shard_id=self.shard_id,
            epoch=self.epoch,
            writer=self.writer,
            generation=generation,
            tags=tags,
        )

    def append(
        self,
        rows: Rows | EntryDraft,
        *,
        generation: int | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Appended:
        """Append one entry. All of its rows are in the log, durably, when this returns; or none.

        Args:
            rows: batches of equal columns, which become one entry, or what `draft` returned.
            generation: the MemTable they belong to; leave it out without MemTables.
            tags: short notes to keep beside the rows.

        Raises:
            FencedError: another writer owns the shard. Final: open the shard again.
            PoisonedError: the outcome could not be learnt. Final: open the shard again.
            CorruptError: the position holds what no writer could have put there. Final.
            InvalidInputError: the rows cannot be an entry, this appender is closed, or another
                thread is appending.
            UnavailableError, PermissionDeniedError: nothing was sent; append again.
            CommitStoreRegressedError, ForeignVersionError: a name is not what was decided. Final.
        """
        given = rows.batches if isinstance(rows, EntryDraft) else _batches(rows)
        self._refuse_stopped(given)
        draft = (
            rows
            if isinstance(rows, EntryDraft)
            else self.draft(given, generation=generation, tags=tags)
        )
        if (draft.shard_id, draft.epoch, draft.fence) != (self.shard_id, self.epoch, False):
            raise InvalidInputError("this draft was made by another writer", epoch=draft.epoch)
        if not self._busy.acquire(blocking=False):
            raise InvalidInputError("another thread is appending: one at a time")
        try:
            return self._append(draft)
        finally:
            self._busy.release()

    def check_fenced(self) -> None:
        """Return if this writer still owns the shard; reads only.

        Raises:
            FencedError: it does not. Final.
            Other errors: as for `ShardManifests.latest`.
        """
        self._refuse_stopped(())
        begun = self._clock.elapsed()
        current = self.manifests.latest()
        stored = None if current is None else current.writer_epoch
        if stored != self.epoch:
            self._stop(fenced(self.shard_id, self.epoch, stored))
        self._confirmed = begun

    def close(self) -> None:
        """Stop for good; every append raises from now on. Writes nothing, and may be repeated."""
        if self._stopped is None:
            self._stopped = InvalidInputError(
                "this appender is closed: claim the shard again", shard_id=self.shard_id
            )

    # Steps 3 and 4 of claiming.
    def _fence(self) -> None:
        listed = self._log.listed()
        if 0 in listed and not self.manifest.replay_after and not self.manifest.sstables:
            self._replay_after = -1  # a log of the one release that counted from 0
        self._check_gaps(listed)
        position = max([self.manifest.replay_after, *listed]) + 1
        draft = draft_fence(shard_id=self.shard_id, epoch=self.epoch, writer=self.writer)
        for _ in range(_STEPS):
            try:
                found = self._decide(draft, position)
            except CollectedError:  # a newer owner flushed this position, and more
                raise self._overtaken() from None
            if found is None:
                self.fence_position = position
                self.next_position = position + 1
                return
            if found.epoch > self.epoch:
                raise fenced(self.shard_id, self.epoch, found.epoch)
            if found.epoch == self.epoch:
                raise self._twice(found)
            position += 1
        raise UnavailableError(
            "another writer appends faster than this one can fence it: try again",
            shard_id=self.shard_id,
            position=position,
        )

    def _check_gaps(self, listed: Mapping[int, object]) -> None:
        try:
            self._log.check_gaps(listed, self._replay_after)
        except WalGapError:
            self.manifests.check(self.epoch)  # a newer owner's collection explains it
            raise

    def _append(self, draft: EntryDraft) -> Appended:
        begun = self._clock.elapsed()
        while True:
            position = self.next_position
            try:
                found = self._decide(draft, position)
            except _HARMLESS:
                raise
            except CollectedError:
                self._stop(self._overtaken(), draft.batches)
            except CommitUnknownError as error:
                self._stop(self._unknown(position), draft.batches, error)
            except HoldfastError as error:
                self._stop(error, draft.batches)
            except BaseException:
                self._stopped = self._unknown(position)
                raise
            if found is None:
                break
            self._step_over(found, draft)
        self._check_awake(position, draft)
        self._confirmed = begun
        self._sequence += 1
        self.next_position = position + 1
        elapsed = self._clock.elapsed() - begun
        emit(
            EventKind.APPENDED,
            shard_id=self.shard_id,
            position=position,
            rows=draft.rows,
            size=draft.size,
            elapsed=elapsed,
        )
        return Appended(
            position=position,
            epoch=self.epoch,
            rows=draft.rows,
            size=draft.size,
            elapsed=elapsed,
        )

    def _decide(self, draft: EntryDraft, position: int) -> Entry | None:
        """Decide one position for a draft: None when it is ours, else the entry that is there."""
        token = self._ids.token()
        sequence = 0 if draft.fence else self._sequence + 1
        body = draft.stamp(position=position, sequence=sequence, token=token)
        decision = self._arbiter.decide(entry_name(self.shard_id, position), body, token)
        if not isinstance(decision, Lost):
            return None
        return decode_entry(decision.body, shard_id=self.shard_id, position=position)

    def _step_over(self, found: Entry, draft: EntryDraft) -> None:
        """Go past a late fence of a claimer that was overtaken; stop at anything else."""
        if found.epoch > self.epoch:
            self._stop(fenced(self.shard_id, self.epoch, found.epoch), draft.batches)
        if found.fence and found.epoch < self.epoch:
            self.next_position = found.position + 1
            return
        if found.writer == self.writer:  # an append that was refused did land
            self._stop(self._unknown(found.position), draft.batches)
        self._stop(self._twice(found), draft.batches)

    def _check_awake(self, position: int, draft: EntryDraft) -> None:
        """After a long silence, make sure that the position was not given out before."""
        if self._clock.elapsed() - self._confirmed <= CHECK_AFTER.total_seconds():
            return
        try:
            collected = position <= self._boundary.read()
        except HoldfastError as error:
            self._stop(self._unknown(position), draft.batches, error)
        if collected:
            self._stop(self._overtaken(), draft.batches)

    def _overtaken(self) -> HoldfastError:
        try:
            current = self.manifests.latest()
        except HoldfastError:
            current = None
        stored = None if current is None else current.writer_epoch
        return fenced(self.shard_id, self.epoch, stored)

    def _twice(self, found: Entry) -> CorruptError:
        return CorruptError(
            "the log holds an entry that no writer could have put there: two writers have one "
            "epoch, or somebody wrote past the fence",
            shard_id=self.shard_id,
            position=found.position,
            epoch=self.epoch,
            found_epoch=found.epoch,
        )

    def _unknown(self, position: int) -> PoisonedError:
        emit(EventKind.POISONED, shard_id=self.shard_id, epoch=self.epoch, position=position)
        return PoisonedError(
            "the outcome of a log write is unknown, so this writer stops: open the shard again, "
            "replay tells what is there",
            shard_id=self.shard_id,
            epoch=self.epoch,
            position=position,
        )

    def _stop(
        self,
        error: HoldfastError,
        batches: tuple[pa.RecordBatch, ...] = (),
        cause: HoldfastError | None = None,
    ) -> NoReturn:
        """Raise now and at every later call; no I/O after this."""
        self._stopped = error
        raise _with_rows(error, batches) from cause

    def _refuse_stopped(self, batches: tuple[pa.RecordBatch, ...]) -> None:
        if self._stopped is not None:
            raise _with_rows(self._stopped, batches)


def _with_rows(error: HoldfastError, batches: tuple[pa.RecordBatch, ...]) -> HoldfastError:
    """Return the error with what was not acknowledged in it."""
    return type(error)(error.message, **{**error.details, "unacknowledged": batches})


def _batches(rows: Rows) -> tuple[pa.RecordBatch, ...]:
    if isinstance(rows, pa.RecordBatch):
        return (rows,)
    if isinstance(rows, pa.Table):
        return tuple(batch for batch in rows.to_batches() if batch.num_rows)
    batches = tuple(rows)
    if not all(isinstance(batch, pa.RecordBatch) for batch in batches):
        raise InvalidInputError("rows are a pyarrow RecordBatch, a Table, or a list of batches")
    return batches
