"""Versions of a Lance table, decided by an arbiter.

`Namespace` loads Lance's generated models, so it is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.commits._appends import Append, Appender, Prepared
    from holdfast.commits._boundary import KEPT_AT_LEAST, VersionsBoundary
    from holdfast.commits._columns import columns_of
    from holdfast.commits._committer import LanceOperation, LancePlan, touch
    from holdfast.commits._data import (
        ArrowStream,
        Data,
        as_reader,
        check_stream,
        differences,
        read_any,
        refuse_fractions,
    )
    from holdfast.commits._dataset import open_dataset
    from holdfast.commits._drop import drop_table
    from holdfast.commits._folders import Folders
    from holdfast.commits._group import GroupCommit, GroupItem
    from holdfast.commits._held import hold, report_commits
    from holdfast.commits._history import (
        VERSIONS_FOLDER,
        Records,
        TableStatus,
        VersionInfo,
        foreign,
        in_parallel,
        list_versions,
        read_history,
        read_status,
        read_version,
        records_of,
        require_versions,
        transaction_of,
        unfinished_versions,
    )
    from holdfast.commits._joined import join_rows
    from holdfast.commits._lance import is_foreign, is_panic, meaning_of, told_by, translate_errors
    from holdfast.commits._ledger import Ledger
    from holdfast.commits._log_rules import (
        After,
        changes_rows,
        check_log_id,
        lost_log,
        register_keeper,
    )
    from holdfast.commits._loop import CommitPlan, make_version
    from holdfast.commits._namespace import Namespace
    from holdfast.commits._opening import create_hooked, open_hooked
    from holdfast.commits._operation import AlreadyAppliedError, CommitHook, Committed, DatasetHook
    from holdfast.commits._results import CommitResult
    from holdfast.commits._versions import Edit, Versions
    from holdfast.commits._writes import Writes, require_rows

__all__ = [
    "KEPT_AT_LEAST",
    "VERSIONS_FOLDER",
    "After",
    "AlreadyAppliedError",
    "Append",
    "Appender",
    "ArrowStream",
    "CommitHook",
    "CommitPlan",
    "CommitResult",
    "Committed",
    "Data",
    "DatasetHook",
    "Edit",
    "Folders",
    "GroupCommit",
    "GroupItem",
    "LanceOperation",
    "LancePlan",
    "Ledger",
    "Namespace",
    "Prepared",
    "Records",
    "TableStatus",
    "VersionInfo",
    "Versions",
    "VersionsBoundary",
    "Writes",
    "as_reader",
    "changes_rows",
    "check_log_id",
    "check_stream",
    "columns_of",
    "create_hooked",
    "differences",
    "drop_table",
    "foreign",
    "hold",
    "in_parallel",
    "is_foreign",
    "is_panic",
    "join_rows",
    "list_versions",
    "lost_log",
    "make_version",
    "meaning_of",
    "open_dataset",
    "open_hooked",
    "read_any",
    "read_history",
    "read_status",
    "read_version",
    "records_of",
    "refuse_fractions",
    "register_keeper",
    "report_commits",
    "require_rows",
    "require_versions",
    "told_by",
    "touch",
    "transaction_of",
    "translate_errors",
    "unfinished_versions",
]

__getattr__ = load_names(
    __name__,
    {
        "_appends": "Append Appender Prepared",
        "_boundary": "KEPT_AT_LEAST VersionsBoundary",
        "_columns": "columns_of",
        "_committer": "LanceOperation LancePlan touch",
        "_data": "ArrowStream Data as_reader check_stream differences read_any refuse_fractions",
        "_dataset": "open_dataset",
        "_drop": "drop_table",
        "_folders": "Folders",
        "_group": "GroupCommit GroupItem",
        "_held": "hold report_commits",
        "_history": (
            "VERSIONS_FOLDER Records TableStatus VersionInfo foreign in_parallel "
            "list_versions read_history read_status read_version records_of require_versions "
            "transaction_of unfinished_versions"
        ),
        "_joined": "join_rows",
        "_lance": "is_foreign is_panic meaning_of told_by translate_errors",
        "_ledger": "Ledger",
        "_log_rules": "After changes_rows check_log_id lost_log register_keeper",
        "_loop": "CommitPlan make_version",
        "_namespace": "Namespace",
        "_opening": "create_hooked open_hooked",
        "_operation": "AlreadyAppliedError Committed DatasetHook CommitHook",
        "_results": "CommitResult",
        "_versions": "Edit Versions",
        "_writes": "Writes require_rows",
    },
)
