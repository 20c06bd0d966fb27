"""`KeyIndex`: where in a level a key is, by the sorted key index that every SSTable carries.

The index has pages; the smallest key of each is read once, a page only when it may hold what
is looked for.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.formats import PAGE_ROWS, key_index_data

Page: TypeAlias = "tuple[pa.Array, pa.Array]"
"""Keys in their order, and the place of each key's row."""

_PAGES_KEPT = 64


class KeyIndex:
    """The key index of one level.

    Args:
        firsts: the smallest key of each page.
        read_page: returns one page.
    """

    def __init__(self, firsts: pa.Array, read_page: Callable[[int], Page]) -> None:
        self._firsts = firsts
        self._read_page = read_page
        self._pages: dict[int, Page] = {}

    @classmethod
    def of(cls, keys: pa.Array) -> KeyIndex:
        """Return an index of keys in memory, given in the order of their rows."""
        data = key_index_data(keys)
        values, places = _whole(data["values"]), _whole(data["ids"])
        starts = range(0, len(values), PAGE_ROWS)
        firsts = values.take(pa.array(list(starts), pa.int64()))

        def read_page(number: int) -> Page:
            start = number * PAGE_ROWS
            return values.slice(start, PAGE_ROWS), places.slice(start, PAGE_ROWS)

        return cls(firsts, read_page)

    def find(self, key: pa.Scalar) -> int | None:
        """Return the place of the newest row with this key; None when there is none."""
        wanted = key.as_py()
        number = _last_at_most(self._firsts, wanted)
        if number < 0:
            return None
        values, places = self._page(number)
        at = _last_at_most(values, wanted)
        if at < 0 or values[at].as_py() != wanted:
            return None
        place: int = places[at].as_py()
        return place

    def _page(self, number: int) -> Page:
        page = self._pages.get(number)
        if page is None:
            page = self._read_page(number)
            while len(self._pages) >= _PAGES_KEPT:
                self._pages.pop(next(iter(self._pages)))
            self._pages[number] = page
        return page


def _last_at_most(values: pa.Array, wanted: Any) -> int:  # noqa: ANN401 - a key
    """Return the place of the last value that is not greater; -1 when all are."""
    place = bisect.bisect_right(range(len(values)), wanted, key=lambda at: values[at].as_py())
    return int(place) - 1


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
