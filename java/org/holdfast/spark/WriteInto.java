package org.holdfast.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;

/** A write of rows: added, in the place of all, or in the place of those that meet a condition. */
final class WriteInto implements SupportsOverwriteV2 {
  private final HoldfastTable table;
  private final LogicalWriteInfo info;
  private boolean replacesAll;
  private String replaced;

  WriteInto(HoldfastTable table, LogicalWriteInfo info) {
    this.table = table;
    this.info = info;
  }

  @Override
  public WriteBuilder truncate() {
    replacesAll = true;
    return this;
  }

  /** Only what is exact: Spark does not look again at the rows that go. */
  @Override
  public boolean canOverwrite(Predicate[] predicates) {
    return table.condition(predicates) != null;
  }

  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    if (Arrays.stream(predicates).allMatch(one -> one.name().equals("ALWAYS_TRUE"))) {
      return truncate();
    }
    replaced = table.condition(predicates);
    return this;
  }

  @Override
  public Write build() {
    if (replacesAll) {
      return ((SupportsTruncate) table.pythonWriter(info, Map.of())).truncate().build();
    }
    if (replaced != null) {
      HoldfastTable pinned = table.pinned();
      Map<String, String> how = RowChange.option(pinned, "REPLACE WHERE", replaced, true, List.of());
      return pinned.pythonWriter(info, how).build();
    }
    if (Statement.onlyInsertsInto(table)) {
      return table.pythonWriter(info, onlyInserts()).build();
    }
    return table.pythonWriter(info, new HashMap<>()).build();
  }

  private Map<String, String> onlyInserts() {
    if (!table.facts.has("pin")) {
      throw new UnsupportedOperationException(
          "rows wait in the log of " + table.name() + ", and a MERGE INTO that only inserts cannot look at them: merge them"
              + " first, with CALL system.merge_log, or give the MERGE a WHEN MATCHED clause");
    }
    return RowChange.option(table, "MERGE", "", true, List.of());
  }
}
