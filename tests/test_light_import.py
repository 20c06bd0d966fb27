"""`import holdfast` stays light: what only some users need is loaded when they use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "greenlet",
    "lance",
    "lance_namespace",
    "numpy",
    "pandas",
    "psycopg",
    "pyarrow",
    "pymysql",
    "pyspark",
    "redis",
    "sqlalchemy",
}

PROGRAM = """
import json, sys, time
before = time.perf_counter()
import holdfast
seconds = time.perf_counter() - before
print(json.dumps({"modules": sorted(sys.modules), "seconds": seconds}))
"""


def test_import_holdfast_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True, timeout=240
    )
    answer = json.loads(done.stdout)
    print(f"import holdfast took {answer['seconds'] * 1000:.0f} ms")
    assert HEAVY & {module.split(".")[0] for module in answer["modules"]} == set()


def test_creating_and_appending_load_none_of_lances_generated_client(tmp_path: Path) -> None:
    program = (
        "import sys, holdfast, pyarrow as pa\n"
        f"table = holdfast.create_table({str(tmp_path / 't')!r}, pa.schema([('id', pa.int64())]))\n"
        "table.append([{'id': 1}])\n"
        "assert table.dataset().count_rows() == 1\n"
        "print([name for name in sys.modules if name.startswith('lance_namespace_')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=240
    )
    assert done.stdout.strip() == "[]"


FIRST_CONFLICT = """
import sys, holdfast, pyarrow as pa
from holdfast.commits._versions import Versions
table = holdfast.create_table(sys.argv[1], pa.schema([("id", pa.int64())]))
table.append([{"id": 1}])
held, decide, tries = table.dataset(), Versions.create, []

def create(versions, *args, **options):  # another writer comes first, once
    tries.append(1)
    if len(tries) == 1:
        table.append([{"id": 2}])
    return decide(versions, *args, **options)

Versions.create = create
before = set(sys.modules)
held.delete("id = 1")
assert len(tries) == 2, tries
print(sorted(set(sys.modules) - before))
import lance_namespace, lance_namespace.errors
assert lance_namespace.TableNotFoundError is lance_namespace.errors.TableNotFoundError
assert issubclass(holdfast.Namespace, lance_namespace.LanceNamespace)
"""


@pytest.mark.requirement("C9")
def test_the_first_conflict_of_a_process_loads_nothing(tmp_path: Path) -> None:
    """What a hook loads counts as the time of a commit, and Lance waits a multiple of it."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CONFLICT, str(tmp_path / "t")],
        capture_output=True,
        check=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.strip() == "[]"


SEARCH = """
import sys, holdfast, pyarrow as pa
schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
table = holdfast.create_table(sys.argv[1], schema, primary_key=["id"])
table.append([{"id": 1, "text": "storm"}])
with table.claim_writer("unsharded") as writer:
    writer.put(pa.table({"id": [2], "text": ["harbour"]}))
table.create_index("text", "fts")
print(table.search("text", "storm").num_rows)
"""


def test_a_search_beside_a_log_prints_nothing_alarming(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LANCE_LOG"}
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(tmp_path / "t")],
        capture_output=True,
        check=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert (done.stdout.strip(), done.stderr) == ("1", "")
