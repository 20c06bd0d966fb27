"""`ConditionalPut`: the object store's own put-if-absent decides.

Used only on a store that passed the probe. One request when all goes well. Any
other answer is followed by reading the name back: our token there means we won, another
body means we lost, nothing there means the same bytes are sent again.

Who expects to lose reads the name beside the put: the winner's bytes then come a round trip
earlier, for one request more when nobody else was there. What is read so is as good as what is
read after the put: the first body of a name stays there, as long as the version is not an old one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter._decision import (
    Attempt,
    Attempts,
    Decision,
    Lost,
    RetryPolicy,
    Won,
    check_token,
)
from holdfast.arbiter._parallel import Together, choose_together
from holdfast.arbiter._place import refuse_replaced
from holdfast.arbiter._verdict import Verdict
from holdfast.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    HoldfastError,
    NotFoundError,
    UnavailableError,
    UnsafeStoreError,
    UnsupportedError,
)
from holdfast.events import EventKind, emit
from holdfast.formats import ArbiterKind, Name, Pin
from holdfast.storage import FullDiskError, Handle, ObjectStore, SupportsFileIds


class ConditionalPut(Handle):
    """Decides names by the store's put-if-absent.

    The verdict on the store may be a function that finds it: then it is asked before the first
    decision, and readers need no right to write.

    Raises:
        UnsafeStoreError: the verdict on the store is given and not `enforced`.
    """

    def __init__(
        self,
        store: ObjectStore,
        verdict: Verdict | Callable[[], Verdict],
        *,
        pin: Pin | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        retry: RetryPolicy | None = None,
        together: Together | None = None,
    ) -> None:
        if isinstance(verdict, Verdict):
            _check_verdict(verdict, store)
        self._find_verdict = None if isinstance(verdict, Verdict) else verdict
        self.pin = pin
        self.refuses_old_names = False  # put-if-absent knows only what is there now
        self._store = store
        self._clock = clock or SystemClock()
        self._attempts = Attempts(retry or RetryPolicy(), self._clock, ids or RandomIds())
        self._together = together or choose_together(store)

    def decide(self, name: Name, body: bytes, token: str) -> Decision:
        """Give `name` to `body` unless it is taken. Durable, and safe to repeat."""
        return self._decide(name, body, token, races=False)

    def decide_racing(self, name: Name, body: bytes, token: str) -> Decision:
        """Decide as `decide` does, and read the name beside the put."""
        return self._decide(name, body, token, races=True)

    def _decide(self, name: Name, body: bytes, token: str, *, races: bool) -> Decision:
        check_token(body, token)
        self.require_verdict()
        begun = self._clock.elapsed()
        sent = False
        refusal: HoldfastError | None = None
        attempt = None
        for attempt in self._attempts.of(name.path, "put"):
            beside: list[bytes] = []
            try:
                self._put(name.path, body, beside if races else None)
            except (AlreadyExistsError, UnavailableError) as error:
                sent = sent or not isinstance(error, FullDiskError)
                attempt.reason = str(error)
                refusal = error
            except HoldfastError as error:
                if sent:  # an earlier try may have landed: this refusal says nothing of it
                    raise _unknown(name, attempt.number, error) from error
                if isinstance(error, UnsupportedError):
                    raise UnsafeStoreError(
                        "this store has no put-if-absent: use a commit store", name=name.path
                    ) from error
                raise
            else:
                return self._report_decision(name, Won(), attempt.number, begun)
            try:
                body_there = beside[0] if beside else self._store.get(name.path)
            except NotFoundError:
                continue  # a 409, or a request that was lost: the same bytes again
            except UnavailableError:
                continue
            except HoldfastError as error:
                raise _unknown(name, attempt.number, error) from error
            decision: Decision = Won() if token.encode() in body_there else Lost(body_there)
            return self._report_decision(name, decision, attempt.number, begun)
        raise _no_outcome(name, attempt, None if sent else refusal)

    def _put(self, path: str, body: bytes, beside: list[bytes] | None) -> None:
        """Put if absent; into `beside`, if given, comes what was at the name meanwhile."""
        put = partial(self._store.put_if_absent, path, body)
        if beside is None:
            put()
            return

        def look() -> None:
            with suppress(HoldfastError):  # it is read again then
                beside.append(self._store.get(path))

        self._together([put, look])

    def require_verdict(self) -> None:
        """Return if the store may decide; finds out, if nobody did yet.

        Raises:
            UnsafeStoreError: it may not.
            PermissionDeniedError, NotFoundError: it cannot be written to at all.
        """
        if self._find_verdict is not None:
            _check_verdict(self._find_verdict(), self._store)
            self._find_verdict = None

    def read(self, name: Name) -> bytes | None:
        """Return the decided bytes, or None."""
        try:
            return self._store.get(name.path)
        except NotFoundError:
            return None

    def confirm_place(self, *, if_cheap: bool = False) -> None:
        """Return if this table is still the one in its place: one look at its pin."""
        if self.pin is None or (if_cheap and not isinstance(self._store, SupportsFileIds)):
            return
        refuse_replaced(self._store, self.pin)

    def close(self) -> None:
        """Do nothing: the object store's client needs no closing."""

    def _report_decision(
        self, name: Name, decision: Decision, attempts: int, begun: float
    ) -> Decision:
        emit(
            EventKind.DECIDED,
            name=name.path,
            arbiter=ArbiterKind.CONDITIONAL_PUT.value,
            outcome="won" if isinstance(decision, Won) else "lost",
            attempts=attempts,
            elapsed=self._clock.elapsed() - begun,
        )
        return decision


def _check_verdict(verdict: Verdict, store: ObjectStore) -> None:
    if verdict is not Verdict.ENFORCED:
        raise UnsafeStoreError(
            "this store was not shown to enforce put-if-absent: use a commit store",
            location=store.location,
            verdict=verdict.value,
        )


def _no_outcome(
    name: Name, attempt: Attempt | None, refusal: HoldfastError | None
) -> HoldfastError:
    """Return why nothing is known after the last try; a refusal if each of them was one."""
    if refusal is not None:
        return refusal
    tries, reason = (0, None) if attempt is None else (attempt.number, attempt.reason)
    return _unknown(name, tries, None, reason)


def _unknown(
    name: Name, attempts: int, error: HoldfastError | None, why: str | None = None
) -> CommitUnknownError:
    reason = error.kind.value if error else "no answer"
    emit(EventKind.UNKNOWN, name=name.path, attempts=attempts, reason=reason)
    return CommitUnknownError(
        "the store gave no answer that tells the outcome: repeat it with the same token",
        name=name.path,
        attempts=attempts,
        reason=why or (error and error.message),
    )
