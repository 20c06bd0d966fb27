"""Reads: one snapshot of base table, SSTables and log; the newest row of every key."""

from holdfast.read._reader import TableSnapshot

__all__ = ["TableSnapshot"]
