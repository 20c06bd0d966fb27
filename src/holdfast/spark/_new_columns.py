"""Columns that come while a stream of all columns runs: it stops, rather than drop their values."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from holdfast.table import Table


def refuse_new_columns(table: Table, read: Collection[str], before: int, version: int) -> None:
    """Refuse a version with columns that came while a stream of all columns ran.

    Their values would be dropped without a word. A stream that had left columns out at the
    version before was told which to read.

    Args:
        table: what is followed.
        read: the columns that the stream reads.
        before: the version whose columns the stream has met.
        version: the one that it comes to.

    Raises:
        InvalidInputError: there are such columns.
    """
    if version <= before:
        return
    new = [name for name in table.dataset(version).schema.names if name not in read]
    if not new:
        return
    try:
        known = set(table.dataset(max(before, 1)).schema.names)
    except NotFoundError:  # vacuum took it: nobody knows any more
        return
    if known <= set(read):
        raise InvalidInputError(
            "the table has columns that came while this stream ran: start the query again, "
            "with the same checkpointLocation, and it reads them; or name the columns that "
            "it reads with option columns",
            columns=", ".join(new),
            version=version,
        )
