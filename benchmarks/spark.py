"""Spark through Holdfast beside Spark's own Parquet, in one run: CPU and wall as ratios.

    ./run bench spark [--rows 2000000] [--rounds 5] [--only changes]

The frame has a bigint, a double, a string of about 20 characters and 32 floats. CPU is that
of all processes of this Spark: the JVM and its Python workers.

Two rows are floors, which no Python source can go below: handing the same batches to Python
and dropping them, and handing ready-made batches of the same shape from Python to Spark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import holdfast
import holdfast.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark import SparkTable

TICKS = os.sysconf("SC_CLK_TCK")
COLUMNS = "id bigint, x double, word string, v array<float>"


@dataclass(frozen=True)
class Cost:
    """What one run took, in seconds."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10, help="micro-batches of the stream")
    parser.add_argument("--only", choices=["", "changes"], default="", help="leave out the rest")
    parser.add_argument("--config", action="append", default=[], help="KEY=VALUE, for Spark")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    config = {"spark.driver.memory": "4g", **dict(one.split("=", 1) for one in given.config)}
    spark = holdfast.spark.session("local[2]", config=config, catalogs={"lake": str(folder)})
    try:
        Bench(spark, folder, given.rows, given.rounds).run(given.batches, given.only)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Bench:
    """Runs what is compared in turns, so that both meet the same machine."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, rounds: int) -> None:
        self.spark = spark
        self.folder = folder
        self.rounds = rounds
        self.rows = rows
        self.count = 0
        frame = spark.range(0, rows, numPartitions=2).selectExpr(
            "id",
            "id / 7d as x",
            "concat('row number ', id) as word",
            "transform(sequence(0, 31), i -> cast(id * i % 1000 as float)) as v",
        )
        frame.write.parquet(self.path("source"))
        self.frame = spark.read.schema(COLUMNS).parquet(self.path("source"))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def fresh(self, name: str) -> str:
        self.count += 1
        return self.path(f"{name}-{self.count}")

    def run(self, batches: int, only: str = "") -> None:
        if only == "changes":
            self.changes()
            return
        self.table("write", "Parquet", self.writes())
        self.table("read", "Parquet, all columns", self.reads())
        for title, runs in self.queries().items():
            self.table(title, "Parquet", runs)
        self.stream(batches)
        self.changes()

    def table(self, title: str, base: str, runs: dict[str, Callable[[], object]]) -> None:
        """Print the median of each beside the base's."""
        costs: dict[str, list[Cost]] = {name: [] for name in runs}
        for call in runs.values():
            call()  # the first use of each pays for starting its processes
        for _ in range(self.rounds):
            for name, call in runs.items():
                costs[name].append(measured(call))
        found = {
            name: Cost(
                wall=statistics.median(c.wall for c in some),
                cpu=statistics.median(c.cpu for c in some),
            )
            for name, some in costs.items()
        }
        print(f"\n{title:34}  wall s  x wall   CPU s   x CPU")
        for name, cost in found.items():
            wall, cpu = cost.wall / found[base].wall, cost.cpu / max(found[base].cpu, 0.01)
            print(f"{name:34}  {cost.wall:6.2f}  {wall:6.2f}  {cost.cpu:6.2f}  {cpu:6.2f}")

    def writes(self) -> dict[str, Callable[[], object]]:
        def holdfast_write(**options: str) -> None:
            writer = self.frame.write.format("holdfast").mode("append").options(**options)
            writer.save(self.fresh("holdfast"))

        def dropped() -> None:
            drop = self.frame.mapInArrow(nothing, "id bigint")
            drop.write.format("noop").mode("append").save()

        return {
            "Parquet": lambda: self.frame.write.parquet(self.fresh("parquet")),
            "Holdfast": holdfast_write,
            "Holdfast, vectors": lambda: holdfast_write(vectorColumns="v:32"),
            "batches to Python, dropped": dropped,
        }

    def reads(self) -> dict[str, Callable[[], object]]:
        parquet, table, vectors = (self.fresh(name) for name in ("parquet", "holdfast", "vectors"))
        self.frame.write.parquet(parquet)
        writer = self.frame.write.format("holdfast").mode("append")
        writer.save(table)
        writer.option("vectorColumns", "v:32").save(vectors)
        self.spark.dataSource.register(Made)
        made = self.spark.read.format("made").option("rows", str(self.rows))

        def load(**options: str) -> DataFrame:
            return self.spark.read.format("holdfast").options(**options).load(table)

        def all_parquet() -> DataFrame:
            return self.spark.read.parquet(parquet)

        return {
            "Parquet, all columns": lambda: through(all_parquet()),
            "Holdfast, all columns": lambda: through(load()),
            "Holdfast, vectors": lambda: through(self.spark.read.format("holdfast").load(vectors)),
            "batches made in Python": lambda: through(made.load()),
            "Parquet, sum of one": lambda: all_parquet().selectExpr("sum(id)").collect(),
            "Holdfast, sum of one, all read": lambda: load().selectExpr("sum(id)").collect(),
            "Holdfast, sum of one, columns=id": lambda: (
                load(columns="id").selectExpr("sum(id)").collect()
            ),
        }

    def queries(self) -> dict[str, dict[str, Callable[[], object]]]:
        """Return queries as people write them: of Parquet, of a table by name and by address."""
        parquet, table = self.fresh("parquet"), self.fresh("by-name")
        self.frame.write.parquet(parquet)
        writer = self.frame.write.format("holdfast").mode("append")
        writer.option("vectorColumns", "v:32").save(f"{table}.lance")
        name = f"lake.`{Path(table).name}`"
        sources: dict[str, Callable[[], DataFrame]] = {
            "Parquet": lambda: self.spark.read.parquet(parquet),
            "Holdfast by name": lambda: self.spark.table(name),
            "Holdfast by address": lambda: self.spark.read.format("holdfast").load(
                f"{table}.lance"
            ),
        }
        small = self.spark.range(0, self.rows, self.rows // 100).withColumnRenamed("id", "key")
        questions: dict[str, Callable[[DataFrame], DataFrame]] = {
            "count": lambda frame: frame.selectExpr("count(*)"),
            "where id = 5": lambda frame: frame.where("id = 5"),
            "sum of one column": lambda frame: frame.selectExpr("sum(x)"),
            "top 10": lambda frame: frame.select("id", "x").orderBy("x").limit(10),
            "join with 100 rows": lambda frame: frame.select("id", "word").join(
                small, frame["id"] == small["key"]
            ),
        }

        def ask(
            question: Callable[[DataFrame], DataFrame], source: Callable[[], DataFrame]
        ) -> Callable[[], object]:
            return lambda: question(source()).collect()

        return {
            title: {name: ask(question, source) for name, source in sources.items()}
            for title, question in questions.items()
        }

    def stream(self, batches: int) -> None:
        """Compare micro-batches: one file of 1000 rows each."""
        source = Path(self.path("stream-source"))
        files = self.spark.range(0, batches * 1000, numPartitions=batches)
        files.write.parquet(str(source))
        medians = {}
        for kind in ("parquet", "holdfast"):
            reader = self.spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
            writer = reader.parquet(str(source)).writeStream.format(kind)
            writer = writer.option("checkpointLocation", self.fresh("checkpoint"))
            query = writer.trigger(availableNow=True).start(self.fresh(kind))
            query.awaitTermination()
            took = [p["durationMs"]["triggerExecution"] for p in query.recentProgress]
            medians[kind] = statistics.median(took[1:] or took)
        ratio = medians["holdfast"] / medians["parquet"]
        print(f"\nmicro-batch, median ms: Parquet {medians['parquet']:.0f}, ", end="")
        print(f"Holdfast {medians['holdfast']:.0f}, x {ratio:.2f}")

    def changes(self) -> None:
        """Compare merges, updates and deletes with pylance's in one process."""
        uri, stock = self.fresh("merge"), self.fresh("stock")
        keyed = self.frame.select("id", "x", "word")
        keyed.write.format("holdfast").mode("append").option("primaryKey", "id").save(uri)
        keyed.write.format("holdfast").mode("append").option("primaryKey", "id").save(stock)
        # Half of the changes meet a row, the other half are new.
        changes = keyed.where("id % 10 = 0").selectExpr(
            f"if(id % 20 = 0, id, id + {self.rows}) as id", "x + 1 as x", "word"
        )
        changes.write.parquet(self.path("changes"))
        changes.limit(10).coalesce(1).write.parquet(self.path("few"))
        table = holdfast.spark.table(self.spark, uri)
        self.compare_merges(table, lance.dataset(stock))
        self.compare_conditions(table, lance.dataset(stock))

    def compare_merges(self, table: SparkTable, dataset: lance.LanceDataset) -> None:
        schema = pa.schema(dataset.schema, metadata=None)

        def stock_merge(rows: pa.Table) -> None:
            merge = dataset.merge_insert("id").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(rows)

        for name in ("changes", "few"):
            path = self.path(name)
            rows = pa.table(self.spark.read.parquet(path).toArrow()).cast(schema)
            merge = (
                f"MERGE INTO lake.`{table.uri}` t USING parquet.`{path}` s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
            runs: dict[str, Callable[[], object]] = {
                "pylance": lambda rows=rows: stock_merge(rows),  # type: ignore[misc]
                "SparkTable.merge_into": lambda path=path: table.merge_into(  # type: ignore[misc]
                    self.spark.read.parquet(path), on=["id"]
                ),
                "Table.merge_into": lambda rows=rows: table.table.merge_into(rows),  # type: ignore[misc]
                "MERGE INTO in SQL": lambda merge=merge: self.spark.sql(merge),  # type: ignore[misc]
            }
            self.table(f"merge {rows.num_rows} into {self.rows} rows", "pylance", runs)

    def compare_conditions(self, table: SparkTable, dataset: lance.LanceDataset) -> None:
        dataset, name = lance.dataset(dataset.uri), f"lake.`{table.uri}`"
        runs: dict[str, Callable[[], object]] = {
            "pylance": lambda: dataset.update({"x": "x + 1"}, where="id % 100 = 3"),
            "Table.update": lambda: table.update("id % 100 = 3", {"x": "x + 1"}),
            "UPDATE in SQL": lambda: self.spark.sql(
                f"UPDATE {name} SET x = x + 1 WHERE id % 100 = 3"
            ),
        }
        self.table("UPDATE of 1 %", "pylance", runs)
        kinds = ("pylance", "Table.delete", "DELETE in SQL")
        numbers = {kind: iter(range(at * 30, at * 30 + 30)) for at, kind in enumerate(kinds)}
        runs = {
            "pylance": lambda: dataset.delete(f"id % 100 = {next(numbers['pylance'])}"),
            "Table.delete": lambda: table.delete(f"id % 100 = {next(numbers['Table.delete'])}"),
            "DELETE in SQL": lambda: self.spark.sql(
                f"DELETE FROM {name} WHERE id % 100 = {next(numbers['DELETE in SQL'])}"
            ),
        }
        self.table("DELETE of 1 %", "pylance", runs)


class Made(DataSource):
    """Batches that are there already: what is left is Spark's own way from Arrow to rows."""

    @classmethod
    def name(cls) -> str:
        return "made"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: object) -> DataSourceReader:
        del schema
        return MadeReader(int(self.options["rows"]))


class MadeReader(DataSourceReader):
    """Two tasks that yield one batch again and again."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        count = 16 * 1024
        floats = pa.array(np.arange(32 * count, dtype=np.float32))
        offsets = pa.array(np.arange(0, 32 * count + 1, 32, dtype=np.int32))
        kind = pa.list_(pa.field("element", pa.float32()))
        columns = {
            "id": pa.array(np.arange(count)),
            "x": pa.array(np.arange(count) / 7),
            "word": pa.array([f"row number {number}" for number in range(count)]),
            "v": pa.ListArray.from_arrays(offsets, floats, type=kind),
        }
        batch = pa.RecordBatch.from_pydict(columns)
        for begin in range(0, self.rows // 2, count):
            yield batch.slice(0, min(count, self.rows // 2 - begin))


def through(frame: DataFrame) -> None:
    frame.write.format("noop").mode("append").save()


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield pa.record_batch([pa.array([0])], names=["id"])


def measured(call: Callable[[], object]) -> Cost:
    begun, cpu = time.perf_counter(), cpu_seconds()
    call()
    return Cost(wall=time.perf_counter() - begun, cpu=cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """Return what this process and all below it have used so far, their ended children too."""
    found: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    ours = {os.getpid()}
    while True:
        more = {pid for pid, (parent, _) in found.items() if parent in ours} - ours
        if not more:
            return sum(found[pid][1] for pid in ours if pid in found)
        ours |= more


if __name__ == "__main__":
    main()
