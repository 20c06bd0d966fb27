"""`LogMemory`: which transactions a shard's log has applied, for its writer; exact, for ever.

The ids of rows are in the log entry of the rows. A *memory* is an object with all ids of the
entries up to a position; entries go only behind one (`remember`, called by every collection). So
a writer knows them all from the newest memory and the entries behind it, read after its fence.

Which ids the log has up to a position never changes. So a memory needs no decision: whoever
writes it writes the same, and a late one does no harm. The first, empty one comes before the
first id: where there is no memory, no entry has an id, and nobody pays for them. The oldest one
stays for ever, so that a listing shows one at any time. See RFC 0010.

| stopped after                    | others see                         | who goes on             |
|----------------------------------|------------------------------------|-------------------------|
| putting the first, empty memory  | a shard that uses ids, none of     | nothing is left to do   |
|                                  | them applied                       |                         |
| the append                       | the entry, with its ids            | whoever repeats the put |
| a flush, before its memory       | more entries to read               | the next flush, or      |
|                                  |                                    | collection              |
| putting a memory                 | fewer entries to read              | nothing is left to do   |
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast._ids import Ids, RandomIds
from holdfast.commits import Ledger
from holdfast.core import TableCore
from holdfast.errors import ConflictError, HoldfastError, NotFoundError, WalGapError
from holdfast.formats import (
    BoundaryKind,
    Ranges,
    check_gaps,
    check_shard_id,
    decode_memory,
    encode_memory,
    log_txns_folder,
    memory_path,
    memory_position,
    merge_memory,
    numbers_of,
    txns_of,
)
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.txn import AppTxn, Txn
from holdfast.wal._boundary import Boundary
from holdfast.wal._log import Log

log = logging.getLogger("holdfast.wal")

_TRIES = 16


@dataclass(frozen=True, slots=True)
class Memory:
    """The ids of all entries up to a position, as a ledger's entries."""

    position: int
    entries: Mapping[str, str] = field(default_factory=dict)


class Memories:
    """The stored memories of one shard.

    Raises:
        InvalidInputError: the shard id is no UUID.
    """

    def __init__(self, store: ObjectStore, shard_id: str, ids: Ids | None = None) -> None:
        self._store = store
        self._shard_id = check_shard_id(shard_id)
        self.ledger = Ledger(store, ids or RandomIds(), folder=log_txns_folder(self._shard_id))

    def newest(self) -> Memory | None:
        """Return the newest memory; None when no entry of this shard has an id.

        Raises:
            CorruptError: it is damaged.
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        for _ in range(_TRIES):
            positions = self._list_memories()
            if not positions:
                return None
            newest = max(positions)
            path = positions[newest].path
            try:
                return Memory(newest, decode_memory(path, self._store.get(path)))
            except NotFoundError:
                # Memories go only while a newer one is there, so the next listing shows it.
                continue  # a newer one is there, and this one was collected
        raise ConflictError("the memory of a log was collected each time first: try again")

    def put(self, memory: Memory) -> None:
        """Store a memory, durably. Safe to repeat, at any time, by anybody."""
        path = memory_path(self._shard_id, memory.position)
        self._store.put(path, encode_memory(memory.entries))

    def extend(self, memory: Memory, position: int, txns: Sequence[Txn]) -> Memory:
        """Return the memory of a later position, by which these were applied, too.

        Raises:
            HoldfastError: as for `Ledger.record`.
        """
        changed = self.ledger.record(memory.entries, txns)
        return Memory(position, merge_memory(memory.entries, changed))

    def spare(self) -> list[ObjectInfo]:
        """Return the memories that nobody needs: all but the oldest and the newest.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        listed = self._list_memories()
        return [listed[position] for position in sorted(listed)[1:-1]]

    def _list_memories(self) -> dict[int, ObjectInfo]:
        infos = self._store.list(log_txns_folder(self._shard_id))
        by_position = {memory_position(info.path): info for info in infos}
        return {position: info for position, info in by_position.items() if position is not None}


@dataclass(frozen=True, slots=True)
class Applied:
    """What the log has applied up to a position: a memory, and the ids of entries behind it."""

    memory: Memory
    behind: Sequence[tuple[int, tuple[Txn, ...]]]


