package org.holdfast.spark;

import java.util.List;
import java.util.Map;
import org.apache.spark.JobArtifactSet;
import org.apache.spark.JobArtifactState;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What the Python data source reads, in columns.
 *
 * <p>Spark's own reader of a Python source copies every row out of the Arrow batches. Here queries
 * read the batches themselves. It is planned in Python once.
 */
final class ColumnBatch implements Batch {
  private final PythonDataSourceV2 python;
  private final StructType columns;
  private final CaseInsensitiveStringMap options;
  private PythonDataSourceReadInfo plan;

  ColumnBatch(PythonDataSourceV2 python, StructType columns, Map<String, String> options) {
    this.python = python;
    this.columns = columns;
    this.options = new CaseInsensitiveStringMap(options);
  }

  private synchronized PythonDataSourceReadInfo plan() {
    if (plan == null) {
      plan = python.getOrCreateReadInfo(Python.NAME, options, columns, false);
    }
    return plan;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    List<byte[]> parts = CollectionConverters.asJava(plan().partitions());
    InputPartition[] planned = new InputPartition[parts.size()];
    for (int i = 0; i < planned.length; i++) {
      planned[i] = new PythonInputPartition(i, parts.get(i));
    }
    return planned;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    Option<String> artifacts = JobArtifactSet.getCurrentJobArtifactState().map(JobArtifactState::uuid);
    Option<String> logged = Option.empty();
    SparkSession session = (SparkSession) SparkSession.active();
    if (session.sessionState().conf().pythonWorkerLoggingEnabled()) {
      logged = Option.apply(session.sessionUUID());
    }
    return new Factory(python.source(), plan().func(), columns, artifacts, logged);
  }

  /** Travels to the tasks. */
  private record Factory(
      UserDefinedPythonDataSource source,
      byte[] function,
      StructType columns,
      Option<String> artifacts,
      Option<String> logged)
      implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition part) {
      return true;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition part) {
      throw new UnsupportedOperationException("rows are read in columns");
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition part) {
      SQLConf settings = SQLConf.get();
      StructType input = UserDefinedPythonDataSource.readInputSchema();
      ArrowPythonRunner runner =
          new ArrowPythonRunner(
              seq(new Tuple2<>(new ChainedPythonFunctions(seq(source.createPythonFunction(function))), 0L)),
              PythonEvalType.SQL_MAP_ARROW_ITER_UDF(),
              new int[][] {{0}},
              new StructType(new StructField[] {new StructField("struct", input, true, Metadata.empty())}),
              settings.sessionLocalTimeZone(),
              settings.arrowUseLargeVarTypes(),
              ArrowPythonRunner.getPythonRunnerConfMap(settings),
              PythonCustomMetric.pythonMetrics(),
              artifacts,
              logged);
      byte[] pickled = ((PythonInputPartition) part).pickedPartition();
      InternalRow row = row(row(pickled)); // a struct with the part is what the function gets
      TaskContext task = TaskContext.get();
      return new Reader(runner.compute(iterator(iterator(row)), task.partitionId(), task), columns.length());
    }

    private static InternalRow row(Object value) {
      return new GenericInternalRow(new Object[] {value});
    }

    private static <T> Seq<T> seq(T one) {
      return CollectionConverters.asScala(List.of(one)).toSeq();
    }

    private static <T> Iterator<T> iterator(T one) {
      return CollectionConverters.asScala(List.of(one).iterator());
    }
  }

  /** Hands on what comes from Python; Spark ends the worker's part with the task. */
  private record Reader(Iterator<ColumnarBatch> batches, int width) implements PartitionReader<ColumnarBatch> {
    @Override
    public boolean next() {
      return batches.hasNext();
    }

    @Override
    public ColumnarBatch get() {
      ColumnarBatch batch = batches.next();
      ArrowColumnVector rows = (ArrowColumnVector) batch.column(0);
      ColumnVector[] vectors = new ColumnVector[width];
      for (int i = 0; i < width; i++) {
        vectors[i] = rows.getChild(i);
      }
      return new Lent(vectors, batch.numRows());
    }

    @Override
    public void close() {}
  }

  /** A batch whose memory is the reader's, which fills it again: who read it must not free it. */
  private static final class Lent extends ColumnarBatch {
    Lent(ColumnVector[] vectors, int rows) {
      super(vectors, rows);
    }

    @Override
    public void close() {}

    @Override
    public void closeIfFreeable() {}
  }
}
