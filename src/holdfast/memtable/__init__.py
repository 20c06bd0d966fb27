"""Rows in memory: the newest of each key, filters, text and vectors over them."""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.memtable._filter import NUMBER, in_memory, matching
    from holdfast.memtable._memtable import MemTable, Snapshot
    from holdfast.memtable._parts import PIECE_ROWS
    from holdfast.memtable._reading import IndexConfig, Reading
    from holdfast.memtable._vector import Vector

__all__ = [
    "NUMBER",
    "PIECE_ROWS",
    "IndexConfig",
    "MemTable",
    "Reading",
    "Snapshot",
    "Vector",
    "in_memory",
    "matching",
]

__getattr__ = load_names(
    __name__,
    {
        "_filter": "NUMBER in_memory matching",
        "_memtable": "MemTable Snapshot",
        "_parts": "PIECE_ROWS",
        "_reading": "IndexConfig Reading",
        "_vector": "Vector",
    },
)
