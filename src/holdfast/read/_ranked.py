"""The best rows of all levels: nearest vectors, and full text.

Each level ranks its own rows. What is shadowed is taken out, and the level is asked for more
until enough are left. Then the best of all levels are put together:

- vectors by their distance. Levels above the base compare with every vector, indexed or not;
  in the base, an index finds the candidates and their distances are computed exactly.
- text by BM25. Each level counts words in its own rows: a word that is rare in the log
  counts for more there than in a base where it is common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidInputError
from holdfast.formats import whole_sql
from holdfast.read._full_text import SCORE, FullText, text_indexes
from holdfast.read._lance import Dataset, translate_read_errors
from holdfast.read._levels import ADDRESS, Level, combine_column
from holdfast.read._newest import Mask
from holdfast.read._view import View
from holdfast.shard import KeptIndex, kept_index

DISTANCE = "_distance"
Vector: TypeAlias = "Sequence[float] | npt.NDArray[np.floating[Any]] | pa.Array"

_MORE = 4  # how many times more is asked for when too much was shadowed


def nearest(
    view: View,
    column: str,
    query: Vector,
    k: int,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - Lance's word
    metric: str | None = None,
    options: Mapping[str, object] | None = None,
) -> pa.Table:
    """Return the `k` rows whose vectors are closest, closest first, with `_distance`.

    Args:
        view: the snapshot.
        column: the column of vectors.
        query: the vector to compare with.
        k: how many rows.
        columns: which columns come out beside the distance.
        filter: an SQL expression that rows must pass; not one of the `k` is lost to it.
        metric: `l2`, `cosine` or `dot`; by default that of the base's index, else `l2`.
        options: of the base's index, such as `nprobes`, `ef` or `refine_factor`.

    Raises:
        InvalidInputError: no such column of vectors, a `k` below 1, a bad filter.
        NotFoundError: a file is gone: take another snapshot.
        UnavailableError: a store gave no answer.
    """
    _check_count(k, "k")
    schema = view.schema(columns)
    if column not in view.columns.schema.names:
        raise InvalidInputError("there is no such column", column=column)
    with translate_read_errors(view.location):
        index = _index_on(view.base, column, "VECTOR")
    metric = metric or str(index.settings["metric"] if index else "l2")
    condition = None if filter is None else whole_sql(filter)
    wanted = {"column": column, "q": query, "metric": metric}
    below = {"refine_factor": 1, **(options or {})} if index else dict(options or {})

    def ask(dataset: Dataset, names: Sequence[str], count: int, *, base: bool) -> pa.Table:
        how = {**wanted, "k": count, **(below if base else {"use_index": False})}
        return dataset.scanner(
            columns=[*names, DISTANCE],
            nearest=how,
            filter=condition,
            prefilter=condition is not None,
            with_row_address=True,
        ).to_table()

    levels = [(level.dataset, _alive(level)) for level in view.overlay.levels if level.live_rows]
    return _best(view, schema, k, ask, levels, by=DISTANCE, order="ascending")


def search_levels(
    view: View,
    column: str,
    query: object,
    limit: int | None,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - Lance's word
    plain: bool = False,
) -> pa.Table:
    """Return the rows that match a text query, best first, with `_score`.

    Args:
        view: the snapshot.
        column: the column with a full-text index.
        query: one of `lance.query`'s objects.
        limit: how many rows; None for all that match.
        columns: which columns come out beside the score.
        filter: an SQL expression that rows must pass.
        plain: the query asks this column for words, spelled as they are.

    Raises:
        InvalidInputError: the column has no full-text index, a bad filter, a limit below 1.
        NotFoundError: a file is gone: take another snapshot.
        UnavailableError: a store gave no answer.
    """
    if limit is not None:
        _check_count(limit, "limit")
    schema = view.schema(columns)
    with translate_read_errors(view.location):
        asked = full_text(view.base, column, query, filter=filter, plain=plain)

    def ask(dataset: Dataset, names: Sequence[str], count: int | None, *, base: bool) -> pa.Table:
        return (asked.of_base if base else asked.of)(dataset, names, count)

    with translate_read_errors(view.location):
        levels = [_searchable(level, asked) for level in view.overlay.levels if level.live_rows]
    return _best(view, schema, limit, ask, levels, by=SCORE, order="descending")


def full_text(
    base: Dataset,
    column: str,
    query: object,
    *,
    filter: str | None,  # noqa: A002 - Lance's word
    plain: bool,
) -> FullText:
    """Return the question to the base's indexes.

    Raises:
        InvalidInputError: the column has no full-text index.
    """
    known = text_indexes(base)
    if not any(index.column == column for index in known):
        raise InvalidInputError("this column has no full-text index: build one", column=column)
    # What is inside of a query object nobody can see: it may name other columns, too.
    wanted = [index for index in known if not plain or index.column == column]
    condition = None if filter is None else whole_sql(filter)
    return FullText(query=query, plain=plain, indexes=wanted, filter=condition)


_Ask: TypeAlias = Callable[..., pa.Table]
_Keep: TypeAlias = Callable[[pa.Table], Mask]


def _best(
    view: View,
    schema: pa.Schema,
    count: int | None,
    ask: _Ask,
    levels: Sequence[tuple[Dataset, _Keep]],
    *,
    by: str,
    order: str,
) -> pa.Table:
    names = schema.names
    keys = [key for key in view.columns.keys if key not in names]
    above = view.overlay.keys

    def not_above(rows: pa.Table) -> Mask:
        if above is None:
            return _all(rows)
        return ~above.holds([combine_column(rows[key]) for key in view.columns.keys])

    with translate_read_errors(view.location):
        parts = [_enough(level, names, count, ask, keep, base=False) for level, keep in levels]
        parts.append(_enough(view.base, [*names, *keys], count, ask, not_above, base=True))
    made = pa.schema([*schema, pa.field(by, pa.float32())])
    rows = pa.concat_tables([_with_schema(part, made) for part in parts])
    best = pc.sort_indices(rows, sort_keys=[(by, order)])
    return rows.take(best if count is None else best[:count])


def _enough(
    dataset: Dataset,
    names: Sequence[str],
    count: int | None,
    ask: _Ask,
    keep: _Keep,
    *,
    base: bool,
) -> pa.Table:
    """Ask for more until `count` rows are left, or the level has no more."""
    asked = count
    while True:
        matches = ask(dataset, names, asked, base=base)
        kept = matches.filter(pa.array(keep(matches)))
        if count is None or asked is None or kept.num_rows >= count or matches.num_rows < asked:
            return kept
        asked *= _MORE


def _alive(level: Level) -> _Keep:
    return lambda rows: level.alive(rows[ADDRESS])


def _with_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([rows[name] for name in schema.names], schema=schema)


def _index_on(dataset: Dataset, column: str, kind: str) -> KeptIndex | None:
    for described in dataset.describe_indices():
        if list(described.field_names) == [column]:
            index = kept_index(described)
            if index is not None and index.kind == kind:
                return index
    return None


def _searchable(level: Level, asked: FullText) -> tuple[Dataset, _Keep]:
    """Return a level that can be searched: as it is, or a copy in memory with the indexes."""
    if asked.has_index(level):
        return level.dataset, _alive(level)
    return asked.copy_of(level), _all


def _all(rows: pa.Table) -> Mask:
    return np.ones(rows.num_rows, np.bool_)


def _check_count(count: int, what: str) -> None:
    if type(count) is not int or count < 1:
        raise InvalidInputError(f"{what} is a number of rows, at least 1", given=repr(count))
