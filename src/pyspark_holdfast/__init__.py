"""The module by which Spark finds the data source `holdfast`; it loads nothing before its use.

Spark imports every module named `pyspark_*` to see what it offers, also for users of other
sources, so this one stays light.
"""

import importlib
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]

# What our own verbs let Spark's tasks do is a source, too, told by an option that users never
# give. As sources with names of their own they would have to be registered, and for those
# Spark starts another set of Python processes.
_INSIDE = {
    "secretWork": "MergeSource",
    "secretInputs": "TaskSource",
    "secretIngest": "IngestSource",
    "secretChange": "ChangeSource",
    "secretSink": "SinkSource",
    "secretAbout": "AboutSource",
}


class DefaultSource(DataSource):
    """`spark.read`, `df.write`, `readStream` and `writeStream` with `.format("holdfast")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name that users give to `format`."""
        return "holdfast"

    def schema(self) -> "StructType":
        """Return the table's columns; to the catalog in Java, the answer to its question."""
        if "secretAsk" in self.options:
            from holdfast.spark import answer_of  # noqa: PLC0415 - light until used

            return answer_of(self.options)
        from holdfast.spark import schema_of  # noqa: PLC0415 - light until used

        return schema_of(self.options)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Return what plans and does a batch read."""
        inside = self._inside()
        if inside is not None:
            return inside.reader(schema)
        if self._reads_changes():
            from holdfast.spark import ChangeBatchReader  # noqa: PLC0415 - light until used

            return ChangeBatchReader(schema, self.options)
        from holdfast.spark import BatchReader  # noqa: PLC0415 - light until used

        return BatchReader(schema, self.options)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return what follows a table; for a sink that writes the log, its driver.

        Raises:
            InvalidInputError: this Spark has no limits for streams that are written in Python.
        """
        _require_limits()
        inside = self._inside()
        if inside is not None:
            return inside.streamReader(schema)
        if self._reads_changes():
            from holdfast.spark import ChangeStreamReader  # noqa: PLC0415 - light until used

            return ChangeStreamReader(schema, self.options)
        from holdfast.spark import StreamReader  # noqa: PLC0415 - light until used

        return StreamReader(schema, self.options)

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return what writes a batch and commits it once."""
        inside = self._inside()
        if inside is not None:
            return inside.writer(schema, overwrite)
        from holdfast.spark import BatchWriter  # noqa: PLC0415 - light until used

        return BatchWriter(schema, self.options, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: "StructType",
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Return what writes micro-batches and commits each once."""
        from holdfast.spark import StreamWriter  # noqa: PLC0415 - light until used

        return StreamWriter(schema, self.options, overwrite=overwrite)

    def _reads_changes(self) -> bool:
        return str(self.options.get("readChangeFeed", "")).strip().lower() == "true"

    def _inside(self) -> DataSource | None:
        for option, name in _INSIDE.items():
            if option in self.options:
                door = importlib.import_module("holdfast.spark")
                source: type[DataSource] = getattr(door, name)
                return source(self.options)
        return None


def _require_limits() -> None:
    try:
        importlib.import_module("pyspark.sql.streaming.datasource")  # Spark 4.1 has none
    except ImportError as error:
        from holdfast.errors import InvalidInputError  # noqa: PLC0415 - light until used

        raise InvalidInputError(
            "readStream of a table needs Spark 4.2 or newer; reading and writing batches, and "
            "writeStream, do not",
            spark=pyspark.__version__,
        ) from error
