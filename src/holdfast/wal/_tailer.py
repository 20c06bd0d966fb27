"""`WalTailer`: reads a shard's log while others write it. Never writes, never fences.

    tailer = WalTailer(core, shard_id)
    for entry in tailer.follow(timeout=timedelta(minutes=1)):
        ...

Entries come in order, each once, and only whole: what a tailer yields, every later reader and
writer finds, too. (On a table with a commit store, reading may copy a decided entry to its
name if its writer died before doing so.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from holdfast.core import TableCore
from holdfast.errors import CollectedError, InvalidInputError, WalGapError
from holdfast.formats import BoundaryKind, Entry
from holdfast.wal._boundary import Boundary
from holdfast.wal._log import Log

_FIRST_WAIT = 0.01
_LONGEST_WAIT = 1.0


class WalTailer:
    """Reads one shard's log.

    Raises:
        InvalidInputError: the shard id is no UUID.
    """

    def __init__(self, core: TableCore, shard_id: str) -> None:
        self._log = Log(core, shard_id)
        self._boundary = Boundary(core.store, self._log.shard_id, BoundaryKind.LOG)
        self._clock = core.clock

    @property
    def shard_id(self) -> str:
        """Return the shard."""
        return self._log.shard_id

    def read(self, position: int) -> Entry | None:
        """Return the entry at a position, fence or not; None when nothing is there.

        Raises:
            CorruptError: it is damaged.
            InvalidInputError: a negative position.
            UnavailableError, PermissionDeniedError: a store did not tell.
            CommitStoreRegressedError, ForeignVersionError: it is not the decided one.
        """
        return self._log.read(position)

    def entries(
        self, after: int | None = None, through: int | None = None, *, fences: bool = False
    ) -> Iterator[Entry]:
        """Yield the entries after a position, up to `through` or to the end of the log.

        Args:
            after: the position already read; None for all that is still in the log.
            through: the last position wanted; it must be there.
            fences: yield fences, too.

        Raises:
            CollectedError: entries after `after` were flushed and removed; read the table.
            WalGapError: one is missing.
            Other errors: as for `read`.
        """
        listed = self._log.list_entries() if after is None or through is None else {}
        position = self._start(listed) if after is None else after
        end = max([position, *listed]) if through is None else through
        while True:
            try:
                for entry in self._log.entries(position, end):
                    if fences or not entry.fence:
                        yield entry
                    position = entry.position
            except WalGapError:
                # In this order: the boundary is raised before entries are deleted, so what is
                # missing and above it was never deleted.
                self._explain(position + 1)
                if self._log.read(position + 1) is None:
                    raise
                continue
            if through is not None:
                return
            if self._log.read(end + 1) is None:
                return
            end += 1

    def follow(
        self, after: int | None = None, *, timeout: timedelta | None = None, fences: bool = False
    ) -> Iterator[Entry]:
        """Yield entries as they are written; wait for more at the end of the log.

        Args:
            after: the position already read; None for all that is still in the log.
            timeout: end after so long without a new entry; None waits for ever.
            fences: yield fences, too.

        Raises:
            As for `entries`.
        """
        if timeout is not None and timeout < timedelta(0):
            raise InvalidInputError("a timeout is not negative", timeout=timeout)
        position = self._start(self._log.list_entries()) if after is None else after
        while True:
            idle = self._clock.elapsed()
            entry = self._wait(position + 1, idle, timeout)
            if entry is None:
                return
            position = entry.position
            if fences or not entry.fence:
                yield entry

    def _start(self, listed: Mapping[int, object]) -> int:
        """Return the position before the first one that must be there; 0 is of an old release."""
        return max(-1 if 0 in listed else 0, self._boundary.read())

    def _wait(self, position: int, since: float, timeout: timedelta | None) -> Entry | None:
        wait, polls = _FIRST_WAIT, 0
        while True:
            entry = self._log.read(position)
            if entry is not None:
                return entry
            polls += 1
            # The look lists the log and reads the boundary: at every poll it would cost more than
            # the wait.
            if polls & (polls - 1) == 0:  # at 1, 2, 4, 8 ... polls
                self._explain(position)
            idle = self._clock.elapsed() - since
            if timeout is not None:
                left = timeout.total_seconds() - idle
                if left <= 0:
                    return None
                wait = min(wait, left)
            self._clock.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    def _explain(self, position: int) -> None:
        """Return if a missing position is simply not written yet.

        Raises:
            CollectedError: it is gone.
            WalGapError: later ones are there.
        """
        later = max(self._log.list_entries(), default=0) > position
        if self._log.read(position) is not None:
            return
        boundary = self._boundary.read()  # after the read: it is raised before anything is deleted
        if position <= boundary:
            raise CollectedError(
                "the log entry was flushed and removed: read the table, then go on behind "
                "`boundary`",
                shard_id=self.shard_id,
                position=position,
                boundary=boundary,
            )
        if later:
            raise self._log.gap(position)
