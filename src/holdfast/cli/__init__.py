"""The command line: `holdfast VERB URI`, and parts as nouns: `holdfast store VERB URL`."""

from holdfast.cli._main import main
from holdfast.cli._output import Exit

__all__ = ["Exit", "main"]
