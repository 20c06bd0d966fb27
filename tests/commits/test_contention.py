"""Writers that race by put-if-absent: who lost goes first, and nobody stays behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from commits.table_worker import rows
from holdfast.arbiter import Decision, Lost
from holdfast.commits._contention import Contention
from holdfast.formats import Name
from holdfast.testing import CountedIds, FaultyS3Process

Decide = Callable[[Name, bytes, str], Decision]
pytestmark = pytest.mark.requirement("C7")


@pytest.fixture(scope="module")
def s3() -> Iterator[FaultyS3Process]:
    with FaultyS3Process() as server:
        yield server


class SteppedClock:
    """A clock that goes on by sleeps and by `pass_time` alone; it keeps what was waited."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._elapsed = 0.0

    def now(self) -> float:
        return 0.0

    def elapsed(self) -> float:
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self._elapsed += seconds


class Halves(CountedIds):
    """Always half of the longest wait."""

    def jitter(self) -> float:
        return 0.5


TRIP = 0.01


def contended() -> tuple[Contention, SteppedClock]:
    clock = SteppedClock()
    return Contention(clock, Halves(1)), clock


def append_with(contention: Contention, clock: SteppedClock, losses: int) -> float:
    """Append, in one round trip for each try; return how long it waited before the first."""
    clock.waits.clear()
    contention.begin()
    waited = sum(clock.waits)
    for _ in range(losses):
        clock.pass_time(TRIP)
        contention.lose()
    clock.pass_time(TRIP)
    contention.win()
    return waited


def test_who_lost_goes_on_immediately_and_makes_room_after_eight_losses() -> None:
    contention, clock = contended()
    contention.begin()
    lists = []
    for trip in (TRIP, 5 * TRIP):
        for _ in range(8):
            clock.pass_time(trip)
            lists.append(contention.lose())
    assert [number for number, listed in enumerate(lists, 1) if listed] == [8, 16]
    first, second = clock.waits
    assert second == pytest.approx(5 * first)  # slower rounds: too many try


def test_a_new_append_waits_for_about_as_long_as_the_last_one_took() -> None:
    contention, clock = contended()
    assert append_with(contention, clock, losses=0) == 0
    assert append_with(contention, clock, losses=20) == 0  # nobody else was there, it thought
    took = clock.elapsed() - TRIP
    waited = append_with(contention, clock, losses=5)
    assert took / 2 < waited < took


def test_who_waits_longer_than_others_comes_nearer_to_them() -> None:
    """All try for as many rounds, so what they wait must not stay apart for ever."""
    waits = []
    for losses_before in (10, 60):
        contention, clock = contended()
        append_with(contention, clock, losses=losses_before)
        waits.append([append_with(contention, clock, losses=9) for _ in range(20)])
    few, many = waits
    assert many[0] > 3 * few[0]
    assert many[-1] < 1.1 * few[-1]


def test_who_was_away_does_not_wait_for_a_turn_that_has_passed() -> None:
    contention, clock = contended()
    append_with(contention, clock, losses=60)
    clock.pass_time(60)
    assert append_with(contention, clock, losses=30) == 0
    assert append_with(contention, clock, losses=0) > 0


def test_nobody_waits_for_others_that_are_gone() -> None:
    contention, clock = contended()
    append_with(contention, clock, losses=30)
    assert contention.meets_others
    waits = [append_with(contention, clock, losses=0) for _ in range(12)]
    assert waits[0] > 0
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] == 0
    assert not contention.meets_others


def test_a_writer_that_is_behind_catches_up(
    s3: FaultyS3Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others make a version for each that it reads: one after the other it would never end."""
    uri, options = s3.url("lake", "behind.lance"), s3.storage_options()
    table = holdfast.create_table(uri, rows(0).schema, storage_options=options)
    table.append(rows(0))
    others = holdfast.open_table(uri, options)
    arbiter: Any = table._core.arbiter
    losses: list[int] = []

    def late(decide: Decide) -> Decide:
        def decide_late(name: Name, body: bytes, token: str) -> Decision:
            if not losses:
                for number in range(5):
                    others.append(rows(100 + number))
            decision = decide(name, body, token)
            if isinstance(decision, Lost):
                losses.append(name.number)
                assert len(losses) < 20, "it stays behind"
                others.append(rows(200 + len(losses)))
            return decision

        return decide_late

    monkeypatch.setattr(arbiter, "decide", late(arbiter.decide))
    monkeypatch.setattr(arbiter, "decide_racing", late(arbiter.decide_racing))
    table.append(rows(1))
    assert len(losses) == 8
    assert table.dataset().count_rows() == 1 + 5 + len(losses) + 1
