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
from pyspark.sql.types import DataType, MapType, StructType

from holdfast.errors import InvalidInputError
from holdfast.formats import shard_id_unsharded
from holdfast.options import suggestion
from holdfast.shard import UNSHARDED, Base, Router, Shard, find_shard
from holdfast.spark._ingest_work import DELETED, ORDER, PART, SHARD
from holdfast.spark._types import check_writable, spark_schema

Frame: TypeAlias = Any
"""A DataFrame, classic or of Spark Connect: they share no class."""
Column: TypeAlias = Any
"""A column of one."""

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


def routed(
    df: Frame,
    base: Base,
    routing: Routing,
    *,
    deletes: str | None,
    order_by: Sequence[str],
    parts: int,
    wanted: Sequence[int],
) -> Frame:
    """Return the rows of the shards that want some, one partition for each of all shards.

    Raises:
        InvalidInputError: the frame does not fit the table.
    """
    kept = _kept(df.schema, base, extra=bool(deletes or order_by))
    columns = [f.col(_quoted(name)) for name in kept]
    columns.append(_number(base, routing).alias(SHARD))
    if deletes is not None:
        columns.append(f.coalesce(f.expr(deletes).cast("boolean"), f.lit(False)).alias(DELETED))
    columns += [f.expr(text).alias(f"{ORDER}{n}") for n, text in enumerate(order_by)]
    if parts > 1:
        columns.append(_part(df.schema, base, parts).alias(PART))
    frame = df.select(*columns)
    if len(wanted) < len(routing.shards):
        frame = frame.where(f.col(SHARD).isin(*wanted))
    if len(routing.shards) == 1:
        return frame.repartition(1)
    return frame.repartitionById(len(routing.shards), f.col(SHARD))


def _kept(frame: StructType, base: Base, *, extra: bool) -> list[str]:
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


def _number(base: Base, routing: Routing) -> Column:
    """Return the number of a row's shard."""
    if routing.column is None:
        return f.lit(0)
    kind = spark_schema(base.schema, [routing.column]).fields[0].dataType
    value = f.col(_quoted(routing.column)).cast(kind)
    hashed = f.hash(f.lit(_HASHES_TO_ZERO), value)
    return hashed.bitwiseAND(f.lit(_MOST_HASH)) % f.lit(len(routing.shards))


def _part(frame: StructType, base: Base, parts: int) -> Column:
    """Return which entry of its shard a row goes into; the same whenever the batch is repeated.

    By the key, so that one key is in one entry; without a key by all values that Spark hashes.
    """
    kinds = {field.name: field.dataType for field in frame.fields}
    names = base.keys or [
        name for name in base.schema.names if name in kinds and not _has_map(kinds[name])
    ]
    if not names:
        return f.lit(0)
    wanted = {field.name: field.dataType for field in spark_schema(base.schema, names).fields}
    values = [f.col(_quoted(name)).cast(wanted[name]) for name in names]
    return f.pmod(f.xxhash64(*values), f.lit(parts)).cast("int")


def _has_map(kind: DataType) -> bool:
    inside: list[DataType] = []
    if isinstance(kind, StructType):
        inside = [field.dataType for field in kind.fields]
    element = getattr(kind, "elementType", None)
    return isinstance(kind, MapType) or any(
        map(_has_map, [*inside, *([element] if element is not None else [])])
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


__all__ = ["UNSHARDED", "Frame", "Routing", "routed", "routing_of"]
