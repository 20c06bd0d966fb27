package org.holdfast.spark;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The changes of a table, for {@code spark.read.changes("lake.events")}: `readChangeFeed` by name.
 *
 * <p>Rows that only moved are no changes, and updates of a table with a key have both images; so
 * Spark has nothing to derive. Columns are not pruned: a change of a column that is left out would
 * then be none.
 */
final class HoldfastChangelog implements Changelog {
  // What Spark reads of the user's options itself, and gives back as the context.
  private static final Set<String> RANGE =
      Set.of(
          "startingversion",
          "endingversion",
          "startingtimestamp",
          "endingtimestamp",
          "startingboundinclusive",
          "endingboundinclusive",
          "deduplicationmode",
          "computeupdates");
  private final String name;
  private final Map<String, String> options;
  private final StructType schema;

  HoldfastChangelog(HoldfastTable table, ChangelogContext context, CaseInsensitiveStringMap given) {
    if (context.deduplicationMode() == ChangelogContext.DeduplicationMode.NET_CHANGES) {
      throw new IllegalArgumentException( // Spark takes the unsupported kind for a catalog without changes
          "net changes are not computed: read with deduplicationMode none, and keep the newest change of each key");
    }
    this.name = table.name() + " changes";
    this.options = new HashMap<>(table.options);
    options.putAll(withoutRange(given));
    options.put("readChangeFeed", "true");
    options.putAll(range(context.range()));
    Map<String, String> all = new HashMap<>(options);
    all.putIfAbsent("startingVersion", "1"); // columns depend on no range; a batch must name one
    all.remove(all.containsKey("startingTimestamp") ? "startingVersion" : "");
    this.schema = Python.schema(all);
  }

  private static Map<String, String> withoutRange(CaseInsensitiveStringMap given) {
    Map<String, String> kept = new HashMap<>(given.asCaseSensitiveMap());
    kept.keySet().removeIf(key -> RANGE.contains(key.toLowerCase(Locale.ROOT)));
    return kept;
  }

  private static Map<String, String> range(ChangelogRange range) {
    Map<String, String> found = new HashMap<>();
    if (range instanceof ChangelogRange.VersionRange versions) {
      long first = version(versions.startingVersion());
      found.put("startingVersion", Long.toString(versions.startingBoundInclusive() ? first : first + 1));
      versions.endingVersion().ifPresent(
          last -> found.put("endingVersion", Long.toString(versions.endingBoundInclusive() ? version(last) : version(last) - 1)));
    } else if (range instanceof ChangelogRange.TimestampRange times) {
      // Holdfast begins behind a time, and ends with it.
      long first = times.startingTimestamp() - (times.startingBoundInclusive() ? 1 : 0);
      found.put("startingTimestamp", instant(first));
      times.endingTimestamp().ifPresent(
          last -> found.put("endingTimestamp", instant(last - (times.endingBoundInclusive() ? 0 : 1))));
    }
    return found;
  }

  private static long version(String text) {
    try {
      return Long.parseLong(text.trim());
    } catch (NumberFormatException e) {
      throw new IllegalArgumentException("a version is a whole number, not " + text);
    }
  }

  private static String instant(long micros) {
    return Instant.EPOCH.plus(micros, ChronoUnit.MICROS).toString();
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Column[] columns() {
    return Arrays.stream(schema.fields())
        .map(field -> Column.create(field.name(), field.dataType(), field.nullable()))
        .toArray(Column[]::new);
  }

  @Override
  public boolean containsCarryoverRows() {
    return false;
  }

  @Override
  public boolean containsIntermediateChanges() {
    return false; // of no matter without net changes, which are refused
  }

  @Override
  public boolean representsUpdateAsDeleteAndInsert() {
    return false;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    Map<String, String> all = new HashMap<>(options);
    all.putAll(withoutRange(given));
    return () -> new ChangeScan(all);
  }

  private final class ChangeScan implements Scan {
    private final Map<String, String> all;

    ChangeScan(Map<String, String> all) {
      this.all = all;
    }

    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public String description() {
      return "holdfast " + name;
    }

    /** Reads all changes there are unless a range was given; a stream begins with a snapshot then. */
    @Override
    public Batch toBatch() {
      Map<String, String> batch = new HashMap<>(all);
      if (!batch.containsKey("startingTimestamp")) {
        batch.putIfAbsent("startingVersion", "1");
      }
      return python(batch).toBatch();
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return python(all).toMicroBatchStream(checkpoint);
    }

    private Scan python(Map<String, String> chosen) {
      SupportsRead read = (SupportsRead) Python.table(schema, chosen);
      return read.newScanBuilder(new CaseInsensitiveStringMap(chosen)).build();
    }
  }
}
