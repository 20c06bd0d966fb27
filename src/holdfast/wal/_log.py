"""`Log`: the entries of one shard's log, read in order. Reads only.

Positions are contiguous. A position that must be there and is not is a `WalGapError`, never
the end of the log; a listing alone never says so, reading does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.core import TableCore
from holdfast.errors import CorruptError, HoldfastError, WalGapError
from holdfast.formats import (
    Entry,
    check_shard_id,
    decode_entry,
    entry_name,
    log_folder,
    position_of,
)
from holdfast.storage import ObjectInfo, SupportsReadAhead

_READERS = 16
"""How many entries are fetched concurrently from a store behind a network."""
_MOST_PER_TASK = 8
"""Small entries are fetched in runs: handing each to a thread costs as much as decoding it."""
_AHEAD_BYTES = 64 << 20
"""How much is fetched ahead of the caller, about; but at least two entries."""


class Log:
    """Reads the log of one shard.

    Raises:
        InvalidInputError: the shard id is no UUID.
    """

    def __init__(self, core: TableCore, shard_id: str) -> None:
        self._core = core
        self.shard_id = check_shard_id(shard_id)
        self._remote = isinstance(core.store, SupportsReadAhead) and core.store.reads_ahead

    def list_entries(self) -> dict[int, ObjectInfo]:
        """Return the entries that a listing shows, by position; other files are passed over.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        infos = {position_of(info.path): info for info in self._core.store.list(self._folder)}
        return {n: infos[n] for n in sorted(n for n in infos if n is not None)}

    def read(self, position: int, *, trusting: bool = False) -> Entry | None:
        """Return the entry at a position, or None; `trusting` as for `decode_entry`.

        Raises:
            CorruptError: it is damaged, or belongs elsewhere.
            UnavailableError, PermissionDeniedError: a store did not tell.
            CommitStoreRegressedError, ForeignVersionError: it is not the decided one.
        """
        body = self._core.arbiter.read(entry_name(self.shard_id, position))
        if body is None:
            return None
        return decode_entry(body, shard_id=self.shard_id, position=position, trusting=trusting)

    def entries(self, after: int, through: int) -> Iterator[Entry]:
        """Yield the entries at positions `after + 1` to `through`, fences too, in order.

        Raises:
            WalGapError: one is missing.
            Other errors: as for `read`.
        """
        wanted = range(after + 1, through + 1)
        if self._remote and len(wanted) > 1:
            yield from self._fetched_ahead(wanted)
            return
        for position in wanted:
            yield self._present(position, self.read(position))

    def _fetched_ahead(self, wanted: range) -> Iterator[Entry]:
        """Yield entries that threads fetch: first one by one, to learn how large they are."""
        # Runs only where there is enough for every thread several times over; else some would idle.
        most = max(1, min(_MOST_PER_TASK, len(wanted) // (8 * _READERS)))
        run, ahead, start = 1, 2 * _READERS, 0
        waiting: deque[Future[tuple[list[Entry], HoldfastError | None]]] = deque()
        rounds = -(-len(wanted) // _READERS)
        readers = -(-len(wanted) // rounds)  # fewer, if they need no more rounds
        pool = ThreadPoolExecutor(readers, thread_name_prefix="holdfast-log")
        try:
            while waiting or start < len(wanted):
                while len(waiting) < ahead and start < len(wanted):
                    waiting.append(pool.submit(self._read_run, wanted[start : start + run]))
                    start += run
                entries, error = waiting.popleft().result()
                yield from entries
                if error is not None:
                    raise error
                size = max(entry.size for entry in entries)
                # By the largest of the last run: entries of one log are alike, and a log of large
                # ones must not be held in memory as a whole.
                run = max(1, min(most, _AHEAD_BYTES // (2 * _READERS * size)))
                ahead = max(2, min(2 * _READERS, _AHEAD_BYTES // (run * size)))
        finally:
            # Also when the caller stops half way: no thread reads on for a generator that nobody
            # asks.
            pool.shutdown(wait=True, cancel_futures=True)

    def _read_run(self, positions: range) -> tuple[list[Entry], HoldfastError | None]:
        """Return the entries before the first that cannot be read, and why it cannot."""
        entries: list[Entry] = []
        try:
            for position in positions:
                entries.append(self._present(position, self.read(position)))  # noqa: PERF401
        except HoldfastError as error:
            return entries, error
        return entries, None

    def check_gaps(self, listed: Mapping[int, object], after: int, before: int) -> None:
        """Make sure that no position between `after` and `before` is missing.

        A listing is no snapshot: what it does not show is looked for.

        Raises:
            WalGapError: one is, and reading says so, too.
            Other errors: as for `read`.
        """
        for position in range(after + 1, before):
            # Stores exist whose listing lags behind their puts: only a read that finds nothing is a
            # gap.
            if position not in listed:
                self._present(position, self.read(position))

    def gap(self, position: int) -> WalGapError:
        """Return the error of a missing entry."""
        return WalGapError(
            "a log entry is missing although later ones are there, or it was seen: nothing "
            "after it is read; see `holdfast wal repair`",
            shard_id=self.shard_id,
            position=position,
        )

    def _present(self, position: int, entry: Entry | None) -> Entry:
        if entry is None:
            raise self.gap(position)
        return entry

    @property
    def _folder(self) -> str:
        return log_folder(self.shard_id)


class Chain:
    """Checks that entries read in order can have come from writers that took turns.

    Epochs of rows never go down, and the numbers of one writer have no hole, unless a fence lies
    there. A fence may have a lower epoch than the entry before it: a claimer that was overtaken
    put it there late.
    """

    def __init__(self, shard_id: str) -> None:
        self._shard_id = shard_id
        self._epoch = 0
        self._writer: str | None = None
        self._sequence = 0

    def check(self, entry: Entry) -> None:
        """Take the next entry.

        Raises:
            CorruptError: it cannot follow the one before.
        """
        if entry.fence:
            self._epoch = max(self._epoch, entry.epoch)
            self._writer = None  # a repair may have put it in the place of an entry
            return
        # Safe appends cannot do this: the fence of the higher epoch was decided before. It shows
        # that somebody wrote to the log without asking the arbiter.
        if entry.epoch < self._epoch:
            raise self._broken(entry, "rows of a writer that was locked out before")
        follows = entry.sequence is None or entry.sequence == self._sequence + 1
        if entry.writer is not None and entry.writer == self._writer and not follows:
            raise self._broken(entry, "an entry of its writer before this one is missing")
        self._epoch = entry.epoch
        self._writer, self._sequence = entry.writer, entry.sequence or 0

    def _broken(self, entry: Entry, what: str) -> CorruptError:
        return CorruptError(
            f"the log is damaged: {what}; see `holdfast wal repair`",
            shard_id=self._shard_id,
            position=entry.position,
            epoch=entry.epoch,
        )
