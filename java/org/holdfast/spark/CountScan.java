package org.holdfast.spark;

import java.util.Collections;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.StructType;

/** The number of rows, which the manifest of the version holds. */
record CountScan(StructType readSchema, long rows_) implements LocalScan {
  @Override
  public InternalRow[] rows() {
    Object[] values = Collections.nCopies(readSchema.length(), (Object) rows_).toArray();
    return new InternalRow[] {new GenericInternalRow(values)};
  }

  @Override
  public String description() {
    return "holdfast count from metadata: " + rows_;
  }
}
