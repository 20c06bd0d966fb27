package org.holdfast.spark;

import java.util.Map;
import org.apache.spark.SparkContext;

/** The transaction id of the statement that this thread runs, if holdfast.spark.run_sql gave one. */
final class Txn {
  private Txn() {}

  /** Returns it as options of a write; none without one. */
  static Map<String, String> options() {
    SparkContext context = SparkContext.getOrCreate();
    String app = context.getLocalProperty("holdfast.txnAppId");
    String version = context.getLocalProperty("holdfast.txnVersion");
    return app == null || version == null ? Map.of() : Map.of("txnAppId", app, "txnVersion", version);
  }
}
