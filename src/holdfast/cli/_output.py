"""What every command prints and how it ends: data on stdout, the rest on stderr, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from holdfast.cli._terminal import paint
from holdfast.errors import ErrorKind, HoldfastError


class Exit(IntEnum):
    """Exit codes; stable."""

    OK = 0
    UNFIT = 1
    USAGE = 2
    NOT_FOUND = 3
    PERMISSION = 4
    UNAVAILABLE = 5
    UNKNOWN = 6
    UNSAFE = 7
    OPERATOR = 8
    OWNED = 9
    INTERNAL = 70


MEANINGS: Mapping[Exit, str] = {
    Exit.OK: "done; a probed store enforced put-if-absent; a checked commit store is fit",
    Exit.UNFIT: "the probe, check or doctor found something wrong",
    Exit.USAGE: "wrong usage, options or input, a missing extra, or a Holdfast that is too old",
    Exit.NOT_FOUND: "the table, bucket, database or schema is not there",
    Exit.PERMISSION: "credentials refused, or a read-only place",
    Exit.UNAVAILABLE: "no usable answer (also an inconclusive probe): try again",
    Exit.UNKNOWN: "the outcome could not be learnt: repeat with the same transaction id",
    Exit.UNSAFE: "refused, because the store cannot decide: use a commit store",
    Exit.OPERATOR: "table and commit store disagree: an operator must look",
    Exit.OWNED: "another process owns the shard: stop one of the two",
    Exit.INTERNAL: "a defect in Holdfast: please report it",
}

_EXITS: Mapping[ErrorKind, Exit] = {
    ErrorKind.ALREADY_EXISTS: Exit.USAGE,
    ErrorKind.BACKPRESSURE: Exit.UNAVAILABLE,
    ErrorKind.BUSY: Exit.UNAVAILABLE,
    ErrorKind.COLLECTED: Exit.UNAVAILABLE,
    ErrorKind.COMMIT_STORE_REGRESSED: Exit.OPERATOR,
    ErrorKind.COMMIT_UNKNOWN: Exit.UNKNOWN,
    ErrorKind.CONFLICT: Exit.UNAVAILABLE,
    ErrorKind.CORRUPT: Exit.OPERATOR,
    ErrorKind.FENCED: Exit.OWNED,
    ErrorKind.FOREIGN_VERSION: Exit.OPERATOR,
    ErrorKind.INTERNAL: Exit.INTERNAL,
    ErrorKind.INVALID_INPUT: Exit.USAGE,
    ErrorKind.LOG_LOST: Exit.OPERATOR,
    ErrorKind.LOG_WAITS: Exit.USAGE,
    ErrorKind.MISSING_EXTRA: Exit.USAGE,
    ErrorKind.NOT_FOUND: Exit.NOT_FOUND,
    ErrorKind.PERMISSION_DENIED: Exit.PERMISSION,
    ErrorKind.PIN_MISMATCH: Exit.OPERATOR,
    ErrorKind.POISONED: Exit.UNKNOWN,
    ErrorKind.ROW_CONFLICT: Exit.UNAVAILABLE,
    ErrorKind.SEALED: Exit.USAGE,
    ErrorKind.SNAPSHOT_EXPIRED: Exit.UNAVAILABLE,
    ErrorKind.STALE_HANDLE: Exit.UNAVAILABLE,
    ErrorKind.STALE_WORK: Exit.UNAVAILABLE,
    ErrorKind.UNAVAILABLE: Exit.UNAVAILABLE,
    ErrorKind.UNSAFE_STORE: Exit.UNSAFE,
    ErrorKind.UNSUPPORTED: Exit.UNSAFE,
    ErrorKind.UPGRADE: Exit.USAGE,
    ErrorKind.WAL_GAP: Exit.OPERATOR,
}


@dataclass
class Session:
    """What was asked of this run as a whole."""

    as_json: bool = False
    quiet: bool = False
    timeout: float = 15.0


SESSION = Session()
"""This run's; `main` sets it anew."""


def print_result(result: Mapping[str, object], text: str) -> None:
    """Print a result for people or for programs."""
    print(json.dumps(result, sort_keys=True) if SESSION.as_json else text)


def age_text(seconds: float) -> str:
    """Return an age as people say it: 5 s, 12 min, 3.5 h, 4.0 days."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def print_error(error: HoldfastError, *, uri: str | None = None) -> Exit:
    """Print an error and return its exit code; `uri` where there are several tables."""
    if SESSION.as_json:
        details = {key: str(value) for key, value in error.details.items() if value is not None}
        shown = {"kind": error.kind.value, "message": error.message, "details": details}
        named = {} if uri is None else {"uri": uri}
        print(json.dumps({**named, "error": shown}, sort_keys=True))
    where = "" if uri is None else f"{uri}: "
    tell(f"{where}{error}", "red")
    return _EXITS[error.kind]


def tell(text: str, colour: str = "") -> None:
    """Print a line of Holdfast's own on stderr."""
    print(f"{paint('holdfast:', colour, sys.stderr)} {text}", file=sys.stderr, flush=True)
