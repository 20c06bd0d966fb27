"""`import holdfast` stays light: what only some users need is loaded when they use it."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {
    "greenlet",
    "lance",
    "lance_namespace",
    "pandas",
    "psycopg",
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
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True, timeout=60
    )
    answer = json.loads(done.stdout)
    print(f"import holdfast took {answer['seconds'] * 1000:.0f} ms")
    assert HEAVY & {module.split(".")[0] for module in answer["modules"]} == set()
