"""Shipped test tools: the simulated world, the faulty S3 server, conformance suites."""

from holdfast.testing._commit_store_suite import CommitStoreSuite
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
from holdfast.testing._fake_cloud import FakeCloud
from holdfast.testing._faulty_s3 import FaultyS3, S3Endpoint
from holdfast.testing._faulty_s3_process import Control, FaultyS3Process
from holdfast.testing._linearizable import (
    Counterexample,
    History,
    Operation,
    check_linearizable,
)
from holdfast.testing._mutants import mutate
from holdfast.testing._object_store_suite import ObjectStoreSuite
from holdfast.testing._s3_faults import Fault, FaultKind, Faults, Requests, Seen, Total
from holdfast.testing._s3_objects import ConditionMode, Conditions, Objects, Stored, sometimes
from holdfast.testing._simulated import Request, SimulatedCommitStore, SimulatedStore, State
from holdfast.testing._still import CountedIds, StillClock
from holdfast.testing._world import Choice, Outcome, Schedule, World, parse_schedule

__all__ = [
    "Choice",
    "CommitStoreSuite",
    "ConditionMode",
    "Conditions",
    "Control",
    "CountedIds",
    "Counterexample",
    "Exploration",
    "FakeCloud",
    "Fault",
    "FaultKind",
    "Faults",
    "FaultyS3",
    "FaultyS3Process",
    "History",
    "ObjectStoreSuite",
    "Objects",
    "Operation",
    "Outcome",
    "Request",
    "Requests",
    "S3Endpoint",
    "Scenario",
    "Schedule",
    "Seen",
    "SimulatedCommitStore",
    "SimulatedStore",
    "State",
    "StillClock",
    "Stored",
    "Total",
    "Violation",
    "World",
    "check_linearizable",
    "explore",
    "merge_outcomes",
    "minimise",
    "mutate",
    "parse_schedule",
    "render",
    "replay",
    "sometimes",
    "wander",
]
