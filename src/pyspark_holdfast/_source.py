"""The data source `holdfast`: which of our classes does what Spark asks for."""

from typing import TYPE_CHECKING

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


class DefaultSource(DataSource):
    """`spark.read`, `df.write`, `readStream` and `writeStream` with `.format("holdfast")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name that users give to `format`."""
        return "holdfast"

    def schema(self) -> "StructType":
        """Return the table's columns."""
        from holdfast.spark._read import schema_of  # noqa: PLC0415 - light until used

        return schema_of(self.options)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Return what plans and does a batch read."""
        from holdfast.spark._read import BatchReader  # noqa: PLC0415 - light until used

        return BatchReader(schema, self.options)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return what follows a table."""
        from holdfast.spark._follow import StreamReader  # noqa: PLC0415 - light until used

        return StreamReader(schema, self.options)

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return what writes a batch and commits it once."""
        from holdfast.spark._write import BatchWriter  # noqa: PLC0415 - light until used

        return BatchWriter(schema, self.options, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: "StructType",
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Return what writes micro-batches and commits each once."""
        from holdfast.spark._write import StreamWriter  # noqa: PLC0415 - light until used

        return StreamWriter(schema, self.options, overwrite=overwrite)
