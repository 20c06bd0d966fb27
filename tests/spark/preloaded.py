"""Python as Spark starts it, with what workers import loaded once, before they are forked.

`python preloaded.py -m MODULE [ARGS]`. A worker that fails is replaced by a fresh one, which
imports Lance and all else anew; many tests let one fail.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import warnings
from pathlib import Path

DAEMON = "pyspark.daemon"
LIGHT = "pyspark.sql.worker.lookup_data_sources"
MODULES = (
    "pyspark_holdfast",
    "holdfast.table",
    "holdfast.spark._follow",
    "holdfast.spark._read",
    "holdfast.spark._tasks",
    "holdfast.spark._write",
    "spark.faulty_source",
)


def main(flag: str, module: str, *arguments: str) -> None:
    if flag != "-m":
        os.execv(sys.executable, [sys.executable, flag, module, *arguments])
    sys.path[0] = str(Path.cwd())  # as `-m` has it
    if module == DAEMON and arguments[0] != LIGHT:
        warnings.filterwarnings("ignore", message="lance is not fork-safe")  # unused, it is
        for name in (arguments[0], *MODULES):
            importlib.import_module(name)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
