"""Reads: one snapshot of base table, SSTables and log; the newest row of every key."""
