package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.StreamSupport;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.types.StructType;

/** One batch of a query on its way to the log, as Python planned it; see `_sink.py`. */
final class LogBatch {
  static final String WORK = "secretIngest";
  static final String SHARD = "__holdfast_shard";
  private static final String RUN = "spark.jobGroup.id";
  private final SinkDriver driver;
  private final JsonNode plan;

  /** Claims the shards for a run's first batch. */
  LogBatch(SparkContext context, Map<String, String> options, long batch, StructType columns) {
    String run = context.getLocalProperty(RUN);
    driver = LogRuns.driver(context, run, options);
    Map<String, Object> question = new HashMap<>();
    question.put("query", context.getLocalProperty("sql.streaming.queryId"));
    question.put("run", run);
    question.put("batch", batch);
    question.put("columns", SinkDriver.json(columns.json()));
    plan = driver.ask("plan", question);
  }

  /** Tells whether any shard lacks the batch. */
  boolean isWanted() {
    return plan.has(WORK);
  }

  String[] select() {
    return StreamSupport.stream(plan.get("select").spliterator(), false).map(JsonNode::asText).toArray(String[]::new);
  }

  /** Returns which rows are wanted; null for all. */
  String where() {
    return plan.path("where").isTextual() ? plan.get("where").asText() : null;
  }

  int partitions() {
    return plan.get("partitions").asInt();
  }

  /** Returns the column that rows are divided by; null for one shard. */
  String column() {
    return plan.path("column").isTextual() ? plan.get("column").asText() : null;
  }

  /** Returns the type that this column must have; null if it has it. */
  String otherType() {
    return plan.path("cast").isTextual() ? plan.get("cast").asText() : null;
  }

  /** Returns the options of the write that Spark's tasks do. */
  Map<String, String> writeOptions() {
    return Map.of(WORK, plan.get(WORK).asText(), "path", plan.get("uri").asText());
  }

  /** All tasks have answered; returns what they wrote, for Spark's progress. */
  Map<String, String> finish() {
    Map<String, String> metrics = new TreeMap<>();
    driver.ask("finish", Map.of()).path("metrics").properties().forEach(
        one -> metrics.put(one.getKey(), one.getValue().asText()));
    return metrics;
  }

  /** Tasks may still live: whoever goes on claims anew. */
  void fail() {
    driver.ask("fail", Map.of());
  }
}
