"""The clauses of a merge: what becomes of rows that match, and of those that do not.

    table.merge_into(
        rows,
        on="id",
        clauses=[
            when_matched_delete(where="source.op = 'D'"),
            when_matched_update({"n": "target.n + source.n"}, where="source.at > target.at"),
            when_not_matched_insert(),
        ],
    )

Of several clauses for one kind of row the first counts whose condition is true; where none is,
the row stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holdfast.errors import InvalidInputError

When: TypeAlias = Literal["matched", "not_matched", "not_matched_by_source"]
Then: TypeAlias = Literal["update", "insert", "delete"]
Matched: TypeAlias = Literal["update", "delete", "ignore"]
NotMatched: TypeAlias = Literal["insert", "ignore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One clause of a merge; made by the functions whose names begin with `when_`.

    Attributes:
        when: the rows that it is for.
        then: what becomes of them.
        where: an SQL condition on `source` and `target`; all of them by default.
        values: an SQL expression by column; by default the source's columns of the same names.
    """

    when: When
    then: Then
    where: str | None = None
    values: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no SQL.

        Raises:
            InvalidInputError: a condition or a value is none.
        """
        where: object = self.where
        if where is not None and (not isinstance(where, str) or not where.strip()):
            raise InvalidInputError(
                "the condition of a clause is SQL, such as \"source.op = 'D'\"", given=repr(where)
            )
        for name, value in (self.values or {}).items():
            given: object = value
            if not isinstance(given, str) or not given.strip():
                raise InvalidInputError(
                    'a new value is SQL, given as text: a number as "5", a text as "\'five\'"',
                    column=name,
                    given=repr(value),
                )
        if self.values is not None and not self.values:
            raise InvalidInputError("a clause with values has one at least: leave them out for all")

    @property
    def copies_rows(self) -> bool:
        """Tell whether it writes rows of the source as they are."""
        return self.then in {"update", "insert"} and self.values is None

    @property
    def expressions(self) -> list[str]:
        """Return all its SQL."""
        return [*([] if self.where is None else [self.where]), *(self.values or {}).values()]


def when_matched_update(
    values: Mapping[str, str] | None = None, *, where: str | None = None
) -> Clause:
    """Update a row of the table that has a row of the source.

    Args:
        values: SQL by column, on `source.x` and `target.x`; other columns stay. By default the
            row of the source takes its place.
        where: only if this SQL condition is true.

    Raises:
        InvalidInputError: a condition or a value is no SQL.
    """
    return Clause(when="matched", then="update", where=where, values=values)


def when_matched_delete(*, where: str | None = None) -> Clause:
    """Delete a row of the table that has a row of the source.

    Args:
        where: only if this SQL condition is true.

    Raises:
        InvalidInputError: the condition is no SQL.
    """
    return Clause(when="matched", then="delete", where=where)


def when_not_matched_insert(
    values: Mapping[str, str] | None = None, *, where: str | None = None
) -> Clause:
    """Insert a row of the source that has no row of the table.

    Args:
        values: SQL by column, on `source.x`; the key is the source's, other columns are null.
            By default the row of the source, as it is.
        where: only if this SQL condition is true.

    Raises:
        InvalidInputError: a condition or a value is no SQL.
    """
    return Clause(when="not_matched", then="insert", where=where, values=values)


def when_not_matched_by_source_update(
    values: Mapping[str, str], *, where: str | None = None
) -> Clause:
    """Update a row of the table that has no row of the source.

    Args:
        values: SQL by column, on `target.x`; other columns stay.
        where: only if this SQL condition is true.

    Raises:
        InvalidInputError: a condition or a value is no SQL.
    """
    return Clause(when="not_matched_by_source", then="update", where=where, values=values)


def when_not_matched_by_source_delete(*, where: str | None = None) -> Clause:
    """Delete a row of the table that has no row of the source.

    Args:
        where: only if this SQL condition is true, on `target.x`.

    Raises:
        InvalidInputError: the condition is no SQL.
    """
    return Clause(when="not_matched_by_source", then="delete", where=where)


def clauses_of(
    when_matched: Matched | None,
    when_not_matched: NotMatched | None,
    delete_where: str | None,
    clauses: Sequence[Clause],
) -> tuple[Clause, ...]:
    """Return the clauses of a merge, from the short way to say them or the long one.

    The condition of the short way names columns of the source without a prefix; `is_short`
    conditions are evaluated so by the caller: here they only get their place.

    Raises:
        InvalidInputError: a word that is not known, both ways, or nothing to do.
    """
    if clauses:
        if not (when_matched is None and when_not_matched is None and delete_where is None):
            raise InvalidInputError(
                "give clauses, or when_matched, when_not_matched and delete_where: not both"
            )
        given: Sequence[object] = clauses
        if not all(isinstance(one, Clause) for one in given):
            raise InvalidInputError("clauses are what when_matched_update and its like return")
        return tuple(clauses)
    matched = "update" if when_matched is None else when_matched
    not_matched = "insert" if when_not_matched is None else when_not_matched
    if matched not in {"update", "delete", "ignore"}:
        raise InvalidInputError(
            "when_matched is 'update', 'delete' or 'ignore'", given=repr(when_matched)
        )
    if not_matched not in {"insert", "ignore"}:
        raise InvalidInputError(
            "when_not_matched is 'insert' or 'ignore'", given=repr(when_not_matched)
        )
    made: list[Clause] = []
    if delete_where is not None:
        made.append(when_matched_delete(where=DELETES))
    if matched != "ignore":
        made.append(Clause(when="matched", then="update" if matched == "update" else "delete"))
    if not_matched == "insert":
        keeps = None if delete_where is None else f"NOT {DELETES}"
        made.append(when_not_matched_insert(where=keeps))
    if not made:
        raise InvalidInputError("this merge would do nothing: give it a clause")
    return tuple(made)


DELETE_MARK = "_holdfast_deletes"
"""The column of a source that says whether `delete_where` is true for a row."""
DELETES = f"source.{DELETE_MARK}"
