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
from holdfast.edit._engine import TRIES, apply_change
from holdfast.edit._results import ChangeResult, Counts
from holdfast.edit._rows import refuse_unwritable
from holdfast.edit._verbs import EditVerbs
from holdfast.edit._where import Where

__all__ = [
    "TRIES",
    "ChangeResult",
    "Clause",
    "Computed",
    "Counts",
    "EditVerbs",
    "Matched",
    "NotMatched",
    "RowChange",
    "Where",
    "apply_change",
    "clauses_of",
    "refuse_unwritable",
    "when_matched_delete",
    "when_matched_update",
    "when_not_matched_by_source_delete",
    "when_not_matched_by_source_update",
    "when_not_matched_insert",
]
