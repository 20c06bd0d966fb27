package org.holdfast.spark;

import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.streaming.StreamingQueryListener.QueryTerminatedEvent;

/** Python's process of each run of a query that writes the log; it ends when the run does. */
final class LogRuns {
  private static final Map<String, SinkDriver> DRIVERS = new ConcurrentHashMap<>();

  private LogRuns() {}

  /** Returns the driver of a run; makes it for the first batch. */
  static SinkDriver driver(SparkContext context, String run, Map<String, String> options) {
    return DRIVERS.computeIfAbsent(
        run,
        missing -> {
          SinkDriver made = new SinkDriver(options);
          stopAfter(context, run);
          return made;
        });
  }

  /** Listens at Spark's context: a query runs in a copy of its session, which hears of no end. */
  private static void stopAfter(SparkContext context, String run) {
    UUID wanted = UUID.fromString(run);
    context.addSparkListener(
        new SparkListener() {
          @Override
          public void onOtherEvent(SparkListenerEvent event) {
            if (event instanceof QueryTerminatedEvent ended && ended.runId().equals(wanted)) {
              context.removeSparkListener(this);
              SinkDriver driver = DRIVERS.remove(run);
              if (driver != null) {
                driver.stop();
              }
            }
          }
        });
  }
}
