"""The Python that Spark starts its local workers with, made to start fast.

Spark starts several Python processes, and puts `pyspark.zip` in front of what each imports.
That archive holds no compiled files: every process compiles a hundred of them anew, which
takes four times as long as importing the very same files from the folder in which they are
installed. So a local Spark gets a script that leaves its archives out and starts Python.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import py4j  # type: ignore[import-untyped]
import pyspark

from holdfast.spark._scripts import kept_script

log = logging.getLogger(__name__)

_SCRIPT = """\
#!/bin/sh
# Made by Holdfast: starts Spark's Python without archives of what is installed anyway.
set -f
kept=
IFS=:
for entry in $PYTHONPATH; do
  case "$entry" in {home}/*) ;; *) kept=$kept${{kept:+:}}$entry ;; esac
done
PYTHONPATH=$kept
export PYTHONPATH
exec {python} "$@"
"""


def worker_python(environ: Mapping[str, str]) -> str:
    """Return what to start workers on this machine with: a script, or else this very Python.

    The script is used only when Spark is the installed package itself: the archives of another
    one may be of another version.
    """
    home = Path(pyspark.__file__).parent
    own = Path(environ.get("SPARK_HOME", home)).resolve() == home.resolve()
    if not own or not home.is_dir() or Path(py4j.__file__).is_relative_to(home):
        return sys.executable
    text = _SCRIPT.format(
        home=shlex.quote(str(home)), python=shlex.quote(str(Path(sys.executable).absolute()))
    )
    try:
        return str(kept_script("python", text, environ))
    except OSError as error:
        log.info("workers start slower: a small script cannot be written: %s", error)
        return sys.executable
