"""Processes that are killed while they change rows: the change is there once, or not yet."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from edit.killed import change

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("n", pa.int64())])
BEFORE = dict.fromkeys(range(10), 0)
AFTER = {
    "update": {k: 1 if k < 5 else 0 for k in range(10)},
    "delete": dict.fromkeys(range(5, 10), 0),
    "merge": {k: 7 if k >= 3 else 0 for k in range(12)},
}


def content(uri: str) -> dict[int, int]:
    rows = lance.dataset(uri).to_table().to_pylist()
    assert len({row["k"] for row in rows}) == len(rows), "a key is there twice"
    return {row["k"]: row["n"] for row in rows}


@pytest.mark.requirement("S3")
@pytest.mark.parametrize("point", ["computed", "files", "decided"])
@pytest.mark.parametrize("verb", ["update", "delete", "merge"])
def test_a_process_that_is_killed(tmp_path: Path, verb: str, point: str) -> None:
    table: Any = holdfast.create_table(
        tmp_path / "t", SCHEMA, primary_key=["k"], commit_store="sqlite"
    )
    for half in (range(5), range(5, 10)):
        table.append([{"k": k, "n": 0} for k in half])
    script = Path(__file__).with_name("killed.py")
    done = subprocess.run([sys.executable, str(script), table.uri, verb, point], check=False)
    assert done.returncode == -signal.SIGKILL
    there = point == "decided"
    assert content(table.uri) == (AFTER[verb] if there else BEFORE)
    assert change(table, verb).applied is not there
    assert content(table.uri) == AFTER[verb]
    assert change(table, verb).applied is False
    assert content(table.uri) == AFTER[verb]
    table.close()
