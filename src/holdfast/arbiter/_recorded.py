"""`RecordedDecisions`: a commit store decides, the object store keeps the bytes.

For object stores whose put-if-absent cannot be trusted. The record in the commit store is
the decision; the object at the name is its copy, and anybody who meets a record without
its object makes that copy. The steps, and what a crash after each leaves:

| step                                        | left behind by a crash                      |
|---------------------------------------------|---------------------------------------------|
| 1 the name before is finished and compared  | nothing                                     |
| 2 stage the bytes (few: inside the record)  | a staged object that nobody needs           |
| 3 put the record, if absent: **decided**    | a decision that the next reader finishes    |
| 4 look: the name must hold no other bytes,  | the same                                    |
|   and the pin must still be this table's    |                                             |
| 5 copy to the name                          | a finished decision, not marked as such     |
| 6 the record and the one before it must     | nothing, or a staged object nobody needs    |
|   still be there; mark it final and remove  |                                             |
|   what was staged                           |                                             |

Staged bytes are removed only by a loser that has read the winner's record, or after 5.
Steps 1, 4 and 6 are for a commit store that forgets: with a sound one they never object. The
look at the pin is for a table that is made anew under a handle (see `_stale`).
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from holdfast._clock import Clock, SystemClock
from holdfast._ids import TOKEN_PATTERN, Ids, RandomIds
from holdfast.arbiter._commit_store import CommitStore, Key, StoredEntry
from holdfast.arbiter._decision import (
    Arbiter,
    Attempts,
    Decision,
    Lost,
    RetryPolicy,
    Won,
    check_token,
)
from holdfast.arbiter._parallel import Together, choose_together
from holdfast.arbiter._place import refuse_replaced
from holdfast.arbiter._shedding import shed_bodies
from holdfast.arbiter._stale import is_stale_copy
from holdfast.arbiter._turns import Turn, Turns
from holdfast.errors import (
    AlreadyExistsError,
    BusyError,
    CollectedError,
    CommitStoreRegressedError,
    CommitUnknownError,
    ConflictError,
    CorruptError,
    ForeignVersionError,
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    StaleHandleError,
    UnavailableError,
    UnsupportedError,
    UpgradeError,
)
from holdfast.events import EventKind, emit
from holdfast.formats import (
    ArbiterKind,
    Name,
    Pin,
    Record,
    RecordState,
    decode_record,
    encode_record,
    make_record,
    number_of,
    pack_body,
)
from holdfast.storage import FullDiskError, Handle, ObjectStore

# What tells us nothing of a decision that was made: it stands, whatever these say. A table
# that was released and adopted again keeps it, one that was made anew does not.
_NO_ANSWER = (
    UnavailableError,
    PermissionDeniedError,
    UnsupportedError,
    NotFoundError,
    StaleHandleError,
    UpgradeError,
)

MOST_UNFINISHED = 8
"""How many names of a series may be decided and not at their names yet."""
_PATIENCE = 20  # looks for a name that somebody else is about to copy
_NAP_SECONDS = 0.005
_MOST_HELPED = 16  # names that one process copies for others, after its own
_LOOKS_AT_LINE = 50  # at those who wait for a turn, for each look for a name

INLINE_BYTES = 64 * 1024
"""Bodies up to this, compressed, travel inside the record and need no staging."""

T = TypeVar("T")


class _Finished(NamedTuple):
    """The highest number of a series that was seen finished, and who decided it."""

    number: int
    token: str | None


_NOTHING = _Finished(-1, None)

_NOT_YET: Literal["not yet"] = "not yet"  # nobody looked, or no answer came
_Looked: TypeAlias = bytes | Literal["not yet"] | None  # what is at a name; None: nothing


class _Tail(NamedTuple):
    """What was decided beyond a name, and what is at the name of the first of it."""

    records: Sequence[tuple[int, Record]]
    looked: _Looked = _NOT_YET


_NO_TAIL = _Tail(())


class RecordedDecisions(Handle):
    """Decides names of one table in a commit store."""

    def __init__(
        self,
        store: ObjectStore,
        commit_store: CommitStore,
        pin: Pin,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        retry: RetryPolicy | None = None,
        inline_bytes: int = INLINE_BYTES,
        most_unfinished: int = MOST_UNFINISHED,
        patience: int = _PATIENCE,
        together: Together | None = None,
    ) -> None:
        self.pin = pin
        self.refuses_old_names = True  # by the boundary of a series
        self._store = store
        self._commit_store = commit_store
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()
        self._attempts = Attempts(retry or RetryPolicy(), self._clock, self._ids)
        self._inline_bytes = inline_bytes
        self._most_unfinished = most_unfinished
        self._patience = patience
        self._together = together or choose_together(store)
        self._lock = threading.Lock()  # guards _finished, _decided and _told
        self._finished: dict[str, _Finished] = {}
        self._decided: dict[str, tuple[int, Record]] = {}  # the newest known of each series
        self._told: dict[str, int] = {}  # how far each series is finished, by what others say

    @property
    def commit_store(self) -> CommitStore:
        """Return the store of the records; to read from."""
        return self._commit_store

    def decide(self, name: Name, body: bytes, token: str) -> Decision:
        """Give `name` to `body` unless it is taken. Durable, and safe to repeat."""
        return self._decide(name, body, token, chains=False)

    def decide_next(
        self, name: Name, body: bytes, token: str, decided: Callable[[], None] | None = None
    ) -> Decision:
        """Decide as `decide` does, also on top of a name that is decided and not finished yet.

        For a caller that built on the bytes of a `Lost`: those are returned before they are at
        their name. `Won` means the same as ever: this name and all before it are finished.
        `decided` is called when ours is recorded and not at its name yet.
        """
        return self._decide(name, body, token, chains=True, decided=decided)

    def take_turn(self, series: str) -> Turn:
        """Stand in line with others that lost a decision of this series; see `_turns`."""
        key = Key(self._key_series(f"{series}/turns"), 0)
        turns = Turns(
            self._commit_store,
            key,
            self._clock,
            self._ids,
            self._patience * _LOOKS_AT_LINE,
            finished=lambda: self._finished_through(series),
        )
        turn = turns.take()
        self._note_told(series, turns.finished)
        return turn

    def peek_newest(self, series: str) -> bytes | None:
        """Return the bytes of the newest decision, as those of a `Lost`; None if not at hand.

        Raises:
            UnavailableError, PermissionDeniedError: the commit store did not tell.
        """
        entries = self._commit_store.scan(self._key_series(series), limit=1, newest_first=True)
        for entry in entries:
            record = decode_record(entry.value)
            if record.body is not None:
                self._note_decided(Name(record.path, series, entry.number), record)
                return record.body
        return None

    def _decided_before(self, name: Name) -> Record | None:
        """Return the record of the name before, if it is the newest that this process knows."""
        with self._lock:
            number, record = self._decided.get(name.series, (-1, None))
        return record if number == name.number - 1 else None

    def _keep_tail_short(self, name: Name) -> None:
        """Help instead of deciding where too many names would be decided and not finished."""
        least = name.number - self._most_unfinished
        if least < 1 or self._finished_through(name.series) >= least:
            return
        series, limit = self._series(name), self._most_unfinished
        entries = self._ask(
            name, lambda: self._commit_store.scan(series, after=least - 1, limit=limit)
        )
        if not entries or entries[0].number != least:
            return  # it was collected, so it was finished
        tail = [(entry.number, decode_record(entry.value)) for entry in entries]
        if not self._await_tail(name.series, tail):
            self._finish(Name(tail[0][1].path, name.series, least), tail[0][1])

    def _await_tail(self, series: str, tail: Sequence[tuple[int, Record]]) -> bool:
        """Give those who decided the tail the time to copy its first; for speed alone.

        One in the middle is looked at, too: if it is there, the next deciders need not look.
        """
        seen = [tail[0], tail[len(tail) // 2]]
        for number in range(self._patience):
            first, middle = self._together([partial(self._glimpse, one.path) for _, one in seen])
            for there, (reached, record) in ((middle, seen[1]), (first, seen[0])):
                if isinstance(there, bytes):
                    if record.matches(there):
                        self._note_told(series, reached)
                        return True
                    return False
            self._clock.sleep(_NAP_SECONDS * min(number + 1, 5))
        return False

    def _decide(
        self,
        name: Name,
        body: bytes,
        token: str,
        *,
        chains: bool,
        decided: Callable[[], None] | None = None,
    ) -> Decision:
        check_token(body, token)
        begun = self._clock.elapsed()
        # A chain saves the round trips of step 1: this process saw the record before, and step 5
        # finishes it before anything is put at our own name.
        before = self._decided_before(name) if chains else None
        if before is None:
            after = self._finish_previous(name)
        else:
            self._keep_tail_short(name)
            after = before.token
        packed = pack_body(body) if self._inline_bytes else None
        inline = len(body if packed is None else packed) <= self._inline_bytes
        record = make_record(name.path, body, token, after=after, inline=inline, packed=packed)
        winner = self._claim(name, record, body)
        self._note_decided(name, winner)
        decision: Decision
        if winner.token == token:
            if decided is not None:
                decided()
            # A repeat with the same token may bring other bytes, rebuilt on another version. The
            # first record stands, and its bytes are the ones that get the name.
            ours = body if winner.sha256 == record.sha256 else None
            tail = self._complete(name, winner, ours, before)
            if chains:
                self._help(name.series, tail)
            if record.staged != winner.staged:
                self._remove_staged(record)  # staged for a repeat of what was decided before
            if not name.stands_alone:
                shed_bodies(self._commit_store, self._series(name), name.number)
            decision = Won()
        else:
            # Who loses builds on these bytes without waiting for their copy, so a chain grows as
            # fast as the commit store decides. What is built on them is compared when it is
            # finished.
            if chains and winner.body is not None:
                winning = winner.body  # not finished: whoever builds on it compares it then
            else:
                winning = self._finish(name, winner)
            # Only now, with the winner's record read: before that, a lost answer could mean that
            # the record that stands names exactly these staged bytes.
            self._remove_staged(record)
            decision = Lost(winning)
        emit(
            EventKind.DECIDED,
            name=name.path,
            arbiter=ArbiterKind.COMMIT_STORE.value,
            outcome="won" if isinstance(decision, Won) else "lost",
            attempts=1,
            elapsed=self._clock.elapsed() - begun,
        )
        return decision

    def read(self, name: Name) -> bytes | None:
        """Return the decided bytes, finishing what somebody left unfinished; None if undecided."""
        record = self._record(name)
        if record is not None:
            return self._read_recorded(name, record)
        body = self._object(name.path)
        try:
            return None if body is None else self._read_unrecorded(name, body)
        except PermissionDeniedError:
            # A decision was recorded between our two looks, and this process may not copy it to its
            # name: then its bytes are read where they wait, as those of any other record.
            record = self._record(name)  # it came meanwhile
            if record is None:
                raise
            return self._read_recorded(name, record)

    def read_finished(self, name: Name) -> bytes | None:
        """Return the decided bytes once they are at their name; None if undecided.

        Raises:
            PermissionDeniedError: they are not, and this process may not put them there.
        """
        record = self._record(name)
        return self.read(name) if record is None else self._finish(name, record)

    def newest(self, series: str) -> int | None:
        """Return the highest decided number of a series, or None."""
        key, asked = self._key_series(series), Name.single(series)
        entries = self._ask(asked, lambda: self._commit_store.scan(key, limit=1, newest_first=True))
        # All records of a series may have been collected; then the boundary is what is left of
        # them.
        if entries:
            return entries[0].number
        boundary = self._ask(asked, lambda: self._commit_store.boundary(key))
        return boundary if boundary >= 0 else None

    def accept(self, series: str, through: int) -> None:
        """Take what the object store holds up to `through` as decided; for operators.

        The way out of `ForeignVersionError` and `CommitStoreRegressedError`, and the floor
        of an adopted table: records up to `through` are dropped, and the objects count.
        """
        removed = self._commit_store.collect(self._key_series(series), through)
        emit(EventKind.COLLECTED, series=series, through=through, records=removed)

    def retire(self) -> None:
        """End this table's id: every handle of it is refused from now on, this one as well."""
        self._commit_store.retire(self.pin.table_id)

    def confirm_place(self, *, if_cheap: bool = False) -> None:
        """Do nothing: the commit store refuses the id of a table that was made anew."""

    def close(self) -> None:
        """Let go of the commit store's connections."""
        self._commit_store.close()

    def _read_recorded(self, name: Name, record: Record) -> bytes:
        """Return decided bytes; who may not write reads them where they wait."""
        try:
            return self._finish(name, record)
        except PermissionDeniedError:
            waiting = record.body
            if waiting is None and record.staged is not None:
                waiting = self._object(record.staged)
            if waiting is None:
                raise
            return waiting  # not noted as finished: nobody builds on it from here

    # Step 1.
    def _finish_previous(self, name: Name) -> str | None:
        """Never build on an unfinished or changed name: finish the one before, and compare it.

        Returns:
            The token of the one before; None where nobody here decided it.
        """
        number = name.number - 1
        if name.stands_alone or number < 0:
            return None
        # Finished once is finished for good, so what this process saw is not asked for again.
        seen = self._seen_finished(name.series)
        if seen.number == number:
            return seen.token
        series = self._series(name)
        value = self._ask(name, lambda: self._commit_store.get(Key(series, number)))
        if value is not None:
            record = decode_record(value)
            self._finish(Name(record.path, name.series, number), record)
            return record.token
        # No record at or below the boundary: it was finished before it was collected, or the table
        # was adopted with it. Above the boundary a missing record means that nobody decided it.
        if name.previous is None or number <= self._boundary(name):
            self._note_finished(name.series, _Finished(number, None))
            return None
        body = self._object(name.previous)
        previous = Name(name.previous, name.series, number)
        if body is None or self._read_unrecorded(previous, body) is None:
            raise ConflictError(
                "the name before this one is not decided yet: read again and rebuild",
                name=name.path,
                missing=name.previous,
            )
        seen = self._seen_finished(name.series)
        return seen.token if seen.number == number else None

    # Steps 2 and 3.
    def _claim(self, name: Name, record: Record, body: bytes) -> Record:
        """Put the record if absent and return the one that is there: ours, or the winner's."""
        if record.staged is not None:
            staged = record.staged
            # Staged before the record, never after it: a record that names bytes which are not
            # there could not be finished by anybody, and the series would end here.
            self._ask(name, lambda: self._store.put(staged, body))
        key, value = self._key(name), encode_record(record)
        sent, why = False, None
        for attempt in self._attempts.of(name.path, "record"):
            try:
                there = self._commit_store.put_if_absent(key, value)
                return record if there is None else decode_record(there)
            except UnavailableError as error:
                # A busy or full store has refused before it wrote. After a silent try that is no
                # answer any more: the try before may have landed.
                if isinstance(error, BusyError | FullDiskError) and not sent:
                    raise  # waited long enough already, and stored nothing
                sent = True
                attempt.reason = why = str(error)
            except CollectedError:
                # The number is at or below the boundary. If an earlier try of ours landed, was
                # finished by a helper and collected since, the decision is ours nevertheless.
                return self._resolve_collected(name, record, sent=sent)
            except HoldfastError as error:
                if sent:  # an earlier try may have landed: this refusal says nothing of it
                    raise _unknown(name, decided=False) from error
                raise
            # The put that gave no answer may still be under way. Reading ours proves that it
            # landed; reading nothing proves nothing, so the same record is put again: put-if-absent
            # makes that harmless.
            seen = self._read_back(name)
            if seen is not None:
                return seen
        raise _unknown(name, decided=False, why=why)

    def _read_back(self, name: Name) -> Record | None:
        """Return the record after a silent try; None if there is none, or no answer."""
        try:
            value = self._commit_store.get(self._key(name))
        except UnavailableError:
            return None
        except HoldfastError as error:
            raise _unknown(name, decided=False) from error
        return None if value is None else decode_record(value)

    def _resolve_collected(self, name: Name, record: Record, *, sent: bool) -> Record:
        """Find out whether a decision whose record is gone was ours.

        Raises:
            CollectedError: it was another's; the caller slept through it.
            CommitUnknownError: a try without an answer came before, and no bytes are left to
                tell whose they were.
        """
        try:
            body = self._object(name.path)
        except _NO_ANSWER as error:
            raise _unknown(name, decided=False) from error
        # The bytes may have been ours, used and collected. Neither "won" nor "lost" can be shown.
        if body is None and sent:
            raise _unknown(name, decided=False)
        if body is None or record.token.encode() not in body:
            raise CollectedError("decided long ago: read the table again", name=name.path)
        # The record is gone, but the token in the bytes says whose they are; tokens are never used
        # twice.
        ours = make_record(name.path, body, record.token, after=None, inline=True)
        return ours.to_finished()

    def _await_previous(self, name: Name, before: Record) -> _Looked:
        """Give whoever decided the name before the time to copy it; for speed alone.

        Whatever comes of it: `_finish` copies what is missing, in order.

        Returns:
            What is at our own name. Bytes that somebody put there: then all before it are there,
            too. None: the one before is there and ours is not, and the pin was looked at beside
            it, as in step 4. Otherwise that look is yet to be made.
        """
        for number in range(self._patience):
            if self._seen_finished(name.series).number >= name.number - 1:
                break
            begun = self._clock.elapsed()
            glimpses = [partial(self._glimpse, path) for path in (name.path, before.path)]
            pin = [] if number else [partial(self._refuse_replaced, name)]
            there, body, *_ = self._together([*glimpses, *pin])
            if isinstance(there, bytes):
                return there
            if isinstance(body, bytes):
                if not before.matches(body):
                    break
                self._note_finished(name.series, _Finished(name.number - 1, before.token))
                # Who had to wait saw the chain move: whoever moves it is about to copy ours, too.
                return None if there is None and pin else _NOT_YET
            # A chain moves on one name per round trip. Looking more often than the names ahead of
            # us can arrive would only load the store; half of the expected time keeps us from
            # oversleeping.
            trip = self._clock.elapsed() - begun
            ahead = name.number - 2 - number - self._finished_through(name.series)
            nap = min(max(ahead, 0), self._most_unfinished) * trip / 2
            self._clock.sleep(max(nap, _NAP_SECONDS * min(number + 1, 3)))
        return _NOT_YET

    def _glimpse(self, path: str) -> _Looked:
        """Return what is at a path, as far as anybody answers."""
        try:
            return self._store.get(path)
        except NotFoundError:
            return None
        except HoldfastError:
            return _NOT_YET

    # Steps 4 to 6, of our own decision.
    def _complete(
        self, name: Name, record: Record, ours: bytes | None, before: Record | None
    ) -> _Tail:
        """Return what was decided beyond this name meanwhile, and is ours to copy."""
        meets_others = before is not None and not self._saw_finished(name.series, name.number - 1)
        try:
            # Waiting first is cheaper than copying for others: with eight deciders in a chain each
            # of them would otherwise copy the whole tail.
            body = _NOT_YET if before is None else self._await_previous(name, before)
            if body == _NOT_YET:
                (body,) = self._look([name])
            # Where others decide, too, the next name is looked at beside our copy.
            beyond = self._records_beyond(name) if meets_others and body is None else ()
            looked = self._finish_and_look(name, record, ours, body, beyond)
            behind = self._confirm(name, record)
        except _NO_ANSWER as error:
            raise _unknown(name, decided=True) from error
        if body is not None:
            return _NO_TAIL  # whoever copied ours goes on: two would copy the same bytes twice
        # A look counts for the record that was read before it, and for no other one.
        return _Tail(behind, looked if behind[:1] == beyond[:1] else _NOT_YET)

    def _look(self, names: Sequence[Name]) -> list[bytes | None]:
        """Look at names that are about to be copied to, and at the pin (step 4)."""
        *bodies, _ = self._together(self._looks(names))
        return [one if isinstance(one, bytes) else None for one in bodies]

    def _looks(self, names: Sequence[Name]) -> list[Callable[[], object]]:
        calls: list[Callable[[], object]] = [partial(self._object, name.path) for name in names]
        return [*calls, partial(self._refuse_replaced, names[0])] if names else []

    def _finish_and_look(
        self,
        name: Name,
        record: Record,
        ours: bytes | None,
        looked: bytes | None,
        beyond: Sequence[tuple[int, Record]],
    ) -> _Looked:
        """Finish a name; return what is at the first one beyond it, looked at side by side."""
        names = [Name(one.path, name.series, number) for number, one in beyond[:1]]
        looks = [partial(_try, call) for call in self._looks(names)]
        finish = partial(self._finish, name, record, ours, looked)
        _, *answers = self._together([finish, *looks])
        if not answers or any(isinstance(one, HoldfastError) for one in answers):
            return _NOT_YET  # ours is finished all the same
        return answers[0] if isinstance(answers[0], bytes) else None

    def _help(self, series: str, tail: _Tail) -> None:
        """Copy what was decided meanwhile, as long as more comes; whoever decided it waits for it.

        While one is copied, the name of the next one is looked at: so a chain is copied in one
        round trip each, and nobody waits for somebody else to notice. What goes wrong with it
        is theirs to find: our own name is finished and confirmed.
        """
        waiting, looked = tail
        with suppress(HoldfastError):
            if waiting and looked == _NOT_YET:
                looked = self._look([Name(waiting[0][1].path, series, waiting[0][0])])[0]
            for _ in range(_MOST_HELPED):
                if not waiting or looked is not None:
                    return  # nothing is left, or somebody else copies them
                (number, record), *waiting = waiting
                name = Name(record.path, series, number)
                waiting = waiting or self._records_beyond(name)
                looked = self._finish_and_look(name, record, record.body, looked, waiting)

    # Steps 4 and 5.
    def _finish(
        self,
        name: Name,
        record: Record,
        ours: bytes | None = None,
        looked: _Looked = _NOT_YET,
    ) -> bytes:
        """Make the name hold exactly the decided bytes, and return them.

        `ours` are these bytes when they are at hand: then they are not fetched again. `looked`
        is what was at the name, once the record was known and the pin looked at.
        """
        seen = self._seen_finished(name.series)
        # A commit store that was set back hands out the same number twice, built on different
        # bytes. Whoever has seen the first of them finished notices here, before a byte is copied.
        if record.after and seen.token and seen.number == name.number - 1:
            self._check_lineage(name, record, seen.token)
        # Looked at before the copy even where the store honours put-if-absent: stores are used here
        # that ignore the condition, and a blind put would overwrite what is there without a word.
        body = self._object(name.path) if looked == _NOT_YET else looked
        if body is None:
            # The order is what listings rely on: find_newest takes the highest name it sees, and
            # every name below it must be there.
            self._finish_before(name, record)
            # A look at the pin cannot be older than the look at the name: a table that was made
            # anew has the same names. The remaining window, between this look and the put, is
            # `_stale`'s.
            if looked == _NOT_YET:
                self._refuse_replaced(name)
            body = self._copy_to_name(name, record, ours)
        if not record.matches(body):
            # Foreign bytes at a decided name stay untouched unless an earlier table's record proves
            # that a stale handle put them there. Anything else is for an operator.
            body = self._replace_stale(name, record, body, ours)
        self._note_finished(name.series, _Finished(name.number, record.token))
        return body

    def _finish_before(self, name: Name, record: Record) -> None:
        """Copy in order: nothing is put at a name before the one before it is finished.

        So a name that is there tells that all before it are, and whoever lists the names sees
        no hole.
        """
        number = name.number - 1
        if name.stands_alone or number < 1 or record.after is None:
            return  # nobody here decided the one before: it counts as it is
        if self._seen_finished(name.series).number >= number:
            return
        series = self._series(name)
        value = self._ask(name, lambda: self._commit_store.get(Key(series, number)))
        if value is None:
            if number > self._boundary(name):
                raise self._forgotten_error(name, number)
            return
        before = decode_record(value)
        self._check_lineage(name, record, before.token)
        self._finish(Name(before.path, name.series, number), before)

    def _replace_stale(self, name: Name, record: Record, stale: bytes, ours: bytes | None) -> bytes:
        """Put the decided bytes over those that a stale handle left at the name."""
        self._refuse_replaced(name)
        body = ours if record.body is None else record.body
        if body is None and record.staged is not None:
            body = self._object(record.staged)
        if body is None or not self._is_stale_copy(name, stale):
            raise self._changed_error(name, record, stale)
        decided = body
        self._ask(name, lambda: self._put_back(name.path, decided))
        emit(EventKind.FINISHED, name=name.path)
        return decided

    def _look_below(self, name: Name) -> bytes | None:
        """Finish no decision below others: its bytes were there once, and collected.

        Asked by a process that knows nothing of the series yet: then its newest record may
        come from a commit store that was set back to before a collection. Bytes that came
        since are returned.
        """
        folder = posixpath.dirname(name.path)
        listed = self._ask(name, lambda: self._store.list(folder))
        if max((number_of(info.path) or 0 for info in listed), default=0) <= name.number:
            return None
        body = self._object(name.path)
        if body is not None:
            return body
        if self._record(name) is None and name.number <= self._boundary(name):
            raise CollectedError("collected a moment ago: read the table again", name=name.path)
        raise self._forgotten_error(name, name.number + 1)

    def _is_stale_copy(self, name: Name, body: bytes) -> bool:
        return self._ask(
            name,
            lambda: is_stale_copy(self._store, self._commit_store, self.pin, name, body),
        )

    def _refuse_replaced(self, name: Name) -> None:
        """Write nothing into a place that holds another table by now, and explain nothing there."""
        self._ask(name, lambda: refuse_replaced(self._store, self.pin))

    def _copy_to_name(self, name: Name, record: Record, ours: bytes | None) -> bytes:
        # A fresh process cannot tell a decision that waits for its copy from one whose object was
        # vacuumed and whose record came back with a restored backup. Later names in the listing
        # tell them apart.
        if ours is None and self._seen_finished(name.series) == _NOTHING:
            there = self._look_below(name)
            if there is not None:
                return there
        # Final means that the copy was seen at the name. It is gone since, and the staged bytes
        # with it: deleted by somebody, and nothing here can bring it back.
        if record.state is RecordState.FINAL:
            raise CorruptError("decided bytes are gone from the store", name=name.path)
        why = None
        for attempt in self._attempts.of(name.path, "copy"):
            try:
                copied = self._copy_once(name, record, ours)
            except UnavailableError as error:
                attempt.reason = why = str(error)
                continue
            if copied is not None:
                if ours is None:
                    emit(EventKind.FINISHED, name=name.path)
                return copied
        raise _unknown(name, decided=True, why=why)

    def _copy_once(self, name: Name, record: Record, ours: bytes | None) -> bytes | None:
        """Copy, and return the bytes at the name; None when the store refused for no reason."""
        try:
            if record.body is not None:
                self._put_if_absent(name.path, record.body)
                return record.body
            self._copy_if_absent(str(record.staged), name.path)
            return self._store.get(name.path) if ours is None else ours
        except AlreadyExistsError:
            return self._object(name.path)  # a helper's copy; None after a 409
        except NotFoundError:
            # Nothing is staged any more: somebody finished, and removed it since.
            copied = self._object(name.path)
            if copied is None:
                raise CorruptError("decided bytes are gone", name=name.path) from None
            return copied

    def _put_back(self, path: str, body: bytes) -> None:
        self._store.put(path, body)

    def _put_if_absent(self, path: str, body: bytes) -> None:
        # A store that honours the condition then also protects the bytes from strangers.
        try:
            self._store.put_if_absent(path, body)
        except UnsupportedError:
            self._store.put(path, body)

    def _copy_if_absent(self, source: str, target: str) -> None:
        try:
            self._store.copy(source, target, if_absent=self._store.copies_if_absent)
        except UnsupportedError:
            self._store.copy(source, target)

    # Step 6.
    def _confirm(self, name: Name, record: Record) -> Sequence[tuple[int, Record]]:
        """Acknowledge nothing that the commit store no longer knows.

        Returns:
            What was decided beyond this name meanwhile.
        """
        if record.state is RecordState.STAGED:
            # Marked final before the staged bytes are removed: a record that is still STAGED
            # promises that they are there.
            old, final = encode_record(record), encode_record(record.to_finished())
            self._ask(name, lambda: self._commit_store.compare_and_set(self._key(name), old, final))
        # Read after the copy, and from the commit store itself: a failover that lost our record
        # since step 3 must not be acknowledged. One request tells of the name before, ours, and the
        # tail.
        before, there, behind = self._records_around(name)
        # Others may have built on ours, and vacuum may have collected it, while this process slept.
        if there is None and name.number <= self._boundary(name):
            self._confirm_collected(name, record)
            return ()
        if there is None or there.token != record.token:
            raise self._forgotten_error(name, name.number)
        if before is None and record.after and name.number - 1 > self._boundary(name):
            raise self._forgotten_error(name, name.number - 1)
        # The one before ours can be forgotten as well as ours: then a second history is being
        # written below us, and what we acknowledge would not be part of it.
        if before is not None and record.after:
            self._check_lineage(name, record, before.token)
        if there.state is RecordState.FINAL:
            # Left in place unless the mark is seen: whoever meets a STAGED record copies from it.
            self._remove_staged(record)
        return behind

    def _records_beyond(self, name: Name) -> Sequence[tuple[int, Record]]:
        """Return what was decided beyond a name."""
        entries = self._ask(
            name,
            lambda: self._commit_store.scan(
                self._series(name), after=name.number, limit=self._most_unfinished
            ),
        )
        return [(entry.number, decode_record(entry.value)) for entry in entries]

    def _records_around(
        self, name: Name
    ) -> tuple[Record | None, Record | None, Sequence[tuple[int, Record]]]:
        """Return the records before a name, its own, and those beyond it, by one request."""
        if name.stands_alone or not name.number:
            return None, self._record(name), ()
        limit = 2 + self._most_unfinished
        entries: Sequence[StoredEntry] = self._ask(
            name,
            lambda: self._commit_store.scan(self._series(name), after=name.number - 2, limit=limit),
        )
        records = {entry.number: decode_record(entry.value) for entry in entries}
        behind = [(number, one) for number, one in sorted(records.items()) if number > name.number]
        return records.get(name.number - 1), records.get(name.number), behind

    def _forgotten_error(self, name: Name, number: int) -> CommitStoreRegressedError:
        return CommitStoreRegressedError(
            "the commit store no longer knows a decision that it made: stop writing, see "
            "docs/troubleshooting.md",
            name=name.path,
            number=number,
            store=self._commit_store.url,
        )

    def _confirm_collected(self, name: Name, record: Record) -> None:
        """The record is gone because somebody saw bytes at the name: they must be ours.

        Bytes that are gone, too, were used and collected: ours in all likelihood, but not shown.
        """
        body = self._object(name.path)
        if body is None:
            raise _unknown(name, decided=True)
        if not record.matches(body):
            raise self._changed_error(name, record, body)

    def _remove_staged(self, record: Record) -> None:
        if record.staged is None:
            return
        try:
            self._store.delete([record.staged])
        except HoldfastError as error:
            emit(EventKind.LEFT_BEHIND, path=record.staged, reason=error.kind.value)

    def _ask(self, name: Name, call: Callable[[], T]) -> T:
        """Repeat a call that can be repeated without harm, until it answers.

        Raises:
            UnavailableError: it never did.
        """
        last: UnavailableError | None = None
        for attempt in self._attempts.of(name.path, "ask"):
            try:
                return call()
            except BusyError:
                # It has waited for as long as its caller allows already; six such waits would be
                # minutes.
                raise
            except UnavailableError as error:
                last = error
                attempt.reason = str(error)
        raise last or UnavailableError("no attempt was made", name=name.path)

    def _record(self, name: Name) -> Record | None:
        value = self._ask(name, lambda: self._commit_store.get(self._key(name)))
        return None if value is None else decode_record(value)

    def _boundary(self, name: Name) -> int:
        return self._ask(name, lambda: self._commit_store.boundary(self._series(name)))

    def _object(self, path: str) -> bytes | None:
        try:
            return self._ask(Name.single(path), lambda: self._store.get(path))
        except NotFoundError:
            return None

    def _read_unrecorded(self, name: Name, body: bytes) -> bytes | None:
        """Explain bytes whose record was not there a moment ago; None for a stale handle's.

        Either it was put since, or it was collected, or nobody decided these bytes. Asked in
        this order: a record that is missing now was collected before now, or never was.
        """
        record = self._record(name)
        if record is not None:
            return self._finish(name, record)
        if name.number <= self._boundary(name):
            return body
        self._refuse_replaced(name)
        if self._is_stale_copy(name, body):
            return None
        raise self._undecided_error(name, body)

    def _check_lineage(self, name: Name, record: Record, known: str) -> None:
        """Refuse a decision that was built on another predecessor than the one we know."""
        if record.after == known:
            return
        raise CommitStoreRegressedError(
            "two different decisions of one name are known, so the commit store forgot one: "
            "stop writing, see docs/troubleshooting.md",
            name=name.path,
            number=name.number - 1,
            known=known,
            built_on=record.after,
            store=self._commit_store.url,
        )

    def _undecided_error(self, name: Name, body: bytes) -> HoldfastError:
        """Explain bytes that no record covers: the commit store forgot, or somebody wrote past us.

        Foreign bytes carry the token of the decision they were built on, which is still
        recorded; a forgotten decision carries its own.
        """
        # Lance copies the config of the version before into the next one, so a foreign version
        # carries our token of that one. A token that is in no record and not in the bytes before
        # was decided here.
        before = self._object(name.previous) if name.previous else None
        ours = _marks(body) - _marks(before or b"") - self._recorded_marks(name)
        error, what = (
            (CommitStoreRegressedError, "the commit store forgot a decision")
            if ours
            else (ForeignVersionError, "somebody wrote this name past Holdfast")
        )
        return error(
            f"{what}: stop writing, see docs/troubleshooting.md",
            name=name.path,
            number=name.number,
            size=len(body),
            newest_recorded=self.newest(name.series),
            store=self._commit_store.url,
        )

    def _recorded_marks(self, name: Name) -> set[bytes]:
        """Return the tokens of the newest decisions of a name's series."""
        entries = self._ask(
            name, lambda: self._commit_store.scan(self._series(name), limit=100, newest_first=True)
        )
        return {decode_record(entry.value).token.encode() for entry in entries}

    def _changed_error(self, name: Name, record: Record, body: bytes) -> HoldfastError:
        """Explain bytes that differ from the record."""
        return ForeignVersionError(
            "the bytes at this name are not the decided ones: somebody wrote past Holdfast, or "
            "the commit store was set back; stop writing, see docs/troubleshooting.md",
            name=name.path,
            number=name.number,
            decided_size=record.size,
            found_size=len(body),
            decided_by=record.token,
            store=self._commit_store.url,
        )

    def _key_series(self, series: str) -> str:
        return f"{self.pin.table_id}/{series}"

    def _series(self, name: Name) -> str:
        return self._key_series(name.series)

    def _key(self, name: Name) -> Key:
        return Key(self._series(name), name.number)

    def _seen_finished(self, series: str) -> _Finished:
        with self._lock:
            return self._finished.get(series, _NOTHING)

    def _saw_finished(self, series: str, number: int) -> bool:
        return self._seen_finished(series).number >= number

    def _note_decided(self, name: Name, record: Record) -> None:
        with self._lock:
            if name.number >= self._decided.get(name.series, (-1, record))[0]:
                self._decided[name.series] = (name.number, record)

    def _note_told(self, series: str, number: int) -> None:
        with self._lock:
            self._told[series] = max(number, self._told.get(series, -1))

    def _finished_through(self, series: str) -> int:
        """Return how far a series is finished, by what we saw or were told."""
        with self._lock:
            return max(self._told.get(series, -1), self._finished.get(series, _NOTHING).number)

    def _note_finished(self, series: str, seen: _Finished) -> None:
        with self._lock:
            if seen.number >= self._finished.get(series, _NOTHING).number:
                self._finished[series] = seen


