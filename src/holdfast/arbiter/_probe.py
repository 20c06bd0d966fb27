"""The probe: find out whether a store really keeps a name for its first writer.

It creates an object, creates it again, reads it back, then lets independent clients create
the same fresh names at the same moment, round after round. One second winner is proof of
guilt. No number of clean rounds is proof of innocence: a bucket whose versioning is switched
on tomorrow may begin to lie, and a race may need more machines than one. So a verdict of
`enforced` means "not refuted, then", and it is remembered only for a while.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter._verdict import Verdict
from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.events import EventKind, emit
from holdfast.formats import probe_path
from holdfast.storage import ObjectStore

ROUNDS = 8
WRITERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What a probe found and what it cost.

    Attributes:
        verdict: may the store decide?
        evidence: the observations behind it, in order.
        requests: how many requests were sent.
        elapsed: seconds.
        left_behind: objects that could not be removed (a role without delete rights).
        location: which store.
    """

    location: str
    verdict: Verdict
    evidence: tuple[str, ...]
    requests: int
    elapsed: float
    left_behind: tuple[str, ...] = ()


class _Answer(Enum):
    """How a store answered one create."""

    CREATED = auto()
    REFUSED = auto()
    SILENT = auto()


class _Guilty(Exception):  # noqa: N818 - carries a verdict, not a failure
    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict


def probe_clients(
    connect: Callable[[], ObjectStore],
    *,
    rounds: int = ROUNDS,
    writers: int = WRITERS,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> ProbeReport:
    """Probe a store under `_holdfast/probe`, and remove what was created.

    Args:
        connect: opens an independent client; called once per writer.
        rounds: how many simultaneous creates; at least 6.
        writers: how many clients in each; at least 8.
        clock: measures the time it takes.
        ids: where the names come from.

    Raises:
        InvalidInputError: too few rounds or writers to mean anything.
        PermissionDeniedError, NotFoundError: the store cannot be written to at all.
    """
    if rounds < 6 or writers < 8:  # noqa: PLR2004 - fewer miss racy stores
        raise InvalidInputError("a probe needs at least 6 rounds of 8 writers")
    return _Probe(connect, rounds, writers, clock or SystemClock(), ids or RandomIds()).run()


class _Probe:
    def __init__(
        self,
        connect: Callable[[], ObjectStore],
        rounds: int,
        writers: int,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._clients = [connect() for _ in range(writers)]
        self._rounds = rounds
        self._clock = clock
        self._token = ids.token()
        self._evidence: list[str] = []
        self._paths: list[str] = []
        self._requests = 0
        self._lock = threading.Lock()  # guards _requests

    def run(self) -> ProbeReport:
        begun = self._clock.elapsed()
        try:
            verdict = self._judge()
        except _Guilty as guilt:
            self._evidence.append(str(guilt))
            verdict = guilt.verdict
        except UnsupportedError as error:
            self._evidence.append(str(error))
            verdict = Verdict.UNSUPPORTED
        except UnavailableError as error:
            self._evidence.append(str(error))
            verdict = Verdict.INCONCLUSIVE
        finally:
            left = self._clean_up()
        report = ProbeReport(
            location=self._clients[0].location,
            verdict=verdict,
            evidence=tuple(self._evidence),
            requests=self._requests,
            elapsed=self._clock.elapsed() - begun,
            left_behind=left,
        )
        emit(
            EventKind.PROBED,
            store=report.location,
            verdict=verdict.value,
            requests=report.requests,
            elapsed=report.elapsed,
        )
        return report

    def _judge(self) -> Verdict:
        answered = self._one_after_the_other()
        return self._all_at_once() if answered else Verdict.INCONCLUSIVE

    def _one_after_the_other(self) -> bool:
        """Create, create again, read back. Return whether the store answered."""
        path, first = self._path("twice"), b"first"
        if self._create(self._clients[0], path, first) is not _Answer.CREATED:
            self._evidence.append("a fresh name could not be created")
            return False
        answer = self._create(self._clients[-1], path, b"second, and longer")
        stored = self._read(self._clients[0], path)
        if answer is _Answer.CREATED:
            raise _Guilty(Verdict.IGNORED, "a second create of the same name was accepted")
        if stored != first:
            raise _Guilty(Verdict.IGNORED, "a create was refused, yet replaced the bytes")
        self._evidence.append("a second create was refused and changed nothing")
        return answer is _Answer.REFUSED

    def _all_at_once(self) -> Verdict:
        """Let all clients create the same fresh name at the same moment, several times."""
        unclear = 0
        writers = len(self._clients)
        self._open_connections()
        with ThreadPoolExecutor(writers, thread_name_prefix="holdfast-probe") as pool:
            for number in range(self._rounds):
                answers = self._race(pool, self._path(f"race{number}"))
                winners = sum(answer is _Answer.CREATED for answer in answers)
                self._evidence.append(f"round {number + 1}: {winners} of {writers} created")
                if winners > 1:
                    raise _Guilty(Verdict.RACY, "simultaneous creates had several winners")
                # No winner: conflicts (HTTP 409), or a winner whose answer was lost.
                unclear += winners == 0 or _Answer.SILENT in answers
        return Verdict.INCONCLUSIVE if unclear > self._rounds // 4 else Verdict.ENFORCED

    def _race(self, pool: ThreadPoolExecutor, path: str) -> Sequence[_Answer]:
        start = threading.Barrier(len(self._clients))
        bodies = [f"writer {i} ".encode() * 8 for i in range(len(self._clients))]

        def create(index: int) -> _Answer:
            start.wait(60)
            return self._create(self._clients[index], path, bodies[index])

        answers = list(pool.map(create, range(len(self._clients))))
        stored = self._read(self._clients[0], path)
        for answer, body in zip(answers, bodies, strict=True):
            if answer is _Answer.CREATED and stored != body:
                raise _Guilty(Verdict.RACY, "a winner's bytes were replaced by another's")
        return answers

    def _open_connections(self) -> None:
        """Send a request through every client, so that no race waits for a handshake."""
        for client in self._clients:
            with contextlib.suppress(HoldfastError):
                self._read(client, self._paths[0])

    def _create(self, client: ObjectStore, path: str, body: bytes) -> _Answer:
        self._count()
        try:
            client.put_if_absent(path, body)
        except AlreadyExistsError:
            return _Answer.REFUSED
        except UnavailableError as error:
            self._evidence.append(str(error))
            return _Answer.SILENT
        return _Answer.CREATED

    def _read(self, client: ObjectStore, path: str) -> bytes | None:
        self._count()
        try:
            return client.get(path)
        except NotFoundError:
            return None

    def _path(self, step: str) -> str:
        path = probe_path(self._token, step)
        self._paths.append(path)
        return path

    def _count(self) -> None:
        with self._lock:
            self._requests += 1

    def _clean_up(self) -> tuple[str, ...]:
        try:
            self._count()
            self._clients[0].delete(self._paths)
        except PermissionDeniedError:
            return tuple(self._paths)
        except HoldfastError as error:
            emit(EventKind.LEFT_BEHIND, path=self._paths[0], reason=error.kind.value)
            return tuple(self._paths)
        return ()
