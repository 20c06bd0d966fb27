"""Changes: every insert, update and delete of a table, once, from any point to any later one."""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.changes._changes import Changes, find_cursor, read_changes, read_lag, record_now
    from holdfast.changes._cursor import ChangeCursor, Followed
    from holdfast.changes._history import History
    from holdfast.changes._lineage import ChangeColumns, follow_columns
    from holdfast.changes._plan import ChangePlan, ChangeTarget, Limits, plan_changes
    from holdfast.changes._read import StepReader
    from holdfast.changes._rows import BESIDE, change_schema
    from holdfast.changes._start import (
        Lag,
        Since,
        Until,
        find_end,
        find_lag,
        find_start,
        lag_behind,
    )
    from holdfast.changes._steps import Compared, Inserted, Logged, Step

__all__ = [
    "BESIDE",
    "ChangeColumns",
    "ChangeCursor",
    "ChangePlan",
    "ChangeTarget",
    "Changes",
    "Compared",
    "Followed",
    "History",
    "Inserted",
    "Lag",
    "Limits",
    "Logged",
    "Since",
    "Step",
    "StepReader",
    "Until",
    "change_schema",
    "find_cursor",
    "find_end",
    "find_lag",
    "find_start",
    "follow_columns",
    "lag_behind",
    "plan_changes",
    "read_changes",
    "read_lag",
    "record_now",
]

__getattr__ = load_names(
    __name__,
    {
        "_changes": "Changes find_cursor read_changes read_lag record_now",
        "_cursor": "ChangeCursor Followed",
        "_history": "History",
        "_lineage": "ChangeColumns follow_columns",
        "_plan": "Limits ChangePlan ChangeTarget plan_changes",
        "_read": "StepReader",
        "_rows": "BESIDE change_schema",
        "_start": "Lag Since Until find_end find_lag find_start lag_behind",
        "_steps": "Compared Inserted Logged Step",
    },
)
