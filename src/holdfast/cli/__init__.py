"""The command line: `holdfast VERB URI`, and parts as nouns: `holdfast store VERB URL`."""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names
from holdfast.cli._start import main

if TYPE_CHECKING:
    from holdfast.cli._output import Exit

__getattr__ = load_names("holdfast.cli", {"_output": "Exit"})

__all__ = ["Exit", "main"]
