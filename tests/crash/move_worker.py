"""Processes around a move to another commit store: writers that go on, and a mover that dies."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast
from crash.worker import DyingPort, Run, _note
from holdfast.arbiter import _move, move_commit_store
from holdfast.errors import HoldfastError

WRITES = frozenset({"put", "put_if_absent", "copy", "delete", "collect", "retire"})


@dataclass(frozen=True, kw_only=True)
class Writing:
    """What a writer does until its stop file is there."""

    url: str
    mark: int
    """Its rows have keys from here on."""
    acks: str
    stop: str
    commit_store: str


def move(run: Run) -> None:
    """Move the table; die at a write to the object store or to either commit store."""
    calls: list[str] = []
    module: Any = _move
    for name in ("connect_store", "connect_pinned", "open_store"):
        real = getattr(module, name)
        setattr(module, name, lambda *a, real=real, **k: _watched(real(*a, **k), calls, run))
    assert run.commit_store is not None
    move_commit_store(run.url, to=run.commit_store)
    if run.calls_to:
        Path(run.calls_to).write_text(json.dumps(calls))


def _watched(store: Any, calls: list[str], run: Run) -> Any:
    """Count the writes of a store, in place: a local store must stay one."""
    port = DyingPort(None, calls, run)
    for name in WRITES:
        if hasattr(store, name):
            setattr(store, name, port._counted(name, getattr(store, name)))
    return store


def append_until_stopped(writing: Writing) -> None:
    """Append row after row, each once; open the table again whenever it says so."""
    os.environ["HOLDFAST_COMMIT_STORE_URL"] = writing.commit_store
    table, number = None, 0
    while not Path(writing.stop).exists():
        key = writing.mark + number
        try:
            table = table or holdfast.open_table(writing.url)
            table.append([{"id": key, "text": "appended"}], txn=("appender", number))
        except HoldfastError:
            table = None
            continue
        _note(Path(writing.acks), {"mark": key})
        number += 1


def put_until_stopped(writing: Writing) -> None:
    """Put row after row into the log, each once; claim the shard again after every error."""
    os.environ["HOLDFAST_COMMIT_STORE_URL"] = writing.commit_store
    writer, number = None, 0
    while not Path(writing.stop).exists():
        key = writing.mark + number
        try:
            writer = writer or holdfast.open_table(writing.url).claim_writer("unsharded")
            writer.put([{"id": key, "text": "put"}], txn=f"put {number}")
            if not number % 10:
                writer.flush()
        except HoldfastError:
            if writer is not None:
                writer.abort()
            writer = None
            continue
        _note(Path(writing.acks), {"mark": key})
        number += 1
    if writer is not None:
        writer.abort()