def read_applied(
    core: TableCore,
    shard_id: str,
    through: int,
    *,
    memories: Memories,
    known: Mapping[int, tuple[Txn, ...]] | None = None,
) -> Applied | None:
    """Return what the entries up to a position have applied; None when no entry has an id.

    The position must be decided, and everything below it: call it behind a fence, or for
    entries that are flushed. What was appended afterwards is not looked for.

    Args:
        core: the table.
        shard_id: the shard.
        through: up to where.
        memories: the shard's.
        known: ids of entries that the caller has read, by position; fences have none.

    Raises:
        WalGapError, CorruptError: an entry or a memory is missing or damaged.
        ConflictError: entries were collected each time first.
        UnavailableError, PermissionDeniedError: a store did not tell.
    """
    reading = Log(core, shard_id)
    boundary = Boundary(core.store, reading.shard_id, BoundaryKind.LOG)
    # A hole that the same memory and boundary show twice is one. A single look may fall between the
    # deletion of entries and our reading of them.
    before: tuple[int, int] | None = None
    if memories.newest() is None:
        return None
    for _ in range(_TRIES):
        # In this order: each id up to the boundary was in a memory before it was raised.
        gone = boundary.read()
        memory = memories.newest()
        if memory is None:
            return None
        # Entries up to the boundary may be gone in any order; their ids are in the memory, which is
        # put before the boundary is raised.
        start = max(memory.position, gone)
        try:
            behind = _ids_behind(reading, start, through, known or {})
        except WalGapError:
            if before == (memory.position, gone):
                raise
            before = (memory.position, gone)
            continue
        return Applied(memory, behind)
    raise ConflictError("the log was collected each time first: try again", shard_id=shard_id)


def _ids_behind(
    reading: Log, start: int, through: int, known: Mapping[int, tuple[Txn, ...]]
) -> list[tuple[int, tuple[Txn, ...]]]:
    behind: list[tuple[int, tuple[Txn, ...]]] = []
    position = start + 1
    while position <= through:
        if position in known:
            behind.append((position, known[position]))
            position += 1
            continue
        end = position
        while end < through and end + 1 not in known:
            end += 1
        for entry in reading.entries(position - 1, end):
            txns = txns_of(entry.tags, shard_id=reading.shard_id, position=entry.position)
            behind.append((entry.position, txns))
        position = end + 1
    return [one for one in behind if one[1]]


def remember(
    core: TableCore,
    shard_id: str,
    through: int,
    *,
    known: Mapping[int, tuple[Txn, ...]] | None = None,
) -> bool:
    """Put the memory of a position whose entries are flushed; afterwards they may go.

    Nothing is written where no entry has an id, or a memory covers the position.

    Returns:
        Whether one was put.

    Raises:
        As for `read_applied`, or the store did not take it.
    """
    memories = Memories(core.store, shard_id, core.ids)
    newest = memories.newest()
    if newest is None or newest.position >= through:
        return False
    applied = read_applied(core, shard_id, through, memories=memories, known=known)
    if applied is None or applied.memory.position >= through:
        return False
    txns = [txn for _, some in applied.behind for txn in some]
    # The folder may belong to a table that was made anew: its writer would believe ids that it
    # never applied, and drop rows as repeats.
    core.arbiter.confirm_place()
    memories.put(memories.extend(applied.memory, through, txns))
    return True


