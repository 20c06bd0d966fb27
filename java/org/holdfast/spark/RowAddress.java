package org.holdfast.spark;

import java.util.Arrays;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;

/** Where Lance keeps a row, and its id: columns that a query gets if it names them. */
record RowAddress(String name, String comment) implements MetadataColumn {
  static final String NAME = "_rowaddr";
  private static final RowAddress[] ALL = {
    new RowAddress(NAME, "where the row is: its fragment, and its place in it"),
    new RowAddress("_rowid", "Lance's id of the row; the same as its address without stable row ids"),
  };

  static MetadataColumn[] columns() {
    return ALL.clone();
  }

  /** Returns one of these columns as a field of a scan. */
  static StructField field(String name) {
    return Arrays.stream(ALL)
        .filter(one -> one.name.equals(name))
        .map(one -> DataTypes.createStructField(one.name, DataTypes.LongType, false))
        .findFirst()
        .orElseThrow(() -> new IllegalArgumentException("there is no column " + name));
  }

  @Override
  public DataType dataType() {
    return DataTypes.LongType;
  }

  @Override
  public boolean isNullable() {
    return false;
  }
}
