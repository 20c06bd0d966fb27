"""Nearest vectors and full text over all levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from read.lake import Lake

SIZE = 8
SCHEMA = pa.schema(
    [("k", pa.int64()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), SIZE))]
)


def row(k: int, text: str, chance: np.random.Generator) -> dict[str, Any]:
    return {"k": k, "text": text, "vector": chance.random(SIZE, np.float32).tolist()}


def spread(folder: Path, rows: int = 400) -> tuple[Lake, np.random.Generator]:
    """Put rows on every level; most rows of the base are shadowed."""
    chance = np.random.default_rng(5)
    lake = Lake(folder, SCHEMA)
    (shard,) = lake.shards
    lake.append([row(k, f"base harbour {k}", chance) for k in range(rows)])
    lake.put([row(k, f"first storm {k}", chance) for k in range(0, rows, 2)])
    lake.flush(shard)
    lake.put([row(k, f"second storm {k}", chance) for k in range(0, rows, 4)])
    lake.delete(range(1, rows, 8))
    lake.flush(shard)
    lake.put([row(k, f"log gale {k}", chance) for k in range(0, rows, 8)])
    lake.delete([0, 2])
    return lake, chance


def closest(lake: Lake, query: Any, k: int, **wanted: Any) -> list[int]:
    """Return the keys that comparing with every vector of the model gives."""
    rows = [part for part in lake.model.values() if part["k"] >= wanted.get("least", 0)]
    distances = [float(np.sum((np.float32(part["vector"]) - query) ** 2)) for part in rows]
    order = np.argsort(distances, kind="stable")[:k]
    return [rows[at]["k"] for at in order]


@pytest.mark.parametrize("indexed", [False, True])
def test_nearest_compares_the_newest_rows_of_all_levels(tmp_path: Path, indexed: bool) -> None:
    """Hazard B8: stock skips SSTables that lack the base's vector index."""
    lake, chance = spread(tmp_path)
    if indexed:
        lake.table.dataset().create_index(
            "vector", "IVF_FLAT", metric="l2", num_partitions=1, name="v"
        )
    for k in (1, 5, 40):
        query = chance.random(SIZE, np.float32)
        found = lake.table.nearest("vector", query, k, columns=["k"])
        assert found["k"].to_pylist() == closest(lake, query, k)
        distances = found["_distance"].to_pylist()
        assert distances == sorted(distances)
    query = chance.random(SIZE, np.float32)
    found = lake.table.nearest("vector", query, 7, filter="k >= 200")
    assert found["k"].to_pylist() == closest(lake, query, 7, least=200)
    base = lake.table.nearest("vector", query, 3, freshness="base")
    assert base.num_rows == 3 and base["text"][0].as_py().startswith("base")
    assert lake.table.nearest("vector", query, 10_000).num_rows == len(lake.model)
    with lake.table.snapshot() as snapshot:
        assert snapshot.nearest("vector", query, 2).num_rows == 2


def test_search_finds_the_newest_rows_of_all_levels(tmp_path: Path) -> None:
    lake, _ = spread(tmp_path, 80)
    lake.table.create_index("text", with_position=True)

    def keys(word: str, **options: Any) -> set[int]:
        found = lake.table.search("text", word, None, columns=["k"], **options)
        scores = found["_score"].to_pylist()
        assert scores == sorted(scores, reverse=True)
        return set(found["k"].to_pylist())

    for word in ("harbour", "storm", "gale", "first", "second"):
        wanted = {k for k, part in lake.model.items() if word in part["text"].split()}
        assert keys(word) == wanted
        assert keys(word, filter="k >= 40") == {k for k in wanted if k >= 40}
    assert keys("gale", freshness="flushed") == set()
    assert keys("harbour", freshness="base") == set(range(80))
    assert lake.table.search("text", "harbour", 3).num_rows == 3
    assert keys('"log gale"') == keys("gale")


def test_an_sstable_with_a_text_index_of_its_own_is_searched_by_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path, SCHEMA)
    (shard,) = lake.shards
    chance = np.random.default_rng(1)
    lake.append([row(k, "calm sea", chance) for k in range(5)])
    lake.table.create_index("text")
    folder = lake.table.dataset()
    schema = lake.table.schema
    with folder.mem_wal_writer(shard, max_wal_flush_interval_ms=1) as writer:
        for text in ("old storm", "new storm"):
            made = pa.Table.from_pylist([row(1, text, chance)], schema=schema)
            writer.put(made)
    found = lake.table.search("text", "storm", columns=["k", "text"])
    assert found.select(["k", "text"]).to_pylist() == [{"k": 1, "text": "new storm"}]
    assert lake.table.search("text", "old").num_rows == 0
