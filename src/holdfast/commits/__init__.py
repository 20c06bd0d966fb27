"""Versions of a Lance table, decided by an arbiter.

`Namespace` loads Lance's generated models, so it is loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.commits._drop import drop_table
    from holdfast.commits._folders import Folders
    from holdfast.commits._group import GroupCommit, Ticket
    from holdfast.commits._lance import translated
    from holdfast.commits._ledger import Ledger
    from holdfast.commits._namespace import Namespace

# What others may use -> the module that has it.
_HOME = {
    "Folders": "_folders",
    "GroupCommit": "_group",
    "Ledger": "_ledger",
    "Namespace": "_namespace",
    "Ticket": "_group",
    "drop_table": "_drop",
    "translated": "_lance",
}

__all__ = ["Folders", "GroupCommit", "Ledger", "Namespace", "Ticket", "drop_table", "translated"]


def __getattr__(name: str) -> object:
    """Load a name when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast.commits' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
