"""`Log`: the entries of one shard's log, read in order. Reads only.

Positions are contiguous. A position that must be there and is not is a `WalGapError`, never
the end of the log; a listing alone never says so, reading does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.arbiter import Arbiter
from holdfast.errors import CorruptError, WalGapError
from holdfast.formats import check_shard_id
from holdfast.formats._entry import Entry, decode_entry
from holdfast.formats._wal_names import entry_name, log_folder, position_of
from holdfast.storage import ObjectInfo, ObjectStore, RemoteStore

_AHEAD = 16
"""How many entries are fetched at once from a store behind a network."""


class Log:
    """Reads the log of one shard.

    Raises:
        InvalidInputError: the shard id is no UUID.
    """

    def __init__(self, store: ObjectStore, arbiter: Arbiter, shard_id: str) -> None:
        self._store = store
        self._arbiter = arbiter
        self.shard_id = check_shard_id(shard_id)
        self._ahead = _AHEAD if isinstance(store, RemoteStore) else 1

    def listed(self) -> dict[int, ObjectInfo]:
        """Return the entries that a listing shows, by position; other files are passed over.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        found = {position_of(info.path): info for info in self._store.list(self._folder)}
        return {n: found[n] for n in sorted(n for n in found if n is not None)}

    def read(self, position: int) -> Entry | None:
        """Return the entry at a position, or None.

        Raises:
            CorruptError: it is damaged, or belongs elsewhere.
            UnavailableError, PermissionDeniedError: a store did not tell.
            CommitStoreRegressedError, ForeignVersionError: it is not the decided one.
        """
        body = self._arbiter.read(entry_name(self.shard_id, position))
        if body is None:
            return None
        return decode_entry(body, shard_id=self.shard_id, position=position)

    def entries(self, after: int, through: int) -> Iterator[Entry]:
        """Yield the entries at positions `after + 1` to `through`, fences too, in order.

        Raises:
            WalGapError: one is missing.
            Other errors: as for `read`.
        """
        wanted = iter(range(after + 1, through + 1))
        if self._ahead == 1:
            for position in wanted:
                yield self._present(position, self.read(position))
            return
        waiting: deque[tuple[int, Future[Entry | None]]] = deque()
        pool = ThreadPoolExecutor(self._ahead, thread_name_prefix="holdfast-log")
        try:
            for position in wanted:
                waiting.append((position, pool.submit(self.read, position)))
                if len(waiting) >= 2 * self._ahead:
                    first, future = waiting.popleft()
                    yield self._present(first, future.result())
            for first, future in waiting:
                yield self._present(first, future.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def check_gaps(self, listed: Mapping[int, object], after: int) -> None:
        """Make sure that no position between `after` and the highest listed one is missing.

        Raises:
            WalGapError: one is, and reading says so, too.
            Other errors: as for `read`.
        """
        for position in range(after + 1, max(listed, default=after)):
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
