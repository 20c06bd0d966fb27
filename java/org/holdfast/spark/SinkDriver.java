package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The Python process of one run of a query that writes the log; see `_sink.py`.
 *
 * <p>To Spark it is a stream's source, the one kind of Python process on the driver that lives as
 * long as a query. A question is its start offset; the answer is the offset that it returns.
 */
final class SinkDriver {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final StructType ANY = new StructType().add("any", DataTypes.StringType);
  private final MicroBatchStream python;

  SinkDriver(Map<String, String> options) {
    Map<String, String> all = new HashMap<>(options);
    all.put("secretSink", "true");
    SupportsRead table = (SupportsRead) Python.table(ANY, all);
    python = table.newScanBuilder(new CaseInsensitiveStringMap(all)).build().toMicroBatchStream("");
  }

  /** Asks a question; throws Failure if Holdfast answers with an error. */
  JsonNode ask(String verb, Map<String, ?> arguments) {
    Map<String, Object> question = new HashMap<>(arguments);
    question.put("verb", verb);
    try {
      String asked = JSON.writeValueAsString(question);
      String told =
          ((SupportsAdmissionControl) python)
              .latestOffset(python.deserializeOffset(asked), ReadLimit.allAvailable())
              .json();
      JsonNode answer = JSON.readTree(told);
      if (answer.has("error")) {
        throw new Python.Failure(answer.get("kind").asText(), answer.get("error").asText());
      }
      return answer;
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  static JsonNode json(String text) {
    try {
      return JSON.readTree(text);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  void stop() {
    python.stop();
  }
}
