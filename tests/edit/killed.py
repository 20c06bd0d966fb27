"""A process that changes rows and kills itself on the way: `python killed.py URI VERB POINT`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import holdfast
from holdfast.commits._committer import LancePlan
from holdfast.edit import _engine


def die(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def change(table: Any, verb: str) -> Any:
    if verb == "update":
        return table.update("k < 5", {"n": "n + 1"}, txn=("job", 1))
    if verb == "delete":
        return table.delete("k < 5", txn=("job", 1))
    rows = [{"k": k, "n": 7} for k in range(3, 12)]
    return table.merge_into(rows, txn=("job", 1))


def main(uri: str, verb: str, point: str) -> None:
    attempt = LancePlan.attempt
    if point == "computed":
        _engine.RowChangePlan.attempt = die  # type: ignore[method-assign]
    elif point == "files":
        LancePlan.attempt = die  # type: ignore[method-assign]
    else:

        def commit_and_die(self: LancePlan) -> Any:
            attempt(self)
            die()

        LancePlan.attempt = commit_and_die  # type: ignore[method-assign]
    change(holdfast.open_table(uri), verb)


if __name__ == "__main__":
    main(*sys.argv[1:])
