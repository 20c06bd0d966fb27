"""The explorer: every schedule of a `Scenario`, or as many as there is time for.

- `explore`: all interleavings and faults within the scenario's budgets, depth first, each
  state visited once (by hash), or stopped at `max_states`.
- `wander`: seeded random schedules, for scenarios too large to exhaust.
- `replay`: one schedule; a failing one, pasted as text, is a regression test in one line.

A failed check raises `Violation` with a minimised schedule and a readable trace.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.testing._simulated import State
from holdfast.testing._world import Choice, Outcome, Schedule, World, parse_schedule

Check = Callable[[World, State], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A world to explore and what must hold in each of its states.

    Attributes:
        name: for reports.
        build: returns a new world with its actors added; called once per schedule.
        check: returns what is wrong in this state, or None; runs after every move. It may
            run production readers on the state it is given, which is its own copy.
    """

    name: str
    build: Callable[[], World]
    check: Check


@dataclass(slots=True)
class Exploration:
    """What an exploration covered."""

    scenario: str
    states: int = 0
    moves: int = 0
    ends: int = 0
    capped: bool = False
    seconds: float = 0.0
    outcomes: dict[Outcome, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return one line for a report."""
        rate = self.states / max(self.seconds, 1e-9)
        return (
            f"{self.scenario}: {self.states:,} states, {self.moves:,} moves, "
            f"{self.ends:,} ends in {self.seconds:.1f} s ({rate:,.0f}/s)"
            + (", capped" if self.capped else "")
        )


class Violation(AssertionError):  # noqa: N818 - what was found, not what went wrong here
    """A check failed; the text holds the shortest schedule found and its trace."""

    def __init__(self, scenario: Scenario, message: str, schedule: Schedule) -> None:
        self.scenario = scenario.name
        self.message = message
        self.schedule = schedule
        self.trace = render(scenario, schedule)
        super().__init__(
            f"{scenario.name}: {message}\n{self.trace}\n"
            f'replay with: "{" ".join(map(str, schedule))}"'
        )


class _Checker:
    """Runs a scenario's check once per distinct (state, acknowledgements)."""

    def __init__(self, scenario: Scenario) -> None:
        self._check = scenario.check
        self._known: dict[tuple[int, int], str | None] = {}

    def __call__(self, world: World) -> str | None:
        errors = tuple(type(a.error).__name__ for a in world.actors)
        key = (world.state.digest, hash((tuple(world.acknowledged), errors)))
        if key not in self._known:
            self._known[key] = self._check(world, world.state.copy())
        return self._known[key]


def explore(
    scenario: Scenario, *, max_states: int | None = None, until: float | None = None
) -> Exploration:
    """Visit every state that the scenario's budgets allow.

    Args:
        scenario: what to explore.
        max_states: stop after so many and say so.
        until: stop at this value of `time.monotonic()` and say so.

    Raises:
        Violation: a check failed.
    """
    begun = time.monotonic()
    report = Exploration(scenario.name)
    check = _Checker(scenario)
    seen: set[int] = set()
    todo: list[Schedule] = [()]
    while todo:
        if _is_spent(report, max_states, until):
            report.capped = True
            break
        schedule = todo.pop()
        world = scenario.build()
        for choice in schedule:
            world.step(choice)
        while True:
            report.states += 1
            problem = check(world)
            if problem:
                raise Violation(scenario, problem, minimise(scenario, schedule))
            fresh = _fresh_choices(world, seen, report)
            if not fresh:
                break
            todo.extend((*schedule, choice) for choice in fresh[1:])
            schedule = (*schedule, fresh[0])
            world.step(fresh[0])
        world.close()
    report.seconds = time.monotonic() - begun
    return report


def _fresh_choices(world: World, seen: set[int], report: Exploration) -> list[Choice]:
    """Return the moves that lead to states nobody has seen, and note these as seen."""
    choices = world.choices()
    if not choices:
        report.ends += 1
    report.moves += len(choices)
    fresh = []
    for choice in choices:
        report.outcomes[choice.outcome] = report.outcomes.get(choice.outcome, 0) + 1
        key = world.peek(choice)
        if key not in seen:
            seen.add(key)
            fresh.append(choice)
    return fresh


def _is_spent(report: Exploration, max_states: int | None, until: float | None) -> bool:
    return (max_states is not None and report.states >= max_states) or (
        until is not None and time.monotonic() >= until
    )


def wander(
    scenario: Scenario,
    *,
    seeds: Iterable[int],
    fault_rate: float = 0.12,
    until: float | None = None,
) -> Exploration:
    """Follow one random schedule per seed: sticky priorities, faults now and then.

    Raises:
        Violation: a check failed.
    """
    begun = time.monotonic()
    report = Exploration(f"{scenario.name} (random)")
    check = _Checker(scenario)
    for seed in seeds:
        chance = random.Random(seed)
        world = scenario.build()
        schedule: list[Choice] = []
        priority: dict[int, float] = {}
        while choices := world.choices():
            choice = _pick(choices, chance, priority, fault_rate)
            schedule.append(choice)
            world.step(choice)
            report.moves += 1
            report.outcomes[choice.outcome] = report.outcomes.get(choice.outcome, 0) + 1
            problem = check(world)
            if problem:
                raise Violation(
                    scenario, f"{problem} (seed {seed})", minimise(scenario, tuple(schedule))
                )
        world.close()
        report.states += len(schedule)
        report.ends += 1
        if until is not None and time.monotonic() >= until:
            report.capped = True
            break
    report.seconds = time.monotonic() - begun
    return report


def replay(scenario: Scenario, schedule: str | Schedule) -> World:
    """Follow one schedule, checking every state.

    Raises:
        Violation: a check failed.
    """
    moves = parse_schedule(schedule) if isinstance(schedule, str) else schedule
    check = _Checker(scenario)
    world = scenario.build()
    for number, choice in enumerate(moves, 1):
        world.step(choice)
        problem = check(world)
        if problem:
            raise Violation(scenario, problem, moves[:number])
    return world


def minimise(scenario: Scenario, schedule: Schedule) -> Schedule:
    """Leave out moves for as long as some check still fails."""
    check = _Checker(scenario)
    current = _failing_prefix(scenario, check, schedule) or schedule
    shrunk = True
    while shrunk:
        shrunk = False
        for width in (4, 2, 1):
            for first in range(len(current) - width, -1, -1):
                shorter = _failing_prefix(
                    scenario, check, current[:first] + current[first + width :]
                )
                if shorter is not None:
                    current, shrunk = shorter, True
                    break
    return current


def render(scenario: Scenario, schedule: Schedule) -> str:
    """Return the trace of a schedule, a line per move."""
    world = scenario.build()
    lines = []
    for choice in schedule:
        lines.append(world.describe(choice))
        world.step(choice)
    lines.extend(f"{'':>9}  acknowledged: {facts}" for facts in world.acknowledged)
    lines.extend(f"{a.name:>9}  stopped: {a.error}" for a in world.actors if a.error)
    return "\n".join(lines)


def _failing_prefix(scenario: Scenario, check: _Checker, schedule: Schedule) -> Schedule | None:
    world = scenario.build()
    for number, choice in enumerate(schedule, 1):
        if choice not in world.choices():
            return None
        world.step(choice)
        if check(world):
            return schedule[:number]
    return None


def _pick(
    choices: list[Choice],
    chance: random.Random,
    priority: dict[int, float],
    fault_rate: float,
) -> Choice:
    plain = [c for c in choices if c.outcome in {Outcome.OK, Outcome.LANDS}]
    faults = [c for c in choices if c.outcome not in {Outcome.OK, Outcome.LANDS}]
    if faults and (not plain or chance.random() < fault_rate):
        return chance.choice(faults)
    for choice in plain:
        priority.setdefault(choice.actor, chance.random())
    if chance.random() < 0.1:
        priority[chance.choice(plain).actor] = chance.random()
    return max(plain, key=lambda c: (priority[c.actor], chance.random()))


def merge_outcomes(reports: Iterable[Exploration]) -> Mapping[Outcome, int]:
    """Count how often each outcome was on offer: a kind that never fired proves nothing."""
    total: dict[Outcome, int] = {}
    for report in reports:
        for outcome, count in report.outcomes.items():
            total[outcome] = total.get(outcome, 0) + count
    return total
