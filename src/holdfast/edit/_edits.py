"""Changes of rows, one version each: what `Table` and its like offer, as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.commits import Data, Versions
from holdfast.edit._clauses import Clause, Matched, NotMatched, clauses_of
from holdfast.edit._engine import TRIES, apply_change
from holdfast.edit._results import ChangeResult
from holdfast.edit._source import DataMerge
from holdfast.edit._where import Delete, Replace, Update
from holdfast.txn import TxnLike


def merge_into(
    versions: Versions,
    rows: Data,
    on: str | Sequence[str] | None = None,
    *,
    when_matched: Matched | None = None,
    when_not_matched: NotMatched | None = None,
    delete_where: str | None = None,
    clauses: Sequence[Clause] = (),
    txn: TxnLike | None = None,
    tries: int = TRIES,
    over_log: bool = False,
) -> ChangeResult:
    """Change rows by key; see `Table.merge_into`."""
    merge = DataMerge(
        rows,
        on,
        clauses_of(when_matched, when_not_matched, delete_where, clauses),
        delete_where=delete_where,
        may_have_more=bool(clauses) or delete_where is not None,
    )
    return _apply(versions, merge, txn, tries, over_log=over_log)


def update_where(
    versions: Versions,
    where: str | None,
    values: Mapping[str, str],
    *,
    txn: TxnLike | None = None,
    tries: int = TRIES,
    over_log: bool = False,
) -> ChangeResult:
    """Give columns of the rows that meet a condition new values; see `Table.update`."""
    return _apply(versions, Update(where, values), txn, tries, over_log=over_log)


def delete_where(
    versions: Versions,
    where: str,
    *,
    txn: TxnLike | None = None,
    tries: int = TRIES,
    over_log: bool = False,
) -> ChangeResult:
    """Delete the rows that meet a condition; see `Table.delete`."""
    return _apply(versions, Delete(_where_text(where)), txn, tries, over_log=over_log)


def replace_where(
    versions: Versions,
    rows: Data,
    where: str,
    *,
    txn: TxnLike | None = None,
    tries: int = TRIES,
    over_log: bool = False,
) -> ChangeResult:
    """Put rows in the place of those that meet a condition; see `Table.replace_where`."""
    return _apply(versions, Replace(_where_text(where), rows), txn, tries, over_log=over_log)


def _apply(
    versions: Versions,
    change: Update | Delete | Replace | DataMerge,
    txn: TxnLike | None,
    tries: int,
    *,
    over_log: bool,
) -> ChangeResult:
    versions.core.check_writable()
    return apply_change(versions, change, txn=txn, tries=tries, over_log=over_log)


def _where_text(where: object) -> str:
    return where if isinstance(where, str) else ""  # which is refused as no condition
