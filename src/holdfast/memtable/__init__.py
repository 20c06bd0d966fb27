"""Rows in memory: the newest of each key, filters, text and vectors over them."""

from holdfast.memtable._memtable import MemTable, Snapshot
from holdfast.memtable._parts import PIECE_ROWS
from holdfast.memtable._reading import IndexConfig, Reading

__all__ = ["PIECE_ROWS", "IndexConfig", "MemTable", "Reading", "Snapshot"]
