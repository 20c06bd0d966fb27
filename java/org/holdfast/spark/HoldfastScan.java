package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.NullOrdering;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Some columns and rows of a table, read by the Python data source. */
final class HoldfastScan implements SupportsReportStatistics {
  static final Set<String> WHEN = Set.of("versionasof", "timestampasof", "tag", "freshness");
  private static final int UNKNOWN_WIDTH = 64;
  private final HoldfastTable table;
  private final StructType columns;
  private final Map<String, String> options;
  private final String condition;
  private final boolean pins;
  private final int limit;
  private final SortOrder order;
  private boolean streams;
  private Batch batch; // of the version that is pinned

  HoldfastScan(
      HoldfastTable table,
      StructType columns,
      Map<String, String> options,
      String condition,
      boolean pins,
      int limit,
      SortOrder order) {
    this.table = table;
    // To count rows, one narrow column is read: a Python source yields no rows without columns.
    this.columns = columns.isEmpty() ? new StructType(new StructField[] {narrowest(table)}) : columns;
    this.options = options;
    this.condition = condition;
    this.pins = pins;
    this.limit = limit;
    this.order = order;
  }

  private static StructField narrowest(HoldfastTable table) {
    return Arrays.stream(table.schema().fields()).min(Comparator.comparingLong(field -> width(table, field))).orElseThrow();
  }

  private static long width(HoldfastTable table, StructField field) {
    return table.facts.path("widths").path(field.name()).asLong(UNKNOWN_WIDTH);
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  @Override
  public String description() {
    String rows = condition.isEmpty() ? "" : ", filter: " + condition;
    String most = limit < 0 ? "" : ", limit: " + limit + (order == null ? "" : " by " + order);
    return "holdfast " + table.name() + " columns: " + Arrays.toString(columns.fieldNames()) + rows + most;
  }

  /** Plans the tasks: once where the version is pinned, however often Spark plans the query anew. */
  @Override
  public synchronized Batch toBatch() {
    if (batch != null) {
      return batch;
    }
    Map<String, String> all = new HashMap<>(options);
    boolean pinned = pins && table.facts.has("pin");
    if (pinned) {
      all.keySet().removeIf(key -> WHEN.contains(key.toLowerCase(Locale.ROOT)));
      all.put("versionAsOf", table.facts.get("pin").asText());
    }
    all.put("secretScan", hints());
    Batch planned = new ColumnBatch(Python.source(), columns, all);
    batch = pinned ? planned : null;
    return planned;
  }

  /** Returns what Python is told of the scan, in JSON. */
  private String hints() {
    ObjectNode hints = JsonNodeFactory.instance.objectNode();
    hints.put("tasks", SparkContext.getOrCreate().defaultParallelism());
    if (limit >= 0) {
      hints.put("limit", limit);
    }
    if (order != null) {
      hints.put("by", ((NamedReference) order.expression()).fieldNames()[0]);
      hints.put("descending", order.direction() == SortDirection.DESCENDING);
      hints.put("nulls_first", order.nullOrdering() == NullOrdering.NULLS_FIRST);
    }
    return hints.toString();
  }

  /** Tells what Spark gets: batches of columns, but of a stream rows. */
  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return streams ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    streams = true;
    return python(options).toMicroBatchStream(checkpoint);
  }

  private Scan python(Map<String, String> all) {
    SupportsRead read = (SupportsRead) Python.table(columns, all);
    return read.newScanBuilder(new CaseInsensitiveStringMap(all)).build();
  }

  @Override
  public Statistics estimateStatistics() {
    JsonNode rows = table.facts.path("rows");
    long width = Arrays.stream(columns.fields()).mapToLong(field -> width(table, field)).sum();
    return new Statistics() {
      @Override
      public OptionalLong sizeInBytes() {
        return rows.isMissingNode() ? OptionalLong.empty() : OptionalLong.of(Math.max(1, rows.asLong() * width));
      }

      @Override
      public OptionalLong numRows() {
        return rows.isMissingNode() ? OptionalLong.empty() : OptionalLong.of(rows.asLong());
      }
    };
  }
}
