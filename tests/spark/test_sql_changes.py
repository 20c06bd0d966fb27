"""UPDATE, MERGE INTO and DELETE in Spark SQL: exact rows, whatever others do and whoever dies."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import col

import holdfast
import holdfast.spark
from holdfast.errors import InvalidInputError
from spark.faulty_source import await_file
from spark.test_drivers import kill_group, run, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Rows = dict[int, tuple[int | None, str | None]]

_numbers = itertools.count()
FAULTS = ["kill-amid-rows", "kill-after-files", "kill-before-commit", "kill-after-commit"]


class Table:
    """A table with the columns id, k, word, the first ten rows of which are made here."""

    def __init__(self, spark: SparkSession, root: Path, key: str = "id") -> None:
        self.spark = spark
        folder = f"changed{next(_numbers)}"
        self.name = f"lake.{folder}"
        self.uri = str(root / f"{folder}.lance")
        keyed = f"TBLPROPERTIES ('primaryKey' = '{key}')" if key else ""
        spark.sql(f"CREATE TABLE {self.name} (id BIGINT, k INT, word STRING) {keyed}")
        spark.sql(
            f"INSERT INTO {self.name} "
            "SELECT /*+ COALESCE(1) */ id, cast(id % 3 AS INT), concat('w', id) FROM range(10)"
        )
        self.model: Rows = {n: (n % 3, f"w{n}") for n in range(10)}

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.replace("TABLE", self.name))

    def rows(self) -> list[tuple[int, int | None, str | None]]:
        """Return the rows as stock Lance reads them."""
        found = lance.dataset(self.uri).to_table().to_pylist()
        return sorted((row["id"], row["k"], row["word"]) for row in found)

    def wanted(self) -> list[tuple[int, int | None, str | None]]:
        return sorted((number, *rest) for number, rest in self.model.items())

    def version(self) -> int:
        return int(lance.dataset(self.uri).version)


@pytest.fixture
def table(spark: SparkSession, catalog_root: Path) -> Table:
    return Table(spark, catalog_root)


def update(model: Rows, meets: Callable[[int], bool], **values: Any) -> None:
    for number in [one for one in model if meets(one)]:
        k, word = model[number]
        model[number] = (values.get("k", k), values.get("word", word))


@pytest.mark.requirement("S2")
def test_statements_one_by_one_against_a_model(table: Table) -> None:
    model = table.model
    table.sql("UPDATE TABLE SET word = upper(word) WHERE length(word) = 2 AND k = 1")
    for number in (1, 4, 7):
        update(model, lambda one, n=number: one == n, word=f"W{number}")  # type: ignore[misc]
    assert table.rows() == table.wanted()

    table.sql("UPDATE TABLE SET k = NULL, word = (SELECT max(word) FROM TABLE) WHERE id = 3")
    model[3] = (None, "w9")
    assert table.rows() == table.wanted()

    table.sql("DELETE FROM TABLE WHERE length(word) = 2 AND id % 4 = 0")
    for number in (0, 4, 8):
        del model[number]
    assert table.rows() == table.wanted()

    table.sql(
        "MERGE INTO TABLE t USING (SELECT id + 5 AS n, concat('m', id) m FROM range(10)) s "
        "ON t.id = s.n WHEN MATCHED AND s.n = 6 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET word = s.m, k = t.k + 100 "
        "WHEN NOT MATCHED AND s.n <> 13 THEN INSERT (id, word) VALUES (s.n, s.m) "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 1 THEN DELETE "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 2 THEN UPDATE SET k = -1"
    )
    for number, (k, _) in list(model.items()):
        if number in (1, 6):
            del model[number]
        elif number >= 5:
            model[number] = (None if k is None else k + 100, f"m{number - 5}")
    model[2] = (-1, "w2")
    for number in (4, 8, 10, 11, 12, 14):
        if number >= 5:
            model[number] = (None, f"m{number - 5}")
    assert table.rows() == table.wanted()
    assert sorted(map(tuple, table.spark.table(table.name).collect())) == table.wanted()

    before = table.version()
    table.sql("UPDATE TABLE SET k = 5 WHERE id = -1")
    assert table.version() == before  # nothing to change is no version
    history = holdfast.open_table(table.uri).history()
    assert [one.operation for one in history] == [
        "Update", "Delete", "Update", "Update", "Append", "Overwrite",
    ]  # fmt: skip


@pytest.mark.requirement("S2")
def test_rows_of_every_shape_are_written_as_they_were(
    spark: SparkSession, catalog_root: Path
) -> None:
    name = f"lake.changed{next(_numbers)}"
    spark.sql(
        "SELECT id, array(1f, cast(id AS FLOAT)) v, named_struct('x', id, 'y', array('a', null)) s,"
        " map('k', id) m, cast(id / 7 AS DECIMAL(20, 6)) d, cast('2026-01-02' AS TIMESTAMP) at, "
        "X'00ff' b, array(named_struct('q', 1.5d)) `a b`, cast(null AS STRING) n FROM range(6)"
    ).writeTo(name).tableProperty("vectorColumns", "v:2").create()
    before = {row.id: row for row in spark.table(name).collect()}
    spark.sql(f"UPDATE {name} SET n = 'new' WHERE id % 2 = 0")
    after = {row.id: row for row in spark.table(name).collect()}
    for number, row in before.items():
        wanted = {**row.asDict(), "n": "new" if number % 2 == 0 else None}
        assert after[number].asDict() == wanted
    spark.sql(f"MERGE INTO {name} t USING {name} s ON t.id = s.id AND s.id < 3 "
              "WHEN MATCHED THEN UPDATE SET t.`a b` = array(named_struct('q', 2.5d)), s.y = null "
              "WHEN NOT MATCHED THEN INSERT *")  # fmt: skip
    assert spark.table(name).count() == 9  # no key: rows that do not match are inserted
    found = spark.sql(f"SELECT `a b`[0].q, s.x, s.y FROM {name} WHERE id = 1").collect()
    assert [tuple(row) for row in found] == [(2.5, 1, None)]


@pytest.mark.requirement("S2")
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE TABLE SET id = id + 1 WHERE id = 4", "a key does not change"),
        ("UPDATE TABLE SET id = 5 WHERE id = 4", "a key does not change"),
        (
            (
                "MERGE INTO TABLE t USING (SELECT 70 + id % 2 n FROM range(4)) s ON t.id = s.n "
                "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.n)"
            ),
            "keys more than once",
        ),
        (
            (
                "MERGE INTO TABLE t USING (SELECT 5L n) s ON t.id = s.n AND t.k = 77 "
                "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.n)"
            ),
            "the table has already",
        ),
        (
            (
                "MERGE INTO TABLE t USING (SELECT id % 2 n FROM range(4)) s ON t.id = s.n "
                "WHEN MATCHED THEN UPDATE SET k = 1"
            ),
            "MERGE_CARDINALITY_VIOLATION",
        ),
        (
            (
                "MERGE INTO TABLE t USING (SELECT 70 n) s ON t.id = s.n "
                "WHEN NOT MATCHED THEN INSERT (id) VALUES (null)"
            ),
            "null",
        ),
        ("UPDATE TABLE SET nothing = 5", "nothing"),
        ("UPDATE TABLE SET k = 'five'", "(?i)cast"),
    ],
)
def test_a_statement_that_cannot_be_exact_is_refused(
    table: Table, statement: str, words: str
) -> None:
    before = table.version()
    with pytest.raises(Exception, match=words):
        table.sql(statement)
    assert table.version() == before and table.rows() == table.wanted()


def test_a_key_may_move_from_a_row_that_goes_to_one_that_comes(table: Table) -> None:
    """A delete and an insert of one key in one statement are one row afterwards."""
    table.sql(
        "MERGE INTO TABLE t USING (SELECT 4 n, 'a' w UNION ALL SELECT 104, 'b') s "
        "ON t.id = s.n AND s.w = 'a' WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (id, word) VALUES (s.n - 100, s.w)"
    )
    table.model[4] = (None, "b")
    assert table.rows() == table.wanted()


# Others at work.


def meddling(spark: SparkSession, table: Table, act: Callable[[Any], object]) -> str:
    """Return the name of an SQL function that lets another writer act while a statement runs."""
    uri, name = table.uri, f"meddle{next(_numbers)}"
    marker = Path(f"{table.uri}.{name}")

    def meddle(number: int) -> int:
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return number
        other = holdfast.open_table(uri)
        act(other)
        other.close()
        return number

    spark.udf.register(name, meddle, "bigint")
    return name


@pytest.mark.requirement("C4", "S2")
@pytest.mark.parametrize(
    "act",
    [
        lambda other: other.update("id = 4", {"word": "'theirs'"}),
        lambda other: other.delete("id = 3"),
        lambda other: other.append([{"id": 103, "k": 0, "word": "theirs"}]),
    ],
    ids=["an update of its row", "a delete of its row", "an append that it would have inserted"],
)
def test_a_statement_whose_rows_another_writer_changed_changes_nothing_and_is_run_again(
    spark: SparkSession, table: Table, act: Callable[[Any], object]
) -> None:
    function = meddling(spark, table, act)
    merge = (
        "MERGE INTO TABLE t USING (SELECT FUNCTION(id) n FROM range(3, 5) UNION ALL SELECT 103) s "
        "ON t.id = s.n WHEN MATCHED THEN UPDATE SET word = concat(word, '!') "
        "WHEN NOT MATCHED THEN INSERT (id, word) VALUES (s.n, 'new')"
    )
    statement = merge.replace("TABLE", table.name).replace("FUNCTION", function)
    with pytest.raises(PySparkException, match="RowConflictError"):
        spark.sql(statement)
    assert not any(word and word.endswith("!") for _, _, word in table.rows())
    function = meddling(spark, table, lambda other: other.update("id = 4", {"k": "77"}))
    statement = merge.replace("TABLE", table.name).replace("FUNCTION", function)
    holdfast.spark.run_sql(spark, statement)
    found = {number: (k, word) for number, k, word in table.rows()}
    assert found[4][0] == 77 and str(found[4][1]).endswith("!")
    assert len(table.rows()) == len({number for number, _, _ in table.rows()})
    assert found[103][1] in {"new", "theirs!"}


@pytest.mark.requirement("C4", "S2")
def test_a_merge_that_only_inserts_never_makes_a_key_appear_twice(
    spark: SparkSession, table: Table
) -> None:
    """Spark makes a plain append of it, which would not look at what came meanwhile."""
    merge = (
        "MERGE INTO TABLE t USING (SELECT FUNCTION(id) n FROM range(8, 12)) s ON t.id = s.n "
        "WHEN NOT MATCHED THEN INSERT (id, k, word) VALUES (s.n, 0, 'new')"
    ).replace("TABLE", table.name)
    theirs = [{"id": 11, "k": 7, "word": "theirs"}]
    function = meddling(spark, table, lambda other: other.append(theirs))
    with pytest.raises(PySparkException, match="RowConflictError"):
        spark.sql(merge.replace("FUNCTION", function))
    table.model[11] = (7, "theirs")
    assert table.rows() == table.wanted()
    for _ in range(2):
        holdfast.spark.run_sql(spark, merge.replace("FUNCTION", "abs"))
        table.model[10] = (0, "new")
        assert table.rows() == table.wanted()
    other = holdfast.open_table(table.uri)
    with other.claim_writer("unsharded") as writer:
        writer.put([{"id": 12, "k": 7, "word": "log"}])
        with pytest.raises(Exception, match="merge_log"):
            spark.sql(merge.replace("FUNCTION", "abs"))
    other.close()


@pytest.mark.requirement("C4", "S2")
def test_changes_of_other_rows_do_not_disturb_a_statement(
    spark: SparkSession, table: Table
) -> None:
    def act(other: Any) -> None:
        other.update("id = 9", {"word": "'theirs'"})
        other.append([{"id": 50, "k": 7, "word": "theirs"}])
        other.dataset().create_scalar_index("id", "BTREE")

    function = meddling(spark, table, act)
    table.sql(f"UPDATE TABLE SET k = {function}(id) WHERE id < 3")
    for number in range(3):
        table.model[number] = (number, f"w{number}")
    table.model[9] = (0, "theirs")
    table.model[50] = (7, "theirs")
    assert table.rows() == table.wanted()


UPSERT = (
    "MERGE INTO TABLE t USING (SELECT FUNCTION(id) n FROM range(3, 5) UNION ALL SELECT 103) s "
    "ON t.id = s.n WHEN MATCHED THEN UPDATE SET word = 'ours' "
    "WHEN NOT MATCHED THEN INSERT (id, word) VALUES (s.n, 'ours')"
)


@pytest.mark.requirement("C4", "S2")
def test_an_upsert_by_key_is_disturbed_by_its_own_keys_only(
    spark: SparkSession, table: Table
) -> None:
    def others(other: Any) -> None:
        other.update("id = 9", {"word": "'theirs'"})
        other.append([{"id": 50, "k": 7, "word": "theirs"}])

    function = meddling(spark, table, others)
    table.sql(UPSERT.replace("FUNCTION", function))
    table.model |= {3: (0, "ours"), 4: (1, "ours"), 103: (None, "ours")}
    table.model |= {9: (0, "theirs"), 50: (7, "theirs")}
    assert table.rows() == table.wanted()
    twice = [{"id": 4, "k": 7, "word": "theirs"}]  # no key is enforced for an append
    function = meddling(spark, table, lambda other: other.append(twice))
    with pytest.raises(PySparkException, match="RowConflictError"):
        table.sql(UPSERT.replace("FUNCTION", function).replace("'ours'", "'again'"))
    assert table.rows() == sorted([*table.wanted(), (4, 7, "theirs")])


@pytest.mark.requirement("C4", "S2")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WHEN MATCHED THEN", "WHEN MATCHED AND t.k = 1 THEN"),
        ("WHEN MATCHED THEN UPDATE SET word = 'ours'", "WHEN MATCHED THEN DELETE"),
        ("WHEN NOT MATCHED THEN", "WHEN NOT MATCHED AND s.n > 103 THEN"),
        ("VALUES (s.n, ", "VALUES (s.n + 1, "),
        ("ON t.id = s.n", "ON t.id = s.n OR t.k = s.n"),
        ("VALUES (s.n, 'ours')", "VALUES (s.n, 'ours') WHEN NOT MATCHED BY SOURCE THEN DELETE"),
    ],
)
def test_a_merge_whose_keys_do_not_tell_what_it_looked_at_is_disturbed_by_any_new_row(
    spark: SparkSession, table: Table, old: str, new: str
) -> None:
    row = [{"id": 50, "k": 103, "word": "theirs"}]
    function = meddling(spark, table, lambda other: other.append(row))
    statement = UPSERT.replace("FUNCTION", function).replace(old, new)
    assert statement != UPSERT.replace("FUNCTION", function)
    with pytest.raises(PySparkException, match="RowConflictError"):
        table.sql(statement)
    table.model[50] = (103, "theirs")
    assert table.rows() == table.wanted()


@pytest.mark.requirement("S2")
def test_all_of_a_statement_reads_one_version(spark: SparkSession, table: Table) -> None:
    """A row that comes while the statement runs is in none of its reads, or in all."""
    function = meddling(
        spark, table, lambda other: other.append([{"id": -8, "k": 1, "word": "late"}])
    )
    table.sql(
        "UPDATE TABLE SET k = (SELECT count(*) FROM TABLE) "
        f"WHERE id = 1 AND {function}(id) = 1 AND id IN (SELECT id FROM TABLE WHERE id >= 0)"
    )
    table.model[1] = (10, "w1")
    table.model[-8] = (1, "late")
    assert table.rows() == table.wanted()


@pytest.mark.requirement("W9", "S2")
def test_rows_that_wait_in_the_log_are_merged_first(table: Table) -> None:
    other = holdfast.open_table(table.uri)
    with other.claim_writer("unsharded") as writer:
        writer.put([{"id": 2, "k": 7, "word": "log"}, {"id": 30, "k": 7, "word": "log"}])
        table.sql("UPDATE TABLE SET word = 'of log' WHERE word = 'log'")
        table.model |= {2: (7, "of log"), 30: (7, "of log")}
        assert table.rows() == table.wanted()
        writer.put([{"id": 3, "k": 8, "word": "log"}])
        table.sql(
            "MERGE INTO TABLE t USING (SELECT 3 n UNION ALL SELECT 31) s ON t.id = s.n "
            "WHEN MATCHED THEN UPDATE SET k = t.k + 1 "
            "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.n)"
        )
        table.model |= {3: (9, "log"), 31: (None, None)}
        assert table.rows() == table.wanted()
        writer.put([{"id": 3, "k": 10, "word": "late"}])
        assert dict(snapshot(table))[3] == 10  # what is put later wins
    other.close()


def snapshot(table: Table) -> list[tuple[int, int]]:
    return [tuple(row) for row in table.spark.table(table.name).select("id", "k").collect()]


@pytest.mark.requirement("W9", "S2")
def test_rows_put_while_a_statement_runs_come_after_it(spark: SparkSession, table: Table) -> None:
    other = holdfast.open_table(table.uri)
    writer = other.claim_writer("unsharded")
    writer.put([{"id": 1, "k": 50, "word": "log"}])
    function = f"put{next(_numbers)}"
    fault = Path(f"{table.uri}.put")

    def put(number: int) -> int:
        fault.touch()
        await_file(Path(f"{fault}.done"))
        return number

    spark.udf.register(function, put, "bigint")

    def meanwhile() -> None:
        await_file(fault)
        writer.put([{"id": 2, "k": 60, "word": "late"}])
        Path(f"{fault}.done").touch()

    thread = threading.Thread(target=meanwhile)
    thread.start()
    table.sql(f"UPDATE TABLE SET word = 'ours' WHERE {function}(id) IN (1, 2)")
    thread.join()
    assert dict(snapshot(table)) == {**{n: n % 3 for n in range(10)}, 1: 50, 2: 60}
    words = {row.id: row.word for row in spark.table(table.name).collect()}
    assert (words[1], words[2]) == ("ours", "late")
    writer.close()
    other.close()


@pytest.mark.requirement("C8", "S2")
def test_under_a_txn_a_statement_is_applied_once(spark: SparkSession, table: Table) -> None:
    name = table.name
    for _ in range(2):
        for number, statement in enumerate(
            [
                f"UPDATE {name} SET k = k + 1 WHERE id < 3",
                f"DELETE FROM {name} WHERE id = 8",
                f"DELETE FROM {name} WHERE length(word) = 2 AND id = 9",
                f"INSERT INTO {name} VALUES (20, 0, 'in')",
                (
                    f"MERGE INTO {name} t USING (SELECT 1) s ON t.id = 0 "
                    "WHEN MATCHED THEN UPDATE SET k = t.k + 10"
                ),
            ]
        ):
            holdfast.spark.run_sql(spark, statement, txn=("job", number))
        spark.sql(f"UPDATE {name} SET k = 0 WHERE id = -1")
    for number in range(3):
        table.model[number] = (number % 3 + 1, f"w{number}")
    table.model[0] = (11, "w0")
    table.model[20] = (0, "in")
    del table.model[8], table.model[9]
    assert table.rows() == table.wanted()
    spark.sql(f"UPDATE {name} SET k = 5 WHERE id = 1")  # the txn is of its statement only
    assert dict(snapshot(table))[1] == 5
    with pytest.raises(InvalidInputError, match="app, number"):
        holdfast.spark.run_sql(spark, "SELECT 1", txn="word")
    with pytest.raises(InvalidInputError, match="at least 1"):
        holdfast.spark.run_sql(spark, "SELECT 1", tries=0)


# Kills.


STATEMENTS = {
    "UPDATE": "UPDATE TABLE SET k = k + 100 WHERE length(word) > 1",
    "MERGE": "MERGE INTO TABLE t USING (SELECT id + 5 n FROM range(10)) s ON t.id = s.n "
    "WHEN MATCHED THEN UPDATE SET k = t.k + 100 "
    "WHEN NOT MATCHED THEN INSERT (id, k) VALUES (s.n, 0) "
    "WHEN NOT MATCHED BY SOURCE AND t.id < 2 THEN DELETE",
    "DELETE": "DELETE FROM TABLE WHERE length(word) > 1 AND id % 2 = 0",
}


def applied(kind: str, model: Rows) -> Rows:
    if kind == "UPDATE":
        return {n: ((k or 0) + 100, word) for n, (k, word) in model.items()}
    if kind == "DELETE":
        return {n: row for n, row in model.items() if n % 2}
    kept = {n: (k, w) if n < 5 else ((k or 0) + 100, w) for n, (k, w) in model.items() if n > 1}
    return {**kept, **dict.fromkeys(range(10, 15), (0, None))}


@pytest.mark.requirement("C7", "C8", "S2")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", list(STATEMENTS))
def test_a_python_process_that_is_killed_leaves_all_rows_or_none(
    spark: SparkSession, table: Table, fault_file: Path, kind: str, fault: str
) -> None:
    statement = STATEMENTS[kind].replace("TABLE", table.name)
    before = table.wanted()
    fault_file.with_suffix(".taken").unlink(missing_ok=True)
    fault_file.write_text(fault)
    try:
        if "commit" in fault:
            with pytest.raises(Exception, match=r"(?i)python worker"):
                holdfast.spark.run_sql(spark, statement, txn=("job", 1))
        else:  # Spark runs the task again
            holdfast.spark.run_sql(spark, statement, txn=("job", 1))
    finally:
        fault_file.unlink(missing_ok=True)
    assert fault_file.with_suffix(".taken").exists(), "the fault was not met"
    table.model = applied(kind, table.model)
    assert table.rows() == (before if fault == "kill-before-commit" else table.wanted())
    for _ in range(2):
        holdfast.spark.run_sql(spark, statement, txn=("job", 1))
        assert table.rows() == table.wanted()


@pytest.mark.requirement("C7", "C8", "S2")
@pytest.mark.parametrize("stage", ["hold-before-commit", "hold-after-commit"])
def test_a_driver_that_is_killed_leaves_all_rows_or_none_and_its_rerun_applies_once(
    spark: SparkSession,
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    statement = STATEMENTS["MERGE"].replace("TABLE", table.name)
    before = table.wanted()
    monkeypatch.setenv("HOLDFAST_TEST_FAULT", str(tmp_path / "fault"))
    (tmp_path / "fault").write_text(stage)
    driver = start("statement", "local[2]", table.uri, statement, "1")
    try:
        await_file(tmp_path / "fault.taken")
    finally:
        kill_group(driver)
    table.model = applied("MERGE", table.model)
    assert table.rows() == (before if stage == "hold-before-commit" else table.wanted())
    for _ in range(2):
        holdfast.spark.run_sql(spark, statement, txn=("job", 1))
        assert table.rows() == table.wanted()


@pytest.mark.requirement("C7", "S2")
def test_an_executor_that_is_killed_amid_a_merge_is_made_up_for(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_FAULT", str(tmp_path / "fault"))
    (tmp_path / "fault").write_text("kill-executor")
    statement = STATEMENTS["MERGE"].replace("TABLE", table.name)
    run("statement", "local-cluster[2,1,512]", table.uri, statement, "1")
    assert (tmp_path / "fault.taken").exists()
    table.model = applied("MERGE", table.model)
    assert table.rows() == table.wanted()


@pytest.mark.requirement("S2")
def test_rows_that_meet_a_condition_are_replaced(spark: SparkSession, table: Table) -> None:
    other = holdfast.open_table(table.uri)
    with other.claim_writer("unsharded") as writer:
        writer.put([{"id": 11, "k": 1, "word": "log"}])
        table.sql(
            "INSERT INTO TABLE REPLACE WHERE k = 1 "
            "SELECT id, k, 'again' FROM TABLE WHERE id IN (1, 4)"
        )
    other.close()
    for number in (1, 4, 7):
        del table.model[number]
    table.model |= {1: (1, "again"), 4: (1, "again")}
    assert table.rows() == table.wanted()
    for statement, words in [
        ("SELECT 50L, 2, 'x'", "do not meet the condition"),
        ("SELECT 2L, 1, 'x'", "the table has already"),
    ]:
        with pytest.raises(Exception, match=words):
            table.sql(f"INSERT INTO TABLE REPLACE WHERE k = 1 {statement}")
        assert table.rows() == table.wanted()
    function = meddling(spark, table, lambda one: one.append([{"id": 60, "k": 1, "word": "x"}]))
    with pytest.raises(PySparkException, match="RowConflictError"):
        table.sql(f"INSERT INTO TABLE REPLACE WHERE k = 1 SELECT {function}(70L), 1, 'y'")
    spark.table(table.name).where("id = 2").writeTo(table.name).overwrite(col("id") < 5)
    table.model = {n: row for n, row in table.model.items() if n >= 5 or n == 2}
    table.model[60] = (1, "x")
    assert table.rows() == table.wanted()


# Where rows are.


@pytest.mark.requirement("S2")
def test_the_address_and_the_id_of_a_row_are_columns_that_a_query_may_name(
    spark: SparkSession, table: Table
) -> None:
    table.sql("DELETE FROM TABLE WHERE id = 0")
    table.sql("INSERT INTO TABLE VALUES (10, 0, 'ten')")
    found = spark.sql(f"SELECT id, _rowid, _rowaddr FROM {table.name} WHERE id > 7").collect()
    stock = lance.dataset(table.uri).scanner(
        columns=["id"], filter="id > 7", with_row_id=True, with_row_address=True
    )
    wanted = [(row["id"], row["_rowid"], row["_rowaddr"]) for row in stock.to_table().to_pylist()]
    assert sorted(map(tuple, found)) == sorted(wanted)
    assert "_rowid" not in spark.table(table.name).columns
    only = spark.sql(f"SELECT _rowaddr FROM {table.name}").collect()
    assert len({row[0] for row in only}) == 10
    by_address = spark.read.format("holdfast").schema("id long, _rowid long not null")
    assert sorted(map(tuple, by_address.load(table.uri).where("id > 7").collect())) == sorted(
        (number, row) for number, row, _ in wanted
    )
    other = holdfast.open_table(table.uri)
    with other.claim_writer("unsharded") as writer:
        writer.put([{"id": 2, "k": 7, "word": "log"}])
        with pytest.raises(PySparkException, match="no address yet"):
            spark.sql(f"SELECT id, _rowaddr FROM {table.name}").collect()
    other.close()
