"""Versions of a Lance table, decided by an arbiter."""

from holdfast.commits._namespace import Namespace

__all__ = ["Namespace"]
