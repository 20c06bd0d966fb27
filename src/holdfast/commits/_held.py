"""`HeldDataset`: a pylance dataset whose calls end in the error that its hook raised.

Lance takes every error of a commit for a conflict, looks for the winner, finds none, and
reports a commit "whose result is unknown". The hook knows better: nothing was committed, and
why. So each call on a held dataset, and on its `tags`, `optimize` and merge builders, raises
what the hook said; all other errors of pylance stay as they are.

A dataset that pylance's own functions make of it (`lance.write_dataset(rows, held)`) has the
hook, but not this class: there Lance's words stand.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import lance
from lance.dataset import Branches, DatasetOptimizer, MergeInsertBuilder, Tags

from holdfast.commits._operation import STAYS_HERE, DatasetHook
from holdfast.errors import HoldfastError, UnsupportedError

_UNKNOWN = re.compile(r"Commit result for version (\d+) is unknown")
_HELPERS = (Branches, DatasetOptimizer, MergeInsertBuilder, Tags)


class HeldDataset(lance.LanceDataset):
    """A pylance dataset that reports what its hook raised, and stays in its process."""

    _hook: DatasetHook

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - whatever pylance has there
        value = super().__getattribute__(name)
        return value if name.startswith("_") else _watch(value, self._hook)

    def __copy__(self) -> lance.LanceDataset:
        return hold(super().__copy__(), self._hook)  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(STAYS_HERE)

    def create_branch(self, *_given: object, **_named: object) -> NoReturn:
        """Refuse it before anything is written.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "Holdfast decides no versions of branches: keep a version with a tag, or make "
            "another table with shallow_clone",
            table=self.uri,
        )


class _Helper:
    """An object of pylance that commits for a held dataset."""

    def __init__(self, inner: Any, hook: DatasetHook) -> None:  # noqa: ANN401 - one of _HELPERS
        self._inner = inner
        self._hook = hook

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as above
        return _watch(getattr(self._inner, name), self._hook, self)

    def __repr__(self) -> str:
        return repr(self._inner)


def hold(dataset: lance.LanceDataset, hook: DatasetHook) -> lance.LanceDataset:
    """Return the dataset, from now on with the errors of its hook."""
    dataset.__class__ = HeldDataset
    dataset._hook = hook  # noqa: SLF001 - its new class has it
    return dataset


@contextmanager
def report_commits(dataset: lance.LanceDataset) -> Iterator[None]:
    """End a function of pylance that commits through a held dataset as its methods end.

    Raises:
        HoldfastError: the hook refused.
    """
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        meant = _meaning(error, dataset._hook)  # noqa: SLF001 - a held dataset has it
        if meant is None:
            raise
        raise meant from error


def _watch(value: Any, hook: DatasetHook, owner: _Helper | None = None) -> Any:  # noqa: ANN401
    if isinstance(value, _HELPERS):
        return _Helper(value, hook)
    if not callable(value) or isinstance(value, type):
        return value
    return _watched_call(value, hook, owner)


def _watched_call(
    call: Callable[..., Any], hook: DatasetHook, owner: _Helper | None
) -> Callable[..., Any]:
    @functools.wraps(call)
    def watched(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - pylance's own
        try:
            result = call(*args, **options)
        except HoldfastError:
            raise
        except Exception as error:
            meant = _meaning(error, hook)
            if meant is None:
                raise
            raise meant from error
        if isinstance(result, MergeInsertBuilder) and owner is not None:
            return owner  # a builder's methods return the builder
        if isinstance(result, _HELPERS):
            return _Helper(result, hook)
        if isinstance(result, lance.LanceDataset) and result._namespace_client is hook:  # noqa: SLF001
            return hold(result, hook)
        return result

    return watched


def _meaning(error: Exception, hook: DatasetHook) -> HoldfastError | None:
    """Return what the hook raised and Lance reported in other words, if that is what happened."""
    text = str(error)
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        return hook.why_refused(int(unknown[1]))
    trouble = hook.trouble
    return trouble if trouble is not None and trouble.message in text else None
