"""Doors that load what is behind them at its first use.

A package whose modules need Lance or Arrow, or are many, lists its names in its `__init__`
and lets `load_names` import the module of a name when somebody first asks for it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def load_names(
    package: str, modules: Mapping[str, str], *, submodules: str = ""
) -> Callable[[str], object]:
    """Return a module's `__getattr__` that finds each name in the module that has it.

    Args:
        package: the package's own name.
        modules: the names of each module, separated by blanks.
        submodules: modules of the package that are there without an import of their own.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}
    loaded = frozenset(submodules.split())

    def get_name(name: str) -> object:
        if name in loaded:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next use does not come here
        return value

    return get_name


__all__ = ["load_names"]
