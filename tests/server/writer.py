"""A stock pylance process that appends rows through servers that may be killed.

Arguments: two URLs, a table, the first id, how many rows. Prints one line per append: `acked ID`
or `unsure ID`, what an error of the client leaves open.
"""

from __future__ import annotations

import sys
import time

import lance
import pyarrow as pa
from lance.namespace import RestNamespace


def main() -> None:
    urls, table, first, count = sys.argv[1:3], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        row = pa.table({"id": pa.array([first + number], pa.int64()), "text": ["x"]})
        tables = RestNamespace(uri=urls[number % 2])  # type: ignore[no-untyped-call]
        try:
            lance.write_dataset(row, namespace_client=tables, table_id=[table], mode="append")
        except Exception as error:  # noqa: BLE001 - whatever pylance makes of a dead server
            print("unsure", first + number, type(error).__name__, flush=True)
            time.sleep(0.2)
        else:
            print("acked", first + number, flush=True)


if __name__ == "__main__":
    main()
