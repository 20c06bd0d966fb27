"""The key index of an SSTable: every key with the row it is in, sorted, and where pages begin."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PAGE_ROWS = 8_192
_LOOKUP_METADATA = {"batch_size": str(PAGE_ROWS), "range_partitioned": "false"}


def key_index_data(keys: pa.Array) -> pa.Table:
    """Return keys and row numbers, sorted by key; equal keys keep the order of their rows."""
    order = pc.sort_indices(keys)
    schema = pa.schema(
        [pa.field("values", keys.type), pa.field("ids", pa.uint64(), nullable=False)]
    )
    return pa.Table.from_arrays([keys.take(order), order.cast(pa.uint64())], schema=schema)


def key_index_lookup(data: pa.Table) -> pa.Table:
    """Return the smallest and greatest key of each page."""
    values = data["values"].combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks)
    starts = np.arange(0, len(values), PAGE_ROWS)
    ends = np.minimum(starts + PAGE_ROWS, len(values)) - 1
    nulls = [values.slice(start, PAGE_ROWS).null_count for start in starts.tolist()]
    schema = pa.schema(
        [
            pa.field("min", values.type),
            pa.field("max", values.type),
            pa.field("null_count", pa.uint32(), nullable=False),
            pa.field("page_idx", pa.uint32(), nullable=False),
        ],
        metadata=_LOOKUP_METADATA,
    )
    columns = [
        values.take(pa.array(starts)),
        values.take(pa.array(ends)),
        pa.array(nulls, pa.uint32()),
        pa.array(np.arange(len(starts)), pa.uint32()),
    ]
    return pa.Table.from_arrays(columns, schema=schema)
