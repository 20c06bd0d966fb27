"""Conditional put through the real client, row by row of RFC 0001's failure table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from holdfast._ids import RandomIds
from holdfast.arbiter import ConditionalPut, Lost, RetryPolicy, Verdict, Won
from holdfast.errors import (
    CommitUnknownError,
    HoldfastError,
    InvalidInputError,
    PermissionDeniedError,
    UnavailableError,
    UnsafeStoreError,
    UnsupportedError,
)
from holdfast.events import Event, EventKind, subscribed
from holdfast.formats import Name
from holdfast.storage import MemoryStore, ObjectStore, open_store
from holdfast.testing import Fault, FaultKind, FaultyS3

QUICK = RetryPolicy(
    attempts=3, first_wait=timedelta(milliseconds=1), longest_wait=timedelta(milliseconds=2)
)
NAME = Name.single("things/plan.json")

pytestmark = pytest.mark.requirement("C8")


def marked(text: str = "body") -> tuple[bytes, str]:
    token = RandomIds().token()
    return f"{text} {token}".encode(), token


@pytest.fixture
def s3(faulty_s3: Callable[..., FaultyS3]) -> FaultyS3:
    return faulty_s3()


def connect(s3: FaultyS3, **options: str) -> ObjectStore:
    return open_store(
        s3.url("bucket", "table"), {**s3.storage_options(), "client_max_retries": "1", **options}
    )


def arbiter_on(store: ObjectStore) -> ConditionalPut:
    return ConditionalPut(store, Verdict.ENFORCED, retry=QUICK)


@pytest.fixture
def arbiter(s3: FaultyS3) -> ConditionalPut:
    return arbiter_on(connect(s3))


def test_first_body_wins_and_everyone_learns_it(arbiter: ConditionalPut, s3: FaultyS3) -> None:
    mine, my_token = marked("mine")
    theirs, their_token = marked("theirs")
    assert arbiter.read(NAME) is None
    assert arbiter.decide(NAME, mine, my_token) == Won()
    assert arbiter_on(connect(s3)).decide(NAME, theirs, their_token) == Lost(mine)
    assert arbiter.decide(NAME, mine, my_token) == Won()
    assert arbiter.read(NAME) == mine


def test_a_decision_is_one_request(arbiter: ConditionalPut, s3: FaultyS3) -> None:
    arbiter.decide(NAME, *marked())
    assert [seen.operation for seen in s3.requests.all()] == ["put"]


def test_answer_lost_after_the_put_was_applied(arbiter: ConditionalPut, s3: FaultyS3) -> None:
    s3.faults.add(Fault(kind="drop_after", method="PUT"))
    body, token = marked()
    assert arbiter.decide(NAME, body, token) == Won()
    assert arbiter.read(NAME) == body


def test_request_lost_before_it_was_applied(arbiter: ConditionalPut, s3: FaultyS3) -> None:
    s3.faults.add(Fault(kind="drop_before", method="PUT"))
    assert arbiter.decide(NAME, *marked()) == Won()


def test_own_object_reported_as_existing(arbiter: ConditionalPut, s3: FaultyS3) -> None:
    s3.faults.add(Fault(kind="status_after", method="PUT", status=500))
    assert arbiter.decide(NAME, *marked()) == Won()


def test_conflict_with_nothing_stored(arbiter: ConditionalPut, s3: FaultyS3) -> None:
    s3.faults.add(Fault(kind="status_before", method="PUT", status=409))
    body, token = marked()
    assert arbiter.decide(NAME, body, token) == Won()
    assert arbiter.read(NAME) == body


def test_another_writer_wins_while_the_answer_is_lost(
    arbiter: ConditionalPut, s3: FaultyS3
) -> None:
    theirs, their_token = marked("theirs")
    assert arbiter_on(connect(s3)).decide(NAME, theirs, their_token) == Won()
    s3.faults.add(Fault(kind="drop_before", method="PUT"))
    assert arbiter.decide(NAME, *marked("mine")) == Lost(theirs)


def test_no_answer_at_all_is_unknown_and_a_repeat_settles_it(
    arbiter: ConditionalPut, s3: FaultyS3
) -> None:
    body, token = marked()
    s3.faults.add(Fault(kind="drop_after", times=None))
    with pytest.raises(CommitUnknownError) as caught:
        arbiter.decide(NAME, body, token)
    assert caught.value.name == NAME.path
    s3.faults.clear()
    assert arbiter.decide(NAME, body, token) == Won()
    assert arbiter.read(NAME) == body


@pytest.mark.parametrize("refusal", [PermissionDeniedError, UnsupportedError])
def test_a_refusal_after_a_silent_try_is_unknown(refusal: type[HoldfastError]) -> None:
    class Refusing(MemoryStore):
        calls = 0

        def put_if_absent(self, path: str, body: bytes) -> None:
            Refusing.calls += 1
            if Refusing.calls == 1:
                super().put_if_absent(path, body)
                raise _unavailable()
            raise refusal("refused")

        def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
            raise _unavailable()

    with pytest.raises(CommitUnknownError):
        arbiter_on(Refusing("memory://refusing")).decide(NAME, *marked())


@pytest.mark.parametrize(("first", "then"), [("drop_after", 403), ("drop_after", 400)])
def test_a_read_back_that_is_refused_is_unknown(
    arbiter: ConditionalPut, s3: FaultyS3, first: FaultKind, then: int
) -> None:
    body, token = marked()
    s3.faults.add(Fault(kind=first, method="PUT"))
    s3.faults.add(Fault(kind="status_before", method="GET", status=then, times=None))
    with pytest.raises(CommitUnknownError):
        arbiter.decide(NAME, body, token)
    s3.faults.clear()
    assert arbiter.decide(NAME, body, token) == Won()


@pytest.mark.parametrize("status", [400, 403])
def test_a_refusal_of_a_hidden_retry_says_nothing_of_the_first_try(
    arbiter: ConditionalPut, s3: FaultyS3, status: int
) -> None:
    # The client library repeats after a 500 by itself; the put had been applied.
    body, token = marked()
    s3.faults.add(Fault(kind="status_after", method="PUT", status=500))
    s3.faults.add(Fault(kind="status_before", method="PUT", status=status, times=1))
    assert arbiter.decide(NAME, body, token) == Won()
    assert arbiter.read(NAME) == body


def test_a_refusal_of_the_first_try_is_an_answer(
    faulty_s3: Callable[..., FaultyS3],
) -> None:
    s3 = faulty_s3(secret_key="the right one")
    store = connect(s3, aws_access_key_id="somebody-else")
    with pytest.raises(PermissionDeniedError):
        arbiter_on(store).decide(NAME, *marked())


def test_a_store_without_conditions_is_refused(faulty_s3: Callable[..., FaultyS3]) -> None:
    with pytest.raises(UnsafeStoreError, match="commit store"):
        arbiter_on(connect(faulty_s3(conditions="unsupported"))).decide(NAME, *marked())


@pytest.mark.requirement("C3")
@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.ENFORCED])
def test_an_unverified_store_is_refused(verdict: Verdict) -> None:
    with pytest.raises(UnsafeStoreError) as caught:
        ConditionalPut(MemoryStore("memory://unverified"), verdict)
    assert caught.value.verdict == verdict.value


@pytest.mark.parametrize(
    ("body", "token"),
    [(b"no token here", "hf-" + 32 * "a"), (b"hf-short", "hf-short"), (b"", "")],
)
def test_the_token_must_be_one_and_be_in_the_body(
    arbiter: ConditionalPut, body: bytes, token: str
) -> None:
    with pytest.raises(InvalidInputError):
        arbiter.decide(NAME, body, token)
    assert arbiter.read(NAME) is None


def test_sixteen_threads_decide_forty_names(s3: FaultyS3) -> None:
    arbiters = [arbiter_on(connect(s3)) for _ in range(16)]
    start = threading.Barrier(16)

    def claim(index: int) -> list[bool]:
        start.wait(60)
        wins = []
        for number in range(40):
            body, token = marked(f"{index}")
            name = Name.single(f"race/{number}")
            wins.append(isinstance(arbiters[index].decide(name, body, token), Won))
        return wins

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(claim, range(16)))
    assert [sum(column) for column in zip(*outcomes, strict=True)] == [1] * 40


def test_what_happened_is_told(arbiter: ConditionalPut, s3: FaultyS3) -> None:
    seen: list[Event] = []
    s3.faults.add(Fault(kind="drop_before", method="PUT"))
    with subscribed(seen.append):
        arbiter.decide(NAME, *marked())
    assert [event.kind for event in seen] == [EventKind.RETRIED, EventKind.DECIDED]
    assert seen[-1].fields["outcome"] == "won"
    assert seen[-1].fields["attempts"] == 2


@pytest.fixture(autouse=True)
def fresh_memory() -> Iterator[None]:
    yield
    MemoryStore("memory://refusing").delete([NAME.path])


def _unavailable() -> Exception:
    return UnavailableError("no answer")
