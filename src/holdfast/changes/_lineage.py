"""Which column of an old version is which of today's: by Lance's ids, from version to version.

A name says little: a column may have been renamed, or dropped and made anew. Lance's ids say more,
but not over all time: an overwrite and a restore give them anew, a change of type gives the column
a new one, and the id of a dropped column may become another's. So ids are followed from each
version to the one before it:

| the version | a column is |
|---|---|
| overwrote the table | the one before it with its name |
| restored an older one | the one with its id, or else with its name |
| did anything else | the one with its id, or else, since its type was changed, with its name |

A column without one before it began there: in older changes it is null. Where one went and
another came in a single version, it may be the same column under a new name and in another type,
or not: that is refused, rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from holdfast.changes._history import History
from holdfast.changes._plan import ChangePlan
from holdfast.changes._rows import columns_of
from holdfast.changes._steps import Compared, Inserted, Logged, Step
from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats import Field, FieldEntry, counterpart, fit_column, lance_fields

Dataset: TypeAlias = Any  # lance.LanceDataset
_TOP: Final = -1  # the parent of a column, in Lance's schemas
GONE: Final = -1
"""The id of a column that is not there any more."""
_UNSURE = frozenset({"Restore", "Unknown"})
"""Versions before which an id may have been another column's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumns:
    """The columns that change rows have, and what they were called in older versions.

    Attributes:
        fields: the columns, as the newest version has them.
        ids: by older version, today's id of each of its columns and of their parts. A version
            that is not here has the ids of today.
    """

    fields: tuple[Field, ...]
    ids: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns."""
        return pa.schema([one.field for one in self.fields])

    def translate(self, version: int, fields: Sequence[Field]) -> list[Field]:
        """Return the columns of a version, under their names of then, with the ids of today."""
        ids = self.ids.get(version)
        return [_translate(one, ids) for one in fields]

    def fit(self, rows: pa.Table, theirs: Sequence[Field]) -> pa.Table:
        """Return rows of a version in these columns; one that it lacks is null.

        Args:
            rows: of that version.
            theirs: what `translate` returns for it.

        Raises:
            InvalidInputError: a column had a type that does not fit.
        """
        made = []
        for ours in self.fields:
            at = counterpart(ours, theirs)
            if at is None:
                made.append(pa.nulls(rows.num_rows, ours.field.type))
            else:
                made.append(_fit_column(rows[theirs[at].name], theirs[at], ours))
        return pa.Table.from_arrays(made, schema=self.schema)


def _translate(one: Field, ids: Mapping[int, int] | None) -> Field:
    number = one.id if one.id is None or ids is None else ids.get(one.id, GONE)
    return replace(one, id=number, since=None, inside=tuple(_translate(x, ids) for x in one.inside))


def _fit_column(column: pa.ChunkedArray, theirs: Field, ours: Field) -> pa.ChunkedArray:
    renamed = replace(theirs, field=theirs.field.with_name(ours.name))
    try:
        return fit_column(column, renamed, ours)
    except CorruptError as error:
        raise InvalidInputError(
            "a column had another type then: leave it out with `columns`, or begin behind the "
            "version that changed it",
            column=ours.name,
            was=str(column.type),
            wanted=str(ours.field.type),
        ) from error


def follow_columns(
    history: History,
    newest: Dataset,
    columns: Sequence[str] | None,
    plan: ChangePlan,
) -> ChangeColumns:
    """Return columns with what they were in all versions that a plan reads.

    Args:
        history: of the table.
        newest: a version at or behind all that are read.
        columns: names of its columns; all by default.
        plan: what is read.

    Raises:
        InvalidInputError: there is no such column, or nobody can tell which one it was.
        CollectedError: a version between was collected.
    """
    schema = columns_of(newest.schema, columns)
    there = {one.name: one for one in lance_fields(newest.schema, newest.lance_schema.fields())}
    fields = [replace(_translate(there[one.name], None), field=one) for one in schema]
    ids = _follow_ids(history, {_id_of(one): one.name for one in fields}, newest.version, plan)
    return ChangeColumns(fields=tuple(fields), ids=ids)


def _follow_ids(
    history: History, wanted: Mapping[int, str], newest: int, plan: ChangePlan
) -> dict[int, dict[int, int]]:
    """Return today's ids of the columns of each version whose ids were others."""
    read = {one for step in plan.steps for one in _versions_of(step)}
    if not read:
        return {}
    now = history.look(newest).fields
    ids = {one.id: one.id for one in now}
    roots = _roots(now)
    known: dict[int, dict[int, int]] = {}
    version = newest
    end = max(plan.end.version, *read)
    # Of versions behind those that are read, only their sum counts, and most change no column.
    if end < newest and history.look(end).fields == now:
        version = end
    while version > min(read):
        look, before = history.look(version), history.look(version - 1)
        if look.fields != before.fields:
            pairs, doubtful = pair_fields(before.fields, look.fields, look.operation)
            unclear = {wanted.get(roots[ids[one]]) for one in doubtful & ids.keys()} - {None}
            if unclear:
                raise InvalidInputError(
                    "nobody can tell which column this was in older versions: leave it out with "
                    "`columns`, begin at the version that changed it, or begin again with a "
                    "snapshot (`since=None`; in Spark, a new checkpointLocation)",
                    columns=", ".join(sorted(map(str, unclear))),
                    version=version,
                )
            ids = {old: ids[new] for old, new in pairs.items() if new in ids}
        version -= 1
        if version in read and any(ids.get(one.id) != one.id for one in before.fields):
            known[version] = ids
    return known


