"""What worker processes of the commit tests run; importable by its plain name."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {i}" for i in ids]})


def write(tables: Any, *ids: int, mode: str = "append", name: str = "t") -> lance.LanceDataset:
    return lance.write_dataset(rows(*ids), namespace_client=tables, table_id=[name], mode=mode)


def append_all(tables: Any, first: int, count: int) -> None:
    for number in range(first, first + count):
        write(tables, number)
