"""`flush_log`: a shard's log into generations, for a shard whose writer does not do it itself.

A writer without MemTables only appends; a writer that died flushes nothing more. Anybody may
then turn the entries beyond the flushed cursor into an SSTable and decide the shard's manifest,
with the epoch that is stored: nobody is fenced, and an appender goes on.

| stopped after                      | readers see  | who goes on                              |
|------------------------------------|--------------|------------------------------------------|
| reading the log                    | the log      | anyone: begins anew                      |
| writing the SSTable                | the log      | anyone; `vacuum` takes the SSTable       |
| deciding the manifest              | the SSTable  | nothing is left to do                    |

Cursor and generation are checked in the manifest that is changed. If somebody flushed
meanwhile, this SSTable is garbage and the next try begins behind the new cursor. A live writer
with MemTables whose generation was taken finds out when it publishes, drops what is covered and
goes on; see `holdfast.shard._publish`. Its entries are only flushed when it was silent for a
while; not for safety, but to leave it in peace.

Stock tags its entries with a generation, and passes over those whose generation is published: it
would lose what a live stock writer appends after a flush by others. So a log with such tags is
claimed first, which locks that writer out, and flushed as its owner, one tag one generation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa

from holdfast.commits import Versions, open_dataset, translate_errors
from holdfast.errors import (
    CollectedError,
    ConflictError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    SealedError,
)
from holdfast.events import EventKind, emit
from holdfast.formats import Entry, ShardManifest, SsTable, newest_per_key, txns_of
from holdfast.shard import MEMTABLE_TAG, Base, combine_column, fit_entry, read_log_base, sstables_of
from holdfast.txn import Txn
from holdfast.wal import Chain, Log, ShardManifests, WalAppender, WalTailer, remember, store_time

log = logging.getLogger("holdfast.upkeep")

ROWS_PER_GENERATION = 100_000
"""How many rows of the log become one generation; one entry is never divided."""
BYTES_PER_GENERATION = 256 << 20
"""How many bytes of rows become one generation; one entry is never divided."""
IDLE = timedelta(minutes=10)
"""How long a writer with MemTables must have been silent before its log is flushed for it."""

_TRIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLogResult:
    """What one flush of a log did.

    Attributes:
        version: the newest version of the shard's manifest afterwards.
        rows: how many rows went into generations, one for each key.
        txn: None; the flushed cursor makes repeats harmless.
        applied: whether this call made a generation.
        elapsed: seconds.
        shard_id: the shard.
        generations: those that were made.
        position: the flushed cursor afterwards.
        waits: why rows were left in the log; None when none were.
    """

    version: int
    rows: int
    txn: None = None
    applied: bool
    elapsed: float
    shard_id: str
    generations: tuple[int, ...]
    position: int
    waits: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPart:
    """Entries that become one generation."""

    entries: tuple[Entry, ...]
    position: int

    @property
    def tagged(self) -> bool:
        """Tell whether stock gave them a generation."""
        return self.entries[0].generation is not None

    @property
    def held(self) -> bool:
        """Tell whether a writer with MemTables wrote some of them."""
        return self.tagged or any(MEMTABLE_TAG in entry.tags for entry in self.entries)


Write = Callable[[int, FlushPart], SsTable]
"""Writes a generation of this number; durable, and seen by nobody."""


def flush_parts(
    manifests: ShardManifests,
    tailer: WalTailer,
    write: Write,
    *,
    rows: int = ROWS_PER_GENERATION,
    may_flush: Callable[[FlushPart], bool] = lambda _: True,
    owner: int | None = None,
) -> Iterator[tuple[SsTable, ShardManifest]]:
    """Turn a log into generations, one after the other; yield each once it is decided.

    Args:
        manifests: the shard's.
        tailer: reads its log.
        write: writes a generation.
        rows: how many rows of the log become one, except where stock divided them.
        may_flush: is asked before each.
        owner: the epoch of the caller, who claimed the shard; the stored one by default.

    Raises:
        NotFoundError: there is no such shard.
        FencedError: the caller does not own it any more.
        ConflictError: others flushed it each time first.
        WalGapError, CorruptError: the log is damaged.
        CommitUnknownError: the outcome could not be learnt; repeat.
        Other errors: of the stores; repeat.
    """
    for _ in range(_TRIES):
        current = manifests.latest()
        if current is None:
            raise NotFoundError("there is no such shard", shard_id=tailer.shard_id)
        try:
            for part in _parts(tailer, current, rows):
                if not may_flush(part):
                    return
                # Written first, decided afterwards. A flush that loses leaves an SSTable that
                # nobody names, and vacuum takes it.
                written = write(current.current_generation, part)
                decided = publish_part(manifests, current, written, part.position, owner=owner)
                # Somebody else moved the cursor. Their generation holds these rows; ours must not
                # be published under a second number.
                if decided is None:
                    break  # somebody else flushed: what is behind their cursor?
                yield written, decided
                current = decided
            else:
                return
        except CollectedError:
            continue  # flushed and removed meanwhile: the manifest knows
    raise ConflictError("others flushed this shard each time first", shard_id=tailer.shard_id)


def _parts(tailer: WalTailer, current: ShardManifest, rows: int) -> Iterator[FlushPart]:
    """Yield what becomes one generation each; fences after the last rows stay in the log."""
    chain = Chain(tailer.shard_id)
    waiting: list[Entry] = []
    count = size = 0
    for entry in tailer.entries(after=current.replay_after, fences=True):
        # Damage is noticed here and not after the entries are gone: what is flushed is collected.
        chain.check(entry)
        if entry.fence:
            continue
        more = sum(int(batch.nbytes) for batch in entry.batches)
        full = count + entry.rows > rows or size + more > BYTES_PER_GENERATION
        if waiting and _divides(waiting[-1], entry, full=full):
            yield FlushPart(entries=tuple(waiting), position=waiting[-1].position)
            waiting, count, size = [], 0, 0
        waiting.append(entry)
        count, size = count + entry.rows, size + more
    if waiting:
        yield FlushPart(entries=tuple(waiting), position=waiting[-1].position)


def _divides(last: Entry, entry: Entry, *, full: bool) -> bool:
    """Tell whether a generation ends between two entries: as stock tagged them, or by size."""
    if last.generation is None and entry.generation is None:
        return full
    return last.generation != entry.generation


def publish_part(
    manifests: ShardManifests,
    seen: ShardManifest,
    written: SsTable,
    position: int,
    *,
    owner: int | None = None,
) -> ShardManifest | None:
    """Decide the manifest with a generation in it; None when another flush was faster.

    A new owner changes nothing: the entries are the same, and so is the cursor it began at.
    Except for a caller who says that it is the owner.

    Raises:
        FencedError: the caller does not own the shard any more.
        CommitUnknownError: the outcome could not be learnt; repeat.
        ConflictError: the shard changed owners each time first.
    """

    def change(now: ShardManifest) -> ShardManifest:
        moved = (now.replay_after, now.current_generation) != (
            seen.replay_after,
            seen.current_generation,
        )
        # Returning what is there writes nothing; whether it was ours is asked by the SSTable's
        # path.
        if moved:  # perhaps it was us, unanswered
            return now
        return replace(
            now,
            sstables=(*now.sstables, written),
            replay_after=position,
            last_seen=max(now.last_seen, position),
            current_generation=written.generation + 1,
        )

    # Under the epoch of whoever owns the shard: a flush from outside takes no ownership, so a
    # writer at work goes on undisturbed.
    epoch = seen.writer_epoch if owner is None else owner
    for _ in range(_TRIES):
        try:
            decided = manifests.update(epoch, change)
        except FencedError:
            if owner is not None:
                raise
            newest = manifests.latest()
            epoch = epoch if newest is None else newest.writer_epoch
            continue
        return decided if written in decided.sstables else None
    raise ConflictError("the shard changed owners each time first", shard_id=seen.shard_id)


def flush_log(
    versions: Versions,
    shard_id: str,
    *,
    rows: int = ROWS_PER_GENERATION,
    idle: timedelta = IDLE,
    stock_idle: timedelta | None = None,
    owner: int | None = None,
) -> FlushLogResult:
    """Turn a shard's log into generations; see `Table.flush_log`.

    `stock_idle` is how long a writer of stock Lance must have been silent, as long as any other
    by default; `owner` is the epoch of a caller who claimed the shard.
    """
    if rows < 1:
        raise InvalidInputError("rows_per_generation is at least 1", rows_per_generation=rows)
    begun = versions.core.clock.elapsed()
    flush = _Flush(versions, shard_id, rows, idle, stock_idle)
    flush.run(owner)
    if flush.needs_claim:
        try:
            flush.run(_claim_shard(versions, shard_id))
        except FencedError:
            flush.waits = "another writer claimed the shard meanwhile"
    current = ShardManifests(versions.core, shard_id).latest()
    if current is None:
        raise NotFoundError("there is no such shard", shard_id=shard_id)
    if flush.made:
        flush.remember(current.replay_after)
    return FlushLogResult(
        version=current.version,
        rows=sum(one.physical_rows or 0 for one in flush.made),
        applied=bool(flush.made),
        elapsed=versions.core.clock.elapsed() - begun,
        shard_id=shard_id,
        generations=tuple(one.generation for one in flush.made),
        position=current.replay_after,
        waits=flush.waits,
    )


class _Flush:
    """One call of `flush_log`, which may run twice: the second time as the shard's owner.

    Attributes:
        made: what was published.
        waits: why it stopped before the log's end; None if it did not.
        needs_claim: it stopped at entries with stock's tags, which only an owner may flush.
    """

    def __init__(
        self,
        versions: Versions,
        shard_id: str,
        rows: int,
        idle: timedelta,
        stock_idle: timedelta | None,
    ) -> None:
        self.made: list[SsTable] = []
        self.waits: str | None = None
        self.needs_claim = False
        self._versions = versions
        self._shard_id = shard_id
        self._rows = rows
        self._idle = idle
        self._stock_idle = idle if stock_idle is None else stock_idle
        self._owner: int | None = None
        self._ids: dict[int, tuple[Txn, ...]] = {}  # of entries that were read, by position
        self._base = read_log_base(versions.core, open_dataset(versions))

    def run(self, owner: int | None = None) -> None:
        """Flush until the log's end, or until others must do it."""
        begun = self._versions.core.clock.elapsed()
        self._owner = owner
        for written, decided in flush_parts(
            ShardManifests(self._versions.core, self._shard_id),
            WalTailer(self._versions.core, self._shard_id),
            self._write,
            rows=self._rows,
            may_flush=self._may_flush,
            owner=owner,
        ):
            self.made.append(written)
            emit(
                EventKind.FLUSHED,
                shard_id=self._shard_id,
                generation=written.generation,
                rows=written.physical_rows,
                size=written.in_memory_bytes,
                position=decided.replay_after,
                elapsed=self._versions.core.clock.elapsed() - begun,
            )

    def remember(self, position: int) -> None:
        """Write down the transaction ids up to the new cursor: writers open faster then.

        Without it they read more of the log; so an error of the stores is no failure.
        """
        versions = self._versions
        try:
            remember(
                versions.core,
                self._shard_id,
                position,
                known=self._ids,
            )
        except HoldfastError as error:
            log.warning("shard %s: ids stay in the log for now: %s", self._shard_id, error)

    def _write(self, generation: int, part: FlushPart) -> SsTable:
        # What lies between entries is fences, and these have no ids.
        self._ids |= dict.fromkeys(range(part.entries[0].position, part.position), ())
        for one in part.entries:
            self._ids[one.position] = txns_of(
                one.tags, shard_id=self._shard_id, position=one.position
            )
        with translate_errors(self._shard_id):
            table = _newest(part.entries, self._base)
        return sstables_of(self._versions.core).write(self._base, self._shard_id, generation, table)

    def _may_flush(self, part: FlushPart) -> bool:
        idle = self._stock_idle if part.tagged else self._idle
        if part.held and idle and _silent(self._versions, self._shard_id) < idle:
            self.waits = "a writer with MemTables was here lately, and flushes by itself"
        self.needs_claim = part.tagged and self._owner is None and self.waits is None
        return self.waits is None and not self.needs_claim


