"""The module by which Spark finds the data source `faulty`."""

from spark.faulty_source import FaultySource as DefaultSource

__all__ = ["DefaultSource"]
