"""Cheap processes: a fork server that has imported Lance and never uses it."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

import pytest

from crash.telling import tell_errors

FORKS = multiprocessing.get_context("forkserver")
# To start a process asks for the ends of all others. An end is told once: of two who ask at the
# same time, one is told 255.
_ASKING = threading.Lock()


@contextmanager
def forking(preloaded: Sequence[str]) -> Iterator[None]:
    """Run a fork server with these modules loaded."""
    server: Any = forkserver._forkserver
    server._stop()
    FORKS.set_forkserver_preload(["crash.telling", *preloaded])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        patch.setenv("PYTHONWARNINGS", "ignore")  # Lance warns of forks, at every one
        forkserver.ensure_running()
    yield
    server._stop()


def run_to_its_end(target: Callable[..., object], *args: object) -> int:
    """Run one process and return its exit code (negative: the signal).

    What it raised is printed here: its own standard error is the fork server's.
    """
    with tempfile.NamedTemporaryFile("r+") as errors:
        process = FORKS.Process(target=tell_errors, args=(errors.name, target, *args))
        with _ASKING:
            process.start()
        connection.wait([process.sentinel], 240)
        with _ASKING:
            process.join(0)
        print(errors.read(), end="")
    if process.exitcode is None:
        process.kill()
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode
