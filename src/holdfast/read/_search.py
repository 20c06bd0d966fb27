"""Search a column for text, best match first: of one table version, or of a whole snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance
import pyarrow as pa
from lance.query import FullTextQuery

from holdfast.commits import translate_errors
from holdfast.errors import InvalidInputError
from holdfast.read._query import is_plain, parse_query
from holdfast.read._ranked import full_text, search_levels
from holdfast.read._view import View

SCORE = "_score"


def search_base(
    table: lance.LanceDataset,
    location: str,
    column: str,
    query: str | FullTextQuery,
    *,
    limit: int | None,
    columns: Sequence[str] | None,
    filter: str | None,  # noqa: A002 - pylance's word
) -> pa.Table:
    """Return the best rows with their `_score`, highest first; also those not indexed yet.

    Raises:
        InvalidInputError: no such column, no full-text index on it, a malformed query, filter
            or limit.
    """
    if limit is not None and limit < 1:
        raise InvalidInputError("a limit is at least 1", limit=limit)
    if column not in table.schema.names and "." not in column:
        raise InvalidInputError(
            "there is no such column", column=column, columns=", ".join(table.schema.names)
        )
    wanted = list(table.schema.names if columns is None else columns)
    missing = [name for name in wanted if name not in (*table.schema.names, SCORE)]
    if missing:
        raise InvalidInputError("there is no such column", column=missing[0])
    parsed: Any = parse_query(query, column) if isinstance(query, str) else query
    if not isinstance(parsed, FullTextQuery):
        raise InvalidInputError("a query is a text or an object of lance.query")
    names = [name for name in wanted if name != SCORE]
    with translate_errors(location):
        asked = full_text(table, column, parsed, filter=filter, plain=is_plain(query))
        return asked.of_base(table, names, limit).select([*names, SCORE])


def search_view(
    view: View,
    column: str,
    query: str | FullTextQuery,
    limit: int | None,
    *,
    columns: Sequence[str] | None,
    filter: str | None,  # noqa: A002 - pylance's word
) -> pa.Table:
    """Return the best rows of a snapshot with their `_score`; see `Table.search`.

    Raises:
        InvalidInputError: as for `search_base`.
        NotFoundError: a file is gone: take another snapshot.
        UnavailableError: a store gave no answer.
    """
    if not view.levels:
        return search_base(
            view.base, view.location, column, query, limit=limit, columns=columns, filter=filter
        )
    parsed = parse_query(query, column) if isinstance(query, str) else query
    plain = is_plain(query)
    return search_levels(view, column, parsed, limit, columns=columns, filter=filter, plain=plain)
