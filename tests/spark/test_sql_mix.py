"""Random mixes of statements from three sessions: exact rows, by a model without an order.

Each statement adds to counters of shared rows, or inserts and deletes rows of its session alone. So
what must be there follows from the statements that were applied, in whatever order they were.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pytest
from pyspark.errors import PySparkException

import holdfast
import holdfast.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXPLORE = os.environ.get("HOLDFAST_EXPLORE") == "1"
STEPS = 40 if EXPLORE else 5
SHARED = 30
MINE = 1000


class Session:
    """One session at work, with what it has applied."""

    def __init__(self, spark: SparkSession, name: str, number: int, seed: int) -> None:
        self.spark = spark.newSession()
        self.name = name
        self.number = number
        self.random = random.Random(f"{seed}-{number}")
        self.next = MINE * (number + 1)
        self.rows: dict[int, int] = {}  # of this session alone
        self.added: Counter[int] = Counter()  # to counters of shared rows
        self.gave_up = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            holdfast.spark.activate(self.spark)
            for step in range(STEPS):
                kinds = [self.update, self.merge, self.insert, self.delete, self.compact]
                kinds[(step + self.number) % len(kinds)](step)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failure = error

    def sql(self, statement: str, step: int) -> bool:
        """Run a statement, twice now and then; tell whether it is applied."""
        text = statement.replace("TABLE", self.name)
        for _ in range(self.random.choice([1, 1, 2])):
            try:
                holdfast.spark.run_sql(self.spark, text, txn=(f"s{self.number}", step), tries=8)
            except PySparkException as error:
                if "RowConflictError" not in str(error):
                    raise
                self.gave_up += 1
                return False
        return True

    def update(self, step: int) -> None:
        first = self.random.randrange(SHARED)
        few = range(first, min(first + 5, SHARED))
        where = f"id >= {few.start} AND id < {few.stop}"
        if self.random.random() < 0.5:
            where = f"abs(id) IN ({', '.join(map(str, few))})"
        if self.sql(f"UPDATE TABLE SET n = n + 1 WHERE {where}", step):
            self.added.update(few)

    def merge(self, step: int) -> None:
        some = self.random.sample(range(SHARED), 4)
        new = [self.next, self.next + 1]
        gone = [one for one in self.rows if self.random.random() < 0.2]
        source = ", ".join(f"({one}L)" for one in [*some, *new, *gone])
        if self.sql(
            f"MERGE INTO TABLE t USING (SELECT col1 AS i FROM VALUES {source}) s ON t.id = s.i "
            f"WHEN MATCHED AND t.id >= {MINE} THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET n = t.n + 10 "
            "WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.i, 7)",
            step,
        ):
            self.next += 2
            self.added.update(dict.fromkeys(some, 10))
            self.rows |= dict.fromkeys(new, 7)
            for one in gone:
                del self.rows[one]

    def insert(self, step: int) -> None:
        new = [self.next, self.next + 1, self.next + 2]
        values = ", ".join(f"({one}, 3)" for one in new)
        if self.sql(f"INSERT INTO TABLE VALUES {values}", step):
            self.next += 3
            self.rows |= dict.fromkeys(new, 3)

    def delete(self, step: int) -> None:
        gone = [one for one in self.rows if self.random.random() < 0.5]
        listed = ", ".join(map(str, [-1, *gone]))
        function = self.random.choice(["", "abs"])  # pushed down, or found by Spark
        if self.sql(f"DELETE FROM TABLE WHERE {function}(id) IN ({listed})", step):
            for one in gone:
                del self.rows[one]

    def compact(self, step: int) -> None:
        del step
        catalog, _, table = self.name.partition(".")
        try:
            self.spark.sql(f"CALL {catalog}.system.compact('{table}')")
        except Exception as error:  # of pyspark, or of py4j
            if "Conflict" not in str(error):
                raise


@pytest.mark.requirement("C4", "C8", "S2")
@pytest.mark.parametrize("seed", range(4 if EXPLORE else 1))
def test_three_sessions_change_one_table(
    spark: SparkSession, catalog_root: Path, seed: int
) -> None:
    name = f"lake.mix{seed}"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, n BIGINT) TBLPROPERTIES ('primaryKey' = 'id')")
    spark.sql(f"INSERT INTO {name} SELECT id, 0L FROM range({SHARED})")
    sessions = [Session(spark, name, number, seed) for number in range(3)]
    threads = [threading.Thread(target=one.run) for one in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in sessions:
        if one.failure is not None:
            raise one.failure
    wanted = dict.fromkeys(range(SHARED), 0)
    for one in sessions:
        for number, more in one.added.items():
            wanted[number] += more
        wanted |= one.rows
    found = lance.dataset(str(catalog_root / f"mix{seed}.lance")).to_table().to_pylist()
    assert sorted((row["id"], row["n"]) for row in found) == sorted(wanted.items())
    assert sum(one.gave_up for one in sessions) < 3 * STEPS / 2, "hardly any was applied"
