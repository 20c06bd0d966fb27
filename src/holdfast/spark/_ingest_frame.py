"""A micro-batch on its way to the log: its columns, and the shard of each row, by Spark itself.

Rows are divided by Lance's bucket hash, which is murmur3 with the seed 0. Spark's `hash` is the
same function with the seed 42, and hashes several columns by taking the hash of one as the seed
of the next. So a constant whose hash is 0 comes first, and the column after it. Tasks compute
the hash again, as Lance does, and refuse rows of other shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from holdfast.errors import InvalidInputError
from holdfast.formats import shard_id_unsharded
from holdfast.options import suggestion
from holdfast.shard import UNSHARDED, Base, Router, Shard, find_shard
from holdfast.spark._ingest_work import DELETED, ORDER, PART, SHARD
from holdfast.spark._types import check_writable, spark_schema

Frame: TypeAlias = Any
"""A DataFrame, classic or of Spark Connect: they share no class."""

_HASHES_TO_ZERO = -1693959553
"""The integer whose murmur3 hash, with Spark's seed 42, is 0."""
_MOST_HASH = 0x7FFFFFFF
_HASHED_ALIKE = (
    pa.types.is_int8,
    pa.types.is_int16,
    pa.types.is_int32,
    pa.types.is_int64,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date32,
    pa.types.is_float32,
    pa.types.is_float64,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The shards of a table, and what divides rows among them.

    Attributes:
        shards: all of them; a row's shard is a number in this list.
        column: the column whose hash is that number; None for one shard.
    """

    shards: tuple[Shard, ...]
    column: str | None = None


def routing_of(base: Base, shard: str | None) -> Routing:
    """Return how rows are divided, as the table's manifest says, or into the one shard named.

    Raises:
        InvalidInputError: in no way that Spark can follow; the message has the way out.
    """
    specs = () if base.details is None else base.details.sharding_specs
    if not specs:
        if shard is None:
            raise InvalidInputError(
                "this table's shards are named by hand: say which one with ingest(..., shard=...)"
            )
        return Routing(shards=(find_shard(shard, base),))
    router = Router(base)
    shards = tuple(_all_shards(router))
    if shard is not None:
        if find_shard(shard, base).shard_id != shards[0].shard_id or len(shards) > 1:
            raise InvalidInputError(
                "the table divides its rows by itself: leave shard out", shard=shard
            )
        return Routing(shards=shards)
    if shards[0].shard_id == shard_id_unsharded():
        return Routing(shards=shards)
    column = str(router.column)
    kind = base.schema.field(column).type
    if not any(fits(kind) for fits in _HASHED_ALIKE):
        raise InvalidInputError(
            "Spark cannot divide rows by a column of this type: write through a ShardWriter, or "
            "divide the table by another column",
            column=column,
            type=str(kind),
        )
    return Routing(shards=shards, column=column)


def _all_shards(router: Router) -> Sequence[Shard]:
    try:
        return router.shards()
    except InvalidInputError as error:
        raise InvalidInputError(
            "rows are divided by value, so every new value is a shard to claim: ingest takes "
            "tables with buckets, or with one shard; write this one through ShardWriters"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How the rows of a batch get to their shards, in Spark's SQL, for Python and Java alike.

    Attributes:
        select: the columns that are written, and what tells a row's shard, order and fate.
        where: which rows are wanted; None for all.
        partitions: how many shards there are.
    """

    select: tuple[str, ...]
    where: str | None
    partitions: int

    def apply(self, df: Frame) -> Frame:
        """Return the rows of the shards that want some, one partition for each of all shards."""
        frame = df.selectExpr(*self.select)
        if self.where is not None:
            frame = frame.where(self.where)
        if self.partitions == 1:
            return frame.repartition(1)
        return frame.repartitionById(self.partitions, f.col(SHARD))


def plan_route(
    frame: StructType,
    base: Base,
    routing: Routing,
    *,
    deletes: str | None,
    order_by: Sequence[str],
    parts: int,
    wanted: Sequence[int],
) -> Route:
    """Return how rows with these columns get to the shards that want some.

    Raises:
        InvalidInputError: the columns do not fit the table.
    """
    columns = [
        _quote(name) for name in _columns_to_write(frame, base, extra=bool(deletes or order_by))
    ]
    columns.append(f"{shard_number(base, routing)} AS {SHARD}")
    if deletes is not None:
        # On a line of its own, so that a comment at its end takes nothing of ours with it.
        columns.append(f"coalesce(cast(({deletes}\n) AS boolean), false) AS {DELETED}")
    columns += [f"({text}\n) AS {ORDER}{n}" for n, text in enumerate(order_by)]
    if parts > 1:
        columns.append(f"{_part(frame, base, parts)} AS {PART}")
    where = None
    if len(wanted) < len(routing.shards):
        where = f"{SHARD} IN ({', '.join(map(str, wanted))})"
    return Route(select=tuple(columns), where=where, partitions=len(routing.shards))


def _columns_to_write(frame: StructType, base: Base, *, extra: bool) -> list[str]:
    """Return the columns that are written; what is not in the table may serve conditions only."""
    known = [field for field in frame.fields if field.name in base.schema.names]
    others = [field.name for field in frame.fields if field.name not in base.schema.names]
    if others and not extra:
        raise InvalidInputError(
            f"the frame does not fit the table: unexpected column {others[0]!r}"
            f"{suggestion(others[0], base.schema.names)}; drop it, or add it to the table"
        )
    check_writable(StructType(known), base.schema)
    return [field.name for field in known]


def shard_number(base: Base, routing: Routing) -> str:
    """Return the number of a row's shard, in Spark's SQL."""
    if routing.column is None:
        return "0"
    kind = spark_schema(base.schema, [routing.column]).fields[0].dataType
    value = f"cast({_quote(routing.column)} AS {_sql_type(kind)})"
    hashed = f"hash({_HASHES_TO_ZERO}, {value})"
    return f"(({hashed} & {_MOST_HASH}) % {len(routing.shards)})"


def _part(frame: StructType, base: Base, parts: int) -> str:
    """Return which entry of its shard a row goes into; the same whenever the batch is repeated.

    By the key, so that one key is in one entry; without a key by all values that Spark hashes.
    """
    kinds = {field.name: field.dataType for field in frame.fields}
    names = base.keys or [
        name for name in base.schema.names if name in kinds and not _has_map(kinds[name])
    ]
    if not names:
        return "0"
    wanted = {field.name: field.dataType for field in spark_schema(base.schema, names).fields}
    values = [f"cast({_quote(name)} AS {_sql_type(wanted[name])})" for name in names]
    return f"cast(pmod(xxhash64({', '.join(values)}), {parts}) AS int)"


def _sql_type(kind: DataType) -> str:
    """Return a type as Spark's SQL has it; its own text leaves names in structs unquoted."""
    if isinstance(kind, StructType):
        inside = (f"{_quote(one.name)}: {_sql_type(one.dataType)}" for one in kind.fields)
        return f"struct<{', '.join(inside)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_sql_type(kind.keyType)}, {_sql_type(kind.valueType)}>"
    return kind.simpleString()


def _has_map(kind: DataType) -> bool:
    inside: list[DataType] = []
    if isinstance(kind, StructType):
        inside = [field.dataType for field in kind.fields]
    element = getattr(kind, "elementType", None)
    return isinstance(kind, MapType) or any(
        map(_has_map, [*inside, *([element] if element is not None else [])])
    )


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


__all__ = ["UNSHARDED", "Frame", "Route", "Routing", "plan_route", "routing_of", "shard_number"]
