"""Types on the way to a table and back: nothing is lost, and what has no place is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import types

import holdfast
from holdfast.errors import InvalidInputError
from holdfast.spark._types import as_spark_reads, spark_schema, table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_TYPE = """
  select id, cast(id as tinyint) as i8, cast(id as smallint) as i16, cast(id as int) as i32,
    cast(id as float) / 4 as f32, cast(id as double) / 8 as f64, id % 2 = 0 as flag,
    cast(id as decimal(20, 3)) as amount, cast(id as string) as word,
    cast(cast(id as string) as binary) as bytes, date_add(date'2026-01-31', cast(id as int)) as day,
    timestamp'2026-03-29 01:59:59.123456 Europe/Berlin' + make_interval(0, 0, 0, 0, 0, 0, id) as moment,
    timestamp_ntz'1969-12-31 23:59:59.999999' as local, make_dt_interval(0, 1, 2, id) as span,
    array(id, null, 3) as numbers, map(cast(id as string), id, 'none', null) as pairs,
    struct(id as a, array(struct(id as b, cast(null as string) as c)) as d) as nested,
    cast(null as void) as nothing, if(id % 3 = 0, null, array(cast(id as float), 1f)) as v
  from range(20)
"""  # noqa: E501 - a table of types


def test_every_type_comes_back_as_it_went(spark: SparkSession, uri: str) -> None:
    frame = spark.sql(EVERY_TYPE)
    writer = frame.write.format("holdfast").mode("append").option("vectorColumns", "v:2")
    writer.save(uri)
    back = spark.read.format("holdfast").load(uri)
    assert [(f.name, f.dataType.simpleString()) for f in back.schema] == [
        (f.name, f.dataType.simpleString()) for f in frame.schema
    ]
    assert sorted(map(repr, back.collect())) == sorted(map(repr, frame.collect()))
    assert lance.dataset(uri).schema.field("moment").type == pa.timestamp("us", tz="UTC")


def test_types_that_only_lance_has_are_widened(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("u8", pa.uint8()),
            ("u64", pa.uint64()),
            ("half", pa.float16()),
            ("large", pa.large_string()),
            ("fixed", pa.binary(3)),
            ("milli", pa.timestamp("ms")),
            ("words", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    row: dict[str, Any] = {
        "u8": 255,
        "u64": 2**64 - 1,
        "half": 0.5,
        "large": "x",
        "fixed": b"abc",
        "milli": dt.datetime(2026, 1, 2, 3),  # noqa: DTZ001 - a local time is meant
        "words": "w",
    }
    table = holdfast.create_table(tmp_path / "t.lance", schema)
    table.append([row])
    frame = spark.read.format("holdfast").load(table.uri)
    assert frame.collect()[0].asDict() == {
        **row,
        "u64": Decimal(2**64 - 1),
        "fixed": bytearray(b"abc"),
    }
    frame.write.format("holdfast").mode("append").save(table.uri)
    assert table.dataset().to_table().to_pylist() == [row, row]


@pytest.mark.parametrize(
    "kind",
    [
        types.YearMonthIntervalType(),
        types.VariantType(),
        types.StringType("UTF8_LCASE"),
        types.ArrayType(types.VariantType()),
        types.MapType(types.StringType(), types.CalendarIntervalType()),
        types.StructType([types.StructField("a", types.YearMonthIntervalType())]),
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused(kind: types.DataType) -> None:
    frame = types.StructType([types.StructField("odd", kind)])
    with pytest.raises(InvalidInputError, match="'odd' has a type that cannot be stored"):
        table_schema(frame, {})


@pytest.mark.parametrize(
    "kind", [pa.time64("us"), pa.decimal256(50, 2), pa.month_day_nano_interval()]
)
def test_what_cannot_be_read_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match=r"'odd' is .* name the others with option columns"):
        as_spark_reads(kind, "odd")
    schema = pa.schema([("id", pa.int64()), ("odd", kind)])
    assert spark_schema(schema, ["id"]).fieldNames() == ["id"]


def test_blobs_are_refused() -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    with pytest.raises(InvalidInputError, match="a blob"):
        spark_schema(pa.schema([blob]))


def test_a_time_finer_than_sparks_is_refused_not_cut(spark: SparkSession, tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", pa.schema([("t", pa.timestamp("ns"))]))
    table.append(pa.table({"t": pa.array([1], pa.timestamp("ns"))}))
    with pytest.raises(Exception, match="column 't' does not fit"):
        spark.read.format("holdfast").load(table.uri).collect()


@pytest.mark.requirement("P5")
@pytest.mark.parametrize("rows", [1, 7, 64, 1001])
def test_decimals_of_any_number_of_rows(spark: SparkSession, uri: str, rows: int) -> None:
    """Arrow's format aligns them to 8 bytes, and Lance needs 16."""
    frame = spark.range(rows).selectExpr(
        "id",
        "cast(id as decimal(10, 2)) d",
        "if(id % 3 = 0, null, cast(id as decimal(38, 10))) n",
        "array(cast(id as decimal(12, 1)), null) a",
        "struct(cast(id as decimal(5, 0)) x) s",
    )
    frame.write.format("holdfast").mode("append").save(uri)
    back = spark.read.format("holdfast").load(uri)
    assert sorted(map(repr, back.collect())) == sorted(map(repr, frame.collect()))


