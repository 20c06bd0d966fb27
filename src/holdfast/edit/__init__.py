"""Changes of rows that a table has: merge, update, delete, replace."""

from holdfast.edit._clauses import (
    Clause,
    Matched,
    NotMatched,
    clauses_of,
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from holdfast.edit._computed import Computed, RowChange
from holdfast.edit._edits import delete_where, merge_into, replace_where, update_where
from holdfast.edit._engine import TRIES, apply_change
from holdfast.edit._results import ChangeResult, Counts

__all__ = [
    "TRIES",
    "ChangeResult",
    "Clause",
    "Computed",
    "Counts",
    "Matched",
    "NotMatched",
    "RowChange",
    "apply_change",
    "clauses_of",
    "delete_where",
    "merge_into",
    "replace_where",
    "update_where",
    "when_matched_delete",
    "when_matched_update",
    "when_not_matched_by_source_delete",
    "when_not_matched_by_source_update",
    "when_not_matched_insert",
]
