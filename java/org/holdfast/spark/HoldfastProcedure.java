package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A verb of a table, called in SQL: {@code CALL lake.system.compact('ev')}.
 *
 * <p>The table is named first; other parameters have defaults, which Python knows. The answer is one
 * row: the newest version afterwards, and all else as JSON.
 */
final class HoldfastProcedure implements UnboundProcedure, BoundProcedure {
  private static final StructType ANSWER =
      new StructType().add("version", DataTypes.LongType).add("details", DataTypes.StringType);
  private static final Map<String, List<String>> VERBS =
      Map.of(
          "compact", List.of("target_rows:long"),
          "create_index", List.of("column:string", "kind:string"),
          "maintain", List.of("confirm:boolean"),
          "merge_log", List.of(),
          "restore", List.of("version:long", "txn:string"),
          "vacuum", List.of("confirm:boolean"));

  private final String verb;
  private final Function<Map<String, Object>, JsonNode> ask;

  private HoldfastProcedure(String verb, Function<Map<String, Object>, JsonNode> ask) {
    this.verb = verb;
    this.ask = ask;
  }

  /** Returns a procedure; null if there is none of this name. */
  static HoldfastProcedure of(String verb, Function<Map<String, Object>, JsonNode> ask) {
    return VERBS.containsKey(verb) ? new HoldfastProcedure(verb, ask) : null;
  }

  static List<String> names() {
    return VERBS.keySet().stream().sorted().toList();
  }

  @Override
  public String name() {
    return verb;
  }

  @Override
  public String description() {
    return "Table." + verb + " of Holdfast";
  }

  @Override
  public BoundProcedure bind(StructType given) {
    return this;
  }

  @Override
  public boolean isDeterministic() {
    return false;
  }

  @Override
  public ProcedureParameter[] parameters() {
    List<String> more = VERBS.get(verb);
    ProcedureParameter[] all = new ProcedureParameter[more.size() + 1];
    all[0] = ProcedureParameter.in("table", DataTypes.StringType).build();
    for (int i = 0; i < more.size(); i++) {
      String[] parts = more.get(i).split(":");
      all[i + 1] = ProcedureParameter.in(parts[0], type(parts[1])).defaultValue("NULL").build();
    }
    return all;
  }

  private static DataType type(String word) {
    return switch (word) {
      case "long" -> DataTypes.LongType;
      case "boolean" -> DataTypes.BooleanType;
      default -> DataTypes.StringType;
    };
  }

  @Override
  public Iterator<Scan> call(InternalRow given) {
    Map<String, Object> arguments = new HashMap<>();
    ProcedureParameter[] parameters = parameters();
    for (int i = 0; i < parameters.length; i++) {
      if (!given.isNullAt(i)) {
        Object value = given.get(i, parameters[i].dataType());
        arguments.put(parameters[i].name(), value instanceof UTF8String ? value.toString() : value);
      }
    }
    JsonNode answer = ask.apply(Map.of("call", verb, "arguments", arguments));
    Object[] row = {answer.get("version").asLong(), UTF8String.fromString(answer.get("details").asText())};
    return List.<Scan>of(new Answer(new InternalRow[] {new GenericInternalRow(row)})).iterator();
  }

  private record Answer(InternalRow[] rows) implements LocalScan {
    @Override
    public StructType readSchema() {
      return ANSWER;
    }
  }
}
