package org.holdfast.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * UPDATE, MERGE INTO, and a DELETE that Lance cannot do alone: Spark finds the rows, by address.
 *
 * <p>The table is pinned to one version, which is read and upon which the change is put. Tasks
 * write new rows, and tell which addresses go; the commit is Python's, and is one decision.
 */
final class RowChange implements SupportsDelta {
  private static final ObjectMapper JSON = new ObjectMapper();
  private final HoldfastTable table;
  private final Command command;
  private final List<HoldfastScanBuilder> scans = new ArrayList<>();

  RowChange(HoldfastTable table, Command command) {
    this.table = table;
    this.command = command;
  }

  @Override
  public Command command() {
    return command;
  }

  @Override
  public String description() {
    return "holdfast " + command + " of " + table.name() + " at version " + table.version();
  }

  @Override
  public NamedReference[] rowId() {
    Stream<String> key = keyOf(table).stream().map(name -> "`" + name.replace("`", "``") + "`");
    return Stream.concat(Stream.of(RowAddress.NAME), key).map(Expressions::column).toArray(NamedReference[]::new);
  }

  /** Returns the columns of the key, whose old values come with each change: they stay the same. */
  private static List<String> keyOf(HoldfastTable table) {
    return StreamSupport.stream(table.facts.path("key").spliterator(), false).map(JsonNode::asText).toList();
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    HoldfastScanBuilder builder = (HoldfastScanBuilder) table.newScanBuilder(CaseInsensitiveStringMap.empty());
    scans.add(builder);
    return builder;
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        return new Write(info);
      }
    };
  }

  /** Returns the condition that every row which this statement looked at meets; empty for all. */
  private String looksAt() {
    return scans.size() == 1 ? scans.get(0).condition() : "";
  }

  /** Returns what Python's writer needs to know of a statement. */
  static Map<String, String> option(
      HoldfastTable table, String command, String looksAt, boolean onlyInserts, List<String> upsertKey) {
    Map<String, Object> change = new HashMap<>();
    change.put("command", command);
    change.put("version", Long.parseLong(table.version()));
    change.put("looks_at", looksAt);
    change.put("only_inserts", onlyInserts);
    change.put("upsert_key", upsertKey);
    try {
      return Map.of("secretChange", JSON.writeValueAsString(change));
    } catch (JsonProcessingException e) {
      throw new IllegalStateException(e);
    }
  }

  private final class Write implements DeltaWrite {
    private final LogicalWriteInfo info;

    Write(LogicalWriteInfo info) {
      this.info = info;
    }

    @Override
    public String description() {
      return RowChange.this.description();
    }

    @Override
    public DeltaBatchWrite toBatch() {
      StructType rows = RowFeed.schema(info.schema());
      List<String> key = command == Command.MERGE && Statement.upserts(keyOf(table)) ? keyOf(table) : List.of();
      Map<String, String> options = option(table, command.toString(), looksAt(), false, key);
      BatchWrite python = table.pythonWriter(info, rows, options).build().toBatch();
      return new Batch(python, info.schema(), info.schema().isEmpty() ? List.of() : keyOf(table)); // of a DELETE
    }
  }

  /** Python's writer, which gets each change as one row. */
  private record Batch(BatchWrite python, StructType columns, List<String> key) implements DeltaBatchWrite {
    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new RowFeed.Factory(python.createBatchWriterFactory(info), columns, key);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      python.commit(messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      python.abort(messages);
    }
  }
}
