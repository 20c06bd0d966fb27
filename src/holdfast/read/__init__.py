"""Reads: one snapshot of base table, SSTables and log; the newest row of every key."""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.read._full_text import SCORE
    from holdfast.read._lance import translate_read_errors
    from holdfast.read._levels import Columns, combine_column
    from holdfast.read._lookup import Keys, lookup
    from holdfast.read._newest import find_newest
    from holdfast.read._parts import (
        SnapshotPart,
        drop_empty_shards,
        open_view,
        parts_above,
        read_part,
    )
    from holdfast.read._pins import SnapshotPin, read_pins
    from holdfast.read._query import parse_query
    from holdfast.read._ranked import Vector, full_text
    from holdfast.read._reader import K, Reader, TableSnapshot, check_limit, expired_error
    from holdfast.read._search import search_base, search_view
    from holdfast.read._snapshot import Freshness
    from holdfast.read._view import View

__all__ = [
    "SCORE",
    "Columns",
    "Freshness",
    "K",
    "Keys",
    "Reader",
    "SnapshotPart",
    "SnapshotPin",
    "TableSnapshot",
    "Vector",
    "View",
    "check_limit",
    "combine_column",
    "drop_empty_shards",
    "expired_error",
    "find_newest",
    "full_text",
    "lookup",
    "open_view",
    "parse_query",
    "parts_above",
    "read_part",
    "read_pins",
    "search_base",
    "search_view",
    "translate_read_errors",
]

__getattr__ = load_names(
    __name__,
    {
        "_full_text": "SCORE",
        "_lance": "translate_read_errors",
        "_levels": "Columns combine_column",
        "_lookup": "Keys lookup",
        "_newest": "find_newest",
        "_parts": "SnapshotPart drop_empty_shards open_view parts_above read_part",
        "_pins": "SnapshotPin read_pins",
        "_query": "parse_query",
        "_ranked": "Vector full_text",
        "_reader": "K Reader TableSnapshot check_limit expired_error",
        "_search": "search_base search_view",
        "_snapshot": "Freshness",
        "_view": "View",
    },
)
