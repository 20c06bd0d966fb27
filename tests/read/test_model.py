"""Any mix of levels against a dictionary; and stock's own scanner where it is right."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from read.lake import Lake, in_order, row

KEYS = st.integers(0, 12)
SHARDS = 2

put = st.tuples(
    st.just("put"), st.lists(st.tuples(KEYS, st.integers(0, 5)), min_size=1, max_size=6)
)
delete = st.tuples(st.just("delete"), st.lists(KEYS, min_size=1, max_size=4))
other = st.tuples(
    st.sampled_from(["flush", "merge", "drain", "collect"]), st.integers(0, SHARDS - 1)
)
STEPS = st.lists(st.one_of(put, put, delete, other, other), min_size=1, max_size=14)


class Mix:
    """Carries out steps, each on whatever is there."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(folder, shards=SHARDS)
        self.lake.append([row(n, n, "base") for n in range(0, 12, 2)])
        self.merged = dict.fromkeys(self.lake.shards, 0)
        self.drained: dict[str, list[str]] = {shard: [] for shard in self.lake.shards}
        self.number = 0

    def do(self, verb: str, what: Any) -> None:
        lake = self.lake
        if verb == "put":
            self.number += 1
            rows = [row(k, v, f"put {self.number}") for k, v in what]
            lake.put(rows)
        elif verb == "delete":
            lake.delete(what)
        else:
            getattr(self, verb)(lake.shards[what])

    def flush(self, shard: str) -> None:
        self.lake.flush(shard)

    def merge(self, shard: str) -> None:
        manifest = self.lake.manifest(shard)
        following = self.merged[shard] + 1
        if manifest is not None and manifest.current_generation > following:
            self.lake.merge(shard, following)
            self.merged[shard] = following

    def drain(self, shard: str) -> None:
        if self.lake.manifest(shard) is not None:
            self.drained[shard] += self.lake.drain(shard, self.merged[shard])

    def collect(self, shard: str) -> None:
        if self.lake.manifest(shard) is not None:
            self.lake.collect(shard, self.drained[shard])

    def check(self) -> None:
        lake = self.lake
        wanted = in_order(lake.wanted())
        assert in_order(lake.rows()) == wanted
        assert lake.table.count() == len(wanted)
        high = [part for part in wanted if part["v"] > 2]
        assert in_order(lake.rows(filter="v > 2")) == high
        assert lake.table.count("v > 2") == len(high)
        keys = list(range(13))
        found = lake.table.lookup(keys).to_pylist()
        assert found == [lake.model[key] for key in keys if key in lake.model]

    def check_stock(self) -> None:
        """Stock reads no logs; merged SSTables hide nothing here, as the base is not changed."""
        flushed = in_order(self.lake.rows(freshness="flushed"))
        assert in_order(self.lake.stock_rows()) == flushed


@pytest.mark.requirement("W13")
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(STEPS)
def test_every_mix_of_levels_reads_as_a_dictionary(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mix = Mix(Path(folder))
        for verb, what in steps:
            mix.do(verb, what)
        mix.check()
        mix.check_stock()
        mix.lake.close()


def test_stock_agrees_on_what_stock_wrote(tmp_path: Path) -> None:
    import pyarrow as pa

    lake = Lake(tmp_path)
    (shard,) = lake.shards
    lake.append([row(n, 0) for n in range(20)])
    schema = lake.table.schema
    for number in range(1, 4):
        with lake.table.dataset().mem_wal_writer(shard, max_wal_flush_interval_ms=1) as writer:
            rows = [row(k, number) for k in range(number, 30, number)]
            writer.put(pa.Table.from_pylist(rows, schema=schema))
            writer.put(pa.Table.from_pylist([row(0, number * 10)], schema=schema))
            writer.put(pa.Table.from_pylist([row(0, number * 100)], schema=schema))
            gone = pa.table({"k": [17 + number]}, schema=pa.schema([schema.field("k")]))
            writer.delete(gone)
            lake.model.update({part["k"]: part for part in rows})
            lake.model[0] = row(0, number * 100)
            lake.model.pop(17 + number, None)
    assert in_order(lake.stock_rows()) == in_order(lake.wanted())
    assert in_order(lake.rows()) == in_order(lake.wanted())
    # What is only in stock's log is invisible to stock, not to us.
    open_writer = lake.table.dataset().mem_wal_writer(shard, max_wal_flush_interval_ms=1)
    open_writer.put(pa.Table.from_pylist([row(99, 99)], schema=schema))
    lake.model[99] = row(99, 99)
    assert in_order(lake.rows()) == in_order(lake.wanted())
    keys = list(range(31))
    found = lake.table.lookup(keys).to_pylist()
    assert found == [lake.model[key] for key in keys if key in lake.model]
    assert 99 not in {part["k"] for part in lake.stock_rows()}
    open_writer.close()
