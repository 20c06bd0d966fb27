"""A process that appends one row to a table, and kills itself at a chosen storage call.

Counted are the calls of the object store and the commit store, and the writing of
fragments. Started through a fork server that has imported Lance but never used it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import holdfast
import holdfast.commits._writes
from crash.worker import DyingPort, Run, _note
from holdfast.arbiter import (
    Arbiter,
    ConditionalPut,
    RecordedDecisions,
    Verdict,
    connect_commit_store,
    read_pin,
)
from holdfast.core import TableCore
from holdfast.storage import LocalStore, open_store
from holdfast.table import Table

CALLS = ("get", "head", "put", "put_if_absent", "list", "copy", "delete", "sync")


def rows(mark: str) -> pa.Table:
    return pa.table({"mark": [mark]})


def marks_in(uri: str) -> list[str]:
    """Return what stock pylance reads."""
    return sorted(lance.dataset(uri).to_table()["mark"].to_pylist())


class DyingLocalStore(LocalStore):
    """A local store whose calls are counted; it stays one, since Holdfast fsyncs only those."""

    def __init__(self, root: Path, port: DyingPort) -> None:
        super().__init__(root)
        for name in CALLS:
            setattr(self, name, port._counted(name, getattr(self, name)))


def append(run: Run) -> None:
    """Append the mark under its transaction; note the acknowledgement the moment it is given."""
    calls: list[str] = []
    table = make_table(run, calls)
    module: Any = holdfast.commits._writes
    port = DyingPort(None, calls, run)
    module.write_fragments = port._counted("write_fragments", module.write_fragments)
    table.append(rows(run.mark), txn=run.mark)
    _note(Path(run.acks), {"mark": run.mark})
    if run.calls_to:
        Path(run.calls_to).write_text(json.dumps(calls))


def append_contended(run: Run) -> None:
    """Append on an object store to a version that a rival has just built upon: a loss comes first.

    The handle knows a version; the rival makes the next; from then on calls are counted.
    """
    calls: list[str] = []
    plain = open_store(run.url, run.options)
    pin = read_pin(plain)
    assert pin is not None
    idle = replace(run, die_at=None)
    store: Any = DyingPort(plain, calls, idle)
    counted: Any = DyingPort(connect_commit_store(str(run.commit_store)), calls, idle)
    arbiter = RecordedDecisions(store, counted, pin, inline_bytes=run.inline_bytes)
    table = Table(TableCore(store, arbiter, run.url, run.options))
    table.append(rows(f"warm {run.mark}"), txn=f"warm {run.mark}")
    rival = holdfast.open_table(run.url, run.options, commit_store=run.commit_store)
    rival.append(rows(f"rival of {run.mark}"), txn=f"rival of {run.mark}")
    calls.clear()
    store._run = counted._run = run
    table.append(rows(run.mark), txn=run.mark)
    _note(Path(run.acks), {"mark": run.mark})
    if run.calls_to:
        Path(run.calls_to).write_text(json.dumps(calls))


def make_table(run: Run, calls: list[str]) -> Table:
    root = Path(run.url)
    store = DyingLocalStore(root, DyingPort(None, calls, run))
    pin = read_pin(LocalStore(root))
    assert pin is not None
    arbiter: Arbiter
    if run.commit_store is None:
        arbiter = ConditionalPut(store, Verdict.ENFORCED, pin=pin)
    else:
        counted: Any = DyingPort(connect_commit_store(run.commit_store), calls, run)
        arbiter = RecordedDecisions(store, counted, pin, inline_bytes=run.inline_bytes)
    return Table(TableCore(store, arbiter, run.url))
