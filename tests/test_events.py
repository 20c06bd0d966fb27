"""Events: who subscribes sees them, a bad subscriber harms nobody, and the table is true."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast._ids import RandomIds
from holdfast.arbiter import (
    ConditionalPut,
    Lost,
    RetryPolicy,
    Verdict,
    Won,
    create_arbiter,
    probe_clients,
)
from holdfast.errors import CommitUnknownError, PermissionDeniedError, UnavailableError
from holdfast.events import METRICS, Event, EventKind, emit, subscribe, subscribed
from holdfast.formats import Name
from holdfast.storage import MemoryStore

FIELDS = {kind: METRICS[kind].fields for kind in EventKind}


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    """A list of what this thread emits; others may still be at work for an earlier test."""
    events: list[Event] = []
    here = threading.get_ident()
    with subscribed(lambda event: events.append(event) if threading.get_ident() == here else None):
        yield events


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what this thread has logged."""
    return [record for record in caplog.records if record.thread == threading.get_ident()]


def example(kind: EventKind) -> dict[str, object]:
    return dict.fromkeys(METRICS[kind].fields, "x")


def body_of(token: str) -> bytes:
    return f"bytes {token}".encode()


class Unreachable(MemoryStore):
    """Answers no request, or only refuses to delete."""

    only_deletes = False

    def put_if_absent(self, path: str, body: bytes) -> None:
        if self.only_deletes:
            return super().put_if_absent(path, body)
        raise UnavailableError("no answer")

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        if self.only_deletes:
            return super().get(path, start=start, end=end)
        raise UnavailableError("no answer")

    def delete(self, paths: object) -> None:
        raise UnavailableError("no answer")


# Subscribing


def test_a_subscriber_sees_events_until_it_leaves() -> None:
    events: list[Event] = []
    leave = subscribe(events.append)
    emit(EventKind.FINISHED, name="a")
    leave()
    emit(EventKind.FINISHED, name="b")
    leave()
    assert [event.fields["name"] for event in events] == ["a"]


def test_a_with_block_ends_its_subscription_even_after_an_error() -> None:
    events: list[Event] = []
    with pytest.raises(RuntimeError):
        fail_while_subscribed(events)
    emit(EventKind.FINISHED, name="b")
    assert len(events) == 1


def fail_while_subscribed(events: list[Event]) -> None:
    with subscribed(events.append):
        emit(EventKind.FINISHED, name="a")
        raise RuntimeError


def test_a_failing_subscriber_is_logged_and_skipped(
    seen: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    later: list[Event] = []

    def broken(_event: Event) -> None:
        raise RuntimeError("I am broken")

    with subscribed(broken), subscribed(later.append):
        emit(EventKind.FINISHED, name="a")
    assert len(seen) == len(later) == 1
    assert any("an event subscriber failed" in record.message for record in caplog.records)


def test_a_subscriber_may_leave_while_it_is_called() -> None:
    events: list[Event] = []

    def once(event: Event) -> None:
        events.append(event)
        leave()

    leave = subscribe(once)
    emit(EventKind.FINISHED, name="a")
    emit(EventKind.FINISHED, name="b")
    assert len(events) == 1


# Logging


@pytest.mark.parametrize("kind", list(EventKind))
def test_an_event_is_logged_at_its_level(kind: EventKind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    emit(kind, **example(kind))
    (record,) = logged(caplog)
    assert (record.name, record.levelno) == ("holdfast", METRICS[kind].level)
    assert record.message == str(Event(kind=kind, fields=example(kind)))


def test_only_troubles_are_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    for kind in EventKind:
        emit(kind, **example(kind))
    troubles = [record.message.split()[0] for record in logged(caplog)]
    assert troubles == ["unknown", "left_behind", "fenced", "poisoned", "backpressure"]


def test_an_event_reads_well() -> None:
    event = Event(kind=EventKind.RETRIED, fields={"name": "x", "attempt": 2})
    assert str(event) == "retried name=x attempt=2"


# The table


def test_every_kind_has_a_metric_of_its_own() -> None:
    assert set(METRICS) == set(EventKind)
    names = [metric.name for metric in METRICS.values()]
    assert len(set(names)) == len(names)
    for metric in METRICS.values():
        assert metric.name.startswith("holdfast.")
        assert metric.meaning.endswith(".")
        assert metric.fields


def test_kinds_are_pinned() -> None:
    assert [kind.value for kind in EventKind] == [
        "decided",
        "finished",
        "retried",
        "unknown",
        "probed",
        "pinned",
        "collected",
        "left_behind",
        "vacuumed",
        "built",
        "finalized",
        "claimed",
        "appended",
        "fenced",
        "poisoned",
        "flushed",
        "merged",
        "backpressure",
    ]


def test_a_real_decision_emits_what_the_table_says(seen: list[Event]) -> None:
    arbiter = ConditionalPut(MemoryStore("memory://events-decide"), Verdict.ENFORCED)
    tokens = [RandomIds().token() for _ in range(2)]
    assert arbiter.decide(Name.single("x"), body_of(tokens[0]), tokens[0]) == Won()
    assert isinstance(arbiter.decide(Name.single("x"), body_of(tokens[1]), tokens[1]), Lost)
    assert [event.kind for event in seen] == [EventKind.DECIDED] * 2
    assert [event.fields["outcome"] for event in seen] == ["won", "lost"]
    check_fields(seen)


def test_an_unknown_outcome_emits_what_the_table_says(seen: list[Event]) -> None:
    policy = RetryPolicy(attempts=2)
    arbiter = ConditionalPut(Unreachable("memory://events-down"), Verdict.ENFORCED, retry=policy)
    token = RandomIds().token()
    with pytest.raises(CommitUnknownError):
        arbiter.decide(Name.single("x"), body_of(token), token)
    assert {event.kind for event in seen} == {EventKind.RETRIED, EventKind.UNKNOWN}
    check_fields(seen)


@pytest.mark.requirement("C3")
def test_a_probe_emits_what_the_table_says(seen: list[Event]) -> None:
    probe_clients(lambda: MemoryStore("memory://events-probe"))
    assert [event.kind for event in seen] == [EventKind.PROBED]
    assert seen[0].fields["verdict"] == "enforced"
    check_fields(seen)


def test_what_a_probe_leaves_behind_emits_what_the_table_says(seen: list[Event]) -> None:
    def connect() -> Unreachable:
        store = Unreachable("memory://events-left")
        store.only_deletes = True
        return store

    report = probe_clients(connect)
    assert report.left_behind
    assert [event.kind for event in seen] == [EventKind.LEFT_BEHIND, EventKind.PROBED]
    check_fields(seen)


def test_a_role_without_delete_rights_is_no_event(seen: list[Event]) -> None:
    class Fixed(MemoryStore):
        def delete(self, paths: object) -> None:
            raise PermissionDeniedError("no")

    report = probe_clients(lambda: Fixed("memory://events-fixed"))
    assert report.left_behind
    assert [event.kind for event in seen] == [EventKind.PROBED]


def test_a_table_with_a_commit_store_emits_what_the_table_says(
    seen: list[Event], tmp_path: Path
) -> None:
    arbiter = create_arbiter(tmp_path / "t", commit_store="sqlite")
    token = RandomIds().token()
    arbiter.decide(Name.single("x"), body_of(token), token)
    assert [event.kind for event in seen] == [EventKind.PINNED, EventKind.DECIDED]
    check_fields(seen)


def check_fields(events: list[Event]) -> None:
    for event in events:
        assert tuple(sorted(event.fields)) == tuple(sorted(FIELDS[event.kind])), event
