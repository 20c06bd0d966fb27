"""`ConditionalPut`: the object store's own put-if-absent decides.

Used only on a store that the probe did not refute. One request when all goes well. Any
other answer is followed by reading the name back: our token there means we won, another
body means we lost, nothing there means the same bytes are sent again.
"""

from __future__ import annotations

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter._decision import Attempts, Decision, Lost, RetryPolicy, Won, check_token
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
from holdfast.storage import Handle, ObjectStore


class ConditionalPut(Handle):
    """Decides names by the store's put-if-absent.

    Raises:
        UnsafeStoreError: the verdict on the store is not `enforced`.
    """

    def __init__(
        self,
        store: ObjectStore,
        verdict: Verdict,
        *,
        pin: Pin | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        if verdict is not Verdict.ENFORCED:
            raise UnsafeStoreError(
                "this store was not shown to enforce put-if-absent: use a commit store",
                location=store.location,
                verdict=verdict.value,
            )
        self.pin = pin
        self._store = store
        self._clock = clock or SystemClock()
        self._attempts = Attempts(retry or RetryPolicy(), self._clock, ids or RandomIds())

    def decide(self, name: Name, body: bytes, token: str) -> Decision:
        """Give `name` to `body` unless it is taken. Durable, and safe to repeat."""
        check_token(body, token)
        begun = self._clock.elapsed()
        sent = False
        attempt = None
        for attempt in self._attempts.of(name.path, "put"):
            try:
                self._store.put_if_absent(name.path, body)
            except (AlreadyExistsError, UnavailableError) as error:
                sent = True
                attempt.reason = str(error)
            except HoldfastError as error:
                if sent:  # an earlier try may have landed: this refusal says nothing of it
                    raise _unknown(name, attempt.number, error) from error
                if isinstance(error, UnsupportedError):
                    raise UnsafeStoreError(
                        "this store has no put-if-absent: use a commit store", name=name.path
                    ) from error
                raise
            else:
                return self._decided(name, Won(), attempt.number, begun)
            try:
                found = self._store.get(name.path)
            except NotFoundError:
                continue  # a 409, or a request that was lost: the same bytes again
            except UnavailableError:
                continue
            except HoldfastError as error:
                raise _unknown(name, attempt.number, error) from error
            decision: Decision = Won() if token.encode() in found else Lost(found)
            return self._decided(name, decision, attempt.number, begun)
        raise _unknown(name, attempt.number if attempt else 0, None)

    def read(self, name: Name) -> bytes | None:
        """Return the decided bytes, or None."""
        try:
            return self._store.get(name.path)
        except NotFoundError:
            return None

    def close(self) -> None:
        """Do nothing: the object store's client needs no closing."""

    def _decided(self, name: Name, decision: Decision, attempts: int, begun: float) -> Decision:
        emit(
            EventKind.DECIDED,
            name=name.path,
            arbiter=ArbiterKind.CONDITIONAL_PUT.value,
            outcome="won" if isinstance(decision, Won) else "lost",
            attempts=attempts,
            elapsed=self._clock.elapsed() - begun,
        )
        return decision


def _unknown(name: Name, attempts: int, error: HoldfastError | None) -> CommitUnknownError:
    reason = error.kind.value if error else "no answer"
    emit(EventKind.UNKNOWN, name=name.path, attempts=attempts, reason=reason)
    return CommitUnknownError(
        "the store gave no answer that settles this decision: repeat it with the same token",
        name=name.path,
        attempts=attempts,
    )
