"""Look after tables: what is wrong with one, and what was lost of it.

diagnosis = doctor("s3://bucket/events.lance")
for finding in diagnosis.findings:
    print(finding.severity, finding.what, finding.advice)
rescue("s3://bucket/events.lance", ids="all", confirm=True)
vacuum("s3://bucket/events.lance", confirm=True)
"""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.upkeep._candidates import Candidate, Doubt
    from holdfast.upkeep._compact_lsm import ROWS_AT_ONCE as ROWS_AT_ONCE
    from holdfast.upkeep._compact_lsm import CompactLsmResult, ShardMerge
    from holdfast.upkeep._compact_lsm import LanceBase as LanceBase
    from holdfast.upkeep._compact_lsm import LancePass as LancePass
    from holdfast.upkeep._compact_lsm import MergeRun as MergeRun
    from holdfast.upkeep._compact_lsm import compact_lsm as compact_lsm
    from holdfast.upkeep._compact_lsm import merge_shard as merge_shard
    from holdfast.upkeep._copy_files import CopyPlan as CopyPlan
    from holdfast.upkeep._copy_files import copy_files as copy_files
    from holdfast.upkeep._copy_files import plan_copy as plan_copy
    from holdfast.upkeep._doctor import Diagnosis, doctor
    from holdfast.upkeep._findings import Finding, FindingKind, Severity
    from holdfast.upkeep._flush_log import IDLE as IDLE
    from holdfast.upkeep._flush_log import ROWS_PER_GENERATION as ROWS_PER_GENERATION
    from holdfast.upkeep._flush_log import FlushLogResult
    from holdfast.upkeep._flush_log import flush_log as flush_log
    from holdfast.upkeep._key_set import ADDRESS as ADDRESS
    from holdfast.upkeep._key_set import MergeKeys as MergeKeys
    from holdfast.upkeep._key_set import key_of as key_of
    from holdfast.upkeep._maintain import MaintainResult, Policy, Step, StepKind, StepState
    from holdfast.upkeep._maintain import Maintenance as Maintenance
    from holdfast.upkeep._merge_rows import Marked as Marked
    from holdfast.upkeep._merge_rows import RowChanges as RowChanges
    from holdfast.upkeep._repair import RepairResult, repair
    from holdfast.upkeep._repair_shard import RepairShardResult
    from holdfast.upkeep._repair_shard import repair_shard as repair_shard
    from holdfast.upkeep._repair_steps import RepairKind, RepairState, RepairStep
    from holdfast.upkeep._rescue import Rescued, RescueResult, rescue
    from holdfast.upkeep._reset_log import ResetLogResult
    from holdfast.upkeep._reset_log import Waiting as Waiting
    from holdfast.upkeep._reset_log import reset_log as reset_log
    from holdfast.upkeep._schedule import Lease, Schedule, read_lease, take_lease
    from holdfast.upkeep._sstable_exam import SstableDamage, SstableWound
    from holdfast.upkeep._status import Alert, AlertKind, IndexStatus, ShardStatus, Status, Want
    from holdfast.upkeep._status import read_full_status as read_full_status
    from holdfast.upkeep._vacuum import GRACE, Leftover, LeftoverKind, VacuumResult, vacuum
    from holdfast.upkeep._vacuum import vacuum_table as vacuum_table
    from holdfast.upkeep._waiting import merge_log as merge_log
    from holdfast.upkeep._waiting import merge_waiting as merge_waiting
    from holdfast.upkeep._waiting import merged_in as merged_in

# What is not in this list is for the packages above, not for users.
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

__getattr__ = load_names(
    __name__,
    {
        "_candidates": "Candidate Doubt",
        "_compact_lsm": (
            "ROWS_AT_ONCE CompactLsmResult LanceBase LancePass ShardMerge MergeRun compact_lsm "
            "merge_shard"
        ),
        "_copy_files": "CopyPlan copy_files plan_copy",
        "_doctor": "Diagnosis doctor",
        "_findings": "Finding FindingKind Severity",
        "_flush_log": "IDLE ROWS_PER_GENERATION FlushLogResult flush_log",
        "_key_set": "ADDRESS MergeKeys key_of",
        "_maintain": "MaintainResult Maintenance Policy Step StepKind StepState",
        "_merge_rows": "RowChanges Marked",
        "_repair": "RepairResult repair",
        "_repair_shard": "RepairShardResult repair_shard",
        "_repair_steps": "RepairKind RepairState RepairStep",
        "_rescue": "RescueResult Rescued rescue",
        "_reset_log": "ResetLogResult Waiting reset_log",
        "_schedule": "Lease Schedule read_lease take_lease",
        "_sstable_exam": "SstableDamage SstableWound",
        "_status": "Alert AlertKind IndexStatus ShardStatus Status Want read_full_status",
        "_vacuum": "GRACE Leftover LeftoverKind VacuumResult vacuum vacuum_table",
        "_waiting": "merge_log merge_waiting merged_in",
    },
)