class LogMemory:
    """What a shard's log has applied, in the hands of its one writer. Threads may ask.

    Args:
        core: the table.
        shard_id: the shard.
    """

    def __init__(self, core: TableCore, shard_id: str) -> None:
        self._core = core
        self._shard_id = shard_id
        self._memories = Memories(core.store, shard_id, core.ids)
        self._lock = threading.Lock()  # guards everything below
        self._stored: Memory | None = None
        self._behind: deque[tuple[int, tuple[Txn, ...]]] = deque()
        self._numbers: dict[str, Ranges] = {}  # of each application that has ids behind it
        self._strings: set[Txn] = set()  # those behind it
        self._through = 0  # up to here every id is known

    def read(self, through: int) -> None:
        """Learn what the entries up to a position have applied; forget what was known before.

        Raises:
            As for `read_applied`.
        """
        applied = read_applied(self._core, self._shard_id, through, memories=self._memories)
        with self._lock:
            self._stored = None if applied is None else applied.memory
            self._behind.clear()
            self._forget_behind()
            # Everything up to here is known, also that an entry has no ids: a later memory may say
            # so.
            self._through = through
        for position, txns in () if applied is None else applied.behind:
            self.add(position, txns)

    def learn(self, position: int, tags: Mapping[str, str]) -> None:
        """Take over the ids of the next entry of the log.

        Raises:
            CorruptError: they cannot be read.
        """
        self.add(position, txns_of(tags, shard_id=self._shard_id, position=position))

    def add(self, position: int, txns: Sequence[Txn]) -> None:
        """Note what an entry has applied, which is in the log by now."""
        with self._lock:
            self._through = max(self._through, position)
            stored = self._stored
            # An entry that the stored memory covers has been counted.
            if txns and (stored is None or position > stored.position):
                self._behind.append((position, tuple(txns)))
                self._note(txns)

    def prepare(self, position: int) -> None:
        """See to it that the shard has a memory, before its first id is written.

        Args:
            position: up to which no entry has an id if there is no memory: the own fence.

        Raises:
            StaleHandleError: another table is in the place of this one.
            UnavailableError, PermissionDeniedError: the store did not take it.
        """
        known = self._stored
        if known is None:
            first = Memory(position)
            # What is put in the folder of another table would be believed.
            self._core.arbiter.confirm_place()
            self._memories.put(first)
            with self._lock:
                stored = self._stored
                self._stored = first if stored is None else stored

    def holds(self, txn: Txn) -> bool:
        """Tell whether a transaction is applied. May read a file of older strings.

        Raises:
            HoldfastError: as for `Ledger.holds`.
        """
        with self._lock:
            stored = self._stored
            numbers = self._numbers.get(txn.app) if isinstance(txn, AppTxn) else None
            behind = txn in self._strings
        # Numbers behind the memory were merged with the stored ones when they were noted: they are
        # the whole answer, and no file is read.
        if numbers is not None and isinstance(txn, AppTxn):
            return txn.number in numbers
        return behind or (stored is not None and self._memories.ledger.holds(stored.entries, txn))

    def begin(self) -> NextEntry:
        """Begin the choice of what the next entry applies; for the one thread that writes."""
        return NextEntry(self)

    def numbers(self, app: str) -> Ranges:
        """Return the numbers of an application that are applied."""
        with self._lock:
            ranges = self._numbers.get(app)
            stored = self._stored
        return ranges or numbers_of({} if stored is None else stored.entries, app)

    def put_flushed(self, position: int) -> None:
        """Put the memory of a flushed cursor, if that can be done: it spares the next opener.

        Any position that is decided will do, as long as each id up to it was added here.

        Never raises an error of the stores: without it entries stay, and more of them are read.
        """
        with self._lock:
            stored, through = self._stored, self._through
            txns = [txn for at, some in self._behind if at <= position for txn in some]
        # Beyond `through` there may be entries whose ids nobody added here: a memory of such a
        # position would make them look unapplied for ever.
        if stored is None or not stored.position < position <= through:
            return
        try:
            memory = self._memories.extend(stored, position, txns)
            self._core.arbiter.confirm_place()
            self._memories.put(memory)
        except HoldfastError as error:
            log.warning("shard %s: ids stay in the log for now: %s", self._shard_id, error)
            return
        with self._lock:
            self._stored = memory
            while self._behind and self._behind[0][0] <= position:
                self._behind.popleft()
            self._forget_behind()
            for _, some in self._behind:
                self._note(some)

    def _forget_behind(self) -> None:
        self._numbers = {}
        self._strings = set()

    def _note(self, txns: Sequence[Txn]) -> None:
        """Count transactions as applied. Under the lock."""
        stored = {} if self._stored is None else self._stored.entries
        for txn in txns:
            if isinstance(txn, AppTxn):
                numbers = self._numbers.get(txn.app) or numbers_of(stored, txn.app)
                self._numbers[txn.app] = with_number(numbers, txn)
            else:
                self._strings.add(txn)


class NextEntry:
    """Chooses, put by put, what one entry applies: nothing twice.

    Attributes:
        txns: what was chosen.
    """

    def __init__(self, memory: LogMemory) -> None:
        self.txns: list[Txn] = []
        self._memory = memory
        self._numbers: dict[str, Ranges] = {}
        self._strings: set[Txn] = set()

    def takes(self, txn: Txn) -> bool:
        """Choose a transaction; False when it is applied, or chosen already.

        Raises:
            InvalidInputError: the numbers of its application would have too many gaps.
            HoldfastError: as for `LogMemory.holds`.
        """
        if isinstance(txn, AppTxn):
            numbers = self._numbers.get(txn.app) or self._memory.numbers(txn.app)
            if txn.number in numbers:
                return False
            more = with_number(numbers, txn)
            check_gaps(txn.app, more)
            self._numbers[txn.app] = more
        elif txn in self._strings or self._memory.holds(txn):
            return False
        else:
            self._strings.add(txn)
        self.txns.append(txn)
        return True


def with_number(numbers: Ranges, txn: AppTxn) -> Ranges:
    """Return the numbers of an application with those that a transaction applies."""
    return numbers.with_range(0 if txn.in_order else txn.number, txn.number)
