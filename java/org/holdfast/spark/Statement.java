package org.holdfast.spark;

import java.util.List;
import java.util.stream.Stream;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeRows;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataTypes;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** The statement that Spark plans in this thread. */
final class Statement {
  private Statement() {}

  private static LogicalPlan query() {
    String id = SparkContext.getOrCreate().getLocalProperty("spark.sql.execution.id");
    QueryExecution execution = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
    return execution != null && execution.logical() instanceof V2WriteCommand write ? write.query() : null;
  }

  /**
   * Tells whether it is a MERGE INTO that only inserts. Spark makes an append of it, of the rows
   * of the source that have none in the table; so it depends on what it read.
   */
  static boolean onlyInsertsInto(HoldfastTable table) {
    LogicalPlan query = query();
    return query != null && hasAntiJoin(query, table);
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

  /**
   * Tells whether it is a MERGE INTO by key that updates every row which matches and inserts every
   * other row of the source, under its key. Then it looked for the keys that it writes, and no more.
   */
  static boolean upserts(List<String> key) {
    if (key.isEmpty() || !(query() instanceof MergeRows merge) || !(merge.child() instanceof Join join)) {
      return false;
    }
    List<MergeRows.Instruction> matched = list(merge.matchedInstructions());
    List<MergeRows.Instruction> others = list(merge.notMatchedInstructions());
    boolean all = merge.notMatchedBySourceInstructions().isEmpty() && isForAll(matched) && isForAll(others);
    if (!all || !matched.stream().allMatch(Statement::isUpdate) || join.condition().isEmpty()) {
      return false;
    }
    List<Expression> conditions = conjuncts(join.condition().get()).toList();
    List<String> columns = list(merge.output()).stream().map(Attribute::name).toList();
    return conditions.size() == key.size() && key.stream().allMatch(name -> {
      Expression given = givenKey(conditions, join, name);
      int at = columns.indexOf(name);
      return given != null && at >= 0 && others.stream().allMatch(one -> inserts(one, at, given));
    });
  }

  /** Tells whether one of the instructions has no condition. */
  private static boolean isForAll(List<MergeRows.Instruction> instructions) {
    return instructions.stream().anyMatch(one -> one.condition() instanceof Literal value && Boolean.TRUE.equals(value.value()));
  }

  private static boolean isUpdate(MergeRows.Instruction one) {
    return one instanceof MergeRows.Keep keep && keep.context() == MergeRows.Update$.MODULE$;
  }

  private static boolean inserts(MergeRows.Instruction one, int at, Expression value) {
    if (!(one instanceof MergeRows.Keep keep)) {
      return false;
    }
    Expression inserted = keep.output().apply(at);
    return (inserted instanceof AssertNotNull checked ? checked.child() : inserted).semanticEquals(value);
  }

  private static Stream<Expression> conjuncts(Expression condition) {
    return condition instanceof And both
        ? Stream.concat(conjuncts(both.left()), conjuncts(both.right()))
        : Stream.of(condition);
  }

  /** Returns what the source gives for a column of the key; null if it is compared otherwise. */
  private static Expression givenKey(List<Expression> conditions, Join join, String name) {
    for (Expression one : conditions) {
      if (one instanceof EqualTo equal) {
        for (boolean first : new boolean[] {true, false}) {
          Expression own = first ? equal.left() : equal.right();
          Expression given = first ? equal.right() : equal.left();
          if (own instanceof Attribute column
              && column.name().equals(name)
              && !column.dataType().equals(DataTypes.FloatType)
              && !column.dataType().equals(DataTypes.DoubleType)
              && join.left().outputSet().contains(column)
              && given.references().subsetOf(join.right().outputSet())) {
            return given;
          }
        }
      }
    }
    return null;
  }

  private static <T> List<T> list(Seq<T> items) {
    return CollectionConverters.asJava(items);
  }
}
