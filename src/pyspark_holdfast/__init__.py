"""The module by which Spark finds the data source `holdfast`; it loads nothing before its use.

Spark imports every module named `pyspark_*` to see what it offers, also for users of other
sources, so this one stays light.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_holdfast._source import DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    """Load the source when Spark asks for it; `daemon`, beside it, must come before pyspark."""
    if name == "DefaultSource":
        from pyspark_holdfast._source import DefaultSource  # noqa: PLC0415 - light until used

        return DefaultSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
