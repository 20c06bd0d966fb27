package org.holdfast.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.jdk.javaapi.CollectionConverters;

/** The statement that Spark plans in this thread. */
final class Statement {
  private Statement() {}

  /**
   * Tells whether it is a MERGE INTO that only inserts. Spark makes an append of it, of the rows
   * of the source that have none in the table; so it depends on what it read.
   */
  static boolean onlyInsertsInto(HoldfastTable table) {
    String id = SparkContext.getOrCreate().getLocalProperty("spark.sql.execution.id");
    QueryExecution execution = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
    return execution != null && execution.logical() instanceof V2WriteCommand write && hasAntiJoin(write.query(), table);
  }

  private static boolean hasAntiJoin(LogicalPlan plan, HoldfastTable table) {
    if (plan instanceof Join join && join.joinType() == LeftAnti$.MODULE$) {
      return reads(join.right(), table);
    }
    return CollectionConverters.asJava(plan.children()).stream().anyMatch(one -> hasAntiJoin(one, table));
  }

  private static boolean reads(LogicalPlan plan, HoldfastTable table) {
    if (plan instanceof DataSourceV2Relation relation && relation.table() instanceof HoldfastTable read) {
      return read.isAt(table);
    }
    return CollectionConverters.asJava(plan.children()).stream().anyMatch(one -> reads(one, table));
  }
}
