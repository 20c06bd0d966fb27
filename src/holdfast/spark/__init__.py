"""PySpark: sessions and, later, the data source."""
