package org.holdfast.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownTopN;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Learns which columns and rows a query needs. One builder serves one query. */
final class HoldfastScanBuilder
    implements SupportsPushDownRequiredColumns,
        SupportsPushDownV2Filters,
        SupportsPushDownLimit,
        SupportsPushDownTopN,
        SupportsPushDownAggregates {
  private static final int MOST_TOP = 10_000; // rows that a task may hold
  private final HoldfastTable table;
  private final Map<String, String> options;
  private final boolean special; // options of the query say what is read: counts are not known
  private final boolean pins; // whether the version is the table's, and not one of the options
  private StructType columns;
  private Predicate[] pushed = new Predicate[0];
  private int limit = -1;
  private SortOrder order; // of the rows of which the first ones are enough; null if any are
  private StructType counts;

  HoldfastScanBuilder(HoldfastTable table, Map<String, String> options, boolean special, boolean pins) {
    this.table = table;
    this.options = options;
    this.special = special;
    this.pins = pins;
    this.columns = table.schema();
  }

  /** Takes whole columns: a struct that Spark needs a part of is read whole. */
  @Override
  public void pruneColumns(StructType required) {
    StructType all = table.schema();
    columns =
        new StructType(
            Arrays.stream(required.fieldNames())
                .map(name -> all.getFieldIndex(name).isEmpty() ? RowAddress.field(name) : all.apply(name))
                .toArray(StructField[]::new));
  }

  /** Leaves every condition to Spark, too: what is pushed only saves reading. */
  @Override
  public Predicate[] pushPredicates(Predicate[] predicates) {
    Filters filters = new Filters(table.facts.path("columns"));
    pushed = Arrays.stream(predicates).filter(one -> filters.translate(one) != null).toArray(Predicate[]::new);
    return predicates;
  }

  @Override
  public Predicate[] pushedPredicates() {
    return pushed;
  }

  @Override
  public boolean pushLimit(int rows) {
    limit = rows;
    return true;
  }

  /** Every task hands on its first rows in one column's order; Spark sorts these again. */
  @Override
  public boolean pushTopN(SortOrder[] orders, int rows) {
    if (orders.length != 1 || rows > MOST_TOP || !(orders[0].expression() instanceof NamedReference column)) {
      return false;
    }
    if (column.fieldNames().length != 1 || !table.facts.path("columns").has(column.fieldNames()[0])) {
      return false;
    }
    order = orders[0];
    limit = rows;
    return true;
  }

  /** Every task stops at the limit; Spark takes the first rows of what they bring. */
  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public boolean supportCompletePushDown(Aggregation aggregation) {
    return isCount(aggregation);
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    if (!isCount(aggregation)) {
      return false;
    }
    int wanted = aggregation.aggregateExpressions().length;
    List<StructField> fields = new ArrayList<>();
    for (int i = 0; i < wanted; i++) {
      fields.add(DataTypes.createStructField("count_" + i, DataTypes.LongType, false));
    }
    counts = DataTypes.createStructType(fields);
    return true;
  }

  private boolean isCount(Aggregation aggregation) {
    return !special
        && table.facts.path("exact").asBoolean()
        && pushed.length == 0
        && aggregation.groupByExpressions().length == 0
        && aggregation.aggregateExpressions().length > 0
        && Arrays.stream(aggregation.aggregateExpressions()).allMatch(one -> one instanceof CountStar);
  }

  /** Returns what was pushed, in Lance's SQL; empty if nothing was. */
  String condition() {
    Filters filters = new Filters(table.facts.path("columns"));
    return Arrays.stream(pushed).map(one -> "(" + filters.translate(one).text() + ")").collect(Collectors.joining(" AND "));
  }

  @Override
  public Scan build() {
    if (counts != null) {
      return new CountScan(counts, table.facts.get("rows").asLong());
    }
    Map<String, String> all = new HashMap<>(options);
    String condition = condition();
    String given = options.entrySet().stream()
        .filter(one -> one.getKey().equalsIgnoreCase("filter")).map(Map.Entry::getValue).findFirst().orElse("");
    if (!condition.isEmpty()) {
      all.keySet().removeIf(key -> key.equalsIgnoreCase("filter"));
      all.put("filter", given.isEmpty() ? condition : "(" + given + ") AND " + condition);
    }
    return new HoldfastScan(table, columns, all, condition, pins, limit, order);
  }
}
