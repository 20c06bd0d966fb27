package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.ReportsSinkMetrics;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A table as it was when a statement loaded it: one version, with its columns and counts.
 *
 * <p>All that one statement reads of it is of this version. A table whose log holds rows is read
 * as fresh as its options ask for instead.
 */
class HoldfastTable
    implements SupportsRead,
        SupportsWrite,
        SupportsDeleteV2,
        SupportsRowLevelOperations,
        SupportsMetadataColumns,
        ReportsSinkMetrics {
  protected final String name;
  protected final Map<String, String> options; // address, storage options, commit store
  final JsonNode facts; // what Holdfast said of the table: see _catalog.py
  private final StructType columns;
  private volatile Map<String, String> metrics = Map.of(); // of the newest batch of a stream into the log

  HoldfastTable(String name, JsonNode facts, Map<String, String> options) {
    this(name, facts, options, (StructType) DataType.fromJson(facts.get("schema").asText()));
  }

  /** Takes some of the table's columns. */
  HoldfastTable(String name, JsonNode facts, Map<String, String> options, StructType columns) {
    this.name = name;
    this.facts = facts;
    this.options = new HashMap<>(options);
    this.options.put("path", facts.get("path").asText());
    this.columns = columns;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String id() {
    return facts.path("id").asText(null);
  }

  @Override
  public String version() {
    return facts.path("version").asText(null);
  }

  @Override
  public StructType schema() {
    return columns;
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> properties = new LinkedHashMap<>();
    facts.path("properties").properties().forEach(one -> properties.put(one.getKey(), one.getValue().asText()));
    return properties;
  }

  @Override
  public Set<TableCapability> capabilities() {
    if (isReadOnly()) {
      return EnumSet.of(TableCapability.BATCH_READ);
    }
    return EnumSet.of(
        TableCapability.BATCH_READ,
        TableCapability.MICRO_BATCH_READ,
        TableCapability.BATCH_WRITE,
        TableCapability.STREAMING_WRITE,
        TableCapability.OVERWRITE_BY_FILTER,
        TableCapability.TRUNCATE,
        TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
  }

  /** Tells whether this is one of Holdfast's own tables about a table. */
  private boolean isReadOnly() {
    return facts.has("about");
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    Map<String, String> all = new HashMap<>(options);
    all.putAll(given.asCaseSensitiveMap());
    if (isReadOnly()) {
      all.put("secretAbout", facts.get("about").asText());
    }
    boolean special = !given.isEmpty() || isReadOnly();
    return new HoldfastScanBuilder(this, all, special, !special);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    if (LogSink.isAskedFor(info.options())) {
      return new LogWrite.Builder(info, options, written -> metrics = written);
    }
    return new WriteInto(this, info);
  }

  /** Returns what the newest batch of a stream into the log wrote; see {@link LogSink}. */
  @Override
  public Map<String, String> metrics() {
    return metrics;
  }

  /** Tells whether this is the same table as another one, at whatever version. */
  final boolean isAt(HoldfastTable other) {
    return options.get("path").equals(other.options.get("path"));
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    return isReadOnly() ? new MetadataColumn[0] : RowAddress.columns();
  }

  /** Pins the statement to this version, or, where rows wait in a log, to the one that has them. */
  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    if (isReadOnly()) {
      throw new UnsupportedOperationException(name + " is read only");
    }
    HoldfastTable pinned = pinned();
    return () -> new RowChange(pinned, info.command());
  }

  /** Returns the table at one version: this, or, where rows wait in a log, the one that has them. */
  final HoldfastTable pinned() {
    HoldfastTable pinned = facts.has("pin") ? this : new HoldfastTable(name, Python.ask("merge_waiting", Map.of(), options), options);
    if (!pinned.schema().equals(schema())) {
      throw new IllegalStateException("the columns of " + name + " have changed: run the statement again");
    }
    return pinned;
  }

  /** Returns Python's writer, which gets the table's options besides the statement's. */
  protected WriteBuilder pythonWriter(LogicalWriteInfo info, Map<String, String> more) {
    return pythonWriter(info, info.schema(), more);
  }

  /** Likewise, for rows with other columns than the statement's. */
  final WriteBuilder pythonWriter(LogicalWriteInfo info, StructType rows, Map<String, String> more) {
    Map<String, String> all = new HashMap<>(options);
    all.putAll(Txn.options());
    all.putAll(more);
    all.putAll(info.options().asCaseSensitiveMap());
    CaseInsensitiveStringMap map = new CaseInsensitiveStringMap(all);
    LogicalWriteInfo complete =
        new LogicalWriteInfo() {
          @Override
          public CaseInsensitiveStringMap options() {
            return map;
          }

          @Override
          public String queryId() {
            return info.queryId();
          }

          @Override
          public StructType schema() {
            return rows;
          }
        };
    return ((SupportsWrite) Python.table(rows, all)).newWriteBuilder(complete);
  }

  @Override
  public boolean canDeleteWhere(Predicate[] predicates) {
    return !isReadOnly() && condition(predicates) != null;
  }

  @Override
  public void deleteWhere(Predicate[] predicates) {
    Map<String, Object> arguments = new HashMap<>(Txn.options());
    arguments.put("where", condition(predicates));
    Python.ask("delete", arguments, options);
  }

  /** Returns the condition if all of it is exact, else null. */
  final String condition(Predicate[] predicates) {
    Filters filters = new Filters(facts.path("columns"));
    if (Arrays.stream(predicates).anyMatch(one -> one.name().equals("ALWAYS_TRUE"))) {
      return predicates.length == 1 ? "true" : null;
    }
    Filters.Sql[] parts = Arrays.stream(predicates).map(filters::translate).toArray(Filters.Sql[]::new);
    if (Arrays.stream(parts).anyMatch(part -> part == null || !part.exact())) {
      return null;
    }
    String text = Arrays.stream(parts).map(part -> "(" + part.text() + ")").collect(Collectors.joining(" AND "));
    return text.isEmpty() ? "true" : text;
  }
}
