"""Lance's errors as ours, in this one place.

Lance raises `OSError` and `ValueError` for almost everything. What the caller does next is
read from the text; of an outcome nothing is ever read here: that is kept by `Operation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)

RETRYABLE = "retryable"
"""The detail of a conflict that says whether reading again and rebuilding may help."""

OVERTAKEN = "overtaken"
"""The detail of a conflict that only patience was missing for: the same may be tried as it is."""

_OVERTAKEN = re.compile("after [0-9]+ retries|too many concurrent writers", re.IGNORECASE)
_SHOWN_CHARS = 300
_SOURCE = re.compile(r",? (?:location: )?\S*/rust/\S+\.rs:\d+:\d+|, src/\S+\.rs:\d+:\d+")
_QUERY = re.compile(r"\?[^\s\"'<>)]*")

# The first that is found in the text says what it means.
_MEANINGS: tuple[tuple[str, type[HoldfastError], str], ...] = (
    (
        r"necessary privileges|permission denied|read-only file system",
        PermissionDeniedError,
        "the store does not let us write",
    ),
    ("NotFoundError: no such version", NotFoundError, "there is no such version"),
    ("dataset already exists", AlreadyExistsError, "there is a table already: open it"),
    (
        "commit conflict|incompatible transaction|too many concurrent writers",
        ConflictError,
        "other writers changed the table meanwhile: read again and try again",
    ),
    (
        r"^invalid user input|lanceerror\(arrow\)|different schema|null values",
        InvalidInputError,
        "the data cannot be read, or does not fit the table",
    ),
    (
        r"lanceerror\(io\)|generic \w+ error|no space left|os error",
        UnavailableError,
        "a store gave no usable answer",
    ),
    ("not found|no such file", NotFoundError, "a part of the table is not there"),
)


def meaning_of(error: Exception, location: str) -> HoldfastError:
    """Return the error of ours that says what one of Lance's means to the caller."""
    if isinstance(error, HoldfastError):
        return error
    text = " ".join(_QUERY.sub("?...", _SOURCE.sub("", str(error))).split())[:_SHOWN_CHARS]
    for pattern, kind, message in _MEANINGS:
        if re.search(pattern, text, re.IGNORECASE):
            how = _how_to_retry(error, text) if kind is ConflictError else {}
            return kind(message, table=location, **how, reason=text)
    if isinstance(error, ValueError | TypeError):
        return InvalidInputError("Lance refused the call", table=location, reason=text)
    return HoldfastError("Lance failed", table=location, reason=text)


def _how_to_retry(error: Exception, text: str) -> dict[str, bool]:
    overtaken = _OVERTAKEN.search(text) is not None
    retryable = overtaken or bool(getattr(error, "retryable", True))
    return {RETRYABLE: retryable, OVERTAKEN: overtaken}


@contextmanager
def translated(location: str) -> Iterator[None]:
    """Raise what an error of Lance means instead of the error itself."""
    try:
        yield
    except HoldfastError:
        raise
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise meaning_of(error, location) from error
