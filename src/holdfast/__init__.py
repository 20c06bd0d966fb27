"""Holdfast: an acknowledged write is in the table; retried with its transaction id, it is there once."""
