"""Shipped test tools: the simulated world, the faulty S3 server, conformance suites."""

from holdfast.testing._explorer import (
    Exploration,
    Scenario,
    Violation,
    explore,
    merge_outcomes,
    minimise,
    render,
    replay,
    wander,
)
from holdfast.testing._mutants import mutate
from holdfast.testing._simulated import Request, SimulatedCommitStore, SimulatedStore, State
from holdfast.testing._world import Choice, Outcome, Schedule, World, parse_schedule

__all__ = [
    "Choice",
    "Exploration",
    "Outcome",
    "Request",
    "Scenario",
    "Schedule",
    "SimulatedCommitStore",
    "SimulatedStore",
    "State",
    "Violation",
    "World",
    "explore",
    "merge_outcomes",
    "minimise",
    "mutate",
    "parse_schedule",
    "render",
    "replay",
    "wander",
]
