"""Which shards a table has, and which of them a row belongs to.

A table is `unsharded`, or its rows are divided by `bucket` or by the `identity` of a column,
as its manifest records; or its shards are named by hand. Shard ids are those that LanceDB
derives, so that both find the same shards. All rows of one key go to one shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commits import Data, as_reader
from holdfast.errors import InvalidInputError
from holdfast.formats import (
    MAX_BUCKETS,
    ShardingField,
    ShardingSpec,
    bucket,
    check_shard_id,
    scalar_bytes,
    shard_id_of_bucket,
    shard_id_of_value,
    shard_id_unsharded,
)
from holdfast.shard._base import Base

UNSHARDED = "unsharded"
_FIELD_ID = "bucket"  # Lance names the value so, whatever it is made by
_BUCKET = re.compile(r"bucket-([0-9]{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One shard.

    Attributes:
        shard_id: its id.
        spec_id: the way of dividing rows that made it; 0 for by hand.
        values: what that way says of its rows, as manifests hold it.
    """

    shard_id: str
    spec_id: int = 0
    values: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How the rows of a table are divided into shards; see the class methods.

    Attributes:
        transform: `unsharded`, `bucket` or `identity`.
        column: the column it looks at; None for `unsharded`.
        buckets: how many buckets; None for others.
    """

    transform: str
    column: str | None = None
    buckets: int | None = None

    @classmethod
    def unsharded(cls) -> Sharding:
        """All rows in one shard."""
        return cls(transform=UNSHARDED)

    @classmethod
    def bucket(cls, column: str, buckets: int) -> Sharding:
        """By the hash of a column, into so many shards."""
        if not 1 <= buckets <= MAX_BUCKETS:
            raise InvalidInputError(f"a table has 1 to {MAX_BUCKETS} buckets", buckets=buckets)
        return cls(transform="bucket", column=column, buckets=buckets)

    @classmethod
    def identity(cls, column: str) -> Sharding:
        """By the value of a column, one shard each."""
        return cls(transform="identity", column=column)

    def spec(self, base: Base) -> ShardingSpec:
        """Return it as the table's manifest records it.

        Raises:
            InvalidInputError: the column is not there, or cannot divide rows, or rows of one
                key could come into two shards.
        """
        if self.column is None:
            made = ShardingField(field_id=_FIELD_ID, transform=UNSHARDED, result_type="int32")
            return ShardingSpec(spec_id=1, fields=(made,))
        if self.column not in base.schema.names:
            raise InvalidInputError("the sharding column is not there", column=self.column)
        if base.keys and self.column not in base.keys:
            raise InvalidInputError(
                "rows are divided by a column of the primary key: otherwise two rows of one key "
                "could be in two shards",
                column=self.column,
                key=", ".join(base.keys),
            )
        kind = base.schema.field(self.column).type
        if self.buckets is None:
            scalar_bytes(_some_value(kind))
            result, parameters = _type_name(kind), {}
        else:
            bucket(pa.nulls(1, kind), self.buckets)
            result, parameters = "int32", {"num_buckets": str(self.buckets)}
        made = ShardingField(
            field_id=_FIELD_ID,
            source_ids=(base.ids[self.column,],),
            transform=self.transform,
            result_type=result,
            parameters=parameters,
        )
        return ShardingSpec(spec_id=1, fields=(made,))

    @property
    def shards(self) -> int:
        """Return how many shards the table will say it has; 0 when that depends on its rows."""
        return 1 if self.transform == UNSHARDED else self.buckets or 0


def find_shard(shard: str | Shard, base: Base) -> Shard:
    """Return the shard that is meant by `unsharded`, `bucket-3` or an id.

    Raises:
        InvalidInputError: the table has no such shard.
    """
    if isinstance(shard, Shard):
        return shard
    given: object = shard
    if not isinstance(given, str):
        raise InvalidInputError(
            "a shard is `unsharded`, `bucket-3`, an id, or what a router named", shard=repr(given)
        )
    spec = _spec(base)
    if shard == UNSHARDED:
        _expect(spec, UNSHARDED, shard)
        return _shard(spec, shard_id_unsharded(), pa.scalar(0, pa.int32()))
    match = _BUCKET.fullmatch(shard)
    if match is not None:
        number = int(match[1])
        _expect(spec, "bucket", shard)
        if spec is not None and number >= _buckets(spec.fields[0]):
            raise InvalidInputError(
                "the table has fewer buckets", shard=shard, buckets=_buckets(spec.fields[0])
            )
        return _shard(spec, shard_id_of_bucket(number), pa.scalar(number, pa.int32()))
    return Shard(shard_id=check_shard_id(shard))


class Router:
    """Divides rows among the shards of a table; made by `Table.router`.

    Raises:
        InvalidInputError: the table's shards are named by hand, or in a way not known here.
    """

    def __init__(self, base: Base) -> None:
        spec = _spec(base)
        if spec is None:
            raise InvalidInputError(
                "this table's shards are named by hand: say how rows are divided with "
                "table.prepare_writers(sharding=...) before its first writer"
            )
        self._spec = spec
        self._field = spec.fields[0]
        self._schema = base.schema
        self._column = _column_of(self._field, base)

    def __repr__(self) -> str:
        return f"Router({self._field.transform}, {self._column})"

    @property
    def column(self) -> str | None:
        """Return the column that rows are divided by; None when there is one shard."""
        return self._column

    def shards(self) -> list[Shard]:
        """Return all shards.

        Raises:
            InvalidInputError: rows are divided by their values: there are as many as values.
        """
        if self._field.transform == UNSHARDED:
            return [self._of(pa.scalar(0, pa.int32()))]
        if self._field.transform != "bucket":
            raise InvalidInputError("rows are divided by value: every new value is a new shard")
        return [self._of(pa.scalar(n, pa.int32())) for n in range(_buckets(self._field))]

    def split(self, data: Data) -> list[tuple[Shard, pa.Table]]:
        """Return the rows of each shard; their order within a shard stays.

        Raises:
            InvalidInputError: columns that do not fit, or a null in the sharding column.
        """
        rows = as_reader(data, self._schema).read_all()
        return [(self._of(value), part) for value, part in self._parts(rows) if part.num_rows]

    def _parts(self, rows: pa.Table) -> Iterator[tuple[pa.Scalar, pa.Table]]:
        if self._column is None:
            yield pa.scalar(0, pa.int32()), rows
            return
        column = rows[self._column].combine_chunks()
        if self._field.transform == "bucket":
            numbers = pa.array(bucket(column, _buckets(self._field)))
        else:
            numbers = column
        for value in pc.unique(numbers):
            same = pc.equal(numbers, value) if value.is_valid else numbers.is_null()
            yield value, rows.filter(same)

    def _of(self, value: pa.Scalar) -> Shard:
        if self._field.transform == UNSHARDED:
            return _shard(self._spec, shard_id_unsharded(), value)
        if self._field.transform == "bucket":
            return _shard(self._spec, shard_id_of_bucket(int(value.as_py())), value)
        return _shard(self._spec, shard_id_of_value(value), value)


class Members:
    """Tells whether rows belong to one shard, by the table's own way of dividing them.

    Anything does where shards are named by hand, or rows are divided in a way not known here.

    Args:
        base: the table.
        shard_id: the shard.
    """

    def __init__(self, base: Base, shard_id: str) -> None:
        self._shard_id = shard_id
        self._keys = base.keys
        self._field: ShardingField | None = None
        self._column: str | None = None
        specs = () if base.details is None else base.details.sharding_specs
        if specs and _is_known(specs[-1]):
            self._field = specs[-1].fields[0]
            self._column = _find_column(self._field, base)
        self._bucket = self._own_bucket()

    def check(self, rows: pa.RecordBatch, *, deleted: bool = False) -> None:
        """Refuse rows of other shards: of two rows of one key in two shards, the older may win.

        Args:
            rows: what is to be written.
            deleted: they have their keys only. Stock also divides rows by other columns.

        Raises:
            InvalidInputError: there are some.
        """
        field = self._field
        if field is None:
            return
        if field.transform == UNSHARDED:
            belong = self._shard_id == shard_id_unsharded()
        elif self._column is None or (deleted and self._column not in self._keys):
            return  # it was dropped, or is not in these rows: nothing tells
        elif field.transform == "bucket":
            numbers = bucket(rows[self._column], _buckets(field))
            belong = self._bucket is not None and bool((numbers == self._bucket).all())
        else:
            values = pc.unique(rows[self._column])
            belong = all(shard_id_of_value(value) == self._shard_id for value in values)
        if not belong:
            raise InvalidInputError(
                "these rows belong to another shard, and a newer row could be hidden by an older "
                "one: divide rows with table.router().split(rows) and put each part through the "
                "writer of its shard",
                shard_id=self._shard_id,
                sharding=field.transform,
                column=self._column,
            )

    def _own_bucket(self) -> int | None:
        if self._field is None or self._field.transform != "bucket":
            return None
        for number in range(_buckets(self._field)):
            if shard_id_of_bucket(number) == self._shard_id:
                return number
        return None


def _is_known(spec: ShardingSpec) -> bool:
    """Tell whether rows are divided in a way that is known here."""
    known = {UNSHARDED, "bucket", "identity"}
    return len(spec.fields) == 1 and spec.fields[0].transform in known


def _shard(spec: ShardingSpec | None, shard_id: str, value: pa.Scalar) -> Shard:
    if spec is None:
        return Shard(shard_id=shard_id)
    values = ((spec.fields[0].field_id, scalar_bytes(value)),)
    return Shard(shard_id=shard_id, spec_id=spec.spec_id, values=values)


def _spec(base: Base) -> ShardingSpec | None:
    specs = () if base.details is None else base.details.sharding_specs
    if not specs:
        return None
    spec = specs[-1]
    if not _is_known(spec):
        raise InvalidInputError(
            "the table divides its rows in a way that is not known here: name shards by their ids",
            spec_id=spec.spec_id,
        )
    return spec


def _expect(spec: ShardingSpec | None, transform: str, shard: str) -> None:
    if spec is not None and spec.fields[0].transform != transform:
        raise InvalidInputError(
            "the table divides its rows in another way",
            shard=shard,
            sharding=spec.fields[0].transform,
        )


def _buckets(field: ShardingField) -> int:
    return int(field.parameters["num_buckets"])


def _column_of(field: ShardingField, base: Base) -> str | None:
    column = _find_column(field, base)
    if column is None and field.source_ids:
        raise InvalidInputError("the table's sharding column was dropped", field_id=field.field_id)
    return column


def _find_column(field: ShardingField, base: Base) -> str | None:
    """Return the column that rows are divided by; None if there is none, or none any more."""
    for path, number in base.ids.items():
        if field.source_ids and number == field.source_ids[0] and len(path) == 1:
            return path[0]
    return None


def _some_value(kind: pa.DataType) -> pa.Scalar:
    """Return a value of a type, to see whether it can divide rows."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return pa.scalar(np.int64(0)).cast(kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(b"", kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar("", kind)
    raise InvalidInputError("rows are not divided by a column of this type", type=str(kind))


def _type_name(kind: pa.DataType) -> str:
    """Return a type as Lance's sharding names it."""
    return {"string": "utf8", "large_string": "large_utf8", "bool": "bool"}.get(
        str(kind), str(kind)
    )
