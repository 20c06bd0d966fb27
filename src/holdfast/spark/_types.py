"""Types: what a table's columns are to Spark, and what Spark's columns are in a table.

| in the table                         | in Spark                     | made by Spark as     |
|--------------------------------------|------------------------------|----------------------|
| int8 .. int64, float, double, bool   | the same                     | the same             |
| uint8, uint16, uint32                | the next wider signed type   | -                    |
| uint64                               | decimal(20, 0)               | -                    |
| float16                              | float                        | -                    |
| string, large_string, dictionary     | string (the dictionary's values) | string           |
| binary, large_binary, fixed size     | binary                       | binary               |
| decimal up to 38 digits              | decimal                      | decimal128           |
| date32, date64                       | date                         | date32               |
| timestamp with a zone                | timestamp                    | timestamp[us, UTC]   |
| timestamp without                    | timestamp_ntz                | timestamp[us]        |
| duration                             | day-time interval            | duration[us]         |
| list, large_list, fixed_size_list    | array                        | list, or a vector    |
| struct, map, null                    | struct, map, void            | the same             |

Everything else is refused by name: blobs, times of day, year-month and calendar intervals,
variants, geometry, user-defined types, text with a collation or a length, decimals of more than
38 digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

import pyarrow as pa
from pyarrow import types
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type

from holdfast.errors import InvalidInputError
from holdfast.formats import check_names, check_values
from holdfast.options import suggestion
from holdfast.spark._vectors import cast_vectors

VECTOR_KEY = "arrow.fixed-size-list.size"
"""The metadata of a Spark column that is stored as a vector of that length."""

# Spark 4.1 takes no zone here, and means UTC.
_IN_UTC: dict[str, Any] = (  # Any: the releases of PySpark differ in what they take
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
)
_BLOB = {b"lance-encoding:blob", b"lance-schema:blob"}
_WIDER: Mapping[Any, Any] = {  # Any: pyarrow ships no types
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_PLAIN = {
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.null(),
}
_REFUSED = (
    spark.UserDefinedType,
    spark.VariantType,
    spark.YearMonthIntervalType,
    spark.CalendarIntervalType,
    spark.CharType,  # Spark pads and cuts by a length that a table would forget
    spark.VarcharType,
    *(getattr(spark, name) for name in ("TimeType", "GeometryType", "GeographyType")
      if hasattr(spark, name)),
)  # fmt: skip
_INTEGERS = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_MOST_DIGITS = 38
_TEXT_WIDTH = 24
_NESTED_WIDTH = 64


def spark_schema(schema: pa.Schema, columns: Sequence[str] | None = None) -> spark.StructType:
    """Return what a table, or some of its columns, is to Spark.

    Raises:
        InvalidInputError: a column is not there, or has a type that Spark has not.
    """
    fields = choose_fields(schema, columns)
    check_names(field.name for field in fields)
    return spark.StructType([_spark_field(field) for field in fields])


def choose_fields(schema: pa.Schema, columns: Sequence[str] | None) -> list[pa.Field]:
    """Return the fields of the named columns, of all without names.

    Raises:
        InvalidInputError: one is not there.
    """
    for name in columns or ():
        if name not in schema.names:
            raise InvalidInputError(
                f"the table has no column {name!r}{suggestion(name, schema.names)}"
            )
    return [schema.field(name) for name in (schema.names if columns is None else columns)]


def spark_type(field: pa.Field) -> spark.DataType:
    """Return what a column of a table is to Spark.

    Raises:
        InvalidInputError: it has a type that Spark has not.
    """
    return _spark_field(field).dataType


def _spark_field(field: pa.Field) -> spark.StructField:
    if _BLOB & set(field.metadata or {}):
        raise _unreadable(field.name, "a blob")
    metadata = {}
    if types.is_fixed_size_list(field.type):
        metadata[VECTOR_KEY] = field.type.list_size
    kind = from_arrow_type(as_spark_reads(field.type, field.name), prefer_timestamp_ntz=True)
    return spark.StructField(field.name, kind, field.nullable, metadata)


def as_spark_reads(kind: pa.DataType, column: str) -> pa.DataType:  # noqa: PLR0911, C901 - a table
    """Return the Arrow type in which Spark takes values of a type.

    Raises:
        InvalidInputError: it has no place for them.
    """
    if kind in _PLAIN:
        return kind
    if kind in _WIDER:
        return _WIDER[kind]
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_decimal(kind) and kind.precision <= _MOST_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_map(kind):
        item = as_spark_reads(kind.item_type, column)
        value = pa.field("value", item, nullable=kind.item_field.nullable)
        key = pa.field("key", as_spark_reads(kind.key_type, column), nullable=False)
        return pa.map_(key, value)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = as_spark_reads(kind.value_type, column)
        return pa.list_(pa.field("element", item, nullable=kind.value_field.nullable))
    if types.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct(
            [pa.field(p.name, as_spark_reads(p.type, column), p.nullable) for p in parts]
        )
    if types.is_dictionary(kind):
        return as_spark_reads(kind.value_type, column)
    if isinstance(kind, pa.BaseExtensionType):
        return as_spark_reads(kind.storage_type, column)
    raise _unreadable(column, str(kind))


def _unreadable(column: str, kind: str) -> InvalidInputError:
    return InvalidInputError(
        f"column {column!r} is {kind}, which Spark cannot read: name the others with option columns"
    )


def width_of(kind: pa.DataType) -> int:
    """Return about how many bytes a value takes; what has no fixed length is guessed."""
    if types.is_fixed_size_list(kind):
        return int(kind.list_size) * width_of(kind.value_type)
    if types.is_primitive(kind) or types.is_boolean(kind):
        return max(1, int(kind.bit_width) // 8)
    return _NESTED_WIDTH if types.is_nested(kind) else _TEXT_WIDTH


# Reading: from the table's types to Spark's.


def check_readable(asked: spark.StructType, table: pa.Schema) -> None:
    """Refuse a schema that is not a choice of the table's columns in their own types.

    Raises:
        InvalidInputError: a column is not there, has another type, or may be null in the table.
    """
    for field, stored in zip(
        asked.fields, choose_fields(table, [f.name for f in asked.fields]), strict=True
    ):
        there = _spark_field(stored)
        if not _same(field.dataType, there.dataType):
            raise InvalidInputError(
                f"column {field.name!r} is {there.dataType.simpleString()} in the table, and "
                f"the schema asks for {field.dataType.simpleString()}: read it as it is, then "
                "cast"
            )
        if stored.nullable and not field.nullable:
            raise InvalidInputError(
                f"column {field.name!r} may be null in the table, and the schema says it may not"
            )


def batches_for_spark(
    batches: Iterator[pa.RecordBatch], asked: spark.StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the batches in exactly the schema that Spark checks for; without a copy if it fits.

    Raises:
        InvalidInputError: a value has no place in Spark's type.
    """
    wanted = to_arrow_schema(asked, **_IN_UTC)
    for batch in batches:
        yield batch if batch.schema.equals(wanted) else _fit_batch(batch, wanted)


