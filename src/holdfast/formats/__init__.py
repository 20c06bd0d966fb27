"""Bytes and names only, no I/O: how everything on storage is called and laid out."""
