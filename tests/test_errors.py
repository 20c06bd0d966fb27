"""The error tree: stable kinds, the builtins that users expect, and errors that travel."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import ConflictError, ErrorKind, HoldfastError, NextStep, NotFoundError

# Programs branch on this table: a row may be added, never changed.
TREE: dict[str, tuple[str, tuple[type[BaseException], ...]]] = {
    "AlreadyExistsError": ("already_exists", (FileExistsError,)),
    "BackpressureError": ("backpressure", (TimeoutError,)),
    "BusyError": ("busy", ()),
    "CollectedError": ("collected", ()),
    "CommitStoreRegressedError": ("commit_store_regressed", ()),
    "CommitUnknownError": ("commit_unknown", ()),
    "ConflictError": ("conflict", ()),
    "CorruptError": ("corrupt", ()),
    "FencedError": ("fenced", ()),
    "ForeignVersionError": ("foreign_version", ()),
    "HoldfastError": ("internal", ()),
    "InvalidInputError": ("invalid_input", (ValueError,)),
    "LogLostError": ("log_lost", ()),
    "LogWaitsError": ("log_waits", ()),
    "MissingExtraError": ("missing_extra", (ImportError,)),
    "NotFoundError": ("not_found", (FileNotFoundError,)),
    "PermissionDeniedError": ("permission_denied", (PermissionError,)),
    "PinMismatchError": ("pin_mismatch", ()),
    "PoisonedError": ("poisoned", ()),
    "RowConflictError": ("row_conflict", ()),
    "SealedError": ("sealed", ()),
    "SnapshotExpiredError": ("snapshot_expired", ()),
    "StaleHandleError": ("stale_handle", ()),
    "StaleWorkError": ("stale_work", ()),
    "UnavailableError": ("unavailable", (ConnectionError,)),
    "UnsafeStoreError": ("unsafe_store", ()),
    "UnsupportedError": ("unsupported", (NotImplementedError,)),
    "UpgradeError": ("upgrade", ()),
    "WalGapError": ("wal_gap", ()),
}
CLASSES = [
    found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, HoldfastError)
]


def test_the_tree_is_pinned() -> None:
    found = {
        cls.__name__: (
            cls.kind.value,
            tuple(base for base in cls.__bases__ if base.__module__ == "builtins")
            if cls is not HoldfastError
            else (),
        )
        for cls in CLASSES
    }
    assert found == TREE


def test_kinds_are_unique_and_complete() -> None:
    kinds = [cls.kind for cls in CLASSES]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == set(ErrorKind)


def test_everything_public_is_exported_in_order() -> None:
    assert set(errors.__all__) == {*TREE, "ErrorKind", "NextStep"}
    assert errors.__all__ == sorted(errors.__all__)


def test_every_class_says_what_it_means() -> None:
    for cls in CLASSES:
        assert cls.__doc__
        assert cls.__module__ == "holdfast.errors"
        if cls is not HoldfastError:
            assert cls.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_pickling(cls: type[HoldfastError]) -> None:
    error = cls("something happened", path="a/b", number=7, nothing=None)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is cls
        assert (again.message, again.details) == (error.message, error.details)
        assert str(again) == str(error)
        assert (again.number, again.kind) == (7, cls.kind)
    assert str(copy.copy(error)) == str(error)


@pytest.mark.parametrize("step", list(NextStep))
def test_the_next_step_of_a_conflict_survives_pickling(step: NextStep) -> None:
    error = ConflictError("another writer has this version", version=7).leading_to(step)
    again = pickle.loads(pickle.dumps(error))
    assert again.next_step is step
    assert again.details == {"version": 7}
    assert ConflictError("another one").next_step is NextStep.AGAIN


def test_nobody_steers_by_the_details_of_an_error() -> None:
    """Details are for people; what the code does next is an attribute or a class."""
    package = Path(errors.__file__).parent
    read_back = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in sorted(package.rglob("*.py"))
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if _reads_details(node)
    ]
    assert read_back == []


def _reads_details(node: ast.AST) -> bool:
    """Tell whether this is `error.details[...]` or `error.details.get(...)`, read and not set."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return _is_details(node.value)
    function = node.func if isinstance(node, ast.Call) else None
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "get"
        and _is_details(function.value)
    )


def _is_details(node: ast.AST) -> bool:
    # Lance calls what it says of an index its details, too.
    described = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "described"
    return isinstance(node, ast.Attribute) and node.attr == "details" and not described


@pytest.mark.parametrize("cls", CLASSES)
def test_the_text_has_the_details_and_no_none(cls: type[HoldfastError]) -> None:
    error = cls("something happened", place="a/b", number=7, nothing=None)
    assert str(error) == "something happened (place=a/b number=7)"
    assert str(cls("bare")) == "bare"
    assert str(cls("bare", nothing=None)) == "bare"


@pytest.mark.parametrize("cls", CLASSES)
def test_details_are_attributes(cls: type[HoldfastError]) -> None:
    error = cls("something happened", epoch=3, nothing=None)
    assert error.epoch == 3
    assert error.nothing is None
    with pytest.raises(AttributeError, match="no attribute 'shard'"):
        _ = error.shard
    assert not hasattr(error, "shard")


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_is_caught_by_its_builtin(cls: type[HoldfastError]) -> None:
    for builtin in TREE[cls.__name__][1]:
        with pytest.raises(builtin):
            raise cls("something happened")
    with pytest.raises(HoldfastError):
        raise cls("something happened", path="x")


def test_a_cause_stays_behind() -> None:
    error = NotFoundError("gone", path="x")
    error.__cause__ = RuntimeError("holds a socket")
    assert pickle.loads(pickle.dumps(error)).__cause__ is None


def test_an_error_that_was_not_initialised_does_not_recurse() -> None:
    blank = NotFoundError.__new__(NotFoundError)
    with pytest.raises(AttributeError):
        _ = blank.path
