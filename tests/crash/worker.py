"""A process that appends to a list by `decide`, and kills itself at a chosen storage call.

Started through a fork server that has imported this module, so that hundreds of runs are
cheap. The program is the one that the explorer runs; here over real stores.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from holdfast._ids import RandomIds
from holdfast.arbiter import (
    Arbiter,
    ConditionalPut,
    RecordedDecisions,
    RetryPolicy,
    Verdict,
    Won,
    connect_commit_store,
    pin_to_commit_store,
)
from holdfast.storage import open_store
from holdfast.testing import CountedIds
from model.decide_scenarios import encode, marks_of, name_of


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one process does, as plain values that travel to it."""

    url: str
    mark: str
    acks: str
    options: dict[str, str] = field(default_factory=dict)
    commit_store: str | None = None
    inline_bytes: int = 1 << 16
    die_at: int | None = None
    die_after: bool = False
    calls_to: str | None = None


class DyingPort:
    """Passes calls on, counts them, and ends the process before or after the n-th."""

    def __init__(self, inner: Any, calls: list[str], run: Run) -> None:
        self._inner = inner
        self._calls = calls
        self._run = run

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name in {"identity", "close"}:
            return found
        return self._counted(name, found)

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._calls.append(name)
            due = len(self._calls) == self._run.die_at
            if due and not self._run.die_after:
                _die()
            try:
                return call(*args, **kwargs)
            finally:
                if due:
                    _die()

        return counted


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def work(run: Run) -> None:
    """Append the mark once; note the acknowledgement, durably, the moment it is given."""
    calls: list[str] = []
    ids = CountedIds(ord(run.mark))
    arbiter = make_arbiter(run, calls, ids)
    number = 1
    marks: tuple[str, ...] = ()
    while True:
        token = ids.token()
        decision = arbiter.decide(name_of(number), encode((*marks, run.mark), token), token)
        if isinstance(decision, Won):
            break
        marks, number = marks_of(decision.body), number + 1
    _note(Path(run.acks), {"mark": run.mark, "number": number})
    if run.calls_to:
        Path(run.calls_to).write_text(json.dumps(calls))


def make_arbiter(run: Run, calls: list[str], ids: CountedIds) -> Arbiter:
    plain = open_store(run.url, run.options)
    store: Any = DyingPort(plain, calls, run)
    retry = RetryPolicy(attempts=3)
    if run.commit_store is None:
        return ConditionalPut(store, Verdict.ENFORCED, ids=ids, retry=retry)
    connected = connect_commit_store(run.commit_store)
    pin = pin_to_commit_store(plain, connected, RandomIds())
    counted: Any = DyingPort(connected, calls, run)
    return RecordedDecisions(
        store, counted, pin, ids=ids, retry=retry, inline_bytes=run.inline_bytes
    )


def _note(file: Path, fact: dict[str, object]) -> None:
    with file.open("a") as out:
        out.write(json.dumps(fact) + "\n")
        out.flush()
        os.fsync(out.fileno())
