"""Errors of a hook as Lance reads them: ours, and at the same time one of `lance_namespace`'s.

What a hook raises crosses Lance's Rust code, which knows an error by its class and its code.
So each carries both: the caller of a hook catches what `holdfast.errors` says, Lance reads
the code.

Lance imports `lance_namespace.errors` when a hook raises for the first time. The package
around that small module loads some two hundred generated models: over a second, which Lance
counts as the time of a commit and multiplies in its back-off. `load_errors` loads that module
before the first commit, and lets the models wait until somebody asks for one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from holdfast.errors import ErrorKind, HoldfastError, NotFoundError

_PACKAGE = "lance_namespace"
_MODULE = f"{_PACKAGE}.errors"
_OTHERS = "InternalError"
_LANCE_CLASSES = {
    ErrorKind.ALREADY_EXISTS: "TableAlreadyExistsError",
    ErrorKind.BACKPRESSURE: "ThrottlingError",
    ErrorKind.COLLECTED: "InvalidTableStateError",
    ErrorKind.COMMIT_STORE_REGRESSED: "InvalidTableStateError",
    ErrorKind.CONFLICT: "ConcurrentModificationError",
    ErrorKind.CORRUPT: "InvalidTableStateError",
    ErrorKind.FOREIGN_VERSION: "InvalidTableStateError",
    ErrorKind.INVALID_INPUT: "InvalidInputError",
    ErrorKind.LOG_LOST: "InvalidTableStateError",
    # A conflict would make Lance try again: that does not help.
    ErrorKind.LOG_WAITS: "InvalidTableStateError",
    # Never "table not found" by default: for Lance that means "look for yourself".
    ErrorKind.NOT_FOUND: "TableVersionNotFoundError",
    ErrorKind.PERMISSION_DENIED: "PermissionDeniedError",
    ErrorKind.PIN_MISMATCH: "InvalidTableStateError",
    ErrorKind.STALE_WORK: "InvalidTableStateError",
    ErrorKind.UNAVAILABLE: "ServiceUnavailableError",
    ErrorKind.UNSAFE_STORE: "InvalidTableStateError",
    ErrorKind.UNSUPPORTED: "UnsupportedOperationError",
}


class _Unloaded(ModuleType):
    """A package whose own code runs when something of it is first asked for."""

    def __getattr__(self, name: str) -> object:
        with _LOADING:
            if not _LOADING_NOW:  # else its own code asks while it runs
                self._load()
        return ModuleType.__getattribute__(self, name)

    def _load(self) -> None:
        spec = self.__spec__
        if type(self) is not _Unloaded or spec is None or spec.loader is None:
            return
        _LOADING_NOW.append(self)
        try:
            spec.loader.exec_module(self)
            self.__class__ = ModuleType  # type: ignore[assignment]
        finally:
            _LOADING_NOW.clear()


_LOADING = threading.RLock()
_LOADING_NOW: list[ModuleType] = []  # guarded by _LOADING


def load_errors() -> ModuleType:
    """Return Lance's namespace errors; the code of the package around them waits for its use."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        return module
    with _LOADING:
        if _PACKAGE not in sys.modules and (spec := importlib.util.find_spec(_PACKAGE)):
            package = importlib.util.module_from_spec(spec)
            package.__class__ = _Unloaded
            sys.modules[_PACKAGE] = package
    return importlib.import_module(_MODULE)


def for_lance(error: HoldfastError, lance_class: str | None = None) -> HoldfastError:
    """Return the same error, of a class that Lance knows, too.

    Args:
        error: what happened.
        lance_class: a class of `lance_namespace.errors`; by the error's kind by default.
    """
    known = load_errors()
    if issubclass(type(error), known.LanceNamespaceError):
        return error
    ours: Any = type(error)  # Any: mypy takes the class for no key of a cache
    joined = _join(ours, lance_class or _LANCE_CLASSES.get(error.kind, _OTHERS))
    made: HoldfastError = joined.__new__(joined, error.message)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made


@contextmanager
def raising_for_lance(missing: str | None = None) -> Iterator[None]:
    """Raise each of our errors as one that Lance knows, too.

    Args:
        missing: the class of `lance_namespace.errors` for what is not there.

    Raises:
        HoldfastError: whatever was raised inside.
    """
    try:
        yield
    except NotFoundError as error:
        raise for_lance(error, missing) from error
    except HoldfastError as error:
        raise for_lance(error) from error


@cache
def _join(ours: Any, lances: str) -> type[HoldfastError]:  # noqa: ANN401 - a class, hashed as such
    body = {
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        # To another process it goes as the error of ours alone: there may be no Lance.
        "__reduce__": lambda error: (_rebuild, (ours, error.message, error.details)),
    }
    return type(ours.__name__, (ours, getattr(load_errors(), lances)), body)


def _rebuild(ours: type[HoldfastError], message: str, details: dict[str, Any]) -> HoldfastError:
    return ours(message, **details)
