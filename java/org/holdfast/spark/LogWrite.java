package org.holdfast.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.LogicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One batch of {@code writeStream.option("into", "log").toTable("lake.events")}.
 *
 * <p>To a table of a catalog Spark hands rows, not a frame as it does to {@link LogSink}. So Spark
 * is asked to divide them by the catalog's own function `bucket`, and each task computes what
 * LogSink selects: shard, order, deletes.
 */
final class LogWrite implements RequiresDistributionAndOrdering {
  private static final String BATCH = "streaming.sql.batchId";
  private final LogicalWriteInfo info;
  private final LogBatch batch;
  private final Consumer<Map<String, String>> progress;

  private LogWrite(LogicalWriteInfo info, Map<String, String> options, Consumer<Map<String, String>> progress) {
    this.info = info;
    this.progress = progress;
    SparkSession session = (SparkSession) SparkSession.active();
    String number = session.sparkContext().getLocalProperty(BATCH);
    if (number == null) {
      throw new UnsupportedOperationException("into=log is for writeStream: a batch makes a version of the table");
    }
    this.batch = new LogBatch(session.sparkContext(), options, Long.parseLong(number), info.schema());
    if (batch.isWanted() && batch.otherType() != null) {
      throw new IllegalArgumentException(
          "rows are divided by the hash of column " + batch.column() + ": cast it to " + batch.otherType());
    }
  }

  /** Takes updates, too: a row replaces the one of its key. */
  static final class Builder implements SupportsStreamingUpdateAsAppend {
    private final LogicalWriteInfo info;
    private final Map<String, String> options;
    private final Consumer<Map<String, String>> progress;

    /** @param progress hears what each batch has written */
    Builder(LogicalWriteInfo info, Map<String, String> options, Consumer<Map<String, String>> progress) {
      this.info = info;
      this.progress = progress;
      this.options = new HashMap<>(options);
      this.options.putAll(info.options().asCaseSensitiveMap());
    }

    @Override
    public Write build() {
      return new LogWrite(info, options, progress);
    }
  }

  @Override
  public Distribution requiredDistribution() {
    if (!batch.isWanted()) {
      return Distributions.unspecified();
    }
    var by = batch.column() == null
        ? Expressions.identity(quoted(info.schema().fieldNames()[0]))
        : Expressions.bucket(batch.partitions(), quoted(batch.column()));
    return Distributions.clustered(new org.apache.spark.sql.connector.expressions.Expression[] {by});
  }

  private static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }

  @Override
  public int requiredNumPartitions() {
    return batch.isWanted() ? batch.partitions() : 0;
  }

  @Override
  public SortOrder[] requiredOrdering() {
    return new SortOrder[0];
  }

  @Override
  public String description() {
    return "holdfast into the log";
  }

  @Override
  public StreamingWrite toStreaming() {
    return batch.isWanted() ? new Entries() : new Known();
  }

  /** All shards have the batch: its rows are not read. */
  private final class Known implements StreamingWrite {
    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
      return (partition, task, epoch) -> new Nothing();
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
      progress.accept(batch.finish());
    }

    @Override
    public void abort(long epoch, WriterCommitMessage[] messages) {
      batch.fail();
    }
  }

  private static final class Nothing implements DataWriter<InternalRow> {
    @Override
    public void write(InternalRow row) {}

    @Override
    public void writeAll(Iterator<InternalRow> rows) {}

    @Override
    public WriterCommitMessage commit() {
      return null;
    }

    @Override
    public void abort() {}

    @Override
    public void close() {}
  }

  /** Tasks write the entries of their shards, as for `ingest`. */
  private final class Entries implements StreamingWrite {
    private final BatchWrite python;
    private final Project project;

    Entries() {
      SparkSession session = (SparkSession) SparkSession.active();
      // Rows of an RDD, not of a list: Spark would replace what it knows to be empty.
      var none = session.createDataFrame(new JavaSparkContext(session.sparkContext()).<Row>emptyRDD(), info.schema());
      Dataset<Row> selected = (Dataset<Row>) none.selectExpr(batch.select());
      project = (Project) selected.queryExecution().optimizedPlan();
      CaseInsensitiveStringMap told = new CaseInsensitiveStringMap(batch.writeOptions());
      LogicalWriteInfo all =
          LogicalWriteInfoImpl.apply(info.queryId(), project.schema(), told, Optional.empty(), Optional.empty());
      SupportsWrite table = (SupportsWrite) Python.table(project.schema(), batch.writeOptions());
      python = table.newWriteBuilder(all).build().toBatch();
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
      return new Factory(python.createBatchWriterFactory(physical), project);
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
      python.commit(messages);
      progress.accept(batch.finish());
    }

    @Override
    public void abort(long epoch, WriterCommitMessage[] messages) {
      batch.fail();
    }
  }

  private static final class Factory implements StreamingDataWriterFactory {
    private final DataWriterFactory python;
    private final scala.collection.immutable.Seq<Expression> select;
    private final scala.collection.immutable.Seq<Attribute> input;

    @SuppressWarnings("unchecked")
    Factory(DataWriterFactory python, Project project) {
      this.python = python;
      this.select = (scala.collection.immutable.Seq<Expression>) (Object) project.projectList();
      this.input = project.child().output();
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      return new Writer(python.createWriter(partition, task), UnsafeProjection.create(select, input));
    }
  }

  private record Writer(DataWriter<InternalRow> python, UnsafeProjection columns) implements DataWriter<InternalRow> {
    @Override
    public void write(InternalRow row) {
      throw new UnsupportedOperationException("rows are written all at a time");
    }

    @Override
    public void writeAll(Iterator<InternalRow> rows) throws java.io.IOException {
      python.writeAll(
          new Iterator<>() {
            @Override
            public boolean hasNext() {
              return rows.hasNext();
            }

            @Override
            public InternalRow next() {
              return columns.apply(rows.next());
            }
          });
    }

    @Override
    public WriterCommitMessage commit() throws java.io.IOException {
      return python.commit();
    }

    @Override
    public void abort() throws java.io.IOException {
      python.abort();
    }

    @Override
    public void close() throws java.io.IOException {
      python.close();
    }
  }
}
