"""Rows go into the columns that they were written for, or nowhere.

Lance matches the columns of a data file by id alone. An overwrite gives the same ids to
other columns, a cast gives a column a new id: rows written before would be misread, or read
as nulls. So appended rows are compared with the columns of the version they are put upon,
and again, inside the hook, when Lance rebased them on a newer one meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.commits._history import transaction_of
from holdfast.errors import ConflictError, NextStep, NotFoundError
from holdfast.formats import Column, Head, VersionFacts, version_name
from holdfast.storage import ObjectStore

if TYPE_CHECKING:
    import lance

Columns: TypeAlias = Mapping[int, Column]
"""The columns of a version, and the parts of nested ones, by their ids."""


class ColumnsChangedError(ConflictError):
    """The rows were written for other columns; trying again would not help."""

    next_step = NextStep.NEVER


def columns_of(table: lance.LanceDataset) -> Columns:
    """Return the columns of a version that Lance opened."""
    columns: dict[int, Column] = {}
    waiting: list[Any] = list(table.lance_schema.fields())  # Any: the stubs lack `to_arrow`
    while waiting:
        field = waiting.pop()
        columns[int(field.id())] = Column(field.name(), str(field.to_arrow().type))
        waiting.extend(field.children())
    return columns


def fields_of(fragments: Iterable[Any]) -> set[int]:
    """Return the ids of the columns that are in the files of fragments."""
    return {i for part in fragments for file in part.files for i in file.fields if i >= 0}


def check_columns(then: Columns, now: Columns, used: set[int]) -> None:
    """Refuse rows in columns `used` that were written for others than there are now.

    Raises:
        ColumnsChangedError: the difference, in words.
    """
    changed = [_change(i, then, now) for i in sorted(used) if then.get(i) != now.get(i)]
    if changed:
        raise ColumnsChangedError(
            "the table's columns changed since these rows were written: append them again",
            changes="; ".join(changed)[:300],
        )


def check_rebased(store: ObjectStore, manifest: bytes, head: Head) -> None:
    """Refuse an append that Lance put upon other columns than its rows were written for.

    Lance keeps appends away from overwrites, but not from columns that were dropped or cast.

    Raises:
        ColumnsChangedError: the difference, in words.
        ConflictError: the version that the append was based on is gone.
    """
    if head.read_version is not None and head.read_version + 1 == head.version:
        return
    transaction = transaction_of(store, VersionFacts(manifest))
    if transaction is None or transaction.operation != "Append":
        return
    try:
        then = Head(store.get(version_name(transaction.read_version).path))
    except NotFoundError:
        raise ConflictError("the version that was read is gone: read again") from None
    check_columns(then.columns, head.columns, fields_of(transaction.added))


def _change(field: int, then: Columns, now: Columns) -> str:
    was, there = then.get(field), now.get(field)
    if was is None:
        return f"column {there.name!r} is new" if there else f"column {field} is not known"
    if there is None:  # a cast makes a column anew
        there = next((column for column in now.values() if column.name == was.name), None)
    if there is None:
        return f"column {was.name!r} ({was.type}) is gone"
    if was.name != there.name:
        return f"column {was.name!r} ({was.type}) is now {there.name!r} ({there.type})"
    return f"column {was.name!r} was {was.type}, is now {there.type}"
