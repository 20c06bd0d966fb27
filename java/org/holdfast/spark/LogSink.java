package org.holdfast.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder;
import org.apache.spark.sql.connector.read.streaming.ReportsSinkMetrics;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.runtime.AbstractFunction2;
import scala.runtime.BoxedUnit;

/**
 * A sink whose batches go into the table's log, once each: what `holdfast.spark.ingest` does.
 *
 * <p>One sink serves one run of a query. It divides rows by shard and names query, run and batch;
 * everything else is decided in Python.
 */
public final class LogSink implements Sink, ReportsSinkMetrics {
  private final Map<String, String> options;
  private volatile Map<String, String> metrics = Map.of();

  public LogSink(Map<String, String> options, OutputMode mode) {
    if (mode.equals(OutputMode.Complete())) {
      throw new IllegalArgumentException(
          "the log takes rows and changes of rows, not whole results: use outputMode append or update");
    }
    this.options = new HashMap<>(options);
  }

  /** Tells whether options ask for this sink. */
  public static boolean isAskedFor(CaseInsensitiveStringMap options) {
    return "log".equalsIgnoreCase(options.getOrDefault("into", "").trim());
  }

  @Override
  public String toString() {
    return "holdfast into the log of " + new CaseInsensitiveStringMap(options).get("path");
  }

  /** Lets Spark make an ordinary frame of the batch: only such a frame can be divided anew. */
  @Override
  public void addBatch(long batch, Dataset<Row> data) {
    var write =
        new AbstractFunction2<Dataset<Row>, Object, BoxedUnit>() {
          @Override
          public BoxedUnit apply(Dataset<Row> frame, Object number) {
            writeBatch(frame, (Long) number);
            return BoxedUnit.UNIT;
          }
        };
    ExpressionEncoder<Row> encoder = ExpressionEncoder.apply(data.schema());
    new ForeachBatchSink<Row>(write, encoder).addBatch(batch, data);
  }

  private void writeBatch(Dataset<Row> frame, long number) {
    LogBatch batch = new LogBatch(frame.sparkSession().sparkContext(), options, number, frame.schema());
    if (batch.isWanted()) {
      try {
        writeRows(frame, batch);
      } catch (Exception failure) {
        batch.fail();
        throw failure;
      }
    }
    metrics = batch.finish();
  }

  /** Returns rows, entries and bytes of the newest batch, and how many entries wait in each shard. */
  @Override
  public Map<String, String> metrics() {
    return metrics;
  }

  private static void writeRows(Dataset<Row> frame, LogBatch batch) {
    Dataset<Row> rows = frame.selectExpr(batch.select());
    if (batch.where() != null) {
      rows = rows.where(batch.where());
    }
    int partitions = batch.partitions();
    rows = partitions == 1 ? rows.repartition(1) : rows.repartitionById(partitions, new Column(LogBatch.SHARD));
    rows.write().format("holdfast").mode(SaveMode.Append).options(batch.writeOptions()).save();
  }
}
