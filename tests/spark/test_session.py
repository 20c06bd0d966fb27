"""Sessions: what is set, and that nothing heavy is loaded before its use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from holdfast.spark._python import worker_python

SET_BY_US = ("PYSPARK_PYTHON", "JAVA_HOME", "SPARK_LOCAL_IP")

PROGRAM = """
import json, sys
import holdfast.spark
early = "pyspark" in sys.modules or "lance" in sys.modules
import pyspark_holdfast
loaded = {name: name in sys.modules for name in ("lance", "pyarrow")}
print(json.dumps({"early": early, **loaded}))
"""

CONFIGURED = """
import json, os, subprocess, sys
import holdfast.spark
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = holdfast.spark.configure(builder)
print(json.dumps({
    "python": subprocess.run(
        [os.environ["PYSPARK_PYTHON"], "-c", "import sys; print(sys.executable, end='')"],
        capture_output=True, check=True, text=True,
    ).stdout == sys.executable,
    "elsewhere": holdfast.spark.configure(SparkSession.builder.master("spark://h:1")) and (
        os.environ["PYSPARK_PYTHON"] == sys.executable
    ),
    "java": bool(os.environ["JAVA_HOME"]),
    "ip": os.environ["SPARK_LOCAL_IP"],
    "ui": builder._options["spark.ui.enabled"],
    "hidden": builder._options["spark.sql.redaction.options.regex"],
}))
"""

CONNECTS = """
import json, os, sys
import holdfast.spark
from pyspark.sql import SparkSession
told = {}
for remote in ("sc://127.0.0.1:1", "local[1]"):
    holdfast.spark.configure(SparkSession.builder.remote(remote))
    told[remote] = {
        "fast": os.environ.pop("PYSPARK_PYTHON") != sys.executable,
        "java": "JAVA_HOME" in os.environ,
    }
print(json.dumps(told))
"""


def run(program: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={name: value for name, value in os.environ.items() if name not in SET_BY_US},
        capture_output=True,
        check=True,
        text=True,
        timeout=240,
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_importing_loads_neither_pyspark_nor_lance() -> None:
    assert run(PROGRAM) == {"early": False, "lance": False, "pyarrow": False}


def test_configure_sets_what_is_needed_and_keeps_what_is_set() -> None:
    assert run(CONFIGURED) == {
        "python": True,
        "elsewhere": True,
        "java": True,
        "ip": "127.0.0.1",
        "ui": "false",
        "hidden": "(?i)url|^storage[.]",
    }


def test_a_spark_connect_server_that_starts_here_gets_a_java_and_a_python() -> None:
    assert run(CONNECTS) == {
        "sc://127.0.0.1:1": {"fast": False, "java": False},
        "local[1]": {"fast": True, "java": True},
    }


PATHS = "import sys; print(*sys.path, sep=chr(10))"


def test_workers_import_pyspark_from_its_folder_and_all_else_as_told(tmp_path: Path) -> None:
    home = Path(pyspark.__file__).parent
    program = worker_python({"XDG_CACHE_HOME": str(tmp_path / "a cache")})
    assert program != sys.executable
    archives = [str(path) for path in (home / "python" / "lib").glob("*.zip")]
    assert len(archives) == 2
    mine = ["/my lib/*", *archives, "/other"]
    done = subprocess.run(
        [program, "-c", PATHS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*archives, *mine])},
        capture_output=True,
        check=True,
        text=True,
    )
    found = done.stdout.splitlines()
    assert [path for path in found if path in {*mine}] == ["/my lib/*", "/other"]
    assert str(home.parent) in found


def test_the_workers_of_another_spark_start_as_it_wants(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert worker_python({**cache, "SPARK_HOME": "/opt/spark"}) == sys.executable
    (tmp_path / "holdfast").write_text("in the way")  # as if nothing could be written there
    assert worker_python(cache) == sys.executable
