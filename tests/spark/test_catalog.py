"""Tables by name in Spark SQL, and queries that read only what they need."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

import holdfast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """Return a name that no other test has."""
    return f"t{next(_numbers)}"


@pytest.fixture
def made(spark: SparkSession, name: str) -> str:
    """Return the name of a table with ten rows."""
    spark.sql(f"CREATE TABLE lake.{name} (id BIGINT, k INT, word STRING) USING holdfast")
    spark.sql(
        f"INSERT INTO lake.{name} SELECT id, cast(id % 3 AS INT), concat('w', id) FROM range(10)"
    )
    return f"lake.{name}"


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def plan_of(frame: DataFrame) -> str:
    java: Any = frame._jdf
    return str(java.queryExecution().executedPlan().toString())


@pytest.mark.requirement("S2")
def test_a_table_is_created_filled_read_and_dropped_by_name(
    spark: SparkSession, name: str, catalog_root: Path
) -> None:
    table = f"lake.{name}"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, word STRING, v ARRAY<FLOAT>) USING holdfast "
        "TBLPROPERTIES ('primaryKey' = 'id', 'vectorColumns' = 'v:2')"
    )
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE {table} (id BIGINT)")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} (id BIGINT)")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'one', array(1f, 2f)), (2, 'two', array(0f, 0f))")
    spark.sql(f"INSERT INTO {table} BY NAME SELECT array(5f, 6f) v, 'three' AS word, 3L AS id")
    spark.range(4, 5).selectExpr("id", "'four' word", "array(3f, 4f) v").writeTo(table).append()

    assert rows(spark, f"SELECT id, word FROM {table}") == [
        (1, "one"), (2, "two"), (3, "three"), (4, "four"),
    ]  # fmt: skip
    stock = lance.dataset(str(catalog_root / f"{name}.lance"))
    assert stock.count_rows() == 4
    assert stock.schema.field("v").type == pa.list_(pa.float32(), 2)
    assert spark.catalog.tableExists(table)
    assert name in [row.tableName for row in spark.sql("SHOW TABLES IN lake").collect()]
    described = {r.col_name: r.data_type for r in spark.sql(f"DESCRIBE EXTENDED {table}").collect()}
    assert (described["id"], described["v"], described["Provider"]) == (
        "bigint",
        "array<float>",
        "holdfast",
    )
    assert described["Location"].endswith(f"{name}.lance")
    made_again = spark.sql(f"SHOW CREATE TABLE {table}").collect()[0][0]
    spark.sql(f"DROP TABLE {table}")
    assert not [path for path in (catalog_root / f"{name}.lance").rglob("*") if path.is_file()]
    assert not spark.catalog.tableExists(table)
    spark.sql(made_again)
    assert (
        spark.table(table).schema.simpleString() == "struct<id:bigint,word:string,v:array<float>>"
    )


def test_a_statement_that_is_repeated_under_its_txn_is_applied_once(
    spark: SparkSession, made: str
) -> None:
    for _ in range(2):
        more = spark.range(10, 12).selectExpr("id", "cast(0 AS INT) k", "'more' word")
        more.writeTo(made).option("txnAppId", "job").option("txnVersion", "7").append()
    assert spark.table(made).count() == 12


@pytest.mark.requirement("S2")
def test_overwrite_truncate_delete_and_time_travel(
    spark: SparkSession, made: str, catalog_root: Path
) -> None:
    spark.sql(f"DELETE FROM {made} WHERE id < 3 OR word = 'w9'")
    assert spark.table(made).count() == 6
    spark.sql(f"INSERT OVERWRITE {made} VALUES (7L, 1, 'new')")
    assert rows(spark, f"SELECT * FROM {made}") == [(7, 1, "new")]
    spark.sql(f"TRUNCATE TABLE {made}")
    assert spark.table(made).count() == 0
    counts = [
        spark.sql(f"SELECT count(*) FROM {made} VERSION AS OF {version}").collect()[0][0]
        for version in (1, 2, 3, 4, 5)
    ]
    assert counts == [0, 10, 6, 1, 0]
    moment = spark.sql(f"SELECT max(time) FROM {made}.history WHERE version = 2").collect()[0][0]
    found = spark.sql(f"SELECT count(*) FROM {made} TIMESTAMP AS OF '{moment}'").collect()[0][0]
    assert found == 10
    lance.dataset(str(catalog_root / f"{made.removeprefix('lake.')}.lance")).tags.create("good", 3)
    assert rows(spark, f"SELECT count(*) FROM {made} VERSION AS OF 'good'") == [(6,)]
    with pytest.raises(PySparkException, match="NotFoundError"):
        spark.sql(f"SELECT * FROM {made} VERSION AS OF 99").collect()


@pytest.mark.requirement("S2")
def test_an_overwrite_takes_the_indexes_with_the_rows(
    spark: SparkSession, made: str, name: str
) -> None:
    """As docs/how-to/spark.md says; the procedure makes them again."""
    build = f"CALL lake.system.create_index('{name}', 'id', 'btree')"
    assert json.loads(rows(spark, build)[0][1])["applied"]
    assert len(rows(spark, f"SELECT name FROM {made}.indexes")) == 1
    spark.sql(f"INSERT OVERWRITE {made} VALUES (7L, 1, 'new')")
    assert rows(spark, f"SELECT name FROM {made}.indexes") == []
    assert rows(spark, f"SELECT word FROM {made} WHERE id = 7") == [("new",)]
    assert json.loads(rows(spark, build)[0][1])["applied"]
    assert rows(spark, f"SELECT word FROM {made} WHERE id = 7") == [("new",)]


@pytest.mark.requirement("S2")
def test_columns_and_properties_are_altered(spark: SparkSession, made: str) -> None:
    spark.sql(f"ALTER TABLE {made} ADD COLUMN price DOUBLE")
    spark.sql(f"ALTER TABLE {made} RENAME COLUMN word TO `a word`")
    spark.sql(f"ALTER TABLE {made} DROP COLUMN k")
    spark.sql(f"ALTER TABLE {made} SET TBLPROPERTIES ('team' = 'harbour')")
    assert spark.table(made).columns == ["id", "a word", "price"]
    assert rows(spark, f"SELECT `a word`, price FROM {made} WHERE id = 4") == [("w4", None)]
    shown = {row.key: row.value for row in spark.sql(f"SHOW TBLPROPERTIES {made}").collect()}
    assert shown["team"] == "harbour"
    spark.sql(f"ALTER TABLE {made} UNSET TBLPROPERTIES ('team')")
    for statement in (
        "SET TBLPROPERTIES ('holdfast.txn.recent' = 'x')",
        "ALTER COLUMN id TYPE STRING",
        "ALTER COLUMN `a word` TYPE DOUBLE",
        "ADD COLUMN ID BIGINT",
    ):
        with pytest.raises(PySparkException):
            spark.sql(f"ALTER TABLE {made} {statement}")


@pytest.mark.requirement("S2")
def test_a_comment_of_a_table_is_kept(spark: SparkSession, name: str) -> None:
    spark.sql(
        f"CREATE TABLE lake.{name} (id BIGINT) COMMENT 'ships' TBLPROPERTIES ('primaryKey' = 'id')"
    )
    assert "COMMENT 'ships'" in rows(spark, f"SHOW CREATE TABLE lake.{name}")[0][0]
    spark.sql(f"COMMENT ON TABLE lake.{name} IS 'boats'")
    assert ("Comment", "boats", "") in rows(spark, f"DESCRIBE EXTENDED lake.{name}")


def test_namespaces(spark: SparkSession, name: str) -> None:
    spark.sql(f"CREATE NAMESPACE lake.{name}")
    with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
        spark.sql(f"CREATE NAMESPACE lake.{name}")
    spark.sql(f"CREATE TABLE lake.{name}.history (a INT)")
    spark.sql(f"INSERT INTO lake.{name}.history VALUES (1)")
    assert rows(spark, f"SELECT * FROM lake.{name}.history") == [(1,)]  # a real table comes first
    assert (name,) in rows(spark, "SHOW NAMESPACES IN lake")
    assert [row.tableName for row in spark.sql(f"SHOW TABLES IN lake.{name}").collect()] == [
        "history"
    ]
    with pytest.raises(AnalysisException, match="NOT_EMPTY"):
        spark.sql(f"DROP NAMESPACE lake.{name}")
    spark.sql(f"DROP TABLE lake.{name}.history")
    spark.sql(f"DROP NAMESPACE lake.{name}")
    assert (name,) not in rows(spark, "SHOW NAMESPACES IN lake")


def test_tables_about_a_table(spark: SparkSession, made: str, catalog_root: Path) -> None:
    history = rows(spark, f"SELECT version, operation, rows FROM {made}.history")
    assert history == [(1, "Overwrite", 0), (2, "Append", 10)]
    assert len(rows(spark, f"SELECT version FROM {made}.history LIMIT 1")) == 1
    files = spark.sql(f"SELECT sum(rows), count(path) FROM {made}.files").collect()[0]
    assert files[0] == 10 and files[1] >= 1
    assert rows(spark, f"SELECT * FROM {made}.indexes") == []
    table = holdfast.open_table(catalog_root / f"{made.removeprefix('lake.')}.lance")
    table.claim_appender("6f1f2b8e-6a3c-4c86-9d6b-0d4c8a3f5a11").close()
    assert rows(spark, f"SELECT shard, epoch FROM {made}.shards") == [
        ("6f1f2b8e-6a3c-4c86-9d6b-0d4c8a3f5a11", 1)
    ]
    with pytest.raises(PySparkException):
        spark.sql(f"INSERT INTO {made}.history SELECT * FROM {made}.history")


@pytest.mark.requirement("S1")
def test_a_query_reads_only_the_columns_and_rows_it_needs(spark: SparkSession, made: str) -> None:
    plan = plan_of(spark.sql(f"SELECT word FROM {made} WHERE id = 5 AND length(word) > 1"))
    assert "columns: [id, word]" in plan
    assert "filter: " in plan and "`id` = 5" in plan
    assert "length" in plan.split("BatchScan")[0]  # left to Spark
    assert rows(spark, f"SELECT word FROM {made} WHERE id = 5") == [("w5",)]
    frame = spark.table(made)
    assert (frame.where("id < 5").count(), frame.where("id < 7").count(), frame.count()) == (
        5,
        7,
        10,
    )


@pytest.mark.requirement("S1")
def test_times_of_another_zone_or_precision_are_compared_by_spark(
    spark: SparkSession, name: str, catalog_root: Path
) -> None:
    """Lance takes a time without a zone for one of the column's zone."""
    columns = {
        "id": pa.array([0, 1]),
        "zone": pa.array([0, 3_600_000_000], pa.timestamp("us", "America/New_York")),
        "coarse": pa.array([0, 3_600_000], pa.timestamp("ms")),
        "fine": pa.array([0, 3_600_000_000_000], pa.timestamp("ns", "UTC")),
    }
    made = pa.table(columns)
    holdfast.create_table(catalog_root / f"{name}.lance", made.schema).append(made)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        for column in ("zone", "coarse", "fine"):
            kind = "timestamp_ntz" if column == "coarse" else "timestamp"
            for sign, wanted in (("=", [(1,)]), ("<", [(0,)]), (">=", [(1,)])):
                where = f"{column} {sign} {kind}'1970-01-01 01:00:00'"
                assert rows(spark, f"SELECT id FROM lake.{name} WHERE {where}") == wanted
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.requirement("S1")
def test_only_what_metadata_knows_is_counted_by_it(
    spark: SparkSession, name: str, catalog_root: Path
) -> None:
    table = f"lake.{name}"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, k INT, w STRING)")
    for number in range(3):
        spark.sql(f"INSERT INTO {table} VALUES ({number}, 1, NULL), ({number + 10}, 2, 'x')")
    assert rows(spark, f"SELECT count(*), count(*) FROM {table}") == [(6, 6)]
    assert rows(spark, f"SELECT k, count(*) FROM {table} GROUP BY k") == [(1, 3), (2, 3)]
    assert rows(spark, f"SELECT count(w) FROM {table}") == [(3,)]
    assert rows(spark, f"SELECT count(*), sum(id) FROM {table}") == [(6, 36)]
    assert rows(spark, f"SELECT count(*) FROM {table} WHERE id < 10") == [(3,)]
    assert rows(spark, f"SELECT count(*) FROM {table} WHERE upper(w) = 'X'") == [(3,)]
    for option, value, wanted in (
        ("filter", "id < 2", 2),
        ("versionAsOf", "2", 2),
        ("fragmentsPerPartition", "1", 6),
    ):
        read = spark.read.option(option, value)
        assert read.table(table).count() == wanted
        by_address = read.format("holdfast").load(str(catalog_root / f"{name}.lance"))
        assert by_address.count() == wanted
    several = spark.read.option("fragmentsPerPartition", "1").table(table)
    assert len(several.limit(4).collect()) == 4  # each of three tasks brings two
    assert len(several.limit(1).collect()) == 1


