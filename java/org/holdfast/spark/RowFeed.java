package org.holdfast.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Hands the changes of one task to Python's writer, which takes an iterator of rows.
 *
 * <p>Spark calls for one row at a time; so Python's writer runs in a thread of its own and takes
 * rows from a queue. A row is the table's columns, then the address that goes (null for an
 * insert), a number that merges use, and whether the columns are written. A task without changes
 * starts no Python, and has no message.
 */
final class RowFeed implements DeltaWriter<InternalRow> {
  private static final int CHUNK = 256;
  private static final int CHUNKS = 16;
  private static final long PATIENCE_MILLIS = 100;
  private static final long FAREWELL_MILLIS = 10_000;
  private static final List<InternalRow> END = List.of();
  private static final Long NO_COPIES = 0L;

  private final DataWriter<InternalRow> python;
  private final StructField[] fields;
  private final int[] key; // which of them are the key; their old values follow the address
  private final BlockingQueue<List<InternalRow>> queue = new ArrayBlockingQueue<>(CHUNKS);
  private List<InternalRow> chunk = new ArrayList<>(CHUNK);
  private Thread thread;
  private volatile Throwable failure;
  private volatile boolean givenUp;

  private RowFeed(DataWriter<InternalRow> python, StructType columns, List<String> key) {
    this.python = python;
    this.fields = columns.fields();
    this.key = key.stream().mapToInt(columns::fieldIndex).toArray();
  }

  record Factory(DataWriterFactory python, StructType columns, List<String> key) implements DeltaWriterFactory {
    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
      return new RowFeed(python.createWriter(partition, task), columns, key);
    }
  }

  /** Returns the columns of the rows that Python gets. */
  static StructType schema(StructType columns) {
    return columns
        .asNullable()
        .add("__holdfast_address", DataTypes.LongType)
        .add("__holdfast_copies", DataTypes.LongType)
        .add("__holdfast_writes", DataTypes.BooleanType);
  }

  @Override
  public void delete(InternalRow metadata, InternalRow id) throws IOException {
    put(null, id.getLong(0));
  }

  @Override
  public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
    for (int i = 0; i < key.length; i++) {
      DataType type = fields[key[i]].dataType();
      if (row.isNullAt(key[i]) || !Objects.deepEquals(row.get(key[i], type), id.get(i + 1, type))) {
        throw new IllegalArgumentException(
            "a key does not change: delete the row, and insert one with the other key; column " + fields[key[i]].name());
      }
    }
    put(row, id.getLong(0));
  }

  @Override
  public void insert(InternalRow row) throws IOException {
    put(row, null);
  }

  private void put(InternalRow row, Long address) throws IOException {
    Object[] values = new Object[fields.length + 3];
    for (int i = 0; row != null && i < fields.length; i++) { // Spark uses its row again
      values[i] = row.isNullAt(i) ? null : InternalRow.copyValue(row.get(i, fields[i].dataType()));
    }
    values[fields.length] = address;
    values[fields.length + 1] = NO_COPIES;
    values[fields.length + 2] = row != null;
    chunk.add(new GenericInternalRow(values));
    if (chunk.size() == CHUNK) {
      send(chunk);
      chunk = new ArrayList<>(CHUNK);
    }
  }

  private void send(List<InternalRow> rows) throws IOException {
    if (thread == null) {
      start();
    }
    try {
      while (!queue.offer(rows, PATIENCE_MILLIS, TimeUnit.MILLISECONDS)) {
        if (!thread.isAlive()) {
          throw new IOException("the Python writer ended before its rows did", failure);
        }
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new IOException("interrupted", e);
    }
  }

  private void start() {
    TaskContext task = TaskContext.get();
    thread = new Thread(() -> feed(task), "holdfast rows of task " + task.taskAttemptId());
    thread.setDaemon(true);
    thread.start();
  }

  private void feed(TaskContext task) {
    TaskContext$.MODULE$.setTaskContext(task);
    try {
      python.writeAll(new Rows());
    } catch (Throwable e) {
      failure = e;
    } finally {
      TaskContext$.MODULE$.unset();
    }
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    if (thread == null && chunk.isEmpty()) {
      return null;
    }
    if (!chunk.isEmpty()) {
      send(chunk);
    }
    send(END);
    try {
      thread.join();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new IOException("interrupted", e);
    }
    if (failure != null) {
      throw new IOException(failure.getMessage(), failure);
    }
    return python.commit();
  }

  @Override
  public void abort() throws IOException {
    givenUp = true;
    if (thread != null && thread.isAlive()) {
      thread.interrupt();
      try {
        thread.join(FAREWELL_MILLIS);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
    python.abort();
  }

  @Override
  public void close() throws IOException {
    python.close();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return python.currentMetricsValues();
  }

  /** The rows, until the end; an error when they were given up, which is no end. */
  private final class Rows implements Iterator<InternalRow> {
    private Iterator<InternalRow> at = END.iterator();
    private boolean ended;

    @Override
    public boolean hasNext() {
      while (!at.hasNext() && !ended) {
        List<InternalRow> next = take();
        ended = next == END;
        at = next.iterator();
      }
      return at.hasNext();
    }

    @Override
    public InternalRow next() {
      return at.next();
    }

    private List<InternalRow> take() {
      try {
        while (!givenUp) {
          List<InternalRow> next = queue.poll(PATIENCE_MILLIS, TimeUnit.MILLISECONDS);
          if (next != null) {
            return next;
          }
        }
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
      throw new IllegalStateException("Spark gave this task up");
    }
  }
}
