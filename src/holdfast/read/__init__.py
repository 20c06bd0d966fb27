"""Reads: one snapshot of base table, SSTables and log; the newest row of every key."""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.read._lance import reading
    from holdfast.read._levels import Columns, whole
    from holdfast.read._lookup import lookup
    from holdfast.read._newest import find_newest
    from holdfast.read._parts import SnapshotPart, needed, open_view, parts_above, read_part
    from holdfast.read._pins import SnapshotPin, read_pins
    from holdfast.read._ranked import full_text, search_view
    from holdfast.read._reader import Reader, TableSnapshot, expired
    from holdfast.read._snapshot import Freshness
    from holdfast.read._verbs import ReadVerbs
    from holdfast.read._view import View

__all__ = [
    "Columns",
    "Freshness",
    "ReadVerbs",
    "Reader",
    "SnapshotPart",
    "SnapshotPin",
    "TableSnapshot",
    "View",
    "expired",
    "find_newest",
    "full_text",
    "lookup",
    "needed",
    "open_view",
    "parts_above",
    "read_part",
    "read_pins",
    "reading",
    "search_view",
    "whole",
]

__getattr__ = load_names(
    __name__,
    {
        "_lance": "reading",
        "_levels": "Columns whole",
        "_lookup": "lookup",
        "_newest": "find_newest",
        "_parts": "SnapshotPart needed open_view parts_above read_part",
        "_pins": "SnapshotPin read_pins",
        "_ranked": "full_text search_view",
        "_reader": "Reader TableSnapshot expired",
        "_snapshot": "Freshness",
        "_verbs": "ReadVerbs",
        "_view": "View",
    },
)
