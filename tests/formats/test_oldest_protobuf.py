"""The oldest protobuf that we support: an own process, with that runtime before the newest.

`./run setup` puts it into `.cache/protobuf`, pinned by `locks/protobuf.txt`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import google.protobuf

from conftest import skip_without

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".cache" / "protobuf"
RUNTIME = """
import sys
import google.protobuf
found, wanted = google.protobuf.__version__, sys.argv.pop(1)
assert found == wanted, found
"""
TABLE = """
import sys
import pyarrow as pa, lance, holdfast
uri = sys.argv[1]
schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
table = holdfast.create_table(uri, schema, primary_key=["id"])
assert table.append([{"id": 1, "text": "a"}], txn=("job", 1)).applied
assert not table.append([{"id": 1, "text": "a"}], txn=("job", 1)).applied
with table.claim_writer("unsharded") as writer:
    writer.put(pa.table({"id": [1, 2], "text": ["b", "c"]}))
    assert table.count() == 2
assert table.compact_lsm().rows == 2
assert sorted(lance.dataset(uri).to_table()["text"].to_pylist()) == ["b", "c"]
"""
TESTS = """
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def run(script: str, *arguments: str) -> str:
    skip_without(None if OLDEST.is_dir() else "no second protobuf: ./run setup installs it")
    pinned = re.match(r"protobuf==(\S+)", (ROOT / "locks" / "protobuf.txt").read_text())
    assert pinned is not None
    assert pinned[1].split(".")[0] != google.protobuf.__version__.split(".")[0]  # another major
    done = subprocess.run(
        [sys.executable, "-c", RUNTIME + script, pinned[1], *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{OLDEST}{os.pathsep}{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_bytes_of_every_kind_are_read_and_written() -> None:
    told = run(
        TESTS,
        "tests/formats/test_manifest.py",
        "tests/wal/test_entry.py",
        "-k",
        "manifest or stock",
    )
    assert re.search(r"[1-9]\d* passed", told)
    assert "skipped" not in told


def test_a_table_is_written_by_every_way(tmp_path: Path) -> None:
    run(TABLE, str(tmp_path / "t.lance"))
