"""Look after tables: what is wrong with one, and what was lost of it.

diagnosis = doctor("s3://bucket/events.lance")
for finding in diagnosis.findings:
    print(finding.severity, finding.what, finding.advice)
rescue("s3://bucket/events.lance", ids="all", confirm=True)
vacuum("s3://bucket/events.lance", confirm=True)
"""

from holdfast.upkeep._candidates import Candidate, Doubt
from holdfast.upkeep._compact_lsm import CompactLsmResult, ShardMerge
from holdfast.upkeep._doctor import Diagnosis, doctor
from holdfast.upkeep._findings import Finding, FindingKind, Severity
from holdfast.upkeep._flush_log import FlushLogResult
from holdfast.upkeep._maintain import MaintainResult, Policy, Step, StepKind, StepState
from holdfast.upkeep._repair import RepairResult, repair
from holdfast.upkeep._repair_shard import RepairShardResult
from holdfast.upkeep._repair_steps import RepairKind, RepairState, RepairStep
from holdfast.upkeep._rescue import Rescued, RescueResult, rescue
from holdfast.upkeep._reset_log import ResetLogResult
from holdfast.upkeep._schedule import Lease, Schedule, read_lease, take_lease
from holdfast.upkeep._sstable_exam import SstableDamage, SstableWound
from holdfast.upkeep._status import Alert, AlertKind, IndexStatus, ShardStatus, Status, Want
from holdfast.upkeep._vacuum import GRACE, Leftover, LeftoverKind, VacuumResult, vacuum

__all__ = [
    "GRACE",
    "Alert",
    "AlertKind",
    "Candidate",
    "CompactLsmResult",
    "Diagnosis",
    "Doubt",
    "Finding",
    "FindingKind",
    "FlushLogResult",
    "IndexStatus",
    "Lease",
    "Leftover",
    "LeftoverKind",
    "MaintainResult",
    "Policy",
    "RepairKind",
    "RepairResult",
    "RepairShardResult",
    "RepairState",
    "RepairStep",
    "RescueResult",
    "Rescued",
    "ResetLogResult",
    "Schedule",
    "Severity",
    "ShardMerge",
    "ShardStatus",
    "SstableDamage",
    "SstableWound",
    "Status",
    "Step",
    "StepKind",
    "StepState",
    "VacuumResult",
    "Want",
    "doctor",
    "read_lease",
    "repair",
    "rescue",
    "take_lease",
    "vacuum",
]