@pytest.mark.requirement("P5")
def test_text_that_is_none_is_refused(spark: SparkSession, uri: str) -> None:
    """Spark makes text of any bytes; in the table nothing of their file could be read again."""
    holdfast.create_table(uri, pa.schema([("id", pa.int64()), ("t", pa.string())]))
    frame = spark.sql("select id, cast(unhex('FFFE') as string) as t from range(3)")
    with pytest.raises(Exception, match="values that are none of their type"):
        frame.write.format("holdfast").mode("append").save(uri)
    assert holdfast.open_table(uri).count() == 0


@pytest.mark.requirement("P5")
def test_batches_of_null_vectors_only(spark: SparkSession, uri: str) -> None:
    """Arrow's cast of such a batch ends the process, and with it Spark's worker."""
    vector = pa.list_(pa.float32(), 2)
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("v", vector),
            ("s", pa.struct([("v", vector)])),
            ("many", pa.list_(vector)),
            ("named", pa.map_(pa.string(), vector)),
            ("square", pa.list_(vector, 2)),
        ]
    )
    table = holdfast.create_table(uri, schema)
    nothing = spark.sql(
        "select id, cast(null as array<float>) v, named_struct('v', cast(null as array<float>)) s,"
        " cast(null as array<array<float>>) many, cast(null as map<string, array<float>>) named,"
        " cast(null as array<array<float>>) square from range(5)"
    )
    mixed = spark.sql(
        "select 5 + id as id, if(id % 2 = 0, null, array(float(id), 1f)) v,"
        " if(id = 3, null, named_struct('v', if(id = 1, null, array(2f, float(id))))) s,"
        " array(array(1f, 2f), null, array(float(id), 4f)) many,"
        " map('a', array(1f, float(id)), 'b', null) named,"
        " if(id = 0, null, array(array(1f, 2f), array(3f, float(id)))) square from range(4)"
    )
    for frame in (nothing, mixed):
        frame.write.format("holdfast").mode("append").save(uri)
    rows = sorted(table.to_table().to_pylist(), key=lambda row: int(row["id"]))
    wanted = [row.asDict(recursive=True) for row in [*nothing.collect(), *mixed.collect()]]
    assert [{**row, "named": row["named"] and dict(row["named"])} for row in rows] == sorted(
        wanted, key=lambda row: int(row["id"])
    )
    back = spark.read.format("holdfast").load(uri)
    assert sorted(map(repr, back.collect())) == sorted(
        map(repr, [*nothing.collect(), *mixed.collect()])
    )
    wrong = spark.sql("select 1L as id, array(array(1f, 2f), array(3f)) many")
    with pytest.raises(Exception, match="every array must have 2 elements"):
        wrong.write.format("holdfast").mode("append").save(uri)
