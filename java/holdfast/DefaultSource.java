package holdfast;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.sources.StreamSinkProvider;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.holdfast.spark.AddressedTable;
import org.holdfast.spark.LogSink;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The data source `holdfast` where the jar is: Python's, and beside it a sink that writes the log.
 *
 * <p>Spark looks for a class of this name before it looks for a Python source.
 */
public class DefaultSource extends PythonDataSourceV2 implements StreamSinkProvider {
  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    if (!LogSink.isAskedFor(new CaseInsensitiveStringMap(properties))) {
      return new AddressedTable(super.getTable(schema, partitioning, properties), schema, properties);
    }
    return new Table() { // no capabilities: Spark asks for the sink below instead
      @Override
      public String name() {
        return "holdfast";
      }

      @Override
      public StructType schema() {
        return schema;
      }

      @Override
      public Set<TableCapability> capabilities() {
        return EnumSet.noneOf(TableCapability.class);
      }
    };
  }

  @Override
  public Sink createSink(
      SQLContext context,
      scala.collection.immutable.Map<String, String> options,
      scala.collection.immutable.Seq<String> partitions,
      OutputMode mode) {
    return new LogSink(CollectionConverters.asJava(options), mode);
  }
}
