"""`status`: one result for people and programs; `--check`, `--all` and `--watch`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from command_line import Cli
from holdfast.formats import version_name
from holdfast.formats._wal_names import log_folder, shard_manifest_folder

pytestmark = pytest.mark.requirement("O1", "O2")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "text": [f"w{n}" for n in ids]}, schema=SCHEMA)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


def make(root: Path, name: str = "t", commit_store: str | None = None) -> holdfast.Table:
    uri = root / f"{name}.lance"
    return holdfast.create_table(uri, SCHEMA, primary_key=["id"], commit_store=commit_store)


def run(cli: Cli, *words: str) -> tuple[int, list[Any], str]:
    code = cli(*words, "--json")
    return code, [json.loads(line) for line in cli.out.splitlines()], cli.err


def make_old(folder: Path, seconds: float) -> None:
    """Set the stamps of a folder's files back, as if time had passed."""
    for path in folder.rglob("*"):
        stamp = path.stat().st_mtime - seconds
        os.utime(path, (stamp, stamp))


def test_status_tells_of_shards_indexes_and_upkeep(root: Path) -> None:
    table = make(root)
    table.append(rows(1, 2))
    table.dataset().create_scalar_index("id", "BTREE")
    for number in range(10, 20):
        table.append(rows(number))
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(30))
    (shard,) = table.shards()
    with table.claim_appender(shard) as appender:
        appender.append(rows(31).to_batches()[0])
        appender.append(rows(32, 33).to_batches()[0])
    status = table.status()
    (one,) = status.shards
    assert (one.shard, one.epoch, one.lag_entries, one.generations) == (shard, 2, 2, 1)
    assert one.generation_rows == 1
    assert one.newest > one.flushed > 0
    assert one.owner is not None
    assert one.lag_bytes > 0
    for age in (one.oldest_unflushed_seconds, one.last_put_seconds, one.oldest_generation_seconds):
        assert age is not None
        assert 0 <= age < 3600
    assert status.indexes is not None
    (index,) = status.indexes
    assert (index.name, index.rows_behind) == ("id_idx", 10)
    assert status.small_fragments == status.fragments == 11
    assert status.versions == len(list((root / "t.lance" / "_versions").glob("*.manifest")))
    assert status.manifest_bytes > 0
    wants = [want.what for want in status.wants]
    assert any("fragments are small" in what for what in wants)
    assert any("lacks 10 rows" in what for what in wants)
    assert status.ok
    table.maintain()
    after = table.status()
    assert [one.rows_behind for one in after.indexes or ()] == [0]
    assert not [want for want in after.wants if "small" in want.what]


def test_a_fence_alone_is_no_lag(root: Path) -> None:
    table = make(root)
    table.claim_appender("11111111-2222-4333-8444-555555555555").close()
    (one,) = table.status().shards
    assert (one.lag_entries, one.oldest_unflushed_seconds) == (0, None)


@pytest.mark.parametrize("case", ["stuck", "foreign", "regressed", "missing", "overdue"])
def test_check_ends_with_one(root: Path, cli: Cli, case: str) -> None:
    by_record = case in {"foreign", "regressed"}
    table = make(root, commit_store="sqlite" if by_record else None)
    table.append(rows(1))
    uri = str(root / "t.lance")
    if case == "stuck":
        with table.claim_appender("11111111-2222-4333-8444-555555555555") as appender:
            appender.append(rows(2).to_batches()[0])
        (shard,) = table.shards()
        make_old(root / "t.lance" / log_folder(shard), 7200)
    elif case == "foreign":
        lance.write_dataset(rows(3), uri, mode="append")
    elif case == "regressed":
        table.append(rows(4))
        import sqlite3

        database = sqlite3.connect(f"{uri}/_holdfast/commits.db")
        database.execute("DELETE FROM holdfast_records WHERE series LIKE '%/versions' AND number=3")
        database.commit()
        database.close()
    elif case == "missing":
        with table.claim_writer("unsharded") as writer:
            writer.put(rows(5))
        (shard,) = table.shards()
        for file in (root / "t.lance" / shard_manifest_folder(shard)).glob("*.binpb"):
            file.write_bytes(b"nonsense")
    else:
        from holdfast.upkeep import _status

        _status.OVERDUE, kept = 1, _status.OVERDUE
        for number in range(10, 20):
            table.append(rows(number))
    try:
        code, (shown,), _ = run(cli, "status", uri, "--check")
        assert code == 1
        assert {alert["kind"] for alert in shown["alerts"]} == {case}
        assert all(uri in alert["command"] for alert in shown["alerts"])
        assert run(cli, "status", uri)[0] == 0  # without --check it only tells
    finally:
        if case == "overdue":
            _status.OVERDUE = kept


