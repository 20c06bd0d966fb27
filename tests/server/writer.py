"""An unmodified client that appends rows through servers that may be killed.

Arguments: `pylance` or `lancedb`, two URLs, a table, the first id, how many rows, and storage
options as JSON. Prints one line per append: `acked ID`, or `unsure ID`, what an error of the
client leaves open.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa


def append_by_pylance(url: str, table: str, row: pa.Table, options: dict[str, str]) -> None:
    import lance
    from lance.namespace import RestNamespace

    tables = RestNamespace(uri=url)  # type: ignore[no-untyped-call]
    lance.write_dataset(
        row,
        namespace_client=tables,
        table_id=[table],
        mode="append",
        storage_options=options or None,
    )


def append_by_lancedb(url: str, table: str, row: pa.Table, options: dict[str, str]) -> None:
    import lancedb

    database: Any = lancedb.connect_namespace("rest", {"uri": url}, storage_options=options or None)
    database.open_table(table, storage_options=options or None).add(row)


def wait_for(url: str) -> None:
    """Wait until a server listens again: the next rows should not be lost to the same kill."""
    place = urlsplit(url)
    for _ in range(2000):
        try:
            socket.create_connection((str(place.hostname), int(place.port or 0)), 60).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


def main() -> None:
    kind, *urls, table, first, count, options = sys.argv[1:]
    append = append_by_lancedb if kind == "lancedb" else append_by_pylance
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(first), int(first) + int(count)):
        row = pa.table({"id": pa.array([number], pa.int64()), "text": ["x"]})
        try:
            append(urls[number % 2], table, row, json.loads(options))
        except Exception as error:  # noqa: BLE001 - whatever a client makes of a dead server
            print("unsure", number, type(error).__name__, flush=True)
            for url in urls:
                wait_for(url)
        else:
            print("acked", number, flush=True)


if __name__ == "__main__":
    main()
