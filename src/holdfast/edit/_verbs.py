"""The verbs of a table that change rows, as users call them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from holdfast.commits import Data
from holdfast.edit._clauses import Clause, Matched, NotMatched, clauses_of
from holdfast.edit._engine import TRIES, apply_change
from holdfast.edit._results import ChangeResult
from holdfast.edit._source import DataMerge
from holdfast.edit._where import Delete, Replace, Update
from holdfast.txn import TxnLike
from holdfast.upkeep import UpkeepVerbs


class EditVerbs(UpkeepVerbs, ABC):
    """What a table can do with rows that it has.

    Each verb is one version, or none; under a `txn` it is applied once. Changes of different rows
    do not disturb each other, even inside one fragment. One that finds its rows changed by
    another writer begins anew, `tries` times at most.
    """

    @abstractmethod
    def check_writable(self) -> None:
        """Return if this table's versions can be decided, before files are written for one."""

    def merge_into(
        self,
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
        """Change rows by key: update, insert, delete; all in one version.

        The rows are held in memory; for larger sources see `SparkTable.merge_into`. Merges that
        run at the same time never make a key appear twice.

        Args:
            rows: the source; one row for each key, never null. Anything with Arrow's stream
                interface, or a list of dicts.
            on: the key columns; the table's primary key by default.
            when_matched: what becomes of a row that the source has too: `"update"` (replaced by
                the source's row, the default), `"delete"` or `"ignore"`.
            when_not_matched: what becomes of a row of the source that the table lacks:
                `"insert"` (the default) or `"ignore"`.
            delete_where: a condition on columns of the source, such as `op = 'D'`, in Lance's
                SQL; rows that meet it delete what they match and are never inserted. With it
                or with `clauses` the source may have columns that the table lacks.
            clauses: what becomes of rows in detail, instead of the three above; see
                `holdfast.when_matched_update` and its like.
            txn: makes a repeat harmless: `(app, number)` or a string.
            tries: how often to begin.
            over_log: merge although rows wait in the table's log. They win over these once
                they are merged, so no key must be in both.

        Raises:
            InvalidInputError: keys that are null or there more than once (the error names them),
                columns that do not fit, an unknown clause, a malformed txn.
            RowConflictError: other writers changed the same rows first, `tries` times.
            ConflictError: others were faster each time; nothing was changed.
            LogWaitsError: rows wait in the table's log that cannot be merged now.
            LogLostError: the table does not say how far its log is merged.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            HoldfastError: a store did not do its part; nothing was changed.
        """
        merge = DataMerge(
            rows,
            on,
            clauses_of(when_matched, when_not_matched, delete_where, clauses),
            delete_where=delete_where,
            may_have_more=bool(clauses) or delete_where is not None,
        )
        return self._apply(merge, txn, tries, over_log=over_log)

    def update(
        self,
        where: str | None,
        set: Mapping[str, str],  # noqa: A002 - SQL's word
        *,
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Give columns of the rows that meet a condition new values, in one version.

        Args:
            where: a condition in Lance's SQL, such as `day < '2026-01-01'`; None for all rows.
            set: an SQL expression by column: `{"n": "n + 1", "word": "'new'"}`. A key does not
                change.
            txn: as for `merge_into`.
            tries: as for `merge_into`.
            over_log: as for `merge_into`.

        Raises:
            InvalidInputError: Lance does not understand a condition or an expression, or its
                values do not fit the column.
            Other errors: as for `merge_into`.
        """
        return self._apply(Update(where, set), txn, tries, over_log=over_log)

    def delete(
        self,
        where: str,
        *,
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Delete the rows that meet a condition, in one version.

        Args:
            where: a condition in Lance's SQL; `true` for all rows.
            txn: as for `merge_into`.
            tries: as for `merge_into`.
            over_log: as for `merge_into`.

        Raises:
            InvalidInputError: Lance does not understand the condition.
            Other errors: as for `merge_into`.
        """
        return self._apply(Delete(_given(where)), txn, tries, over_log=over_log)

    def replace_where(
        self,
        rows: Data,
        where: str,
        *,
        txn: TxnLike | None = None,
        tries: int = TRIES,
        over_log: bool = False,
    ) -> ChangeResult:
        """Put rows in the place of those that meet a condition, in one version.

        Args:
            rows: the new rows, held in memory; each meets the condition. There may be none.
            where: a condition in Lance's SQL, such as `day = '2026-01-01'`.
            txn: as for `merge_into`.
            tries: as for `merge_into`.
            over_log: as for `merge_into`.

        Raises:
            InvalidInputError: a row does not meet the condition, or does not fit.
            Other errors: as for `merge_into`.
        """
        return self._apply(Replace(_given(where), rows), txn, tries, over_log=over_log)

    def _apply(
        self,
        change: Update | Delete | Replace | DataMerge,
        txn: TxnLike | None,
        tries: int,
        *,
        over_log: bool,
    ) -> ChangeResult:
        self.check_writable()
        ground = self._log_ground()
        return apply_change(ground, change, txn=txn, tries=tries, over_log=over_log)


def _given(where: object) -> str:
    return where if isinstance(where, str) else ""  # which is refused as no condition
