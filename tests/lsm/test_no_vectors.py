"""A generation without a single vector is flushed as any other, on every kind of vector index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import holdfast
from lsm.tables import pending_of

pytestmark = [pytest.mark.requirement("P5"), pytest.mark.requirement("W11")]

NAN = float("nan")
KINDS: dict[str, dict[str, Any]] = {
    "IVF_FLAT": {},
    "IVF_PQ": {"num_sub_vectors": 2},
    "IVF_SQ": {},
    "IVF_RQ": {},
    "IVF_HNSW_FLAT": {},
    "IVF_HNSW_PQ": {"num_sub_vectors": 2},
    "IVF_HNSW_SQ": {},
}
NONE = [None, [NAN] * 8, [float("inf")] * 8, [None] * 8, [0.0] * 7 + [NAN]]


@pytest.mark.parametrize(("kind", "metric"), [(kind, "l2") for kind in KINDS] + [("IVF_FLAT", m) for m in ("cosine", "dot", "hamming")])  # fmt: skip  # noqa: E501
def test_rows_without_vectors_are_flushed(tmp_path: Path, kind: str, metric: str) -> None:
    bits = metric == "hamming"
    value = pa.uint8() if bits else pa.float32()
    schema = pa.schema([("k", pa.int64()), ("v", pa.list_(value, 8)), ("t", pa.string())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    count = 300
    random = np.random.default_rng(1)
    numbers = random.integers(0, 255, count * 8) if bits else random.random(count * 8)
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array(numbers.astype(value.to_pandas_dtype())), 8
    )
    table.append(pa.table({"k": pa.array(range(count)), "v": vectors, "t": ["word"] * count}))
    dataset: Any = table.dataset()
    dataset.create_index("v", kind, name="near", metric=metric, num_partitions=1, **KINDS[kind])
    table.dataset().create_scalar_index("t", "INVERTED", name="words")
    table.dataset().create_scalar_index("k", "BTREE", name="keys")
    one = [1] * 8 if bits else [0.5] * 8
    with table.claim_writer("unsharded") as writer:
        writer.delete_keys([0])
        writer.flush()  # only a delete
        none = [None] if bits else NONE
        writer.put([{"k": 1000 + at, "v": some, "t": None} for at, some in enumerate(none)])
        writer.flush()
        writer.put([{"k": 2000, "v": one, "t": "fresh"}])
        writer.flush()  # what comes behind does not wait
        assert len(pending_of(table, writer.shard_id)) == 3
    if metric == "l2":
        assert table.nearest("v", one, k=1)["k"].to_pylist() == [2000]
    assert table.count() == count + len(none)
    table.compact_lsm()
    assert lance.dataset(table.uri).count_rows() == count + len(none)
