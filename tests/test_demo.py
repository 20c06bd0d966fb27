"""The demo, run as a user runs it: its exit code is the independent reader's verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[1]
READER = ROOT / "tools" / "demo" / "independent_reader.py"


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.demo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.requirement("C1", "C7")
def test_the_demo_ends_green_after_killed_workers_and_drivers() -> None:
    done = run_demo()

    assert done.returncode == 0, done.stdout + done.stderr
    assert "a Python worker was killed" in done.stdout
    assert "its driver was killed between write and commit; in the table: False" in done.stdout
    assert "and once more with the same txn: applied=False, rows added: 0" in done.stdout
    assert "2 tasks reused" in done.stdout
    assert "FencedError, my epoch 1, the shard's epoch 2" in done.stdout
    assert "everything acknowledged is there, once" in done.stdout


def test_the_quick_demo_needs_no_spark() -> None:
    hidden = (
        "import sys; sys.modules['pyspark'] = None; import runpy; sys.argv = ['demo', '--quick']; "
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden + "runpy.run_module('tools.demo', run_name='__main__')"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything acknowledged is there, once" in done.stdout


@pytest.mark.parametrize("safeguard", ["conditional-put", "fence", "plan"])
def test_the_demo_ends_red_without_a_safeguard(safeguard: str) -> None:
    done = run_demo("--without", safeguard)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "RED" in done.stdout


def test_the_demo_ingests_files_of_your_own(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}), tmp_path / "one.parquet")
    (tmp_path / "two.csv").write_text("a,b\n4,q\n5,r\n")
    (tmp_path / "three.jsonl").write_text('{"a": 6, "b": "u"}\n')

    done = run_demo(str(tmp_path))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "first run: 6 rows added" in done.stdout
    assert "second run, same transaction ids: 0 rows added" in done.stdout


def test_a_folder_without_files_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    done = run_demo(str(tmp_path))

    assert done.returncode == 2
    assert done.stderr.startswith("error: there are no .parquet")


def count(ledger: Path, table: Path, acknowledged: list[int]) -> dict[str, object]:
    page: dict[str, object] = {
        "name": "t",
        "uri": str(table),
        "options": {},
        "rows": None,
        "search": None,
    }
    ledger.write_text(json.dumps([{**page, "acknowledged": acknowledged}]))
    command = [sys.executable, str(READER), str(ledger), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    found: dict[str, object] = {"exit": done.returncode, **json.loads(done.stdout)[0]}
    return found


def test_the_independent_reader_sees_lost_and_doubled_rows(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1, 2, 2]}), tmp_path / "t.lance")

    found = count(tmp_path / "ledger.json", tmp_path / "t.lance", [1, 2, 3])

    assert (found["exit"], found["lost"], found["doubled"]) == (1, 1, 1)
