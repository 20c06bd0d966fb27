"""`holdfast ingest` and `holdfast shard stats`."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, ipc, parquet

import holdfast
from command_line import Cli
from holdfast.cli import Exit
from holdfast.cli._ingest import _FORMATS, IngestProgress
from holdfast.cli._sources import Source, read_batches
from holdfast.shard import Sharding
from shard.levels import KEYED, PLAIN, newest, stock_rows, tables_of

ROWS = pa.Table.from_pylist([{"k": k, "v": f"v{k}"} for k in range(25)], schema=KEYED)
WRITTEN = {k: f"v{k}" for k in range(25)}


def write_stream(rows: pa.Table, path: Path) -> None:
    with ipc.new_stream(str(path), rows.schema) as writer:
        writer.write_table(rows)


def write_file(rows: pa.Table, path: Path) -> None:
    with ipc.new_file(str(path), rows.schema) as writer:
        writer.write_table(rows)


def write_lines(rows: pa.Table, path: Path) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows.to_pylist()))


FILES: dict[str, Callable[[pa.Table, Path], None]] = {
    "rows.arrow": write_file,
    "rows.arrows": write_stream,
    "rows.parquet": parquet.write_table,
    "rows.csv": csv.write_csv,
    "rows.jsonl": write_lines,
}


@pytest.fixture
def table(tmp_path: Path) -> holdfast.Table:
    return holdfast.create_table(tmp_path / "t", KEYED)


def stored(table: holdfast.Table) -> dict[int, Any]:
    (shard,) = [one.name for one in (Path(table.uri) / "_mem_wal").iterdir()]
    return newest(stock_rows(table, shard))


@pytest.mark.parametrize("name", sorted(FILES))
def test_files_of_every_format(table: holdfast.Table, tmp_path: Path, cli: Cli, name: str) -> None:
    FILES[name](ROWS, tmp_path / name)
    told = cli.json("ingest", table.uri, str(tmp_path / name), "--batch-rows", "7")
    assert told["rows"] == 25
    assert told["shards"][0]["rows"] == 25
    assert stored(table) == WRITTEN


@pytest.mark.parametrize("name", sorted(FILES))
def test_stdin_of_every_format(
    table: holdfast.Table,
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    FILES[name](ROWS, tmp_path / name)

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    class Stdin:
        buffer = Pipe((tmp_path / name).read_bytes())

    monkeypatch.setattr(sys, "stdin", Stdin)
    kind = {"arrow": "arrow", "arrows": "arrow"}.get(name.split(".")[1], name.split(".")[1])
    assert cli.json("ingest", table.uri, "-", "--format", kind)["rows"] == 25
    assert stored(table) == WRITTEN


def test_rows_go_to_the_shards_they_belong_to(
    table: holdfast.Table, tmp_path: Path, cli: Cli
) -> None:
    table.prepare_writers(sharding=Sharding.bucket("k", 3))
    FILES["rows.csv"](ROWS, tmp_path / "rows.csv")
    told = cli.json("ingest", table.uri, str(tmp_path / "rows.csv"))
    assert len(told["shards"]) == 3
    found: dict[int, Any] = {}
    for shard in told["shards"]:
        found |= newest(stock_rows(table, shard["shard"]))
    assert found == WRITTEN


def test_without_a_flush_the_log_has_the_rows(
    table: holdfast.Table, tmp_path: Path, cli: Cli
) -> None:
    FILES["rows.parquet"](ROWS, tmp_path / "rows.parquet")
    told = cli.json(
        "ingest",
        table.uri,
        str(tmp_path / "rows.parquet"),
        "--no-flush",
        "--shard",
        "unsharded",
    )
    shard = told["shards"][0]["shard"]
    assert tables_of(table, shard) == ()
    (stats,) = cli.json("shard", "stats", table.uri)["shards"]
    assert (stats["shard"], stats["log_rows"], stats["sstables"]) == (shard, 25, 0)
    assert stats["log_entries"] == 1 and stats["log_bytes"] > 0
    next_position = stats["next_position"]
    with table.claim_writer("unsharded") as writer:
        assert writer.wal_stats().next_position == next_position + 1  # its fence lies between
    (stats,) = cli.json("shard", "stats", table.uri)["shards"]
    assert (stats["log_rows"], stats["sstable_rows"]) == (0, 25)
    assert cli.text("shard", "stats", table.uri).split()[-2:] == ["25", "1"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("rows.csv", "k,other\n1,x\n", "columns that the table has not"),
        ("rows.csv", "k,v\none,x\n", "cannot be read as csv"),
        ("rows.jsonl", '{"k": 1, "other": 2}\n', "cannot be read as jsonl"),
        ("rows.parquet", "this is none", "cannot be read as parquet"),
        ("rows.arrow", "this is none", "cannot be read as arrow"),
        ("rows.txt", "k\n1\n", "--format"),
    ],
)
def test_files_that_do_not_fit_are_refused(  # noqa: PLR0917 - parametrised
    table: holdfast.Table,
    tmp_path: Path,
    cli: Cli,
    name: str,
    content: str,
    expected: str,
) -> None:
    (tmp_path / name).write_text(content)
    told = cli.json("ingest", table.uri, str(tmp_path / name), code=Exit.USAGE)
    assert expected in told["error"]["message"]


def test_what_is_not_there_is_said(table: holdfast.Table, tmp_path: Path, cli: Cli) -> None:
    cli.json("ingest", table.uri, str(tmp_path / "none.csv"), code=Exit.NOT_FOUND)
    cli.json("ingest", str(tmp_path / "none"), "-", "--format", "csv", code=Exit.NOT_FOUND)
    cli.json("ingest", table.uri, "-", "--format", "csv", "--batch-rows", "0", code=Exit.USAGE)
    assert cli.json("shard", "stats", table.uri) == {"shards": []}


def test_progress_is_a_line_now_and_then_where_nobody_looks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with IngestProgress(None) as progress:
        progress.add(60_000)
        progress.add(10_000)
    assert capsys.readouterr().err == "wrote 60000 rows\n"


@pytest.mark.parametrize("name", sorted(FILES))
def test_progress_moves_within_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """And it tells of rows that were taken, not of what a reader has read ahead."""
    monkeypatch.setattr("holdfast.cli._sources._BLOCK", 64)
    path = tmp_path / name
    FILES[name](ROWS, path)
    if "arrow" in name:  # as several batches
        opening = ipc.new_file if name.endswith("arrow") else ipc.new_stream
        with opening(str(path), ROWS.schema) as writer:
            writer.write_table(ROWS, max_chunksize=5)
    steps: list[int] = []
    source = Source(str(path), _FORMATS[path.suffix], steps.append)
    after_each = [sum(steps) for _ in read_batches(source, ROWS.schema, 5)]
    size = path.stat().st_size
    assert after_each == sorted(after_each)
    assert after_each[0] < size / 2
    assert len(set(after_each)) > 2
    assert sum(steps) == size


@pytest.mark.requirement("P1")
def test_rows_of_another_shard_are_refused(table: holdfast.Table, tmp_path: Path, cli: Cli) -> None:
    table.prepare_writers(sharding=Sharding.bucket("k", 3))
    FILES["rows.csv"](ROWS, tmp_path / "rows.csv")
    told = cli.json(
        "ingest",
        table.uri,
        str(tmp_path / "rows.csv"),
        "--shard",
        "bucket-1",
        code=Exit.USAGE,
    )
    assert "router" in told["error"]["message"]
    assert table.count() == 0


@pytest.mark.requirement("P3")
@pytest.mark.parametrize("sharded", [False, True])
def test_a_run_under_a_txn_is_repeated_without_doubling(
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    sharded: bool,
) -> None:
    table = holdfast.create_table(tmp_path / "plain", PLAIN)
    if sharded:
        table.prepare_writers(sharding=Sharding.bucket("k", 3))
    monkeypatch.setattr("holdfast.cli._ingest._BATCH_ROWS", 4)
    FILES["rows.csv"](ROWS, tmp_path / "a.csv")
    FILES["rows.parquet"](ROWS.slice(0, 7), tmp_path / "b.parquet")
    files = [str(tmp_path / "a.csv"), str(tmp_path / "b.parquet")]
    assert cli.json("ingest", table.uri, files[0], "--txn", "load-1")["rows"] == 25
    told = cli.json("ingest", table.uri, *files, "--txn", "load-1")
    assert (told["rows"], told["repeated"], told["txn"]) == (7, 25, "load-1")
    assert "wrote 0 rows" in cli.text("ingest", table.uri, *files, "--txn", "load-1")
    assert table.count() == 32
    assert cli.json("ingest", table.uri, files[1], "--txn", "load-2")["rows"] == 7
    assert table.count() == 39


@pytest.mark.parametrize("more", [["--batch-rows", "7"], ["--txn", ""]])
def test_what_does_not_go_with_a_txn_is_refused(
    table: holdfast.Table, tmp_path: Path, cli: Cli, more: list[str]
) -> None:
    FILES["rows.csv"](ROWS, tmp_path / "rows.csv")
    file = str(tmp_path / "rows.csv")
    assert cli("ingest", table.uri, file, "--txn", "load", *more) == Exit.USAGE
    assert not (Path(table.uri) / "_mem_wal").exists()
