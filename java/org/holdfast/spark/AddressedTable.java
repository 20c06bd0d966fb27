package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A table by its address: Python's own, but for queries, which read only what they need.
 *
 * <p>Its version is chosen by the first query, and stays, as Python's does. Python answers alone
 * where rows wait in a log, where options ask for more than rows, and where a schema was given
 * that is not the table's.
 */
public final class AddressedTable implements SupportsRead, SupportsWrite {
  private static final Set<String> PLACE = Set.of("path", "commitstoreurl");
  private static final Set<String> MORE = Set.of("columns", "filter", "fragmentsperpartition");
  private final Table python;
  private final StructType columns;
  private final Map<String, String> options;
  private HoldfastTable pinned;

  /** Takes Python's table, and what it was made with. */
  public AddressedTable(Table python, StructType columns, Map<String, String> options) {
    this.python = python;
    this.columns = columns;
    this.options = options;
  }

  @Override
  public String name() {
    return python.name();
  }

  @Override
  public StructType schema() {
    return columns;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return python.capabilities();
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return ((SupportsWrite) python).newWriteBuilder(info);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    HoldfastTable table = given.asCaseSensitiveMap().keySet().stream().allMatch(AddressedTable::isPlain) ? pinned() : null;
    if (table == null) {
      return ((SupportsRead) python).newScanBuilder(given);
    }
    return new HoldfastScanBuilder(table, given.asCaseSensitiveMap(), given.containsKey("filter"), true);
  }

  private static boolean isPlain(String option) {
    String key = option.toLowerCase(Locale.ROOT);
    return key.startsWith("storage.") || PLACE.contains(key) || HoldfastScan.WHEN.contains(key) || MORE.contains(key);
  }

  /** Returns the table at the version that the first query found; null if Python is to answer. */
  private synchronized HoldfastTable pinned() {
    if (pinned == null) {
      JsonNode facts = Python.ask("look", Map.of(), options);
      if (!facts.has("pin") || !hasColumns((StructType) DataType.fromJson(facts.get("schema").asText()))) {
        return null;
      }
      pinned = new HoldfastTable(name(), facts, options, columns);
    }
    return pinned;
  }

  /** Tells whether the columns that were asked for are as they are in the table. */
  private boolean hasColumns(StructType all) {
    for (StructField field : columns.fields()) {
      StructField own = all.getFieldIndex(field.name()).isEmpty() ? null : all.apply(field.name());
      if (own == null || !own.dataType().equals(field.dataType()) || own.nullable() && !field.nullable()) {
        return false;
      }
    }
    return true;
  }
}
