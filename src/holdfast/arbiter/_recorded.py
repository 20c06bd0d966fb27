"""`RecordedDecisions`: a commit store decides, the object store keeps the bytes.

For object stores whose put-if-absent cannot be trusted. The record in the commit store is
the decision; the object at the name is its copy, and anybody who meets a record without
its object makes that copy. The steps, and what a crash after each leaves:

| step                                        | left behind by a crash                      |
|---------------------------------------------|---------------------------------------------|
| 1 the name before is finished and compared  | nothing                                     |
| 2 stage the bytes (few: inside the record)  | a staged object that nobody needs           |
| 3 put the record, if absent: **decided**    | a decision that the next reader finishes    |
| 4 look: the name must hold no other bytes   | the same                                    |
| 5 copy to the name                          | a finished decision, not marked as such     |
| 6 the record must still be there; mark it   | nothing, or a staged object nobody needs    |
|   final and remove what was staged          |                                             |

Staged bytes are removed only by a loser that has read the winner's record, or after 5.
Steps 1, 4 and 6 are for a commit store that forgets: with a sound one they never object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from holdfast._clock import Clock, SystemClock
from holdfast._ids import TOKEN_PATTERN, Ids, RandomIds
from holdfast.arbiter._commit_store import CommitStore, Key
from holdfast.arbiter._decision import (
    Attempts,
    Decision,
    Lost,
    RetryPolicy,
    Won,
    check_token,
)
from holdfast.errors import (
    AlreadyExistsError,
    CollectedError,
    CommitStoreRegressedError,
    CommitUnknownError,
    ConflictError,
    CorruptError,
    ForeignVersionError,
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedError,
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
)
from holdfast.storage import Handle, ObjectStore

# What tells us nothing of a decision that was made: it stands, whatever these say.
_NO_ANSWER = (UnavailableError, PermissionDeniedError, UnsupportedError, NotFoundError)

INLINE_BYTES = 64 * 1024
"""Bodies up to this travel inside the record and need no staging."""

T = TypeVar("T")


class _Finished(NamedTuple):
    """The highest number of a series that was seen finished, and who decided it."""

    number: int
    token: str | None


_NOTHING = _Finished(-1, None)


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
    ) -> None:
        self.pin = pin
        self._store = store
        self._commit_store = commit_store
        self._clock = clock or SystemClock()
        self._attempts = Attempts(retry or RetryPolicy(), self._clock, ids or RandomIds())
        self._inline_bytes = inline_bytes
        self._lock = threading.Lock()  # guards _finished
        self._finished: dict[str, _Finished] = {}

    def decide(self, name: Name, body: bytes, token: str) -> Decision:
        """Give `name` to `body` unless it is taken. Durable, and safe to repeat."""
        check_token(body, token)
        begun = self._clock.elapsed()
        after = self._finish_previous(name)
        inline = len(body) <= self._inline_bytes
        record = make_record(name.path, body, token, after=after, inline=inline)
        winner = self._claim(name, record, body)
        decision: Decision
        if winner.token == token:
            self._complete(name, winner, body if winner.sha256 == record.sha256 else None)
            if record.staged != winner.staged:
                self._remove_staged(record)  # staged for a repeat of what was decided before
            decision = Won()
        else:
            found = self._finish(name, winner)
            self._remove_staged(record)
            decision = Lost(found)
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
            return self._finish(name, record)
        found = self._object(name.path)
        return None if found is None else self._read_unrecorded(name, found)

    def newest(self, series: str) -> int | None:
        """Return the highest decided number of a series, or None."""
        entries = self._commit_store.scan(self._key_series(series), limit=1, newest_first=True)
        if entries:
            return entries[0].number
        boundary = self._commit_store.boundary(self._key_series(series))
        return boundary if boundary >= 0 else None

    def accept(self, series: str, through: int) -> None:
        """Take what the object store holds up to `through` as decided; for operators.

        The way out of `ForeignVersionError` and `CommitStoreRegressedError`, and the floor
        of an adopted table: records up to `through` are dropped, and the objects count.
        """
        removed = self._commit_store.collect(self._key_series(series), through)
        emit(EventKind.COLLECTED, series=series, through=through, records=removed)

    def close(self) -> None:
        """Let go of the commit store's connections."""
        self._commit_store.close()

    # Step 1.
    def _finish_previous(self, name: Name) -> str | None:
        """Never build on an unfinished or changed name: finish the one before, and compare it.

        Returns:
            The token of the one before; None where nobody here decided it.
        """
        number = name.number - 1
        if name.stands_alone or number < 0:
            return None
        seen = self._seen_finished(name.series)
        if seen.number == number:
            return seen.token
        series = self._series(name)
        value = self._ask(name, lambda: self._commit_store.get(Key(series, number)))
        if value is not None:
            record = decode_record(value)
            self._finish(Name(record.path, name.series, number), record)
            return record.token
        if name.previous is None or number <= self._boundary(name):
            self._note_finished(name.series, _Finished(number, None))
            return None
        found = self._object(name.previous)
        if found is None:
            raise ConflictError(
                "the name before this one is not decided yet: read again and rebuild",
                name=name.path,
                missing=name.previous,
            )
        self._read_unrecorded(Name(name.previous, name.series, number), found)
        seen = self._seen_finished(name.series)
        return seen.token if seen.number == number else None

    # Steps 2 and 3.
    def _claim(self, name: Name, record: Record, body: bytes) -> Record:
        """Put the record if absent and return the one that is there: ours, or the winner's."""
        if record.staged is not None:
            staged = record.staged
            self._ask(name, lambda: self._store.put(staged, body))
        key, value = self._key(name), encode_record(record)
        sent = False
        for attempt in self._attempts.of(name.path, "record"):
            try:
                there = self._commit_store.put_if_absent(key, value)
                return record if there is None else decode_record(there)
            except UnavailableError as error:
                sent = True
                attempt.reason = str(error)
            except CollectedError:
                return self._collected(name, record, sent=sent)
            except HoldfastError as error:
                if sent:  # an earlier try may have landed: this refusal says nothing of it
                    raise _unknown(name, decided=False) from error
                raise
            try:
                seen = self._commit_store.get(key)
            except UnavailableError:
                continue
            except HoldfastError as error:
                raise _unknown(name, decided=False) from error
            if seen is not None:
                return decode_record(seen)
        raise _unknown(name, decided=False)

    def _collected(self, name: Name, record: Record, *, sent: bool) -> Record:
        """Find out whether a decision whose record is gone was ours.

        Raises:
            CollectedError: it was another's; the caller slept through it.
            CommitUnknownError: a try without an answer came before, and no bytes are left to
                tell whose they were.
        """
        try:
            found = self._object(name.path)
        except _NO_ANSWER as error:
            raise _unknown(name, decided=False) from error
        if found is None and sent:
            raise _unknown(name, decided=False)
        if found is None or record.token.encode() not in found:
            raise CollectedError("decided long ago: read the table again", name=name.path)
        ours = make_record(name.path, found, record.token, after=None, inline=True)
        return ours.finished()

    # Steps 4 to 6, of our own decision.
    def _complete(self, name: Name, record: Record, ours: bytes | None) -> None:
        try:
            self._finish(name, record, ours)
            self._confirm(name, record)
        except _NO_ANSWER as error:
            raise _unknown(name, decided=True) from error

    # Steps 4 and 5.
    def _finish(self, name: Name, record: Record, ours: bytes | None = None) -> bytes:
        """Make the name hold exactly the decided bytes, and return them.

        `ours` are these bytes when they are at hand: then they are not fetched again.
        """
        seen = self._seen_finished(name.series)
        if record.after and seen.token and seen.number == name.number - 1:
            self._check_lineage(name, record, seen.token)
        found = self._object(name.path)
        if found is None:
            found = self._copy_to_name(name, record, ours)
        if not record.matches(found):
            raise self._changed(name, record, found)
        self._note_finished(name.series, _Finished(name.number, record.token))
        return found

    def _copy_to_name(self, name: Name, record: Record, ours: bytes | None) -> bytes:
        if record.state is RecordState.FINAL:
            raise CorruptError("decided bytes are gone from the store", name=name.path)
        for attempt in self._attempts.of(name.path, "copy"):
            try:
                found = self._copy_once(name, record, ours)
            except UnavailableError as error:
                attempt.reason = str(error)
                continue
            if found is not None:
                if ours is None:
                    emit(EventKind.FINISHED, name=name.path)
                return found
        raise _unknown(name, decided=True)

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
            found = self._object(name.path)
            if found is None:
                raise CorruptError("decided bytes are gone", name=name.path) from None
            return found

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
    def _confirm(self, name: Name, record: Record) -> None:
        """Acknowledge nothing that the commit store no longer knows."""
        if record.state is RecordState.STAGED:
            old, final = encode_record(record), encode_record(record.finished())
            self._ask(name, lambda: self._commit_store.compare_and_set(self._key(name), old, final))
        there = self._record(name)
        if there is None and name.number <= self._boundary(name):
            self._confirm_collected(name, record)
            return
        if there is None or there.token != record.token:
            raise CommitStoreRegressedError(
                "the commit store no longer knows a decision that it made just now: stop "
                "writing, see docs/troubleshooting.md",
                name=name.path,
                number=name.number,
                store=self._commit_store.url,
            )
        if there.state is RecordState.FINAL:
            self._remove_staged(record)

    def _confirm_collected(self, name: Name, record: Record) -> None:
        """The record is gone because somebody saw bytes at the name: they must be ours.

        Bytes that are gone, too, were used and collected: ours in all likelihood, but not shown.
        """
        found = self._object(name.path)
        if found is None:
            raise _unknown(name, decided=True)
        if not record.matches(found):
            raise self._changed(name, record, found)

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

    def _read_unrecorded(self, name: Name, found: bytes) -> bytes:
        """Explain bytes whose record was not there a moment ago.

        Either it was put since, or it was collected, or nobody decided these bytes. Asked in
        this order: a record that is missing now was collected before now, or never was.
        """
        record = self._record(name)
        if record is not None:
            return self._finish(name, record)
        if name.number <= self._boundary(name):
            return found
        raise self._undecided(name, found)

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

    def _undecided(self, name: Name, found: bytes) -> HoldfastError:
        """Explain bytes that no record covers: the commit store forgot, or a stranger wrote.

        A stranger's bytes carry the token of the decision they were built on, which is still
        recorded; a forgotten decision carries its own.
        """
        before = self._object(name.previous) if name.previous else None
        ours = _marks(found) - _marks(before or b"") - self._recorded_marks(name)
        error, what = (
            (CommitStoreRegressedError, "the commit store forgot a decision")
            if ours
            else (ForeignVersionError, "somebody wrote this name past Holdfast")
        )
        return error(
            f"{what}: stop writing, see docs/troubleshooting.md",
            name=name.path,
            number=name.number,
            size=len(found),
            newest_recorded=self.newest(name.series),
            store=self._commit_store.url,
        )

    def _recorded_marks(self, name: Name) -> set[bytes]:
        """Return the tokens of the newest decisions of a name's series."""
        entries = self._commit_store.scan(self._series(name), limit=100, newest_first=True)
        return {decode_record(entry.value).token.encode() for entry in entries}

    def _changed(self, name: Name, record: Record, found: bytes) -> HoldfastError:
        """Explain bytes that differ from the record."""
        return ForeignVersionError(
            "the bytes at this name are not the decided ones: somebody wrote past Holdfast, or "
            "the commit store was set back; stop writing, see docs/troubleshooting.md",
            name=name.path,
            number=name.number,
            decided_size=record.size,
            found_size=len(found),
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

    def _note_finished(self, series: str, seen: _Finished) -> None:
        with self._lock:
            if seen.number >= self._finished.get(series, _NOTHING).number:
                self._finished[series] = seen


def _marks(body: bytes) -> set[bytes]:
    return set(TOKEN_PATTERN.findall(body))


def _unknown(name: Name, *, decided: bool) -> CommitUnknownError:
    reason = "decided, but not yet copied to its name" if decided else "no answer"
    emit(EventKind.UNKNOWN, name=name.path, attempts=0, reason=reason)
    return CommitUnknownError(
        f"{reason}: repeat the decision with the same token", name=name.path, decided=decided
    )
