"""Versions of a Lance table, decided by an arbiter."""
