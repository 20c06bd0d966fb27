"""`holdfast wal` and `holdfast shard`: looking never writes, repairing says what it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from command_line import Cli
from holdfast.cli import Exit
from holdfast.errors import WalGapError
from holdfast.formats._wal_names import entry_name
from holdfast.table import Table

SHARD = "c86481e0-7f0b-47f8-aead-d10d7a62c5b2"


@pytest.fixture(params=[None, "sqlite"], ids=["conditional put", "commit store"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    made = holdfast.create_table(
        tmp_path / "t.lance", pa.schema([("id", pa.int64())]), commit_store=request.param
    )
    with made.claim_appender(SHARD) as appender:
        for number in range(4):
            appender.append(pa.record_batch({"id": [number]}), tags={"job": "j1"})
    yield made
    made.close()


def objects(table: Table) -> set[str]:
    return {info.path for info in table.core.store.list("_mem_wal")}


def ids_in(table: Table) -> list[int]:
    return [
        n for e in table.tailer(SHARD).entries() for b in e.batches for n in b["id"].to_pylist()
    ]


@pytest.mark.requirement("W7")
def test_looking_shows_everything_and_writes_nothing(table: Table, cli: Cli) -> None:
    uri, before = table.uri, objects(table)
    listed = cli.json("wal", "ls", uri, SHARD)["entries"]
    assert [entry["position"] for entry in listed] == [1, 2, 3, 4, 5]
    assert listed[0]["fence"] and listed[1]["tags"] == {"job": "j1"}
    assert "fence" in cli.text("wal", "ls", uri, SHARD)
    assert cli.json("wal", "show", uri, SHARD, "3")["values"] == ["{'id': 1}"]
    lines = cli.text("wal", "tail", uri, SHARD, "--timeout", "0", "--json").splitlines()
    assert [json.loads(line)["position"] for line in lines] == [1, 2, 3, 4, 5]
    (shard,) = cli.json("shard", "ls", uri)["shards"]
    assert (shard["shard"], shard["writer_epoch"]) == (SHARD, 1)
    assert cli.json("shard", "show", uri, SHARD)["flushed"] == 0
    cli.text("wal", "repair", uri, SHARD)
    assert objects(table) == before
    assert table.shards() == [SHARD]


def test_what_is_not_there_is_said(table: Table, cli: Cli) -> None:
    other = SHARD.replace("c", "d")
    cli.text("wal", "show", table.uri, SHARD, "99", code=Exit.NOT_FOUND)
    cli.text("wal", "show", table.uri, "../x", "1", code=Exit.USAGE)
    cli.text("shard", "show", table.uri, other, code=Exit.NOT_FOUND)
    cli.text("wal", "repair", table.uri, other, code=Exit.NOT_FOUND)


@pytest.mark.requirement("L10")
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_hole_is_closed_and_what_is_lost_is_said(table: Table, cli: Cli, damage: str) -> None:
    path = entry_name(SHARD, 3).path
    bytes_there = table.core.store.get(path)
    table.core.store.delete([path])
    if damage == "damaged":
        table.core.store.put(path, bytes_there[:-3])
    code = cli("wal", "ls", table.uri, SHARD)
    before = objects(table)
    if code == Exit.OK:  # a commit store still had the few bytes of the missing entry
        assert ids_in(table) == [0, 1, 2, 3]
        return
    assert code == Exit.OPERATOR
    cli.text("wal", "repair", table.uri, SHARD, code=Exit.UNFIT)
    assert objects(table) == before
    done = cli.json("wal", "repair", table.uri, SHARD, "--confirm")
    (wound,) = done["wounds"]
    assert (wound["position"], wound["damage"]) == (3, damage)
    if damage == "damaged":
        assert table.core.store.get(wound["quarantine"]) == bytes_there[:-3]
    assert ids_in(table) == [0, 2, 3]
    appender = table.claim_appender(SHARD)
    assert [e.position for e in appender.replay()] == [2, 4, 5]
    appender.append(pa.record_batch({"id": [9]}))
    assert ids_in(table) == [0, 2, 3, 9]


def test_without_repair_the_shard_stays_shut(tmp_path: Path) -> None:
    made = holdfast.create_table(tmp_path / "t.lance", pa.schema([("id", pa.int64())]))
    with made.claim_appender(SHARD) as appender:
        for number in range(3):
            appender.append(pa.record_batch({"id": [number]}))
    made.core.store.delete([entry_name(SHARD, 2).path])
    for _ in range(2):
        with pytest.raises(WalGapError):
            made.claim_appender(SHARD)
