"""Functions that tests run as tasks; importable by plain name on executors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.errors import ConflictError, UnavailableError


def square(given: dict[str, Any]) -> dict[str, Any]:
    return {"n": given["n"], "square": given["n"] ** 2, "pid": os.getpid()}


def conflict(given: dict[str, Any]) -> dict[str, Any]:
    with Path(given["tries"]).open("a") as tries:
        tries.write("x")
    raise ConflictError("somebody was faster", version=7)


def fails_once(given: dict[str, Any]) -> dict[str, Any]:
    first = Path(given["marker"])
    if not first.exists():
        first.touch()
        raise UnavailableError("not now")
    return {"fine": True}


def always_fails(given: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("no way")


def dies_once(given: dict[str, Any]) -> dict[str, Any]:
    first = Path(given["marker"])
    if not first.exists():
        first.touch()
        os.kill(os.getpid(), 9)
    return {"alive": True}


def odd_answer(given: dict[str, Any]) -> Any:
    return {"set": {1}}


def same_but_dies_once(number: int, marker: str) -> int:
    """Return the number; the first worker that is asked is killed."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return number
    os.kill(os.getpid(), 9)
    return number
