"""What merging generations into the base costs beside pylance's merge_insert.

    ./run bench lsm_merge [--base N] [--changes N] [--spark] [--json FILE]

One table on local disk with a key; changes in five generations, a tenth of them new keys. Each
way starts from its own copy of the same base and the same SSTables, one after the other:

- stock: `merge_insert(key).when_matched_update_all().when_not_matched_insert_all()` per
  generation, marked as compacted, as stock Lance documents it;
- holdfast: `Table.compact_lsm`, all generations in one commit;
- holdfast, one by one: the same with one commit per generation;
- spark 1, spark 2: `holdfast.spark.table(...).compact_lsm()` on so many cores (`--spark`).

Peak memory is the growth of the process's resident set, sampled while it merges. Rows must
come out equal.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Self

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.mem_wal import CompactedSsTable

import holdfast
from _measuring import write_json
from holdfast.formats._shard_manifest import ShardManifest, SsTable
from holdfast.formats._sstable import TOMBSTONE, sstable_path
from holdfast.shard._base import read_log_base
from holdfast.shard._sstables import sstables_of
from holdfast.wal import ShardManifests

GENERATIONS = 5
NEW = 10  # every so manieth change is a new key
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("text", pa.string())])
Way = Callable[[Path, str], float | None]
"""Merges a table's shard; returns the seconds that count, if not all do."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Peak:
    """The growth of this process's resident memory while it is open."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._before = self._most = _resident()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.01):
            self._most = max(self._most, _resident())

    @property
    def mebibytes(self) -> float:
        return (self._most - self._before) / 2**20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def rows(keys: np.ndarray, label: str) -> pa.Table:
    text = pa.array([f"{label} {key}" for key in keys])
    return pa.table({"k": keys, "v": keys.astype(np.float64), "text": text})


def build(folder: Path, base: int, changes: int) -> str:
    """Make the table and its generations; return the shard."""
    table = holdfast.create_table(folder, SCHEMA, primary_key=["k"])
    for start in range(0, base, 1_000_000):
        table.append(rows(np.arange(start, min(base, start + 1_000_000)), "base"))
    table.dataset().initialize_mem_wal(maintained_indexes=[])
    shard, random = str(uuid.uuid4()), np.random.default_rng(7)
    manifests = ShardManifests(table.core, shard)
    epoch = manifests.claim().writer_epoch
    known, sstables = read_log_base(table.core, table.dataset()), sstables_of(table.core)
    for generation in range(1, GENERATIONS + 1):
        count = changes // GENERATIONS
        old = random.choice(base, count - count // NEW, replace=False)
        new = base + generation * count + np.arange(count // NEW)
        made = rows(np.concatenate([old, new]), f"generation {generation}")
        made = made.append_column(TOMBSTONE, pa.array(np.zeros(count, bool)))
        written = sstables.write(known, shard, generation, made.cast(known.storage_schema))
        manifests.update(epoch, functools.partial(_published, written))
    return shard


def _published(written: SsTable, manifest: ShardManifest) -> ShardManifest:
    sstables = (*manifest.sstables, written)
    return replace(manifest, sstables=sstables, current_generation=written.generation + 1)


def by_stock(folder: Path, shard: str) -> None:
    table = holdfast.open_table(folder)
    current = ShardManifests(table.core, shard).latest()
    assert current is not None
    for one in current.sstables:
        source = lance.dataset(str(folder / sstable_path(shard, one.path)))
        merge = table.dataset().merge_insert("k").when_matched_update_all()
        merge = merge.when_not_matched_insert_all()
        merge = merge.mark_sstables_as_compacted([CompactedSsTable(shard, one.generation)])
        columns = ["k", "v", "text"]
        merge.execute(source.scanner(columns=columns).to_reader(), schema=table.schema)


def by_holdfast(folder: Path, _shard: str) -> None:
    holdfast.open_table(folder).compact_lsm()


def one_by_one(folder: Path, _shard: str) -> None:
    holdfast.open_table(folder).compact_lsm(rows_at_once=1)


def by_spark(cores: int, folder: Path, _shard: str) -> float:
    """Merge by Spark; return the seconds, without those of its start."""
    import holdfast.spark

    session = holdfast.spark.session(f"local[{cores}]", name="bench")
    session.range(1).collect()
    begun = time.monotonic()
    holdfast.spark.table(session, folder).compact_lsm()
    seconds = time.monotonic() - begun
    session.stop()
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=int, default=5_000_000)
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    ways: dict[str, Way] = {
        "stock": by_stock,
        "holdfast": by_holdfast,
        "holdfast, one by one": one_by_one,
    }
    with tempfile.TemporaryDirectory() as temporary:
        origin = Path(temporary, "origin")
        shard = build(origin, given.base, given.changes)
        print(f"{given.changes:,} changes in {GENERATIONS} generations into {given.base:,} rows")
        measurements = Measurements(origin, shard, given.changes)
        for name, way in ways.items():
            measurements.run(name, way)
        for cores in (1, 2) if given.spark else ():
            measurements.run(f"spark {cores}", functools.partial(by_spark, cores))
    if given.json:
        write_json(given.json, [{"way": k, **v} for k, v in measurements.results.items()])


class Measurements:
    """Runs each way on a copy of the same table."""

    def __init__(self, origin: Path, shard: str, changes: int) -> None:
        self._origin = origin
        self._shard = shard
        self._changes = changes
        self._expected: int | None = None
        self.results: dict[str, dict[str, float]] = {}

    def run(self, name: str, way: Way) -> None:
        """Run one way, check its rows, and print it beside stock."""
        copy = self._origin.parent / "copy"
        shutil.copytree(self._origin, copy)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            seconds, mebibytes = pool.submit(_timed, way, copy, self._shard).result()
        found = _rows_in(copy)
        assert self._expected in {None, found}, f"{name} made other rows"
        self._expected = found
        shutil.rmtree(copy)
        rate = self._changes / seconds
        self.results[name] = {"seconds": seconds, "rows_per_s": rate, "mib": mebibytes}
        ratio = self.results["stock"]["seconds"] / seconds
        print(
            f"  {name:<22} {seconds:7.2f} s {rate:12,.0f} rows/s {ratio:6.2f}x stock "
            f"{mebibytes:8,.0f} MiB",
            flush=True,
        )


def _timed(way: Way, folder: Path, shard: str) -> tuple[float, float]:
    """Run one way in a process of its own, so that its memory is its own."""
    begun = time.monotonic()
    with Peak() as peak:
        counted = way(folder, shard)
    seconds = time.monotonic() - begun if counted is None else counted
    return seconds, peak.mebibytes


def _rows_in(folder: Path) -> int:
    table = lance.dataset(str(folder)).to_table(columns=["k", "text"]).sort_by("k")
    assert pc.count_distinct(table["k"]).as_py() == table.num_rows, "a key is there twice"
    return hash(tuple(table["text"][::97].to_pylist()))


if __name__ == "__main__":
    main()
