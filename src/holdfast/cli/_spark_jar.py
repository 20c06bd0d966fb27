"""`holdfast spark-jar`: where the jar is that Spark needs to know tables by name."""

from __future__ import annotations

import argparse

from holdfast.cli._arguments import add_json
from holdfast.cli._output import Exit, print_result
from holdfast.spark import SUPPORTED, jar_path


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "spark-jar",
        help="print the path of the jar for Spark's class path",
        description=f"The jar lets Spark {SUPPORTED} know tables by name: "
        'spark-submit --jars "$(holdfast spark-jar)".',
        allow_abbrev=False,
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the path."""
    shown = {"jar": str(jar_path()), "spark": SUPPORTED}
    print_result(shown, shown["jar"], as_json=arguments.json)
    return Exit.OK