def _fit_batch(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    there = set(batch.schema.names)
    arrays = [
        _cast(batch.column(field.name), field)
        if field.name in there
        else pa.nulls(batch.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == field.type:
        return array
    try:
        return cast_vectors(array, field.type)
    except (pa.ArrowException, InvalidInputError) as error:
        raise InvalidInputError(
            f"a value of column {field.name!r} does not fit {field.type}",
            reason=str(error)[:200],
        ) from error


# Writing: from Spark's types to the table's.


def table_schema(frame: spark.StructType, sizes: Mapping[str, int]) -> pa.Schema:
    """Return the columns of a table made for a frame; all may be null.

    Args:
        frame: Spark's schema.
        sizes: column name in lower case -> length of its vectors.

    Raises:
        InvalidInputError: a type cannot be stored, or a vector column is no array of numbers.
    """
    names = [field.name for field in frame.fields]
    if len(set(names)) != len(names):
        raise InvalidInputError("two columns have the same name")
    check_names(names)
    dotted = next((name for name in names if "." in name), None)
    if dotted is not None:
        raise InvalidInputError("Lance keeps no column with a dot in its name", column=dotted)
    unknown = set(sizes) - {name.lower() for name in names}
    if unknown:
        raise InvalidInputError("a vector column is not in the frame", column=min(unknown))
    return pa.schema([_table_field(field, sizes) for field in frame.fields])


def _table_field(field: spark.StructField, sizes: Mapping[str, int]) -> pa.Field:
    refused = next(iter(_refused_types(field.dataType)), None)
    if refused is not None:
        raise InvalidInputError(
            f"column {field.name!r} has a type that cannot be stored: cast it or leave it out",
            type=refused.simpleString(),
        )
    kind = _nullable(to_arrow_type(field.dataType, **_IN_UTC))
    size = sizes.get(field.name.lower()) or (field.metadata or {}).get(VECTOR_KEY)
    if size is not None:
        if not types.is_list(kind) or not types.is_floating(kind.value_type):
            raise InvalidInputError(
                f"column {field.name!r} cannot be a vector: it is no array of float or double"
            )
        kind = pa.list_(pa.field("item", kind.value_type), int(size))
    return pa.field(field.name, kind)


def _refused_types(kind: spark.DataType) -> Iterator[spark.DataType]:
    if isinstance(kind, _REFUSED) or _has_collation(kind):
        yield kind
    elif isinstance(kind, spark.ArrayType):
        yield from _refused_types(kind.elementType)
    elif isinstance(kind, spark.MapType):
        yield from _refused_types(kind.keyType)
        yield from _refused_types(kind.valueType)
    elif isinstance(kind, spark.StructType):
        for field in kind.fields:
            yield from _refused_types(field.dataType)


def _has_collation(kind: spark.DataType) -> bool:
    """Tell whether text is compared otherwise than by its bytes, which a table would forget."""
    return isinstance(kind, spark.StringType) and not kind.isUTF8BinaryCollation()


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Let everything inside be null, so that later frames fit too."""
    if types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if types.is_list(kind):
        return pa.list_(pa.field("item", _nullable(kind.value_type)))
    if types.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(part.name, _nullable(part.type)) for part in parts])
    return kind


def check_writable(frame: spark.StructType, table: pa.Schema) -> pa.Schema:
    """Return the columns of the table that a frame fills, in the table's order and types.

    Raises:
        InvalidInputError: the frame does not fit; every difference is named.
    """
    fields = {field.name: field for field in frame.fields}
    problems = [
        f"unexpected column {name!r}{suggestion(name, table.names)} (mergeSchema=true would add it)"
        for name in fields
        if name not in table.names
    ]
    for stored in table:
        field = fields.get(stored.name)
        if field is None:
            if not stored.nullable:
                problems.append(f"missing column {stored.name!r}, which may not be null")
            continue
        there = _spark_field(stored)
        if not _same(field.dataType, there.dataType) and not widens(field.dataType, there.dataType):
            problems.append(
                f"column {stored.name!r} is {field.dataType.simpleString()}, the table has "
                f"{there.dataType.simpleString()}: cast it"
            )
    if len(fields) != len(frame.fields):
        problems.append("two columns have the same name")
    if problems:
        raise InvalidInputError("the frame does not fit the table: " + "; ".join(problems))
    return pa.schema([field for field in table if field.name in fields])


def batch_for_table(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return a batch of Spark's in the table's types; without a copy if it fits.

    Raises:
        InvalidInputError: a value has no place in its column, or is null where none may be.
    """
    if batch.schema.equals(wanted):
        return batch
    check_values(batch)  # a cast takes them on trust
    fitted = _fit_batch(batch, wanted)
    for field in wanted:
        if not field.nullable and fitted.column(field.name).null_count:
            raise InvalidInputError(f"column {field.name!r} may not be null, and a row has null")
    return fitted


def _same(one: spark.DataType, other: spark.DataType) -> bool:
    """Compare types; what may be null inside is the business of values."""
    if isinstance(one, spark.StringType) and isinstance(other, spark.StringType):
        return True  # char, varchar and collations are text here
    if isinstance(one, spark.ArrayType) and isinstance(other, spark.ArrayType):
        return _same(one.elementType, other.elementType)
    if isinstance(one, spark.MapType) and isinstance(other, spark.MapType):
        return _same(one.keyType, other.keyType) and _same(one.valueType, other.valueType)
    if isinstance(one, spark.StructType) and isinstance(other, spark.StructType):
        return one.names == other.names and all(
            _same(a.dataType, b.dataType) for a, b in zip(one.fields, other.fields, strict=True)
        )
    if isinstance(one, spark.DayTimeIntervalType) and isinstance(other, spark.DayTimeIntervalType):
        return True
    return bool(one == other)


def widens(given: spark.DataType, wanted: spark.DataType) -> bool:
    """Tell whether every value of one number type has its place in another."""
    if isinstance(given, spark.NullType):
        return True
    if isinstance(given, _INTEGERS) and isinstance(wanted, _INTEGERS):
        return _INTEGERS.index(type(given)) < _INTEGERS.index(type(wanted))
    return isinstance(given, spark.FloatType) and isinstance(wanted, spark.DoubleType)