@pytest.mark.requirement("S1")
def test_a_load_by_address_reads_only_what_it_needs(
    spark: SparkSession, made: str, catalog_root: Path
) -> None:
    uri = str(catalog_root / f"{made.removeprefix('lake.')}.lance")
    frame = spark.read.format("holdfast").load(uri)
    narrow = frame.where("id = 5 AND length(word) > 1").select("word")
    assert "columns: [id, word]" in plan_of(narrow) and "`id` = 5" in plan_of(narrow)
    assert [row.word for row in narrow.collect()] == ["w5"]
    counted = frame.selectExpr("count(*)")
    assert "LocalTableScan" in plan_of(counted)
    table = holdfast.open_table(uri)
    table.append([{"id": 50, "k": 0, "word": "late"}])
    assert frame.where("id >= 0").count() == frame.count() == counted.collect()[0][0] == 10
    assert frame.join(frame.select("id"), "id").count() == 10  # one version, of its first query
    fresh = spark.read.format("holdfast").load(uri)
    assert fresh.count() == 11
    asked = spark.read.format("holdfast").schema("word string, id bigint").load(uri)
    assert asked.where("id = 50").collect() == [("late", 50)]
    assert asked.columns == ["word", "id"]
    with pytest.raises(PySparkException, match="is bigint in the table"):
        spark.read.format("holdfast").schema("id int").load(uri).count()
    older = spark.read.format("holdfast").option("versionAsOf", 2).load(uri)
    assert older.where("id = 50").count() == 0 and older.count() == 10
    table.close()


