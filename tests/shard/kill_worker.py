"""A process that writes to a shard, and kills itself at a chosen storage call.

Counted are the calls of the object store and what Lance writes of an SSTable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crash.append_worker import make_table
from crash.worker import DyingPort, Run, _note
from holdfast.shard import ShardWriterConfig, _sstables

STEPS: tuple[tuple[str, int, str], ...] = (
    ("put", 1, "a"),
    ("put", 2, "b"),  # the MemTable is full: it is frozen, and flushed by another thread
    ("put", 1, "c"),
    ("flush", 0, ""),
    ("delete", 2, ""),
    ("put", 3, "d"),
)


def write(run: Run) -> None:
    """Do the steps; note each the moment it is acknowledged."""
    calls: list[str] = []
    table = make_table(run, calls)
    port = DyingPort(None, calls, run)
    module: Any = _sstables
    module.lance.write_dataset = port._counted("write_dataset", module.lance.write_dataset)
    module.LanceFileWriter = port._counted("write_file", module.LanceFileWriter)
    config = ShardWriterConfig(enable_memtable=run.mark != "log", max_memtable_rows=2)
    writer = table.claim_writer("unsharded", config=config)
    for number, (step, key, value) in enumerate(STEPS):
        if step == "put":
            writer.put([{"k": key, "v": value}])
        elif step == "delete":
            writer.delete_keys([key])
        elif run.mark != "log":
            writer.flush()
        _note(Path(run.acks), {"step": number})
    writer.close()
    if run.calls_to:
        Path(run.calls_to).write_text(json.dumps(calls))


def states() -> list[dict[int, str]]:
    """Return what is in the shard after 0, 1, 2 ... steps."""
    now: dict[int, str] = {}
    found = [dict(now)]
    for step, key, value in STEPS:
        if step == "put":
            now[key] = value
        elif step == "delete":
            now.pop(key, None)
        found.append(dict(now))
    return found
