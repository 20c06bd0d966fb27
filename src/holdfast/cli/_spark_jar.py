"""`holdfast spark-jar`: where the jar is that Spark needs to know tables by name."""

from __future__ import annotations

from holdfast.cli._output import Exit, print_result
from holdfast.spark import SUPPORTED, jar_path


def run() -> Exit:
    """Print the path."""
    shown = {"jar": str(jar_path()), "spark": SUPPORTED}
    print_result(shown, shown["jar"])
    return Exit.OK
