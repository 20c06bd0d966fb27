package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.stream.StreamSupport;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StreamingQueryListener;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.runtime.AbstractFunction2;
import scala.runtime.BoxedUnit;

/**
 * A sink whose batches go into the table's log, once each: what `holdfast.spark.ingest` does.
 *
 * <p>One sink serves one run of a query. It divides rows by shard and names query, run and batch;
 * everything else is decided in Python.
 */
public final class LogSink implements Sink {
  private static final String WORK = "secretIngest";
  private static final String SHARD = "__holdfast_shard";
  private final SparkSession session;
  private final Map<String, String> options;
  private SinkDriver driver; // Python's; made with the first batch, by the thread of the query

  public LogSink(SparkSession session, Map<String, String> options, OutputMode mode) {
    if (mode.equals(OutputMode.Complete())) {
      throw new IllegalArgumentException(
          "the log takes rows and changes of rows, not whole results: use outputMode append or update");
    }
    this.session = session;
    this.options = new HashMap<>(options);
  }

  /** Tells whether options ask for this sink. */
  public static boolean isAskedFor(CaseInsensitiveStringMap options) {
    return "log".equalsIgnoreCase(options.getOrDefault("into", "").trim());
  }

  /** Refuses the one way to name a table by which Spark hands a sink no frame that can be divided. */
  static void refuseTable(CaseInsensitiveStringMap options, String path) {
    if (isAskedFor(options)) {
      throw new UnsupportedOperationException(
          "toTable cannot write the log: Spark lets such a sink divide no rows by shard. Use "
              + ".format(\"holdfast\").option(\"into\", \"log\").start(\"" + path + "\")");
    }
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

  private void writeBatch(Dataset<Row> frame, long batch) {
    SparkContext context = frame.sparkSession().sparkContext();
    String run = context.getLocalProperty("spark.jobGroup.id");
    if (driver == null) {
      driver = new SinkDriver(options);
      stopAfter(run);
    }
    Map<String, Object> question = new HashMap<>();
    question.put("query", context.getLocalProperty("sql.streaming.queryId"));
    question.put("run", run);
    question.put("batch", batch);
    question.put("columns", SinkDriver.json(frame.schema().json()));
    JsonNode plan = driver.ask("plan", question);
    if (plan.has(WORK)) {
      writeRows(frame, plan);
    }
    driver.ask("finish", Map.of());
  }

  private void writeRows(Dataset<Row> frame, JsonNode plan) {
    String[] columns =
        StreamSupport.stream(plan.get("select").spliterator(), false).map(JsonNode::asText).toArray(String[]::new);
    Dataset<Row> rows = frame.selectExpr(columns);
    if (!plan.path("where").isNull()) {
      rows = rows.where(plan.get("where").asText());
    }
    int partitions = plan.get("partitions").asInt();
    rows = partitions == 1 ? rows.repartition(1) : rows.repartitionById(partitions, new Column(SHARD));
    try {
      rows.write()
          .format("holdfast")
          .mode(SaveMode.Append)
          .option(WORK, plan.get(WORK).asText())
          .save(plan.get("uri").asText());
    } catch (Exception failure) {
      driver.ask("fail", Map.of());
      throw failure;
    }
  }

  /** Lets Python's process end when this run of the query does. */
  private void stopAfter(String run) {
    UUID wanted = UUID.fromString(run);
    SinkDriver ending = driver;
    session
        .streams()
        .addListener(
            new StreamingQueryListener() {
              @Override
              public void onQueryStarted(QueryStartedEvent event) {}

              @Override
              public void onQueryProgress(QueryProgressEvent event) {}

              @Override
              public void onQueryTerminated(QueryTerminatedEvent event) {
                if (event.runId().equals(wanted)) {
                  session.streams().removeListener(this);
                  ending.stop();
                }
              }
            });
  }
}
