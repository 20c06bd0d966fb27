"""Lance's errors as ours, in this one place.

Lance raises `OSError` and `ValueError` for almost everything. What the caller does next is
read from the text; of an outcome nothing is ever read here: that is kept by `Operation`.

A defect in a library that is written in Rust raises a `PanicException`, which is no `Exception`:
it would end a thread without a word, and pass every handler on its way. It is one of ours here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    NextStep,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)

_OVERTAKEN = re.compile("after [0-9]+ retries|too many concurrent writers", re.IGNORECASE)
_SHOWN_CHARS = 300
_SOURCE = re.compile(r",? (?:location: )?\S*/rust/\S+\.rs:\d+:\d+|, src/\S+\.rs:\d+:\d+")
_TRACEBACK = re.compile(r"\.? Detail: Python exception: .*", re.DOTALL)
_QUERY = re.compile(r"\?[^\s\"'<>)]*")

# The first that is found in the text says what it means.
_MEANINGS: tuple[tuple[str, type[HoldfastError], str], ...] = (
    (
        r"necessary privileges|permission denied|read-only file system",
        PermissionDeniedError,
        "the store does not let us write",
    ),
    (
        r"_versions/\S+ was not found|version not found",
        NotFoundError,
        "there is no such version",
    ),
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
        r"file size is too small|does not have sufficient data|of size 0 bytes",
        CorruptError,
        "a file of the table is damaged: see `holdfast doctor`",
    ),
    (
        r"no space left|disk quota exceeded|disk is full",
        UnavailableError,
        "the disk is full: make room, then do it again",
    ),
    (
        r"lanceerror\(io\)|generic \w+ error|os error",
        UnavailableError,
        "a store gave no usable answer",
    ),
    ("not found|no such file", NotFoundError, "a part of the table is not there"),
)


_FOREIGN = (
    OSError,
    ValueError,
    TypeError,
    RuntimeError,
    LookupError,
    MemoryError,
    pa.ArrowException,
)


def is_panic(error: BaseException) -> bool:
    """Tell whether a library that is written in Rust stopped in the middle of a call."""
    kind = type(error)
    return kind.__name__ == "PanicException" and kind.__module__ == "pyo3_runtime"


def is_foreign(error: BaseException) -> bool:
    """Tell whether an error is a library's, and neither ours nor an interrupt."""
    if isinstance(error, HoldfastError):
        return False
    return isinstance(error, _FOREIGN) or is_panic(error)


def meaning_of(error: BaseException, location: str) -> HoldfastError:
    """Return the error of ours that says what one of Lance's means to the caller."""
    if isinstance(error, HoldfastError):
        return error
    text = told_by(error)
    if is_panic(error):
        return HoldfastError(
            "a library stopped in the middle of a call, as it does for values or files that it "
            "cannot hold: report it with the reason, unless the data explains it",
            table=location,
            reason=text,
        )
    for pattern, kind, message in _MEANINGS:
        if re.search(pattern, text, re.IGNORECASE):
            meant = kind(message, table=location, reason=text)
            if isinstance(meant, ConflictError):
                return meant.leading_to(_next_step(error, text))
            return meant
    if isinstance(error, ValueError | TypeError):
        return InvalidInputError("Lance refused the call", table=location, reason=text)
    return HoldfastError("Lance failed", table=location, reason=text)


def _next_step(error: BaseException, text: str) -> NextStep:
    if _OVERTAKEN.search(text) is not None:
        return NextStep.AGAIN  # only patience was missing
    return NextStep.REBUILD if getattr(error, "retryable", True) else NextStep.NEVER


def told_by(error: BaseException) -> str:
    """Return what an error of Lance says, without secrets and without places in its source."""
    told = _SOURCE.sub("", _TRACEBACK.sub("", str(error)))
    return " ".join(_QUERY.sub("?...", told).split())[:_SHOWN_CHARS]


@contextmanager
def translate_errors(location: str) -> Iterator[None]:
    """Raise what an error of Lance means instead of the error itself."""
    try:
        yield
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise meaning_of(error, location) from error
