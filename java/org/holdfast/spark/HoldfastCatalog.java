package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.StreamSupport;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Tables by name: those below one root, as Holdfast's namespace names them.
 *
 * <p>Settings: {@code spark.sql.catalog.NAME.root}, and as for a load {@code commitStoreUrl} and
 * {@code storage.*}; {@code allowDrop} lets DROP TABLE destroy what it names.
 */
public class HoldfastCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog, FunctionCatalog {
  private static final Set<String> SETTINGS = Set.of("root", "commitstoreurl", "allowdrop");
  private String name;
  private Map<String, String> settings;
  private Map<String, String> options; // those of a load

  @Override
  public void initialize(String name, CaseInsensitiveStringMap given) {
    this.name = name;
    this.settings = new HashMap<>();
    this.options = new HashMap<>();
    for (Map.Entry<String, String> one : given.asCaseSensitiveMap().entrySet()) {
      String key = one.getKey().toLowerCase(java.util.Locale.ROOT);
      if (!SETTINGS.contains(key) && !key.startsWith("storage.")) {
        throw new IllegalArgumentException(
            "spark.sql.catalog." + name + "." + one.getKey() + " is unknown: a catalog of Holdfast has root, commitStoreUrl,"
                + " allowDrop and storage.*");
      }
      (SETTINGS.contains(key) && !key.equals("commitstoreurl") ? settings : options).put(one.getKey(), one.getValue());
    }
    if (!given.containsKey("root")) {
      throw new IllegalArgumentException("spark.sql.catalog." + name + ".root is missing: the folder or prefix of the tables");
    }
    settings.put("root", given.get("root"));
  }

  @Override
  public String name() {
    return name;
  }

  private JsonNode ask(String verb, Map<String, ?> arguments) {
    Map<String, Object> all = new HashMap<>(arguments);
    all.putAll(settings);
    return Python.ask(verb, all, options);
  }

  private static List<String> parts(Identifier ident) {
    List<String> parts = new ArrayList<>(Arrays.asList(ident.namespace()));
    parts.add(ident.name());
    return parts;
  }

