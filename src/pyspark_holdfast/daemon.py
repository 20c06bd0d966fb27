"""Spark's Python daemon, started faster: `spark.python.daemon.module=pyspark_holdfast.daemon`.

Spark starts several Python processes, and has each import pyspark out of `pyspark.zip`. That
archive holds no compiled files: every process compiles a hundred of them anew, which takes
four times as long as importing the very same files from the folder that they are installed
in. So the folder comes first here; all else is Spark's own daemon.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

_ZIP = "pyspark.zip"


def folders_first(path: list[str]) -> list[str]:
    """Return a search path on which an installed pyspark comes before its own archive.

    The archive must lie inside that installation: any other one may be of another version.
    """
    zipped = [entry for entry in path if Path(entry).name == _ZIP]
    others = [entry for entry in path if entry not in zipped]
    found = PathFinder.find_spec("pyspark", others) if zipped else None
    if found is None or found.origin is None:
        return path
    home = Path(found.origin).resolve().parent
    if not all(Path(entry).resolve().is_relative_to(home) for entry in zipped):
        return path
    return others + zipped


if __name__ == "__main__":
    sys.path[:] = folders_first(sys.path)
    from pyspark.daemon import manager

    manager()