def _id_of(one: Field) -> int:
    if one.id is None:  # of Lance's own schema
        raise AssertionError
    return one.id


def pair_fields(
    before: Sequence[FieldEntry], after: Sequence[FieldEntry], operation: str
) -> tuple[dict[int, int], set[int]]:
    """Return which column of a version is which of the next, and those that nobody can tell.

    Args:
        before: all columns of the one, and their parts.
        after: those of the next.
        operation: what made that.

    Returns:
        The id after by the id before; and ids after of which it is not sure what they were.
    """
    pairs: dict[int, int] = {}
    doubtful: set[int] = set()
    waiting = [(_TOP, _TOP)]
    while waiting:
        mother, daughter = waiting.pop()
        old = [one for one in before if one.parent_id == mother]
        new = [one for one in after if one.parent_id == daughter]
        for one, other in _pair_siblings(old, new, operation):
            if other is None:
                doubtful.add(one.id)
            else:
                pairs[other.id] = one.id
                waiting.append((other.id, one.id))
    return pairs, doubtful


def _pair_siblings(
    before: Sequence[FieldEntry], after: Sequence[FieldEntry], operation: str
) -> Iterator[tuple[FieldEntry, FieldEntry | None]]:
    """Yield each field with the one it was; None where that is not sure."""
    by_id = {} if operation == "Overwrite" else {one.id: one for one in before}
    paired = {one.id: by_id[one.id] for one in after if one.id in by_id}
    rest = [one for one in before if one.id not in paired]
    by_name = {one.name: one for one in rest}
    new = [one for one in after if one.id not in paired and one.name not in by_name]
    gone = {one.name for one in rest} - {one.name for one in after if one.id not in paired}
    for one in after:
        if one.id not in paired:
            if one.name in by_name:
                yield one, by_name[one.name]
            elif gone and new and operation != "Overwrite":
                yield one, None
        elif operation in _UNSURE and paired[one.id].name != one.name:
            yield one, None
        else:
            yield one, paired[one.id]


def _versions_of(step: Step) -> tuple[int, ...]:
    """Return the versions whose columns a step reads."""
    match step:
        case Inserted():
            return (step.part.record.base_version,)
        case Compared():
            return (step.before.base_version, step.after.base_version)
        case Logged():
            return (step.state.base_version,)


def _roots(fields: Iterable[FieldEntry]) -> dict[int, int]:
    """Return the id of the column that each field is in, or is."""
    parents = {one.id: one.parent_id for one in fields}
    roots = {}
    for one in parents:
        root = one
        while parents[root] != _TOP:
            root = parents[root]
        roots[one] = root
    return roots
