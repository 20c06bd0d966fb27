"""A writer that goes on all night: `python night_writer.py KIND URI OPTIONS`.

Writes rows n under the transaction n, over the log or as versions, and tells each outcome on a
line. After an outcome that is for an operator it waits for a line, and does the same rows again.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from itertools import count
from typing import Any

import holdfast
from holdfast.errors import HoldfastError

WAITS = {"unavailable", "busy", "commit_unknown", "poisoned", "conflict"}
ROWS = 5


def rows_of(kind: str, number: int) -> list[dict[str, Any]]:
    return [{"id": number * ROWS + one, "kind": kind} for one in range(ROWS)]


def write(kind: str, uri: str, options: dict[str, str], number: int) -> None:
    with closing(holdfast.open_table(uri, storage_options=options)) as table:
        if kind == "append":
            table.append(rows_of(kind, number), txn=(kind, number))
        else:
            with table.claim_writer("unsharded") as writer:
                writer.put(rows_of(kind, number), txn=(kind, number))


def main() -> None:
    kind, uri, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    for number in count():
        while True:
            try:
                write(kind, uri, options, number)
            except HoldfastError as error:
                if error.kind.value in WAITS:
                    continue  # as every writer does, under the same id
                print(error.kind.value, flush=True)
                if not sys.stdin.readline():
                    return
            else:
                print(number, flush=True)
                break


if __name__ == "__main__":
    main()