def test_check_of_a_sound_table_ends_with_zero(root: Path, cli: Cli) -> None:
    make(root).append(rows(1))
    code, (shown,), _ = run(cli, "status", str(root / "t.lance"), "--check")
    assert (code, shown["ok"], shown["alerts"]) == (0, True, [])


def test_all_tables_below_a_root(root: Path, cli: Cli) -> None:
    make(root, "a").append(rows(1))
    make(root, "b").append(rows(1))
    (root / "sales").mkdir()
    make(root / "sales", "c").append(rows(1))
    code, (listed,), _ = run(cli, "tables", str(root))
    assert (code, [one["name"] for one in listed["tables"]]) == (0, ["a", "b", "sales.c"])
    code, shown, _ = run(cli, "status", str(root), "--all")
    assert (code, [Path(one["uri"]).stem for one in shown]) == (0, ["a", "b", "c"])
    code, shown, _ = run(cli, "maintain", str(root), "--all")
    assert (code, [Path(one["uri"]).stem for one in shown]) == (0, ["a", "b", "c"])
    damaged = root / "b.lance" / version_name(2).path
    damaged.write_bytes(b"nonsense")
    code, shown, err = run(cli, "status", str(root), "--all")
    assert (code, len(shown), "b.lance" in err) == (8, 3, True)
    assert "error" in shown[1]  # and the one behind it was looked at
    assert Path(shown[2]["uri"]).stem == "c"
    code, shown, _ = run(cli, "doctor", str(root), "--all")
    assert (code, [one["healthy"] for one in shown]) == (1, [True, False, True])


def test_watch_shows_it_again_until_it_is_interrupted(root: Path) -> None:
    make(root).append(rows(1))
    # A run that was started in the background inherits that SIGINT is ignored.
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from holdfast.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "status", str(root / "t.lance"), "--watch", "1s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += line.startswith(str(root))
        if seen == 2:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_create_makes_a_table(root: Path, cli: Cli) -> None:
    uri = str(root / "made.lance")
    words = ["create", uri, "id:int64", "text:string", "at:timestamp", "v:vector[4]", "n:int8!"]
    code, (shown,), _ = run(cli, *words, "--key", "id", "--commit-store", "sqlite", "--txn", "x")
    assert (code, shown["key"], shown["commit_store"]) == (0, ["id"], "sqlite")
    assert run(cli, *words, "--key", "id", "--commit-store", "sqlite", "--txn", "x")[0] == 0
    table = holdfast.open_table(uri)
    assert table.schema.names == ["id", "text", "at", "v", "n"]
    assert not table.schema.field("id").nullable
    assert not table.schema.field("n").nullable
    assert run(cli, *words, "--commit-store", "sqlite")[0] == 2  # there is one
    for bad in ("id", ":int64", "a:number", "a:vector[0]"):
        assert run(cli, "create", str(root / "bad.lance"), bad)[0] == 2
    assert run(cli, "create", str(root / "bad.lance"), "a:int8", "a:int8")[0] == 2
    assert not (root / "bad.lance").exists()
