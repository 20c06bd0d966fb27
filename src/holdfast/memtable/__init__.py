"""Rows in memory: the newest of each key, filters, text and vectors over them."""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.memtable._filter import NUMBER, find_matching, open_in_memory
    from holdfast.memtable._memtable import MemTable, MemTableSnapshot
    from holdfast.memtable._parts import PIECE_ROWS
    from holdfast.memtable._reading import IndexConfig, Reading
    from holdfast.memtable._vector import Vector

__all__ = [
    "NUMBER",
    "PIECE_ROWS",
    "IndexConfig",
    "MemTable",
    "MemTableSnapshot",
    "Reading",
    "Vector",
    "find_matching",
    "open_in_memory",
]

__getattr__ = load_names(
    __name__,
    {
        "_filter": "NUMBER open_in_memory find_matching",
        "_memtable": "MemTable MemTableSnapshot",
        "_parts": "PIECE_ROWS",
        "_reading": "IndexConfig Reading",
        "_vector": "Vector",
    },
)
