"""Any columns, any values, any layout, on every way in and out, against a model."""

from __future__ import annotations

import os
import random
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.formats._content import has_narrow_indices
from holdfast.shard import ShardWriterConfig
from lsm.any_data import LAYOUTS, Column, Rng, any_array, any_column, meaning, paths, seen_as

pytestmark = [pytest.mark.requirement("P5"), pytest.mark.requirement("W13")]

LONG = "HOLDFAST_EXPLORE" in os.environ
SHARD = "unsharded"
KEY_KINDS = [pa.int64(), pa.int32(), pa.uint64(), pa.string(), pa.binary(), pa.large_string()]
ODD_NAMES = ["a b", "select", "é", 'q"q', "x-y", "UPPER", "_rowid2", "0", "it's"]


class World:
    """A table, its writer if there is one, and the rows that it must hold."""

    def __init__(self, folder: Path, rng: Rng) -> None:
        self.rng = rng
        names = [f"c{at}" for at in range(rng.randint(1, 4))]
        if rng.random() < 0.3:
            names[0] = rng.choice(ODD_NAMES)
        self.key = Column("k", rng.choice(KEY_KINDS), nullable=False)
        self.columns = [self.key, *(any_column(rng, name) for name in names)]
        rng.shuffle(self.columns)
        self.rows: dict[Any, dict[int, Any]] = {}
        self.table = holdfast.create_table(folder / "t", self.schema(), primary_key=["k"])
        self.writer: Any = None
        self.known: list[Column] = []
        self.made = 0
        self.told: list[str] = []

    def schema(self, columns: list[Column] | None = None) -> pa.Schema:
        return pa.schema([column.field for column in columns or self.columns])

    def data(self, columns: list[Column], count: int, keys: list[Any]) -> pa.Table:
        """Return rows in some layout."""

        def make(rows: int, numbers: list[Any]) -> pa.Table:
            arrays = [
                pa.array(numbers, one.type) if one.uid == self.key.uid
                else any_array(self.rng, one, rows)
                for one in columns
            ]  # fmt: skip
            return pa.Table.from_arrays(arrays, schema=self.schema(columns))

        plain = make(count, keys)
        layout = self.rng.choice(LAYOUTS)
        self.log(f"{count} rows, {layout.__name__}")
        return layout(self.rng, plain, lambda n: make(n, [self.new_key() for _ in range(n)]))

    def log(self, what: str) -> None:
        self.told.append(what)

    def new_key(self) -> Any:
        self.made += 1
        text = f"key {self.made}"
        if pa.types.is_integer(self.key.kind):
            return self.made
        return text.encode() if pa.types.is_binary(self.key.kind) else text

    def remember(self, data: pa.Table, columns: list[Column]) -> None:
        for row in data.to_pylist():
            known = {one.uid: meaning(row[one.name], one) for one in columns}
            self.rows[row["k"]] = known

    # Steps.

    def append(self) -> None:
        count = self.rng.randint(1, 64)
        data = self.data(self.columns, count, [self.new_key() for _ in range(count)])
        self.table.append(data)
        self.remember(data, self.columns)

    def put(self) -> None:
        writer = self.writer or self.claim()
        count = self.rng.randint(1, 64)
        old = [key for key in self.rows if self.rng.random() < 0.3][: count // 2]
        keys = old + [self.new_key() for _ in range(count - len(old))]
        data = self.data(self.known, count, keys)
        writer.put(data)
        self.remember(data, self.known)

    def delete(self) -> None:
        writer = self.writer or self.claim()
        keys = [key for key in self.rows if self.rng.random() < 0.2] or [self.new_key()]
        writer.delete_keys(keys)
        for key in keys:
            self.rows.pop(key, None)

    def claim(self) -> Any:
        self.close()
        memtable = self.memtable = self.rng.random() < 0.7
        self.known = [column.copy() for column in self.columns]
        config = ShardWriterConfig(enable_memtable=memtable)
        self.writer = self.table.claim_writer(SHARD, config=config)
        self.shard = self.writer.shard_id
        self.log(f"claimed, memtable={memtable}")
        return self.writer

    def close(self) -> None:
        if self.writer is not None:
            writer, self.writer = self.writer, None
            if self.rng.random() < 0.4:
                writer.abort()
            else:
                writer.close(flush=self.rng.random() < 0.5)

    def flush(self) -> None:
        if self.writer is not None and self.memtable:
            self.writer.flush()

    def flush_log(self) -> None:
        self.close()
        if hasattr(self, "shard"):
            self.table.flush_log(self.shard, idle=timedelta(0))

    def merge(self) -> None:
        self.table.compact_lsm()

    def compact(self) -> None:
        self.table.dataset().optimize.compact_files()

    def rename(self) -> None:
        """Give a field another name, or let two trade names."""
        places = [("", self.columns), *paths(self.columns)]
        prefix, fields = self.rng.choice(places)
        chosen = [one for one in fields if one is not self.key and "." not in one.name]
        if not chosen:
            return
        one = self.rng.choice(chosen)
        other = self.rng.choice(chosen)
        names = [(one, f"n{self.made}")]
        if other is not one:
            names = [(one, "_for_a_while"), (other, one.name), (one, other.name)]
        for column, name in names:
            self.log(f"rename {prefix}{column.name} to {name}")
            change: Any = {"path": prefix + column.name, "name": name}
            self.table.dataset().alter_columns(change)
            column.name = name
        self.made += 1

    def drop(self) -> None:
        places = [("", self.columns), *paths(self.columns)]
        prefix, fields = self.rng.choice(places)
        chosen = [one for one in fields if one is not self.key]
        if len(fields) < 3 or not chosen:
            return
        one = self.rng.choice(chosen)
        self.log(f"drop {prefix}{one.name}")
        self.table.dataset().drop_columns([prefix + one.name])
        fields.remove(one)

    def add(self) -> None:
        self.made += 1
        column = any_column(self.rng, f"added{self.made}", depth=1)
        column.nullable = True
        if has_narrow_indices(column.type):
            return  # Lance adds it as it is, and then the table can have no log
        self.log(f"add {column.field}")
        self.table.dataset().add_columns(column.field)
        self.columns.append(column)

    def check(self) -> None:
        table = self.table
        wanted = {
            key: {one.uid: seen_as(row.get(one.uid), one) for one in self.columns}
            for key, row in self.rows.items()
        }
        for data in (table.to_table(), pa.Table.from_batches(table.scan(), table.schema)):
            data.validate(full=True)
            assert self.meant(data) == wanted
        assert table.count() == len(wanted)
        keys = list(wanted)[:5]
        assert self.meant(table.lookup(keys)) == {key: wanted[key] for key in keys}
        stock = lance.dataset(table.uri).to_table()
        assert self.meant(stock) == self.meant(table.to_table(freshness="base"))
        if self.writer is not None and self.memtable:
            assert self.writer.lookup(keys).num_rows <= len(keys)

    def meant(self, data: pa.Table) -> dict[Any, Any]:
        rows = data.to_pylist()
        found = {
            row["k"]: {one.uid: meaning(row[one.name], one) for one in self.columns} for row in rows
        }
        assert len(found) == len(rows), "a key is there twice"
        return found


STEPS = ["append", "put", "put", "put", "delete", "flush", "flush_log", "merge", "compact",
         "claim", "rename", "rename", "drop", "add"]  # fmt: skip


def play(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), rng)
        world.log(str(world.schema()))
        try:
            for _ in range(steps):
                step = rng.choice(STEPS)
                world.log(step)
                getattr(world, step)()
                world.check()
            world.close()
            world.merge()
            world.flush_log()
            world.merge()
            world.check()
        except BaseException as error:
            error.add_note("\n".join(world.told))
            raise
        finally:
            if world.writer is not None:
                world.writer.abort()


@settings(
    max_examples=300 if LONG else 6,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_any_table_against_a_model(seed: int) -> None:
    play(seed, 12)