def claim_epoch(versions: Versions, shard_id: str) -> int:
    """Lock the shard's writer out, by an epoch and a fence; return the epoch.

    Raises:
        SealedError: nobody can claim it.
        Other errors: as for `WalAppender.claim`.
    """
    appender = WalAppender.claim(versions.core, shard_id)
    appender.close()
    return appender.epoch


def _claim_shard(versions: Versions, shard_id: str) -> int | None:
    """Lock the shard's stock writer out; return our epoch, or None where nobody can claim."""
    try:
        return claim_epoch(versions, shard_id)
    except SealedError:
        return None


def _newest(entries: Sequence[Entry], base: Base) -> pa.Table:
    """Return the rows of entries, of each key the newest, in the order of the log."""
    batches = [fit_entry(batch, base) for entry in entries for batch in entry.batches]
    table = pa.Table.from_batches(batches)
    if not base.keys:
        return table
    newest = np.zeros(table.num_rows, bool)
    newest[newest_per_key([combine_column(table[name]) for name in base.keys]).to_numpy()] = True
    return table.filter(pa.array(newest))  # `take` would make one array of each column


def _silent(versions: Versions, shard_id: str) -> timedelta:
    """Return for how long nobody has written to the log, by the store's own stamps."""
    listed = Log(versions.core, shard_id).list_entries()
    now = store_time(versions.core.store, shard_id, versions.core.ids)
    # By the store's stamps on both sides: clocks of writers and of this machine do not matter.
    newest = max((info.modified for info in listed.values()), default=0.0)
    return timedelta(seconds=max(0.0, now - newest))
