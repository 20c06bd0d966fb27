"""Readers beside live writers and mergers; and tables on S3, with a commit store or without."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import SupportsSetUp, connect_commit_store
from holdfast.testing import FaultyS3

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
WRITES = 60


class Moving:
    """A writer whose rows a merger moves into the base.

    Write n sets key `a` to n and adds key `w<n>`.
    """

    def __init__(self, table: holdfast.Table) -> None:
        self.table = table
        self.acknowledged = 0
        self.done = threading.Event()

    def write(self) -> None:
        try:
            with self.table.claim_writer("unsharded") as writer:
                for number in range(1, WRITES + 1):
                    writer.put([{"k": "a", "v": number}, {"k": f"w{number}", "v": number}])
                    self.acknowledged = number
                    if number % 7 == 0:
                        writer.flush()
        finally:
            self.done.set()

    def merge(self) -> None:
        while not self.done.is_set():
            self.table.compact_lsm()

    def read(self) -> int:
        """Read until the writer is done; return how often."""
        reads = 0
        while not self.done.is_set() or not reads:
            floor = self.acknowledged
            rows = {row["k"]: row["v"] for row in self.table.scan().read_all().to_pylist()}
            newest = rows.pop("a", 0)
            assert newest >= floor
            assert set(rows) == {f"w{number}" for number in range(1, newest + 1)}
            reads += 1
        return reads


@pytest.mark.requirement("L6", "W13")
def test_readers_see_a_prefix_while_rows_move_down(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", SCHEMA, primary_key=["k"])
    table.prepare_writers()
    moving = Moving(table)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(moving.write), pool.submit(moving.merge)]
        print(f"{moving.read()} reads")
        for one in running:
            one.result()
    table.compact_lsm()
    assert table.count() == table.count(freshness="base") == WRITES + 1


@pytest.mark.parametrize("conditions", ["honest", "ignoring"])
def test_reads_on_s3(faulty_s3: Callable[..., FaultyS3], tmp_path: Path, conditions: str) -> None:
    server = faulty_s3(conditions=conditions)
    options: dict[str, Any] = {"storage_options": server.storage_options()}
    if conditions == "ignoring":
        commits = f"sqlite:///{tmp_path}/commits.db?single_host=true"
        made = connect_commit_store(commits)
        assert isinstance(made, SupportsSetUp)
        made.set_up()
        made.close()
        options["commit_store"] = commits
    uri = server.url("lake", "t.lance")
    table = holdfast.create_table(uri, SCHEMA, primary_key=["k"], **options)
    table.append([{"k": f"k{n}", "v": n} for n in range(10)])
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": "k1", "v": 100}, {"k": "new", "v": 1}])
        writer.delete_keys(["k2"])
        writer.flush()
        writer.put([{"k": "k3", "v": 300}])
        writer.delete_keys(["new"])
        reader = holdfast.open_table(uri, server.storage_options())
        rows = {row["k"]: row["v"] for row in reader.to_table().to_pylist()}
        wanted = {f"k{n}": n for n in range(10) if n != 2} | {"k1": 100, "k3": 300}
        assert rows == wanted
        assert reader.count("v >= 100") == 2
        found = reader.lookup(["k3", "k1", "k2", "k9", "new"]).to_pylist()
        assert [row["v"] for row in found] == [300, 100, 9]
        with reader.snapshot(pinned=True) as snapshot:
            assert snapshot.count() == 9
        reader.close()
    table.close()
