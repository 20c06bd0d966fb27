"""Holdfast: an acknowledged write is in the table; retried, it is there once."""
