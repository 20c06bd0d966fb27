"""Writers on object stores, honest and not, and with a commit store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.mem_wal import LsmScanner

import holdfast
from holdfast.arbiter import SupportsSetUp, connect_commit_store
from holdfast.errors import FencedError
from holdfast.shard import ShardWriterConfig
from holdfast.testing import FaultyS3Process
from shard.levels import KEYED, newest, tables_of
from shard.lsm import snapshot


def commit_store(folder: Path) -> str:
    url = f"sqlite:///{folder}/decisions.db?single_host=true"
    store = connect_commit_store(url)
    assert isinstance(store, SupportsSetUp)
    store.set_up()
    store.close()
    return url


def write_and_check(table: holdfast.Table, options: dict[str, str]) -> None:
    """Write, crash, reopen, fence, flush; then stock reads what must be there."""
    config = ShardWriterConfig(max_memtable_rows=5)
    first = table.claim_writer("unsharded", config=config)
    for key in range(7):
        first.put([{"k": key, "v": "one"}])
    second = table.claim_writer("unsharded", config=config)
    with pytest.raises(FencedError):
        first.put([{"k": 99, "v": "never"}])
    first.abort()
    second.put([{"k": 0, "v": "two"}])
    second.delete_keys([1])
    second.close()
    expected = {0: "two", **dict.fromkeys(range(2, 7), "one")}
    shot = snapshot(second.shard_id, tables_of(table, second.shard_id))
    dataset = lance.dataset(table.uri, storage_options=options or None)
    found = LsmScanner.from_snapshots(dataset, [shot]).to_table().to_pylist()
    assert newest(found) == expected
    assert len(found) == len(expected)
    with table.claim_writer("unsharded") as again:
        assert again.stats().replayed_rows == 0
    table.close()


def test_local_disk_with_a_commit_store(tmp_path: Path) -> None:
    url = commit_store(tmp_path)
    table = holdfast.create_table(tmp_path / "t", KEYED, commit_store=url)
    write_and_check(table, {})


@pytest.mark.requirement("W4")
def test_an_honest_object_store(faulty_s3_process: Callable[..., FaultyS3Process]) -> None:
    server = faulty_s3_process(conditions="honest")
    options: dict[str, Any] = dict(server.storage_options())
    table = holdfast.create_table(server.url("bucket", "t"), KEYED, storage_options=options)
    write_and_check(table, options)


@pytest.mark.requirement("C6")
def test_a_store_that_ignores_conditions_with_a_commit_store(
    tmp_path: Path, faulty_s3_process: Callable[..., FaultyS3Process]
) -> None:
    server = faulty_s3_process(conditions="ignoring")
    options: dict[str, Any] = dict(server.storage_options())
    table = holdfast.create_table(
        server.url("bucket", "t"),
        KEYED,
        storage_options=options,
        commit_store=commit_store(tmp_path),
    )
    write_and_check(table, options)
