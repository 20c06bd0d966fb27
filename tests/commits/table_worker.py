"""What worker processes do with a table; importable by its plain name. Spawned, never forked."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import lance
import pyarrow as pa

import holdfast
from holdfast.arbiter import SupportsSetUp, connect_commit_store
from holdfast.errors import AlreadyExistsError, HoldfastError
from holdfast.txn import TxnLike

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a table is or will be, as plain values that travel."""

    uri: str
    commit_store: str | None = None
    options: dict[str, str] = field(default_factory=dict)

    def create(self, *, primary_key: Sequence[str] = ()) -> holdfast.Table:
        return holdfast.create_table(
            self.uri,
            SCHEMA,
            primary_key=primary_key,
            commit_store=self.commit_store,
            storage_options=self.options,
        )

    def open(self) -> holdfast.Table:
        return holdfast.open_table(self.uri, self.options, commit_store=self.commit_store)

    def stock(self, version: int | None = None) -> lance.LanceDataset:
        """Open the table with stock pylance, as anybody can."""
        return lance.dataset(self.uri, version=version, storage_options=self.options or None)

    def ids(self, version: int | None = None) -> list[int]:
        return sorted(self.stock(version).to_table()["id"].to_pylist())


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {i}" for i in ids]})


def set_up(url: str) -> str:
    store = connect_commit_store(url)
    assert isinstance(store, SupportsSetUp)
    store.set_up()
    store.close()
    return url


@contextlib.contextmanager
def spawned(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes that have imported Lance, and end them."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn) as pool:
        yield pool


# What the processes run.

# Lance gives up a commit that conflicts too often, or for too long: on a slow machine it does.
_GAVE_UP = re.compile("conflict|too many concurrent writers", re.IGNORECASE)


def append_one(table: holdfast.Table, number: int, txn: TxnLike | None = None) -> bool:
    """Append one row to a table that travelled here."""
    return table.append(rows(number), txn=txn).applied


def append_each(place: Place, numbers: Sequence[int]) -> tuple[list[int], list[str]]:
    """Append rows one by one; return which were acknowledged, and the kinds of the errors."""
    acknowledged, errors = [], []
    table = place.open()
    for number in numbers:
        try:
            table.append(rows(number), txn=(f"job {number}", 0) if number % 2 else f"w{number}")
            acknowledged.append(number)
        except HoldfastError as error:
            errors.append(f"{error.kind.value}: {error}")
    table.close()
    return acknowledged, errors


def append_plain(place: Place, numbers: Sequence[int]) -> tuple[list[int], list[str]]:
    """Append rows one by one without a transaction id: nothing to fall back on."""
    table = place.open()
    for number in numbers:
        table.append(rows(number))
    return list(numbers), []


def create_or_lose(place: Place) -> str:
    try:
        place.create()
    except AlreadyExistsError:
        return "exists"
    return "created"


def write_by_namespace(tables: Any, name: str, numbers: Sequence[int]) -> list[int]:
    """Append with stock pylance calls alone, as another engine would."""
    waiting = list(numbers)
    while waiting:
        row = rows(waiting[0])
        try:
            lance.write_dataset(row, namespace_client=tables, table_id=[name], mode="append")
        except OSError as error:
            if not _GAVE_UP.search(str(error)):
                raise
        else:
            del waiting[0]
    return list(numbers)


def write_with_stock(place: Place, numbers: Sequence[int]) -> list[int]:
    """Append past Holdfast; return what stock pylance acknowledged."""
    acknowledged = []
    for number in numbers:
        with contextlib.suppress(OSError):
            lance.write_dataset(
                rows(number), place.uri, mode="append", storage_options=place.options or None
            )
            acknowledged.append(number)
    return acknowledged


def operate(place: Place, kind: str, numbers: Sequence[int]) -> list[int]:
    """Do one kind of operation for each number; return those that were acknowledged."""
    table = place.open()
    acknowledged = []
    for number in numbers:
        if kind == "append":
            table.append(rows(number), txn=f"append {number}")
            acknowledged.append(number)
            continue
        try:
            _OPERATIONS[kind](table.dataset(), number)
        except OSError as error:
            if not _GAVE_UP.search(str(error)):
                raise
        else:
            acknowledged.append(number)
    return acknowledged


def _merge(dataset: lance.LanceDataset, number: int) -> None:
    by_id = dataset.merge_insert("id")
    by_id.when_matched_update_all().when_not_matched_insert_all().execute(
        rows(number), schema=KEYED
    )


KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
_OPERATIONS: dict[str, Callable[[lance.LanceDataset, int], object]] = {
    "merge_insert": _merge,
    "update": lambda d, n: d.update({"text": "'updated'"}, where=f"id = {n}"),
    "delete": lambda d, n: d.delete(f"id = {n}"),
    "compact": lambda d, _: d.optimize.compact_files(),
    "index": lambda d, _: d.create_scalar_index("id", "BTREE", replace=True),
}