  // Functions: one, by which Spark divides rows among a table's shards.

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return namespace.length == 0
        ? new Identifier[] {Identifier.of(namespace, BucketFunction.NAME)}
        : new Identifier[0];
  }

  @Override
  public UnboundFunction loadFunction(Identifier ident) throws NoSuchFunctionException {
    if (ident.namespace().length > 0 || !ident.name().equalsIgnoreCase(BucketFunction.NAME)) {
      throw new NoSuchFunctionException(ident);
    }
    return new BucketFunction();
  }

  // Procedures: verbs of tables, in the namespace `system`.

  private static final String[] SYSTEM = {"system"};

  @Override
  public UnboundProcedure loadProcedure(Identifier ident) {
    boolean ours = Arrays.equals(ident.namespace(), SYSTEM);
    HoldfastProcedure made = ours ? HoldfastProcedure.of(ident.name(), given -> ask("call", given)) : null;
    if (made == null) {
      throw new IllegalArgumentException(
          "there is no procedure " + ident + ": " + name + ".system has " + String.join(", ", HoldfastProcedure.names()));
    }
    return made;
  }

  @Override
  public Identifier[] listProcedures(String[] namespace) {
    boolean ours = Arrays.equals(namespace, SYSTEM);
    return ours ? HoldfastProcedure.names().stream().map(one -> Identifier.of(SYSTEM, one)).toArray(Identifier[]::new) : new Identifier[0];
  }

  // Reading.

  @Override
  public Table loadTable(Identifier ident) throws NoSuchTableException {
    return load(ident, Map.of());
  }

  @Override
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
    return load(ident, Map.of("version", version));
  }

  @Override
  public Table loadTable(Identifier ident, long micros) throws NoSuchTableException {
    return load(ident, Map.of("timestamp", Instant.EPOCH.plus(micros, ChronoUnit.MICROS).toString()));
  }

  /** Returns the table's changes, for {@code spark.read.changes(...)}. */
  @Override
  public Changelog loadChangelog(Identifier ident, ChangelogContext context, CaseInsensitiveStringMap given)
      throws NoSuchTableException {
    return new HoldfastChangelog(load(ident, Map.of()), context, given);
  }

  private HoldfastTable load(Identifier ident, Map<String, String> when) throws NoSuchTableException {
    Map<String, Object> arguments = new HashMap<>(when);
    arguments.put("id", parts(ident));
    try {
      return new HoldfastTable(name + "." + ident, ask("load", arguments), options);
    } catch (Python.Failure failure) {
      if (failure.kind.equals("no_table")) {
        throw new NoSuchTableException(ident);
      }
      throw failure;
    }
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    return strings(below("tables", namespace)).stream().map(one -> Identifier.of(namespace, one)).toArray(Identifier[]::new);
  }

  private JsonNode below(String verb, String[] namespace) throws NoSuchNamespaceException {
    try {
      return ask(verb, Map.of("id", namespace)).get("names");
    } catch (Python.Failure failure) {
      if (failure.kind.equals("not_found")) {
        throw new NoSuchNamespaceException(namespace);
      }
      throw failure;
    }
  }

  private static List<String> strings(JsonNode names) {
    return StreamSupport.stream(names.spliterator(), false).map(JsonNode::asText).toList();
  }

  // Making, changing and dropping tables.

  @Override
  public Table createTable(Identifier ident, TableInfo info) throws TableAlreadyExistsException {
    refusePartitions(info);
    create(ident, info, "create");
    try {
      return load(ident, Map.of());
    } catch (NoSuchTableException gone) {
      throw new IllegalStateException("the table was dropped while it was created", gone);
    }
  }

  private JsonNode create(Identifier ident, TableInfo info, String verb) throws TableAlreadyExistsException {
    Map<String, Object> arguments = new HashMap<>();
    arguments.put("id", parts(ident));
    arguments.put("schema", info.schema().json());
    arguments.put("properties", info.properties());
    try {
      return ask(verb, arguments);
    } catch (Python.Failure failure) {
      if (failure.kind.equals("already_exists")) {
        throw new TableAlreadyExistsException(ident);
      }
      throw failure;
    }
  }

  private static void refusePartitions(TableInfo info) {
    if (info.partitions().length > 0) {
      throw new IllegalArgumentException("a Lance table has no partitions: leave PARTITIONED BY and CLUSTER BY out");
    }
    if (info.constraints().length > 0) {
      throw new IllegalArgumentException(
          "constraints are not kept: give the key as TBLPROPERTIES ('primaryKey' = 'id') instead");
    }
  }

  @Override
  public Table alterTable(Identifier ident, TableChange... changes) throws NoSuchTableException {
    List<Map<String, Object>> described = Arrays.stream(changes).map(Changes::describe).toList();
    HoldfastTable table = load(ident, Map.of());
    try {
      Python.ask("alter", Map.of("changes", described), table.options);
    } catch (Python.Failure failure) {
      throw new UnsupportedOperationException(failure.getMessage()); // Spark buries the other kind
    }
    return load(ident, Map.of());
  }

  @Override
  public boolean dropTable(Identifier ident) {
    try {
      ask("drop", Map.of("id", parts(ident)));
      return true;
    } catch (Python.Failure failure) {
      if (failure.kind.equals("not_found")) {
        return false;
      }
      throw failure;
    }
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException(
        "a table's name is its place: copy the folder, then tell Holdfast with `holdfast pin --moved`");
  }

  // CREATE TABLE ... AS SELECT and CREATE OR REPLACE TABLE ... AS SELECT, each one commit.

  @Override
  public StagedTable stageCreate(Identifier ident, TableInfo info) throws TableAlreadyExistsException {
    refusePartitions(info);
    return new Staged(ident, create(ident, info, "plan_create"), info, false);
  }

  @Override
  public StagedTable stageReplace(Identifier ident, TableInfo info) throws NoSuchTableException {
    refusePartitions(info);
    return new Staged(ident, load(ident, Map.of()).facts, info, true);
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier ident, TableInfo info) {
    refusePartitions(info);
    try {
      return stageReplace(ident, info);
    } catch (NoSuchTableException missing) {
      try {
        return stageCreate(ident, info);
      } catch (TableAlreadyExistsException meanwhile) {
        throw new IllegalStateException("somebody else created the table: repeat the statement", meanwhile);
      }
    }
  }

  /** A table that appears, or changes, with the commit of the rows that are written to it. */
  private final class Staged extends HoldfastTable implements StagedTable {
    private final TableInfo info;
    private final boolean replaces;
    private final Identifier ident;
    private boolean written;

    Staged(Identifier ident, JsonNode facts, TableInfo info, boolean replaces) {
      super(HoldfastCatalog.this.name + "." + ident, facts, HoldfastCatalog.this.options);
      this.ident = ident;
      this.info = info;
      this.replaces = replaces;
    }

    @Override
    public StructType schema() {
      return info.schema();
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo write) {
      written = true;
      Map<String, String> more = new HashMap<>();
      facts.path("creation").properties().forEach(one -> more.put(one.getKey(), one.getValue().asText()));
      if (!replaces) {
        more.put("secretCreate", "true");
        return pythonWriter(write, more);
      }
      more.put("overwriteSchema", "true");
      return ((SupportsTruncate) pythonWriter(write, more)).truncate();
    }

    @Override
    public CustomTaskMetric[] reportDriverMetrics() {
      return new CustomTaskMetric[0];
    }

    @Override
    public void commitStagedChanges() {
      if (written) {
        return; // the commit of the rows made the table, or replaced it
      }
      try { // CREATE OR REPLACE TABLE without rows
        if (replaces) {
          Python.ask("replace", Map.of("schema", info.schema().json(), "properties", info.properties()), options);
        } else {
          create(ident, info, "create");
        }
      } catch (TableAlreadyExistsException meanwhile) {
        throw new IllegalStateException("somebody else created the table: repeat the statement", meanwhile);
      }
    }

    @Override
    public void abortStagedChanges() {
      // Nothing is visible, and files that no version shows are left to vacuum.
    }
  }

  // Namespaces.

  @Override
  public String[][] listNamespaces() throws NoSuchNamespaceException {
    return listNamespaces(new String[0]);
  }

  @Override
  public String[][] listNamespaces(String[] above) throws NoSuchNamespaceException {
    List<String[]> found = new ArrayList<>();
    for (String one : strings(below("namespaces", above))) {
      String[] path = Arrays.copyOf(above, above.length + 1);
      path[above.length] = one;
      found.add(path);
    }
    return found.toArray(String[][]::new);
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    below("tables", namespace);
    return new HashMap<>();
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) throws NamespaceAlreadyExistsException {
    try {
      ask("create_namespace", Map.of("id", namespace));
    } catch (Python.Failure failure) {
      if (failure.kind.equals("already_exists")) {
        throw new NamespaceAlreadyExistsException(namespace);
      }
      throw failure;
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw new UnsupportedOperationException("namespaces of Holdfast are folders, and have no properties");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) throws NonEmptyNamespaceException {
    try {
      ask("drop_namespace", Map.of("id", namespace));
      return true;
    } catch (Python.Failure failure) {
      if (failure.kind.equals("not_found")) {
        return false;
      }
      if (failure.kind.equals("not_empty")) {
        throw new NonEmptyNamespaceException(namespace);
      }
      throw failure;
    }
  }
}
