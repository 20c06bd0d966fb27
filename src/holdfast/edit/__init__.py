"""Changes of rows that a table has: merge, update, delete, replace."""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.edit._clauses import (
        DELETE_MARK,
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
    from holdfast.edit._computed import Computed, RowChange, by_fragment
    from holdfast.edit._edits import delete_where, merge_into, replace_where, update_where
    from holdfast.edit._engine import TRIES, apply_change
    from holdfast.edit._merge import check_keys
    from holdfast.edit._results import ChangeResult, Counts
    from holdfast.edit._rows import refuse_unwritable, write_rows
    from holdfast.edit._source import DataMerge, named_keys
    from holdfast.edit._where import Where

__all__ = [
    "DELETE_MARK",
    "TRIES",
    "ChangeResult",
    "Clause",
    "Computed",
    "Counts",
    "DataMerge",
    "Matched",
    "NotMatched",
    "RowChange",
    "Where",
    "apply_change",
    "by_fragment",
    "check_keys",
    "clauses_of",
    "delete_where",
    "merge_into",
    "named_keys",
    "refuse_unwritable",
    "replace_where",
    "update_where",
    "when_matched_delete",
    "when_matched_update",
    "when_not_matched_by_source_delete",
    "when_not_matched_by_source_update",
    "when_not_matched_insert",
    "write_rows",
]

__getattr__ = load_names(
    __name__,
    {
        "_clauses": (
            "DELETE_MARK Clause Matched NotMatched clauses_of when_matched_delete "
            "when_matched_update when_not_matched_by_source_delete "
            "when_not_matched_by_source_update when_not_matched_insert"
        ),
        "_computed": "Computed RowChange by_fragment",
        "_edits": "delete_where merge_into replace_where update_where",
        "_engine": "TRIES apply_change",
        "_merge": "check_keys",
        "_results": "ChangeResult Counts",
        "_rows": "refuse_unwritable write_rows",
        "_source": "DataMerge named_keys",
        "_where": "Where",
    },
)