def for_reading(arbiter: Arbiter) -> Arbiter:
    """Return an arbiter over the same stores that finishes nothing and decides nothing."""
    if not isinstance(arbiter, RecordedDecisions):
        return arbiter  # its reads write nothing
    return _ReadOnly(arbiter._store, arbiter._commit_store, arbiter.pin)  # noqa: SLF001


class _ReadOnly(RecordedDecisions):
    """Reads what was decided where it is, in place or not: for those who only look."""

    def decide(self, name: Name, body: bytes, token: str) -> Decision:  # noqa: ARG002
        raise _read_only(name.path)

    def _put_back(self, path: str, body: bytes) -> None:  # noqa: ARG002
        raise _read_only(path)

    def _put_if_absent(self, path: str, body: bytes) -> None:  # noqa: ARG002
        raise _read_only(path)

    def _copy_if_absent(self, source: str, target: str) -> None:  # noqa: ARG002
        raise _read_only(target)


def _read_only(path: str) -> PermissionDeniedError:
    return PermissionDeniedError("this handle is for reading only", name=path)


def _try(call: Callable[[], object]) -> object:
    """Return the answer of a call, or the error that it raised."""
    try:
        return call()
    except HoldfastError as error:
        return error


def _marks(body: bytes) -> set[bytes]:
    return set(TOKEN_PATTERN.findall(body))


def _unknown(name: Name, *, decided: bool, why: str | None = None) -> CommitUnknownError:
    reason = "decided, but not yet copied to its name" if decided else "no answer"
    emit(EventKind.UNKNOWN, name=name.path, attempts=0, reason=reason)
    return CommitUnknownError(
        f"{reason}: repeat the decision with the same token",
        name=name.path,
        decided=decided,
        reason=why,
    )
