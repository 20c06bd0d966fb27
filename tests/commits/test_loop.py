"""The one loop: what it does after each kind of conflict, and when it stops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.commits import CommitPlan, make_version
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    LogWaitsError,
    NextStep,
    UnavailableError,
)

pytestmark = pytest.mark.requirement("C1", "C8")


class Scripted(CommitPlan[str]):
    """A plan whose tries end as it is told; it notes what the loop asks of it."""

    def __init__(
        self, *errors: HoldfastError, tries: int = 1, builds: int = 1, is_there: bool = False
    ) -> None:
        self.tries = tries
        self.builds = builds
        self.calls: list[str] = []
        self._errors = list(errors)
        self._is_there = is_there

    def build(self) -> str | None:
        self.calls.append("build")
        return None

    def attempt(self) -> str:
        self.calls.append("attempt")
        if self._errors:
            raise self._errors.pop(0)
        return "made"

    def find(self, error: ConflictError) -> str | None:
        return "there" if self._is_there else super().find(error)


def conflicts(step: NextStep, count: int = 1) -> Sequence[ConflictError]:
    return [ConflictError(f"conflict {number}").leading_to(step) for number in range(count)]


def test_who_was_merely_slower_tries_again_as_it_is() -> None:
    plan = Scripted(*conflicts(NextStep.AGAIN, 2), tries=3)
    assert make_version(plan) == "made"
    assert plan.calls == ["build", "attempt", "attempt", "attempt"]


def test_what_does_not_fit_any_more_is_built_anew() -> None:
    plan = Scripted(LogWaitsError("rows wait"), tries=3, builds=2)
    assert make_version(plan) == "made"
    assert plan.calls == ["build", "attempt", "build", "attempt"]


def test_tries_are_counted_for_each_build() -> None:
    again, rebuild = conflicts(NextStep.AGAIN, 2), conflicts(NextStep.REBUILD)
    plan = Scripted(again[0], *rebuild, again[1], tries=2, builds=2)
    assert make_version(plan) == "made"
    assert plan.calls == ["build", "attempt", "attempt", "build", "attempt", "attempt"]


@pytest.mark.parametrize(
    ("step", "tries", "builds", "attempts"),
    [
        (NextStep.AGAIN, 3, 5, 3),
        (NextStep.REBUILD, 3, 5, 5),
        (NextStep.NEVER, 3, 5, 1),
        (NextStep.REBUILD, 3, 1, 1),
    ],
)
def test_it_ends_with_the_last_conflict(
    step: NextStep, tries: int, builds: int, attempts: int
) -> None:
    plan = Scripted(*conflicts(step, 9), tries=tries, builds=builds)
    with pytest.raises(ConflictError, match=f"conflict {attempts - 1}"):
        make_version(plan)
    assert plan.calls.count("attempt") == attempts


@pytest.mark.parametrize("error", [CommitUnknownError("no answer"), UnavailableError("down")])
def test_what_may_have_landed_is_never_tried_again(error: HoldfastError) -> None:
    plan = Scripted(error, tries=9, builds=9)
    with pytest.raises(type(error)):
        make_version(plan)
    assert plan.calls == ["build", "attempt"]


@pytest.mark.parametrize("step", list(NextStep))
def test_who_finds_its_own_outcome_tries_no_more(step: NextStep) -> None:
    plan = Scripted(*conflicts(step), tries=3, builds=3, is_there=True)
    assert make_version(plan) == "there"
    assert plan.calls == ["build", "attempt"]


def test_what_is_nothing_is_not_committed() -> None:
    class Empty(Scripted):
        def build(self) -> str | None:
            return "nothing to do"

    plan = Empty()
    assert make_version(plan) == "nothing to do"
    assert plan.calls == []


def test_the_plan_says_what_its_caller_hears() -> None:
    class Polite(Scripted):
        def give_up(self, error: ConflictError) -> ConflictError:
            return ConflictError("others were faster", reason=error.message)

    with pytest.raises(ConflictError, match="others were faster") as caught:
        make_version(Polite(*conflicts(NextStep.AGAIN)))
    assert isinstance(caught.value.__cause__, ConflictError)