@pytest.mark.requirement("S1", "W9")
def test_a_load_by_address_of_rows_in_a_log_stays_as_it_was_at_first(
    spark: SparkSession, name: str, catalog_root: Path
) -> None:
    spark.sql(f"CREATE TABLE lake.{name} (id BIGINT, w STRING) TBLPROPERTIES ('primaryKey' = 'id')")
    uri = str(catalog_root / f"{name}.lance")
    table = holdfast.open_table(uri)
    with table.claim_writer("unsharded") as writer:
        writer.put([{"id": 1, "w": "log"}])
        frame = spark.read.format("holdfast").load(uri)
        assert frame.count() == 1
        writer.put([{"id": 2, "w": "late"}])
        assert frame.where("id > 0").count() == frame.count() == 1
        assert spark.read.format("holdfast").load(uri).where("id > 0").count() == 2
        base = spark.read.format("holdfast").option("freshness", "base").load(uri)
        assert base.count() == 0
    table.close()


@pytest.mark.requirement("S1")
def test_a_count_comes_from_metadata_unless_rows_wait_in_a_log(
    spark: SparkSession, name: str, catalog_root: Path
) -> None:
    spark.sql(f"CREATE TABLE lake.{name} (id BIGINT, w STRING) TBLPROPERTIES ('primaryKey' = 'id')")
    spark.sql(f"INSERT INTO lake.{name} VALUES (1, 'a'), (2, 'b')")
    counting = f"SELECT count(*) FROM lake.{name}"
    assert "LocalTableScan" in plan_of(spark.sql(counting))
    assert rows(spark, counting) == [(2,)]
    table = holdfast.open_table(catalog_root / f"{name}.lance")
    with table.claim_writer("unsharded") as writer:
        writer.put([{"id": 2, "w": "newer"}, {"id": 3, "w": "c"}])
        assert "LocalTableScan" not in plan_of(spark.sql(counting))
        assert rows(spark, counting) == [(3,)]
        assert rows(spark, f"SELECT w FROM lake.{name} WHERE id = 2") == [("newer",)]
        spark.sql(f"DELETE FROM lake.{name} WHERE w IN ('newer', 'b')")  # merges what waits
        assert rows(spark, f"SELECT id FROM lake.{name}") == [(1,), (3,)]
    assert spark.sql(f"SELECT w FROM lake.{name} LIMIT 1").count() == 1


