"""Writers that race by put-if-absent: who lost goes first, and nobody stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from commits.table_worker import rows
from holdfast.arbiter import Decision, Lost
from holdfast.commits._contention import Contention
from holdfast.formats import Name
from holdfast.testing import CountedIds, FaultyS3Process

pytestmark = pytest.mark.requirement("C7")


@pytest.fixture(scope="module")
def s3() -> Iterator[FaultyS3Process]:
    with FaultyS3Process() as server:
        yield server


class SlowClock:
    """A clock by which each look takes a tenth of a second; it keeps what was waited."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._looks = 0

    def now(self) -> float:
        return 0.0

    def elapsed(self) -> float:
        self._looks += 1
        return self._looks / 10

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


class Halves(CountedIds):
    """Always half of the longest wait."""

    def jitter(self) -> float:
        return 0.5


def contended() -> tuple[Contention, SlowClock]:
    clock = SlowClock()
    contention = Contention(clock, Halves(1))
    with contention.timed():
        pass
    return contention, clock


def test_who_lost_more_often_waits_less() -> None:
    contention, clock = contended()
    contention.begin()
    assert [contention.lose() for _ in range(5)] == [False, True, True, True, True]
    assert clock.waits == sorted(clock.waits, reverse=True)
    assert len(set(clock.waits)) == 4


def test_a_new_append_lets_those_go_first_who_lost() -> None:
    contention, clock = contended()
    contention.begin()
    contention.end()
    assert not clock.waits  # nobody else is there: nobody is waited for
    contention.begin()
    for _ in range(4):
        contention.lose()
    contention.end()
    waits = []
    for _ in range(4):
        clock.waits.clear()
        contention.begin()
        contention.end()
        waits.append(sum(clock.waits))
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > 0
    assert waits[-1] == 0


def test_a_writer_that_is_behind_catches_up(
    s3: FaultyS3Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others make a version for each that it reads: one after the other it would never end."""
    uri, options = s3.url("lake", "behind.lance"), s3.storage_options()
    table = holdfast.create_table(uri, rows(0).schema, storage_options=options)
    table.append(rows(0))
    others = holdfast.open_table(uri, options)
    decide = table._core.arbiter.decide
    losses: list[int] = []

    def decide_late(name: Name, body: bytes, token: str) -> Decision:
        if not losses:
            for number in range(5):
                others.append(rows(100 + number))
        decision = decide(name, body, token)
        if isinstance(decision, Lost):
            losses.append(name.number)
            assert len(losses) < 10, "it stays behind"
            others.append(rows(200 + len(losses)))
        return decision

    arbiter: Any = table._core.arbiter
    monkeypatch.setattr(arbiter, "decide", decide_late)
    table.append(rows(1))
    assert len(losses) == 2
    assert table.dataset().count_rows() == 1 + 5 + len(losses) + 1
