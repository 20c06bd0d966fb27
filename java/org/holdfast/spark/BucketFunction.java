package org.holdfast.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Murmur3HashFunction;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** `bucket(number, column)`: the shard of a row, by Lance's hash of one column. */
final class BucketFunction implements UnboundFunction {
  static final String NAME = "bucket";
  private static final int MOST = 0x7FFFFFFF;

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "bucket(number, column): the shard of a row in a table with Sharding.bucket(column, number)";
  }

  @Override
  public BoundFunction bind(StructType input) {
    if (input.length() != 2 || !input.fields()[0].dataType().equals(DataTypes.IntegerType)) {
      throw new UnsupportedOperationException(description());
    }
    return new Bound(input.fields()[1].dataType());
  }

  private record Bound(DataType type) implements ScalarFunction<Integer> {
    @Override
    public String name() {
      return NAME;
    }

    @Override
    public String canonicalName() {
      return "holdfast.bucket(" + type.catalogString() + ")";
    }

    @Override
    public DataType[] inputTypes() {
      return new DataType[] {DataTypes.IntegerType, type};
    }

    @Override
    public DataType resultType() {
      return DataTypes.IntegerType;
    }

    /** Returns murmur3 with the seed 0, which is also the hash of null. */
    @Override
    public Integer produceResult(InternalRow row) {
      Object value = row.isNullAt(1) ? null : row.get(1, type);
      int hash = (int) Murmur3HashFunction.hash(value, type, 0L);
      return (hash & MOST) % row.getInt(0);
    }
  }
}