ODD = [
    (1, -0.0, -0.0, "it's", "2026-01-01", "2026-01-01 00:00:00.000001", True),
    (2, 0.0, 0.0, "%", "1582-10-04", "1969-12-31 23:59:59.999999", False),
    (3, float("nan"), float("nan"), "", "0001-01-01", "1700-01-01 00:00:00", None),
    (-(2**63), 0.1, 0.1, "Straße", "9999-12-31", "2300-01-01 00:00:00", True),
    (2**63 - 1, float("inf"), float("-inf"), "a\nb", None, None, False),
    (None, None, None, None, "1970-01-01", "1970-01-01 00:00:00", None),
    (4, -1.5, 1e300, "IT'S", "2026-01-02", "2026-06-01 12:00:00", True),
]

ATOMS = [
    "a = 1", "a > 1", "a >= 4", "a < 0", "a <= -9223372036854775808", "a <> 2", "a <=> 3",
    "a <=> NULL", "a IN (1, 4, 99)", "a IN (1, NULL)", "a IS NULL", "f = 0", "f = -0.0", "f > -2",
    "f < 0.2", "f <= 0", "f = cast(0.1 AS FLOAT)", "d = 0.1", "d > 0", "d >= double('NaN')",
    "d < double('inf')", "s = 'it''s'", "s > 'a'", "s LIKE 'it%'", "s LIKE '%s'", "s = ''",
    "s IN ('%', 'Straße')", "t = date'2026-01-01'", "t < date'1970-01-01'", "t > date'9000-01-01'",
    "u = timestamp'2026-01-01 00:00:00.000001'", "u < timestamp'1970-01-01 00:00:00'",
    "u > timestamp'2250-01-01 00:00:00'", "b", "NOT b", "b <=> NULL", "b = false", "n.x = 1",
    "`o t` = 2", "upper(s) = 'IT''S'", "a % 5 = 1",
    "NOT (a = 1 AND upper(s) = 'X')", "NOT (f < 0.2)", "NOT (a <=> 3)",
    "d > 1.5", "f >= 0.5", "NOT (d <= 1.5)", "NOT (a IN (1, NULL))", "A = 1", "`O T` = 2",
    "s COLLATE UTF8_LCASE = 'IT''S'", "s COLLATE UNICODE_CI IN ('%', 'STRASSE')", "x = 1",
    "n.a = 1", "d = double('NaN')", "d <= double('NaN')", "NOT (a = 1 AND a % 5 = 1)",
    "s > 'it''s'", "s = concat('a', char(0))", "t >= date'0001-01-01'",
    "d = double('-0.0')", "d <= double('-0.0')", "f IN (float('-0.0'), 5f)", "d IN (0d, 0.1d)",
    "w < timestamp_ntz'1970-01-01 00:00:00'", "w = timestamp_ntz'2026-01-01 00:00:00.000001'",
]  # fmt: skip


