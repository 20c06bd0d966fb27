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
    from holdfast.upkeep._compact_lsm import (
        ROWS_AT_ONCE,
        CompactLsmResult,
        LanceBase,
        LancePass,
        ShardMerge,
        Work,
        compact_lsm,
        merge_shard,
    )
    from holdfast.upkeep._doctor import Diagnosis, doctor
    from holdfast.upkeep._findings import Finding, FindingKind, Severity
    from holdfast.upkeep._flush_log import IDLE, ROWS_PER_GENERATION, FlushLogResult, flush_log
    from holdfast.upkeep._key_set import ADDRESS, KeySet, key_of
    from holdfast.upkeep._maintain import (
        MaintainResult,
        Maintenance,
        Policy,
        Step,
        StepKind,
        StepState,
    )
    from holdfast.upkeep._merge_rows import Changes, Marked
    from holdfast.upkeep._repair import RepairResult, repair
    from holdfast.upkeep._repair_shard import RepairShardResult, repair_shard
    from holdfast.upkeep._repair_steps import RepairKind, RepairState, RepairStep
    from holdfast.upkeep._rescue import Rescued, RescueResult, rescue
    from holdfast.upkeep._reset_log import ResetLogResult, Waiting, reset_log
    from holdfast.upkeep._schedule import Lease, Schedule, read_lease, take_lease
    from holdfast.upkeep._sstable_exam import SstableDamage, SstableWound
    from holdfast.upkeep._status import (
        Alert,
        AlertKind,
        IndexStatus,
        ShardStatus,
        Status,
        Want,
        read_full_status,
    )
    from holdfast.upkeep._vacuum import (
        GRACE,
        Leftover,
        LeftoverKind,
        VacuumResult,
        vacuum,
        vacuum_table,
    )
    from holdfast.upkeep._waiting import merge_log, merge_waiting

__all__ = [
    "ADDRESS",
    "GRACE",
    "IDLE",
    "ROWS_AT_ONCE",
    "ROWS_PER_GENERATION",
    "Alert",
    "AlertKind",
    "Candidate",
    "Changes",
    "CompactLsmResult",
    "Diagnosis",
    "Doubt",
    "Finding",
    "FindingKind",
    "FlushLogResult",
    "IndexStatus",
    "KeySet",
    "LanceBase",
    "LancePass",
    "Lease",
    "Leftover",
    "LeftoverKind",
    "MaintainResult",
    "Maintenance",
    "Marked",
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
    "Waiting",
    "Want",
    "Work",
    "compact_lsm",
    "doctor",
    "flush_log",
    "key_of",
    "merge_log",
    "merge_shard",
    "merge_waiting",
    "read_full_status",
    "read_lease",
    "repair",
    "repair_shard",
    "rescue",
    "reset_log",
    "take_lease",
    "vacuum",
    "vacuum_table",
]

__getattr__ = load_names(
    __name__,
    {
        "_candidates": "Candidate Doubt",
        "_compact_lsm": (
            "ROWS_AT_ONCE CompactLsmResult LanceBase LancePass ShardMerge Work compact_lsm "
            "merge_shard"
        ),
        "_doctor": "Diagnosis doctor",
        "_findings": "Finding FindingKind Severity",
        "_flush_log": "IDLE ROWS_PER_GENERATION FlushLogResult flush_log",
        "_key_set": "ADDRESS KeySet key_of",
        "_maintain": "MaintainResult Maintenance Policy Step StepKind StepState",
        "_merge_rows": "Changes Marked",
        "_repair": "RepairResult repair",
        "_repair_shard": "RepairShardResult repair_shard",
        "_repair_steps": "RepairKind RepairState RepairStep",
        "_rescue": "RescueResult Rescued rescue",
        "_reset_log": "ResetLogResult Waiting reset_log",
        "_schedule": "Lease Schedule read_lease take_lease",
        "_sstable_exam": "SstableDamage SstableWound",
        "_status": "Alert AlertKind IndexStatus ShardStatus Status Want read_full_status",
        "_vacuum": "GRACE Leftover LeftoverKind VacuumResult vacuum vacuum_table",
        "_waiting": "merge_log merge_waiting",
    },
)
