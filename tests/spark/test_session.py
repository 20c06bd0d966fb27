"""Sessions: what is set, and that nothing heavy is loaded before its use."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
import holdfast.spark
early = "pyspark" in sys.modules or "lance" in sys.modules
import pyspark_holdfast
loaded = {name: name in sys.modules for name in ("lance", "pyarrow")}
print(json.dumps({"early": early, **loaded}))
"""

CONFIGURED = """
import json, os, sys
import holdfast.spark
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = holdfast.spark.configure(builder)
print(json.dumps({
    "python": os.environ["PYSPARK_PYTHON"] == sys.executable,
    "java": bool(os.environ["JAVA_HOME"]),
    "ip": os.environ["SPARK_LOCAL_IP"],
    "ui": builder._options["spark.ui.enabled"],
    "hidden": builder._options["spark.sql.redaction.options.regex"],
}))
"""


def run(program: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=120
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_importing_loads_neither_pyspark_nor_lance() -> None:
    assert run(PROGRAM) == {"early": False, "lance": False, "pyarrow": False}


def test_configure_sets_what_is_needed_and_keeps_what_is_set() -> None:
    assert run(CONFIGURED) == {
        "python": True,
        "java": True,
        "ip": "127.0.0.1",
        "ui": "false",
        "hidden": "(?i)url|^storage[.]",
    }
