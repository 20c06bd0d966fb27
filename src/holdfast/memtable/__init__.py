"""Rows in memory: the newest of each key, filters, text and vectors over them."""

from holdfast.memtable._memtable import MemTable, Snapshot
from holdfast.memtable._reading import IndexConfig, Reading

__all__ = ["IndexConfig", "MemTable", "Reading", "Snapshot"]
