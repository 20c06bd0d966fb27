"""A process that puts rows under transaction ids, and kills itself at a chosen storage call."""

from __future__ import annotations

import json
from pathlib import Path

from crash.append_worker import make_table
from crash.worker import Run, _note
from holdfast.shard import ShardWriterConfig

PUTS = 4


def put_all(run: Run) -> None:
    """Put each row under its id; note each the moment it is acknowledged."""
    calls: list[str] = []
    table = make_table(run, calls)
    config = ShardWriterConfig(enable_memtable=run.mark != "log", max_memtable_rows=2)
    writer = table.claim_writer("unsharded", config=config)
    for number in range(PUTS):
        writer.put([{"k": number, "v": "x"}], txn=("app", number))
        _note(Path(run.acks), {"put": number})
    writer.close()
    if run.calls_to:
        Path(run.calls_to).write_text(json.dumps(calls))
