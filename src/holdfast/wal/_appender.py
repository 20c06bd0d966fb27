"""`WalAppender`: the one writer of a shard's log.

    appender = WalAppender.claim(core, shard_id)             # writes: an epoch, then a fence
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
| 3 list the log once                              | the same                                 |
| 4 decide a fence after the highest position,     | a fence that readers pass over           |
|   going forward past whoever was faster          |                                          |
| 5 read the manifest again: the epoch must be     | the same                                 |
|   ours, and the flushed cursor before the fence; |                                          |
|   else fence again behind the cursor, from 4     |                                          |
| 6 a hole between that cursor and the fence is    | the same                                 |
|   an error                                       |                                          |
| 7 replay: after that cursor, to our fence        | the same                                 |

The fence comes before replay: what the writer before us got acknowledged is below the fence,
and replayed; what it sends later finds the fence in its place.

Step 5 is for a claimer that was stopped on the way. Its fence may lie after the fence of a newer
owner. Or others flushed the log and collected the entries meanwhile: then the place where the
fence was put is free because its entry is flushed, and whatever came after such a fence would be
taken for flushed, too. From the moment that a fence lies behind the cursor the cursor stays
before it: only entries move it, and only the owner writes entries behind the fence.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self, TypeAlias

import pyarrow as pa

from holdfast.arbiter import Lost
from holdfast.core import TableCore
from holdfast.errors import (
    CollectedError,
    CommitUnknownError,
    CorruptError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    PoisonedError,
    UnavailableError,
    WalGapError,
)
from holdfast.events import EventKind, emit
from holdfast.formats import (
    Entry,
    EntryDraft,
    ShardManifest,
    check_values,
    decode_entry,
    draft_entry,
    draft_fence,
    entry_name,
)
from holdfast.storage import Handle
from holdfast.wal._log import Chain, Log
from holdfast.wal._manifests import ShardManifests, fenced_error

_STEPS = 4096
"""How often a claimer goes forward past faster writers before it gives up."""

_FENCES = 64
"""How often a claimer fences again behind a cursor that others moved."""

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
        manifest: the shard's state when it was claimed: replay begins at its flushed cursor.
        manifests: for updates under this epoch.
        fence_position: where this writer's fence is: replay ends there.
        next_position: where the next entry goes.
    """

    @classmethod
    def claim(
        cls,
        core: TableCore,
        shard_id: str,
        *,
        shard_spec_id: int = 0,
        field_entries: Sequence[tuple[str, bytes]] = (),
        first_generation: int = 1,
    ) -> WalAppender:
        """Claim a shard for writing. This WRITES: a new epoch, and a fence that ends other writers.

        Args:
            core: the table.
            shard_id: a UUID; a shard that is not there is made.
            shard_spec_id: how rows are routed to a new shard; 0 for by hand.
            field_entries: the routing's values for a new shard.
            first_generation: the number that a new shard's first SSTable gets.

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
        begun = core.clock.elapsed()
        manifests = ShardManifests(core, shard_id)
        manifest = manifests.claim(
            shard_spec_id=shard_spec_id,
            field_entries=field_entries,
            first_generation=first_generation,
        )
        self = cls(core, manifests, manifest)
        # Listed once and only as a hint: entries that come after it are met by going forward, and
        # what it does not show is looked for by reading.
        listed = self._log.list_entries()
        self._fence(listed)
        # After the fence, not before: until then the writer before us may fill a position that is
        # missing now, and a gap would be reported that is none.
        self._check_gaps(listed)
        emit(
            EventKind.CLAIMED,
            shard_id=self.shard_id,
            epoch=self.epoch,
            position=self.fence_position,
            elapsed=core.clock.elapsed() - begun,
        )
        return self

    def __init__(self, core: TableCore, manifests: ShardManifests, manifest: ShardManifest) -> None:
        self.shard_id = manifest.shard_id
        self.epoch = manifest.writer_epoch
        self.writer = core.ids.token().removeprefix("hf-")
        self.manifest = manifest
        self.manifests = manifests
        self.fence_position = 0
        self.next_position = 0
        self._from_zero = False
        self._log = Log(core, manifest.shard_id)
        self._core = core
        self._sequence = 0
        self._stopped: HoldfastError | None = None
        self._lock = threading.Lock()  # guards `_appending`
        self._appending: object | None = None  # whose call is under way; a second one is refused

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
            CollectedError: somebody flushed what was to come, and removed it: drop what was
                yielded and replay again, from the new cursor.
            FencedError: another writer claimed the shard since.
            UnavailableError, PermissionDeniedError: a store did not tell.
        """
        self._refuse_stopped(())
        chain = Chain(self.shard_id)
        try:
            for entry in self._log.entries(self._replay_after, self.fence_position):
                # Below our own fence, so it was put before that fence: its writer claimed after us,
                # and ours is the late one.
                if entry.epoch > self.epoch:
                    self._stop(fenced_error(self.shard_id, self.epoch, entry.epoch))
                chain.check(entry)
                if not entry.fence:
                    yield entry
        except WalGapError as gap:
            # An entry may go only once it is flushed, so a missing one behind the stored cursor is
            # lost. One at or below it was removed by the owner's own collection, which runs beside
            # us.
            if not self._is_flushed(gap):
                raise
            raise CollectedError(
                "the log was flushed and collected while it was replayed: drop what was yielded "
                "and replay again",
                shard_id=self.shard_id,
                position=gap.position,
            ) from None

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
        if not isinstance(rows, EntryDraft):
            # Arrow does not check a batch that it is given. Values that no reader can decode would
            # poison the log for everybody: the replay of every later writer ends at such an entry.
            for batch in given:
                check_values(batch)
        draft = (
            rows
            if isinstance(rows, EntryDraft)
            else self.draft(given, generation=generation, tags=tags)
        )
        if (draft.shard_id, draft.epoch, draft.fence) != (self.shard_id, self.epoch, False):
            raise InvalidInputError("this draft was made by another writer", epoch=draft.epoch)
        # A thread lock would make a second thread wait, and its rows would get a position after
        # those of the first by chance. Order is the caller's business, so the second one is
        # refused.
        mine = object()
        try:
            with self._lock:
                if self._appending is not None:
                    raise InvalidInputError(
                        "another thread is appending: append from one thread only"
                    )
                self._appending = mine
            return self._append(draft)
        finally:
            if self._appending is mine:
                self._appending = None

    def check_fenced(self) -> None:
        """Return if this writer still owns the shard; reads only.

        Raises:
            FencedError: it does not. Final.
            Other errors: as for `ShardManifests.check`.
        """
        self._refuse_stopped(())
        try:
            self.manifests.check(self.epoch)
        except FencedError as error:
            self._stop(error)

    def close(self) -> None:
        """Stop for good; every append raises from now on. Writes nothing, and may be repeated."""
        if self._stopped is None:
            self._stopped = InvalidInputError(
                "this appender is closed: claim the shard again", shard_id=self.shard_id
            )

    @property
    def _replay_after(self) -> int:
        return -1 if self._from_zero else self.manifest.replay_after

    # Steps 4 and 5 of claiming.
    def _fence(self, listed: Mapping[int, object]) -> None:
        draft = draft_fence(shard_id=self.shard_id, epoch=self.epoch, writer=self.writer)
        # Behind the cursor as well: a log that was flushed and collected is empty, and positions
        # below the cursor would be taken for flushed by every reader.
        position = max([self.manifest.replay_after, *listed]) + 1
        for _ in range(_FENCES):
            fence = self._fence_from(draft, position)
            # Read again after the fence is decided. An epoch that is still ours now cannot have
            # appended or flushed behind the fence before; a cursor that moved says that the fence
            # may lie too low.
            self.manifest = self.manifests.check(self.epoch)
            if fence is not None and fence > self.manifest.replay_after:
                self.fence_position = fence
                self.next_position = fence + 1
                return
            position = self.manifest.replay_after + 1
        raise UnavailableError(
            "the log is flushed faster than this writer can fence it: try again",
            shard_id=self.shard_id,
            position=position,
        )

    def _fence_from(self, draft: EntryDraft, position: int) -> int | None:
        """Decide a fence at the first free place; None when the place was flushed and collected."""
        for place in range(position, position + _STEPS):
            try:
                entry = self._decide(draft, place)
            except CollectedError:
                # Only a commit store tells; with put-if-absent a free place is a free place, which
                # is why the cursor is compared again afterwards.
                return None
            if entry is None:
                return place
            if entry.epoch > self.epoch:
                raise fenced_error(self.shard_id, self.epoch, entry.epoch)
            # Epochs are decided one by one, so nobody else can have ours; the random writer id
            # shows it if manifests were copied or set back by hand.
            if entry.epoch == self.epoch and entry.writer != self.writer:
                raise self._twice(entry)
        raise UnavailableError(
            "another writer appends faster than this one can fence it: try again",
            shard_id=self.shard_id,
            position=position + _STEPS,
        )

    # Step 6 of claiming.
    def _check_gaps(self, listed: Mapping[int, object]) -> None:
        if 0 in listed and not self.manifest.replay_after and not self.manifest.sstables:
            self._from_zero = True  # a log of the one release that counted from 0
        while True:
            try:
                self._log.check_gaps(listed, self._replay_after, self.fence_position)
            except WalGapError as gap:
                if not self._is_flushed(gap):
                    raise
            else:
                return

    def _is_flushed(self, gap: WalGapError) -> bool:
        """Tell whether a missing entry was flushed and collected meanwhile; take the new cursor.

        Raises:
            FencedError: by another owner.
        """
        self.manifest = self.manifests.check(self.epoch)
        self._from_zero = self._from_zero and not self.manifest.replay_after
        position = gap.position
        return isinstance(position, int) and position <= self.manifest.replay_after

    def _append(self, draft: EntryDraft) -> Appended:
        begun = self._core.clock.elapsed()
        while True:
            position = self.next_position
            try:
                entry = self._decide(draft, position)
            except _HARMLESS:
                # Nothing was sent, so memory and log agree, and the same position may be tried
                # again.
                raise
            except CollectedError:
                # A position of ours that is at or below the boundary was flushed by somebody: a
                # newer owner.
                self._stop(self._overtaken(), draft.batches)
            except NotFoundError as error:
                self._stop(self._vanished_error(error), draft.batches, error)
            except CommitUnknownError as error:
                self._stop(self._unknown(position, error), draft.batches, error)
            except HoldfastError as error:
                self._stop(error, draft.batches)
            except BaseException:
                # Ctrl-C between the put and its answer: the entry may be there. A writer that does
                # not know its own log must not go on, since its next entry would take the same
                # sequence number.
                self._stopped = self._unknown(position)
                raise
            # Only a decision that was won ends the loop: after a late fence the same rows go one
            # further.
            if entry is None:
                break
            self._step_over(entry, draft)
        self._sequence += 1
        self.next_position = position + 1
        elapsed = self._core.clock.elapsed() - begun
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
        token = self._core.ids.token()
        # Numbers of one writer have no hole, so a reader notices an entry that was removed in
        # between.
        sequence = 0 if draft.fence else self._sequence + 1
        body = draft.stamp(position=position, sequence=sequence, token=token)
        # Local disk only, where the look is a read of a small file. On an object store it would
        # cost a second request per append; the arbiter's `_place.py` says what is assumed instead.
        self._core.arbiter.confirm_place(if_cheap=True)
        decision = self._core.arbiter.decide(entry_name(self.shard_id, position), body, token)
        if not isinstance(decision, Lost):
            return None
        return decode_entry(decision.body, shard_id=self.shard_id, position=position)

    def _step_over(self, entry: Entry, draft: EntryDraft) -> None:
        """Go past a late fence of a claimer that was overtaken; stop at anything else."""
        if entry.epoch > self.epoch:
            self._stop(fenced_error(self.shard_id, self.epoch, entry.epoch), draft.batches)
        # A claimer that lost to us slept before it put its fence. It has no power over a higher
        # epoch: readers pass over it, and so does this writer.
        if entry.fence and entry.epoch < self.epoch:
            self.next_position = entry.position + 1
            return
        if entry.writer == self.writer:  # an append that was refused did land
            self._stop(self._unknown(entry.position), draft.batches)
        self._stop(self._twice(entry), draft.batches)

    def _overtaken(self) -> HoldfastError:
        """Return why a position of ours is collected: only a newer owner can have flushed it."""
        try:
            self.manifests.check(self.epoch)
        except FencedError as error:
            return error
        except HoldfastError:
            return fenced_error(self.shard_id, self.epoch, None)
        return CorruptError(
            "the log was flushed past this writer's position although it owns the shard: "
            "somebody wrote or removed entries by hand; open the shard again",
            shard_id=self.shard_id,
            position=self.next_position,
            epoch=self.epoch,
        )

    def _vanished_error(self, error: NotFoundError) -> HoldfastError:
        """Return why what an append had begun is gone.

        A writer that slept for very long: vacuum takes files that were never finished. Then the
        shard has another owner, as a rule.
        """
        try:
            self.manifests.check(self.epoch)
        except FencedError as fence:
            return fence
        except HoldfastError:
            return error  # the shard itself is gone
        return self._unknown(self.next_position)

    def _twice(self, entry: Entry) -> CorruptError:
        return CorruptError(
            "the log holds an entry that no writer could have put there: two writers have one "
            "epoch, or somebody wrote past the fence",
            shard_id=self.shard_id,
            position=entry.position,
            epoch=self.epoch,
            found_epoch=entry.epoch,
        )

    def _unknown(self, position: int, error: HoldfastError | None = None) -> PoisonedError:
        emit(EventKind.POISONED, shard_id=self.shard_id, epoch=self.epoch, position=position)
        return PoisonedError(
            "the outcome of a log write is unknown, so this writer stops: open the shard again, "
            "replay tells what is there",
            shard_id=self.shard_id,
            epoch=self.epoch,
            position=position,
            reason=None if error is None else _first_cause(error),
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


def _first_cause(error: HoldfastError) -> str:
    """Return what began it: that a disk is full, say."""
    cause = error
    while isinstance(cause.__cause__, HoldfastError):
        cause = cause.__cause__
    return str(cause)
