"""A process that builds or finalizes an index, and kills itself at a chosen storage call.

Counted are the calls of the object store and of the commit store, and Lance's own building.
Started through a fork server that has imported Lance but never used it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import holdfast
import holdfast.index._lance
from crash.append_worker import make_table
from crash.worker import DyingPort, Run, _note

PARAMETERS: dict[str, Any] = {"with_position": True}
TASKS = 3


def build(run: Run) -> None:
    """Build the index in tasks; note the acknowledgement the moment it is given."""
    calls: list[str] = []
    table = make_table(run, calls)
    module: Any = holdfast.index._lance
    module.stage = DyingPort(None, calls, run)._counted("stage", module.stage)
    result = table.create_index("text", "fts", tasks=TASKS, **PARAMETERS)
    _note(Path(run.acks), {"version": result.version})
    if run.calls_to:
        Path(run.calls_to).write_text(json.dumps(calls))


def finalize(url: str, build_id: str, ready: Any, acks: str) -> None:
    """Finalize together with others."""
    table = holdfast.open_table(url)
    ready.wait()
    result = table.finalize_index(build_id)
    _note(Path(acks), {"applied": result.applied, "version": result.version})
