"""Writers against a dictionary: puts, deletes, flushes, crashes and fences in any order."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from lance.mem_wal import LsmPointLookupPlanner

import holdfast
from holdfast.errors import FencedError
from holdfast.shard import PutResult, ShardWriter, ShardWriterConfig
from shard.levels import (
    KEYED,
    PLAIN,
    counted,
    flushed_rows,
    held_rows,
    logged_rows,
    newest,
    stock_rows,
    tables_of,
)
from shard.lsm import snapshot

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A place where fsync costs little: crashes of the machine are not part of the model."""

keys = st.integers(0, 12)
rows = st.lists(st.tuples(keys, st.text("abc", max_size=3)), min_size=1, max_size=6)


class Writers(RuleBasedStateMachine):
    """One shard, written by one writer after the other."""

    keyed = True
    memtable = True

    @initialize(limit=st.integers(2, 30), sync=st.booleans(), deferred=st.integers(0, 5))
    def begin(self, limit: int, sync: bool, deferred: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-model-", dir=MEMORY))
        schema = KEYED if self.keyed else PLAIN
        self.table = holdfast.create_table(self.folder / "t", schema)
        self.config = ShardWriterConfig(
            enable_memtable=self.memtable,
            max_memtable_rows=limit,
            sync_indexed_write=sync,
            async_index_buffer_rows=deferred,
        )
        self.model: dict[int, str] = {}
        self.bag: Counter[tuple[int, str]] = Counter()
        self.futures: list[Future[PutResult]] = []
        self.last = 0
        self.writer = self.table.claim_writer("unsharded", config=self.config)

    def write(self, given: list[tuple[int, str]]) -> None:
        self.model.update(given)
        self.bag.update(given)

    def settle(self) -> None:
        for future in self.futures:
            position = future.result().position
            assert position is not None and position >= self.last
            self.last = position
        self.futures.clear()

    @rule(given=rows)
    def put(self, given: list[tuple[int, str]]) -> None:
        self.settle()
        position = self.writer.put([{"k": k, "v": v} for k, v in given]).position
        assert position is not None and position > self.last
        self.last = position
        self.write(given)

    @rule(given=rows)
    def put_nowait(self, given: list[tuple[int, str]]) -> None:
        self.futures.append(self.writer.put_nowait([{"k": k, "v": v} for k, v in given]))
        self.write(given)

    @precondition(lambda self: self.keyed)
    @rule(gone=st.lists(keys, min_size=1, max_size=4))
    def delete(self, gone: list[int]) -> None:
        self.writer.delete_keys(gone)
        for key in gone:
            self.model.pop(key, None)

    @precondition(lambda self: self.memtable)
    @rule()
    def flush(self) -> None:
        self.settle()
        self.writer.flush()
        assert held_rows(self.writer) == []

    @rule(flush=st.booleans())
    def close_and_open(self, flush: bool) -> None:
        self.writer.close(flush=flush)
        self.settle()
        self.reopen()

    @rule()
    def crash_and_open(self) -> None:
        self.settle()
        self.writer.abort()
        self.reopen()

    @precondition(lambda self: self.keyed)
    @rule()
    def let_stock_take_over(self) -> None:
        """Stock replays what is in the log, sees every row, and flushes it when it closes."""
        self.settle()
        self.writer.abort()
        with lance.dataset(self.table.uri).mem_wal_writer(self.writer.shard_id) as stock:
            assert newest(stock.lsm_scanner().to_table().to_pylist()) == self.model
        self.reopen()

    @rule(given=rows)
    def fence(self, given: list[tuple[int, str]]) -> None:
        self.settle()
        old = self.writer
        self.reopen()
        with pytest.raises(FencedError) as caught:
            old.put([{"k": k, "v": v} for k, v in given])
        lost: Any = caught.value.unacknowledged
        (batch,) = lost
        assert [(r["k"], r["v"]) for r in batch.to_pylist()] == given
        for call in (old.stats, old.wal_stats):
            call()
        if self.memtable:
            with pytest.raises(FencedError):
                old.scan()
        old.abort()

    def reopen(self) -> None:
        self.writer = self.table.claim_writer("unsharded", config=self.config)
        self.last = 0
        assert self.writer.wal_stats().next_position >= 2

    @rule()
    def read_everything(self) -> None:
        self.settle()
        shard = self.writer.shard_id
        for _ in range(20):
            before = tables_of(self.table, shard)
            flushed = flushed_rows(self.table, shard)
            logged = logged_rows(self.table, shard)
            if tables_of(self.table, shard) == before:
                break
        if self.keyed:
            assert newest([*flushed, *logged]) == self.model
        else:
            assert counted([*flushed, *logged]) == self.bag

    @precondition(lambda self: self.memtable and self.keyed)
    @rule(key=keys)
    def look_up(self, key: int) -> None:
        self.settle()
        while True:  # a flush may take rows out of memory between the two
            frozen = self.writer.memtable_stats().frozen
            found = self.writer.lookup([key]).to_pylist()
            scanned = self.writer.to_table(filter=f"k = {key}").to_pylist()
            if self.writer.memtable_stats().frozen == frozen:
                break
        if found:
            assert found == [{"k": key, "v": self.model[key]}]
        assert [r["v"] for r in scanned] == [r["v"] for r in found]

    @invariant()
    def memory_is_part_of_the_model(self) -> None:
        if self.memtable and self.keyed and not self.futures:
            for row in held_rows(self.writer):
                assert self.model[row["k"]] == row["v"]

    def teardown(self) -> None:
        if not hasattr(self, "writer"):
            return
        try:
            self.settle()
            self.writer.close()
            if not self.memtable:  # what was only logged becomes readable for everyone
                self.table.claim_writer("unsharded").close()
            check_with_stock(self)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def check_with_stock(world: Writers) -> None:
    """Every reader there is sees the same rows."""
    table, shard = world.table, world.writer.shard_id
    if not world.keyed:  # stock's scanner refuses tables without a key
        assert counted(flushed_rows(table, shard)) == world.bag
        return
    assert newest(stock_rows(table, shard)) == world.model
    assert len(stock_rows(table, shard)) == len(world.model)
    database = lancedb.connect(str(Path(table.uri).parent))
    shutil.copytree(table.uri, Path(table.uri).parent / "copy.lance")
    assert newest(database.open_table("copy").to_arrow().to_pylist()) == world.model
    planner = LsmPointLookupPlanner(
        lance.dataset(table.uri), [snapshot(shard, tables_of(table, shard))]
    )
    for key in range(13):
        found = planner.plan_lookup(pa.array([key])).to_table().to_pylist()
        expected = [world.model[key]] if key in world.model else []
        assert [row["v"] for row in found] == expected
    with lance.dataset(table.uri).mem_wal_writer(shard) as writer:
        assert newest(writer.lsm_scanner().to_table().to_pylist()) == world.model


def machine(*, keyed: bool, memtable: bool) -> Any:
    name = f"{'Keyed' if keyed else 'Plain'}{'MemTable' if memtable else 'Log'}"
    made: Any = type(name, (Writers,), {"keyed": keyed, "memtable": memtable})
    case = made.TestCase
    case.settings = settings(
        max_examples=30,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return pytest.mark.requirement("W1", "W8", "W11", "W13")(case)


TestKeyedMemTable = machine(keyed=True, memtable=True)
TestPlainMemTable = machine(keyed=False, memtable=True)
TestKeyedLog = machine(keyed=True, memtable=False)
TestPlainLog = machine(keyed=False, memtable=False)


def test_the_model_notices_a_writer_that_forgets(tmp_path: Path) -> None:
    """The check itself: a row that the model has and the shard has not."""
    table = holdfast.create_table(tmp_path / "t", KEYED)
    writer: ShardWriter = table.claim_writer("unsharded")
    writer.put([{"k": 1, "v": "a"}])
    writer.close()
    assert newest(stock_rows(table, writer.shard_id)) == {1: "a"} != {1: "a", 2: "b"}
