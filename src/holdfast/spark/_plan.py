"""Planning a write, on the driver and before its tasks: the table, its columns, the sizes.

A table that is not there is created here, empty: tasks then write for columns that are
decided, and a store that cannot be trusted is refused before the work is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from pyspark.sql.types import StructType

from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
)
from holdfast.formats import DATA_FOLDER, key_columns
from holdfast.spark._evolve import evolve, plan_evolution
from holdfast.spark._options import SparkOptions
from holdfast.spark._place import Place
from holdfast.spark._types import check_writable, table_schema

if TYPE_CHECKING:
    from holdfast.table import Table

    Opened = tuple[Table, lance.LanceDataset]  # a table and its newest version

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """How tasks write: the same for every attempt of every task.

    Attributes:
        place: where the table is.
        version: the version whose columns the files are written for; 0 for a new table.
        columns: the columns that are written, in the table's order and types.
        replaces: whether the rows replace all that are there.
        limits: how large files get and in which format they are, in Lance's words.
    """

    place: Place
    version: int
    columns: pa.Schema
    replaces: bool
    limits: Mapping[str, Any]


def plan_write(frame: StructType, given: SparkOptions, *, replaces: bool) -> WritePlan:
    """Make sure that the table is there and that the frame fits it; safe to call again.

    Raises:
        InvalidInputError: the frame does not fit, or cannot be stored; every reason is given.
        UnsafeStoreError: there is no table, and the store cannot decide by itself.
        HoldfastError: a store failed.
    """
    from holdfast.formats import add_key  # noqa: PLC0415 - workers do without

    place = Place.of(given)
    with _open_or_create(place, frame, given) as (table, newest):
        table.check_writable()  # before the tasks write files
        dataset = newest
        _check_key(dataset.schema, given)
        if replaces and given.get("overwriteSchema"):
            columns = add_key(table_schema(frame, given.sizes), _key_of(dataset.schema))
        else:
            if given.get("mergeSchema"):
                dataset = _widen_columns(table, frame, given)
            columns = check_writable(frame, dataset.schema)
            _check_sizes(columns, given)
            columns = dataset.schema if replaces else columns
        return WritePlan(
            place=place,
            version=int(dataset.version),
            columns=columns,
            replaces=replaces,
            limits=_limits(dataset, given),
        )


def plan_creation(frame: StructType, given: SparkOptions) -> WritePlan:
    """Return how tasks write for a table that the commit of their rows will create.

    Raises:
        InvalidInputError: the frame, or the key, cannot be stored.
    """
    from holdfast.formats import add_key  # noqa: PLC0415 - workers do without

    asked = {
        "max_rows_per_file": given.get("maxRowsPerFile"),
        "max_bytes_per_file": given.get("maxBytesPerFile"),
    }
    return WritePlan(
        place=Place.of(given),
        version=0,
        columns=add_key(table_schema(frame, given.sizes), given.get("primaryKey") or ()),
        replaces=False,
        limits={name: value for name, value in asked.items() if value is not None},
    )


def _limits(
    dataset: lance.LanceDataset, given: SparkOptions
) -> dict[str, Any]:  # Any: numbers and words
    asked = {
        "max_rows_per_file": given.get("maxRowsPerFile"),
        "max_bytes_per_file": given.get("maxBytesPerFile"),
        "data_storage_version": dataset.data_storage_version,
    }
    return {name: value for name, value in asked.items() if value is not None}


@contextmanager
def _open_or_create(place: Place, frame: StructType, given: SparkOptions) -> Iterator[Opened]:
    """Hold the table open, having created it if there is none."""
    table, dataset = _find_table(place) or _create_for(place, frame, given)
    try:
        yield table, dataset
    finally:
        table.close()


def _find_table(place: Place) -> Opened | None:
    """Return the table; None if there is none, or one that is tied and has no version yet.

    Of the latter another job is the creator, or was when it died: then we create it.
    """
    try:
        table = place.table()
    except NotFoundError:
        return None
    try:
        return _with_newest(table)
    except NotFoundError:
        # Rows come after the first version: it is there by now, or it was and is lost.
        return _with_newest(place.table()) if table.core.store.list(DATA_FOLDER) else None


def _create_for(place: Place, frame: StructType, given: SparkOptions) -> Opened:
    from holdfast.lifecycle import create_table  # noqa: PLC0415 - workers do without

    schema = table_schema(frame, given.sizes)
    try:
        table = create_table(
            place.uri,
            schema,
            primary_key=given.get("primaryKey") or (),
            commit_store=place.commit_store,
            storage_options=place.storage,
        )
    except AlreadyExistsError as error:
        try:
            table = place.table()  # another job was first
        except NotFoundError:
            raise error from None  # a plain Lance table: it says what to do
    return _with_newest(table)


def _with_newest(table: Table) -> Opened:
    """Return a table with its newest version, or close it."""
    try:
        return table, table.dataset()
    except HoldfastError:
        table.close()
        raise


def _key_of(schema: pa.Schema) -> list[str]:
    return list(key_columns(schema))


def _check_key(schema: pa.Schema, given: SparkOptions) -> None:
    asked = given.get("primaryKey")
    there = _key_of(schema)
    if asked is not None and sorted(asked) != sorted(there):
        raise InvalidInputError(
            "the table has another primary key: leave option primaryKey out",
            table=", ".join(there) or "none",
        )


def _check_sizes(columns: pa.Schema, given: SparkOptions) -> None:
    lengths = {f.name.lower(): getattr(f.type, "list_size", None) for f in columns}
    for name, size in given.sizes.items():
        if lengths.get(name) != size:
            raise InvalidInputError(
                "the table's column is no vector of this length: leave the option out",
                column=name,
                length=size,
            )


def _widen_columns(table: Table, frame: StructType, given: SparkOptions) -> lance.LanceDataset:
    """Return the newest version once its columns hold those of the frame."""
    for left in reversed(range(_TRIES)):
        dataset = table.dataset()
        evolution = plan_evolution(frame, dataset.schema, given.sizes)
        if not evolution:
            return dataset
        try:
            evolve(table, dataset, evolution)
        except ConflictError:
            if not left:
                raise
    return table.dataset()
