"""The command line: `holdfast VERB URI`, and parts as nouns: `holdfast store VERB URL`."""

from holdfast.cli._main import main

__all__ = ["main"]
