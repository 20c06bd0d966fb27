"""What tests of writers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.errors import (
    HoldfastError,
    UnavailableError,
)
from holdfast.shard import ShardWriterConfig
from holdfast.storage import LocalStore

Config = ShardWriterConfig


def rows(*keys: int, v: str = "x") -> list[dict[str, Any]]:
    return [{"k": key, "v": v} for key in keys]


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, wanted: Callable[[str], bool], times: int, error: HoldfastError
) -> Iterator[list[str]]:
    """Let puts of some objects fail so many times; yields the paths that failed."""
    failed: list[str] = []
    for method in ("put", "put_if_absent"):
        plain = getattr(LocalStore, method)

        def broken(self: LocalStore, path: str, body: bytes, plain: Any = plain) -> None:
            if wanted(path) and len(failed) < times:
                failed.append(path)
                raise error
            plain(self, path, body)

        monkeypatch.setattr(LocalStore, method, broken)
    yield failed


def unavailable() -> UnavailableError:
    return UnavailableError("the disk is full")
