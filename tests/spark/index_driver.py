"""A driver that builds an index on Spark and kills itself at one point of the finalize.

`python index_driver.py URI POINT`; the tests' folders must be on `PYTHONPATH`.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

import holdfast.spark
import holdfast.spark._index
from holdfast.index._commit import TableCommits
from holdfast.index._finalize import Finalizer

POINTS = {
    "before the plan": (Finalizer, "_freeze", 1),
    "amid the copies": (Finalizer, "_copy_one", 5),
    "before the commit": (TableCommits, "commit", 1),
}


def die_at(point: str) -> None:
    owner, method, number = POINTS[point]
    original = getattr(owner, method)
    calls = itertools.count(1)

    def dying(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:  # one step, as several threads copy
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, method, dying)


def main(uri: str, point: str) -> None:
    module: Any = holdfast.spark._index
    module._TASK = "spark.index_tasks:build_and_note"
    die_at(point)
    spark = holdfast.spark.session("local[2]")
    holdfast.spark.table(spark, uri).create_index("text", "fts", tasks=3, with_position=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
