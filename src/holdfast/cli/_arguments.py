"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from holdfast.errors import InvalidInputError
from holdfast.options import StorageOptions


class Parser(argparse.ArgumentParser):
    """A parser that does not repeat what may hold a secret."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong without the values of misplaced options and URLs, and exit."""
        super().error(re.sub(r"(=|://)[^\s']+", r"\1...", message))


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def add_table(parser: argparse.ArgumentParser) -> None:
    """Add `URI` and its storage options."""
    parser.add_argument(
        "uri", metavar="URI", help="a path, file://, s3://, gs://, az://, cos://, oss://"
    )
    parser.add_argument(
        "-o",
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a storage option by pylance's name; VALUE may be env:NAME; repeat for more",
    )


def storage_options(pairs: Sequence[str]) -> StorageOptions:
    """Return the options behind `KEY=VALUE` arguments.

    Raises:
        InvalidInputError: an argument has no `=`, or a key has two values.
    """
    options: dict[str, str] = {}
    for number, pair in enumerate(pairs, 1):
        key, equals, value = pair.partition("=")
        if not equals or not key:  # not repeated: it may be a secret without its name
            raise InvalidInputError(f"a storage option is KEY=VALUE; the {number}. is not")
        if options.setdefault(key, value) != value:
            raise InvalidInputError(f"storage option {key!r} is given twice")
    return StorageOptions(options)
