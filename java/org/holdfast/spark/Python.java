package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The way to Holdfast's Python side: its data source reads and writes, and answers questions.
 *
 * <p>A question is an option of a load whose schema is asked for; the answer is JSON in the
 * metadata of the one column of that schema. So no other process and no port is needed.
 */
final class Python {
  private static final ObjectMapper JSON = new ObjectMapper();
  static final String NAME = "holdfast"; // of the data source
  private static final String QUESTION = "secretAsk"; // Spark hides options with this word

  private Python() {}

  /** An error of Holdfast's, with its kind. */
  static final class Failure extends IllegalArgumentException {
    final String kind;

    Failure(String kind, String message) {
      super(message);
      this.kind = kind;
    }
  }

  /** Returns a new data source: nothing of one query reaches another. */
  static PythonDataSourceV2 source() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(NAME);
    return source;
  }

  /** Returns the Python table with these columns and options. */
  static Table table(StructType columns, Map<String, String> options) {
    return source().getTable(columns, new Transform[0], options);
  }

  /** Returns the columns of a load with these options. */
  static StructType schema(Map<String, String> options) {
    return source().inferSchema(new CaseInsensitiveStringMap(options));
  }

  /** Asks a question; throws Failure if Holdfast answers with an error. */
  static JsonNode ask(String verb, Map<String, ?> arguments, Map<String, String> options) {
    Map<String, Object> question = new HashMap<>(arguments);
    question.put("verb", verb);
    Map<String, String> all = new HashMap<>(options);
    try {
      all.put(QUESTION, JSON.writeValueAsString(question));
      StructType schema = source().inferSchema(new CaseInsensitiveStringMap(all));
      JsonNode answer = JSON.readTree(schema.fields()[0].metadata().getString("answer"));
      if (answer.has("error")) {
        throw new Failure(answer.get("kind").asText(), answer.get("error").asText());
      }
      return answer;
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}
