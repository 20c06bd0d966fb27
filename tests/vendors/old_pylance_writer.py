"""Append rows with whatever pylance is installed, one commit each; print what it acknowledged.

Runs in an environment of its own, with an old release: it imports nothing of this project.
"""

from __future__ import annotations

import json
import sys

import lance
import pyarrow as pa

uri, mode, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = json.loads(sys.stdin.readline())
if mode == "append":
    lance.dataset(uri, storage_options=options)  # warm before the start
    print("ready", flush=True)
    sys.stdin.readline()
if mode == "read":
    print(json.dumps(lance.dataset(uri, storage_options=options).to_table()["id"].to_pylist()))
    sys.exit()
acknowledged = []
for number in range(first, first + count):
    table = pa.table({"id": pa.array([number], pa.int64())})
    try:
        lance.write_dataset(table, uri, mode=mode, storage_options=options)
    except OSError:
        continue
    acknowledged.append(number)
print(json.dumps(acknowledged))
