"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from holdfast.errors import InvalidInputError
from holdfast.options import StorageOptions


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def add_table(parser: argparse.ArgumentParser) -> None:
    """Add `URI` and its storage options."""
    parser.add_argument("uri", metavar="URI", help="a path, file://, s3://, gs://, az:// or cos://")
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
        InvalidInputError: an argument has no `=`.
    """
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidInputError("a storage option is KEY=VALUE", option=repr(key[:40]))
        options[key] = value
    return StorageOptions(options)