def ordered(frame: DataFrame) -> list[str]:
    """Return the values of the one column, spelled out; zeros have no sign in an order."""
    return [
        repr(0.0 if value == 0 and isinstance(value, float) else value)
        for (value,) in frame.collect()
    ]


def conditions() -> Iterator[str]:
    """Yield conditions: each alone, negated, and pairs of neighbours joined both ways."""
    yield from ATOMS
    yield from (f"NOT ({one})" for one in ATOMS)
    pairs = list(zip(ATOMS, ATOMS[7:] + ATOMS[:7], strict=True))
    yield from (f"({one}) AND NOT ({other})" for one, other in pairs)
    yield from (f"NOT (({one}) AND ({other}))" for one, other in pairs[::2])
    yield from (f"({one}) OR ({other})" for one, other in pairs[1::2])


@pytest.mark.requirement("S1")
def test_a_condition_that_is_pushed_down_drops_no_row_that_spark_keeps(
    spark: SparkSession, name: str, catalog_root: Path
) -> None:
    """Zeros and NaN with signs, nulls, the ends of every type, names with dots."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        columns = "a BIGINT, f FLOAT, d DOUBLE, s STRING, t STRING, u STRING, b BOOLEAN"
        frame = spark.createDataFrame([(*row,) for row in ODD], columns).selectExpr(
            "a", "f", "d", "s", "cast(t AS DATE) t", "cast(u AS TIMESTAMP) u", "b",
            "named_struct('x', cast(a % 2 AS INT), 'a', 1L) n", "cast(a % 3 AS INT) `o t`", "7L x",
            "cast(u AS TIMESTAMP_NTZ) w",
        )  # fmt: skip
        frame.writeTo(f"lake.{name}").create()
        append_signed_nans(catalog_root / f"{name}.lance")
        stored = spark.read.format("holdfast").load(str(catalog_root / f"{name}.lance"))
        plain = spark.createDataFrame(stored.collect(), stored.schema)  # nobody prunes in it
        pushed = spark.table(f"lake.{name}")
        wanted, found = [], []
        for number, condition in enumerate(conditions()):
            wanted.append(plain.where(condition).selectExpr(f"{number} q", "a", "s"))
            if number < len(ATOMS) or number % 6 == 0:  # a scan each: enough for one run
                found.append((number, pushed.where(condition).selectExpr(f"{number} q", "a", "s")))
        for batch in range(0, len(found), 12):
            part = found[batch : batch + 12]
            expected = [wanted[number] for number, _ in part]
            assert collected([frame for _, frame in part]) == collected(expected)
        for number, way in enumerate(("", "DESC", "NULLS LAST", "DESC NULLS FIRST")):
            for column in "afdstub":
                order = f"SELECT {column} c FROM {{}} ORDER BY c {way} LIMIT {2 + 2 * number}"
                found_first, wanted_first = (
                    spark.sql(order.format("{frame}"), frame=frame) for frame in (pushed, plain)
                )
                assert ordered(found_first) == ordered(wanted_first), order
        assert "limit: 2 by" in plan_of(pushed.orderBy("d").limit(2))
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.requirement("S2")
@pytest.mark.parametrize(
    "condition",
    [
        "f < 0.2",  # a NaN with a sign is below for Lance, above for Spark
        "(a = 1 AND upper(s) = 'NO') OR a = 99",  # half of it can be pushed
        "NOT (a <=> 3)",  # null is not 3
        "f = 0 OR d = double('-0.0')",
        "NOT (a IN (1, NULL))",  # true of no row
        "NOT (a = 1 AND upper(s) = 'NO')",  # of half of it the opposite is too few
    ],
)
def test_a_delete_takes_just_the_rows_that_spark_would(
    spark: SparkSession, name: str, catalog_root: Path, condition: str
) -> None:
    """Spark does not look again at what a pushed DELETE took: only what is exact is pushed."""
    frame = spark.createDataFrame(
        [(row[0], row[1], row[2], row[3]) for row in ODD], "a BIGINT, f FLOAT, d DOUBLE, s STRING"
    )
    frame.writeTo(f"lake.{name}").create()
    append_signed_nans(catalog_root / f"{name}.lance")
    stored = spark.read.format("holdfast").load(str(catalog_root / f"{name}.lance"))
    plain = spark.createDataFrame(stored.collect(), stored.schema)
    kept = plain.where(f"NOT coalesce({condition}, false)").collect()
    spark.sql(f"DELETE FROM lake.{name} WHERE {condition}")
    found = spark.table(f"lake.{name}").collect()
    assert sorted(str(tuple(row)) for row in found) == sorted(str(tuple(row)) for row in kept)
    assert len(kept) < len(ODD) + 1 or condition.startswith(("(a", "NOT (a IN"))


def append_signed_nans(uri: Path) -> None:
    """Append a row with NaN whose sign is set, which Lance puts below all numbers."""
    table = holdfast.open_table(uri)
    row = {"a": 77, "s": "nan", "n": {"x": 0, "a": 2}, "o t": 5, "x": 7}
    there = {name: value for name, value in row.items() if name in table.schema.names}
    made = pa.Table.from_pylist([there], schema=table.schema)
    for name, kind in (("f", np.float32), ("d", np.float64)):
        signed = np.copysign(np.array([np.nan], kind), kind(-1))
        made = made.set_column(made.schema.get_field_index(name), made.schema.field(name), [signed])
    table.append(made)
    table.close()


def collected(frames: list[DataFrame]) -> list[str]:
    together = frames[0]
    for frame in frames[1:]:
        together = together.unionAll(frame)
    return sorted(str(tuple(row)) for row in together.collect())


@pytest.mark.requirement("S2")
def test_create_table_as_select_shows_all_rows_or_no_table(
    spark: SparkSession, name: str, catalog_root: Path
) -> None:
    with pytest.raises(PySparkException):
        spark.sql(f"CREATE TABLE lake.{name} AS SELECT id, raise_error('no') e FROM range(9)")
    assert not spark.catalog.tableExists(f"lake.{name}")
    spark.sql(
        f"CREATE TABLE lake.{name} TBLPROPERTIES ('primaryKey' = 'id') "
        "AS SELECT id, 'x' w FROM range(9)"
    )
    assert spark.table(f"lake.{name}").count() == 9
    history = holdfast.open_table(catalog_root / f"{name}.lance").history()
    assert [(one.version, one.rows) for one in history] == [(1, 9)]  # one commit
    with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE lake.{name} AS SELECT 1 a")
    spark.sql(f"CREATE OR REPLACE TABLE lake.{name} AS SELECT id, id * 2 AS twice FROM range(3)")
    assert rows(spark, f"SELECT * FROM lake.{name}") == [(0, 0), (1, 2), (2, 4)]
    assert spark.sql(f"SELECT count(*) FROM lake.{name} VERSION AS OF 1").collect()[0][0] == 9
    with pytest.raises(PySparkException):
        spark.sql(
            f"CREATE OR REPLACE TABLE lake.{name} AS SELECT raise_error('no') e FROM range(2)"
        )
    assert spark.table(f"lake.{name}").count() == 3


@pytest.mark.requirement("S2")
def test_a_stream_from_one_table_by_name_into_another(
    spark: SparkSession, made: str, tmp_path: Path
) -> None:
    target = f"{made}_copy"
    spark.sql(f"CREATE TABLE {target} (id BIGINT, word STRING)")
    for _ in range(2):
        query = (
            spark.readStream.table(made)
            .select("id", "word")
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .toTable(target)
        )
        query.awaitTermination(240)
        spark.sql(f"INSERT INTO {made} VALUES (99, 0, 'late')")
    assert spark.table(target).count() == 11


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE lake.bad (a INT) USING parquet", "USING holdfast"),
        ("CREATE TABLE lake.bad (a INT) PARTITIONED BY (a)", "no partitions"),
        ("CREATE TABLE lake.bad (a INT) TBLPROPERTIES ('primarykey2' = 'a')", "primaryKey"),
        ("CREATE TABLE lake.bad (a INT) LOCATION '/elsewhere'", "leave LOCATION out"),
        ("CREATE TABLE lake.bad (a INT) TBLPROPERTIES ('primaryKey' = 'b')", "b"),
        ("CREATE TABLE lake.`../bad` (a INT)", "name"),
        ("CREATE TABLE lake.bad (`a.b` INT)", "dot in its name"),
        ("CREATE TABLE lake.bad (a STRING COLLATE UTF8_LCASE)", "collate"),
        ("CREATE TABLE lake.bad (a VARCHAR(5))", "type that cannot be stored"),
        ("CREATE TABLE lake.bad (a ARRAY<CHAR(5)>)", "type that cannot be stored"),
        ("CREATE TABLE lake.bad COMMENT 'x' AS SELECT 1 a", "COMMENT ON TABLE"),
    ],
)
def test_a_statement_that_cannot_be_kept_is_refused(
    spark: SparkSession, catalog_root: Path, statement: str, words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        spark.sql(statement)
    assert not list(catalog_root.glob("**/bad*"))


def test_threads_need_no_activation_with_the_jar(spark: SparkSession, uri: str) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            spark.range(5).write.format("holdfast").mode("append").save(uri)
            assert spark.read.format("holdfast").load(uri).count() == 5
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [str(error) for error in failures] == []


def test_a_table_is_dropped_only_where_the_catalog_allows_it(
    spark: SparkSession, made: str
) -> None:
    kept = made.replace("lake.", "kept.")
    with pytest.raises(IllegalArgumentException, match="allowDrop"):
        spark.sql(f"DROP TABLE {kept}")
    assert spark.table(kept).count() == 10


def test_a_table_that_is_joined_with_itself_is_read_at_one_version(
    spark: SparkSession, made: str, catalog_root: Path
) -> None:
    frame = spark.table(made)
    table = holdfast.open_table(catalog_root / f"{made.removeprefix('lake.')}.lance")
    table.append([{"id": 50, "k": 0, "word": "late"}])
    joined = frame.alias("l").join(frame.alias("r"), "id")
    assert joined.count() in {10, 11}  # of one version, whichever
    assert rows(spark, f"SELECT count(*) FROM {made} l JOIN {made} r ON l.id = r.id") == [(11,)]


@pytest.mark.requirement("S2")
def test_procedures(spark: SparkSession, made: str, name: str) -> None:
    spark.sql(f"INSERT INTO {made} SELECT * FROM {made}")
    version, details = rows(spark, f"CALL lake.system.compact('{name}')")[0]
    assert json.loads(details)["fragments_removed"] >= 2
    before = rows(spark, f"SELECT count(*) FROM {made}")
    spark.sql(f"DELETE FROM {made}")
    restore = f"CALL lake.system.restore(table => '{name}', version => {version}, txn => 'undo')"
    assert json.loads(rows(spark, restore)[0][1])["applied"]
    assert not json.loads(rows(spark, restore)[0][1])["applied"]
    assert rows(spark, f"SELECT count(*) FROM {made}") == before
    assert not json.loads(rows(spark, f"CALL lake.system.vacuum('{name}')")[0][1])["applied"]
    assert rows(spark, f"CALL lake.system.maintain('{name}')")[0][0] >= version
    with pytest.raises(Exception, match="Failed to load routine"):
        spark.sql("CALL lake.system.nothing('x')")
    with pytest.raises(Exception, match="no_such"):
        spark.sql("CALL lake.system.compact('no_such')")


@pytest.mark.requirement("S2")
def test_numbers_become_wider_and_structs_get_parts(
    spark: SparkSession, name: str, catalog_root: Path
) -> None:
    table, uri = f"lake.{name}", str(catalog_root / f"{name}.lance")
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, k INT, f FLOAT, s STRUCT<a: INT>) "
        "TBLPROPERTIES ('primaryKey' = 'id')"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1, 2, 1.5, named_struct('a', 7))")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN k TYPE BIGINT")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN s.b STRING")
    frame = spark.sql(
        "SELECT 2L id, 3000000000L k, 1e300d f, named_struct('a', 8L, 'b', 'x', 'c', 1) s"
    )
    frame.write.format("holdfast").mode("append").option("mergeSchema", "true").save(uri)
    kinds = "struct<id:bigint,k:bigint,f:double,s:struct<a:bigint,b:string,c:int>>"
    assert spark.table(table).schema.simpleString() == kinds
    assert rows(spark, f"SELECT id, k, f, s.a, s.b, s.c FROM {table} WHERE id < 2") == [
        (1, 2, 1.5, 7, None, None)
    ]
    assert rows(spark, f"SELECT id, k, f, s.a, s.b, s.c FROM {table} WHERE id = 2") == [
        (2, 3000000000, 1e300, 8, "x", 1)
    ]
    narrow = spark.sql("SELECT 3 id, 1 k, 2f f, named_struct('a', 8L, 'b', 'x', 'c', 1) s")
    narrow.write.format("holdfast").mode("append").option("mergeSchema", "true").save(uri)
    assert spark.table(table).schema.simpleString() == kinds  # nothing becomes narrower
    for statement in ("ALTER COLUMN k TYPE INT", "ADD COLUMN s.a INT", "ADD COLUMN id.x INT"):
        with pytest.raises(Exception, match=r"(?i)not_supported|already|struct"):
            spark.sql(f"ALTER TABLE {table} {statement}")
    holdfast.open_table(uri).claim_writer("unsharded").close()
    with pytest.raises(PySparkException, match="has a log"):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN s.d INT")


def test_a_column_of_the_key_keeps_its_type(
    spark: SparkSession, name: str, catalog_root: Path
) -> None:
    spark.sql(f"CREATE TABLE lake.{name} (id INT) TBLPROPERTIES ('primaryKey' = 'id')")
    with pytest.raises(PySparkException, match="primary key"):
        spark.sql(f"ALTER TABLE lake.{name} ALTER COLUMN id TYPE BIGINT")
    writer = spark.range(3).write.format("holdfast").mode("append").option("mergeSchema", "true")
    with pytest.raises(PySparkException, match="primary key"):
        writer.save(str(catalog_root / f"{name}.lance"))


@pytest.mark.requirement("S2")
def test_a_table_of_sparks_own_catalog_is_refused(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    """Where columns are given, Spark asks nobody when such a table is created."""
    uri = str(tmp_path / "t.lance")
    holdfast.create_table(uri, pa.schema([("id", pa.int64())])).close()
    with pytest.raises(PySparkException, match="Spark's own catalog"):
        spark.sql(f"CREATE TABLE {name} USING holdfast LOCATION '{uri}'")
    assert not spark.catalog.tableExists(name)
    with pytest.raises(PySparkException, match="no table is named"):
        spark.sql(f"CREATE TABLE {name} USING holdfast AS SELECT 1 a")
    assert not spark.catalog.tableExists(name)
    spark.sql(f"CREATE TABLE {name} (id BIGINT) USING holdfast LOCATION '{uri}'")
    try:
        with pytest.raises(Exception, match="Spark's own catalog"):
            spark.table(name).collect()
        with pytest.raises(Exception, match="no table is named"):
            spark.sql(f"INSERT INTO {name} VALUES (1)")
    finally:
        spark.sql(f"DROP TABLE {name}")
    assert lance.dataset(uri).count_rows() == 0


@pytest.mark.requirement("S2")
def test_statements_with_schema_evolution_add_columns(spark: SparkSession, made: str) -> None:
    spark.sql(
        f"INSERT WITH SCHEMA EVOLUTION INTO {made} BY NAME "
        "SELECT 20L id, 0 k, 'new' word, 1.5d price"
    )
    assert rows(spark, f"SELECT word, price FROM {made} WHERE id IN (1, 20)") == [
        ("new", 1.5),
        ("w1", None),
    ]
    spark.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO {made} t "
        "USING (SELECT id, 9 k, 'm' word, 2d price, 'x' note FROM VALUES (1L), (21L) s(id)) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert rows(spark, f"SELECT id, price, note FROM {made} WHERE id IN (1, 20, 21)") == [
        (1, 2.0, "x"),
        (20, 1.5, None),
        (21, 2.0, "x"),
    ]
    assert spark.table(made).count() == 12
    wider = spark.sql("SELECT 30L id, 0 k, 'w' word, 1d price, 'n' note, true more")
    with pytest.raises(AnalysisException, match=r"EXTRA_COLUMNS|TOO_MANY_DATA"):
        wider.writeTo(made).option("mergeSchema", "true").append()  # Spark itself compares
    assert spark.table(made).columns == ["id", "k", "word", "price", "note"]


@pytest.mark.requirement("S2")
def test_save_as_table_in_every_mode(spark: SparkSession, name: str) -> None:
    writer = spark.range(3).write.format("holdfast")
    writer.mode("error").saveAsTable(f"lake.{name}")
    with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
        writer.mode("error").saveAsTable(f"lake.{name}")
    writer.mode("ignore").saveAsTable(f"lake.{name}")
    assert spark.table(f"lake.{name}").count() == 3
    writer.mode("append").saveAsTable(f"lake.{name}")
    assert spark.table(f"lake.{name}").count() == 6
    writer.mode("overwrite").saveAsTable(f"lake.{name}")
    assert spark.table(f"lake.{name}").count() == 3
    with pytest.raises(PySparkException, match="format"):
        spark.range(3).write.saveAsTable(f"lake.{name}_more")
