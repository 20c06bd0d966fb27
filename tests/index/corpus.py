"""Documents for index tests, and the comparison with a stock index built in one process."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.query import (
    BooleanQuery,
    BoostQuery,
    FullTextOperator,
    FullTextQuery,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    PhraseQuery,
)

import holdfast

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("title", pa.string())])
WORDS = [
    "storm",
    "harbour",
    "harbor",
    "sea",
    "old",
    "town",
    "ship",
    "gale",
    "naïve",
    "東京",
    "日本",
]
MORE = [f"word{number}" for number in range(60)]

Hits = dict[int, bytes]


def document(chance: random.Random, number: int) -> str | None:
    """Return a text; some are missing, empty, odd or huge."""
    kind = number % 23
    if kind == 5:
        return None
    if kind == 7:
        return ""
    if kind == 11:
        return " \t\n…—!? "
    length = 3000 if kind == 13 and number < 60 else chance.randint(3, 25)
    return " ".join(chance.choice(WORDS if chance.random() < 0.4 else MORE) for _ in range(length))


def rows(start: int, count: int) -> pa.Table:
    chance = random.Random(start)
    numbers = range(start, start + count)
    return pa.table(
        {
            "id": list(numbers),
            "text": [document(chance, number) for number in numbers],
            "title": [document(chance, number + 1) for number in numbers],
        },
        schema=SCHEMA,
    )


def make_table(
    uri: str | Path,
    *,
    fragments: int = 5,
    size: int = 60,
    storage_options: Mapping[str, str] | None = None,
    commit_store: str | None = None,
) -> holdfast.Table:
    table = holdfast.create_table(
        uri, SCHEMA, storage_options=storage_options, commit_store=commit_store
    )
    for number in range(fragments):
        table.append(rows(number * size, size))
    return table


def queries(column: str = "text") -> dict[str, FullTextQuery]:
    """Return one query of every kind."""
    storm, sea = MatchQuery("storm", column), MatchQuery("sea", column)
    return {
        "match": MatchQuery("storm harbour", column),
        "rare": MatchQuery("word7", column),
        "unicode": MatchQuery("naive 東京", column),
        "and": MatchQuery("storm sea ship", column, operator=FullTextOperator.AND),
        "boosted match": MatchQuery("gale", column, boost=2.5),
        "phrase": PhraseQuery("old town", column),
        "slop": PhraseQuery("storm harbour", column, slop=2),
        "fuzzy": MatchQuery("harbur", column, fuzziness=1),
        "fuzzy prefix": MatchQuery("harbr", column, fuzziness=2, prefix_length=2),
        "boolean": BooleanQuery(
            [(Occur.MUST, storm), (Occur.SHOULD, sea), (Occur.MUST_NOT, MatchQuery("old", column))]
        ),
        "boost": BoostQuery(storm, sea, negative_boost=0.3),
        "or": storm | sea,
    }


def hits(table: lance.LanceDataset, query: FullTextQuery) -> Hits:
    """Return every hit with the very bits of its score."""
    found = table.to_table(columns=["id", "_score"], full_text_query=query)
    scores = found["_score"].combine_chunks().to_numpy()
    return {int(i): s.tobytes() for i, s in zip(found["id"].to_pylist(), scores, strict=True)}


def stock_copy(table: holdfast.Table, folder: Path, **parameters: Any) -> lance.LanceDataset:
    """Return the same rows in a plain Lance table, indexed by stock Lance in one process."""
    copy = lance.write_dataset(table.dataset().to_table(), folder / "stock.lance")
    for column in ("text", "title"):
        copy.create_scalar_index(column, "INVERTED", **parameters)
    return copy


def assert_equal_to_stock(
    ours: lance.LanceDataset,
    stock: lance.LanceDataset,
    columns: Sequence[str] = ("text",),
    *,
    scores: bool = True,
) -> None:
    for column in columns:
        for name, query in queries(column).items():
            if not scores and "fuzzy" in name:
                continue  # Lance does not look for other spellings in rows without an index
            expected, found = hits(stock, query), hits(ours, query)
            assert expected, f"{name}: the query finds nothing, so it shows nothing"
            if scores:
                assert found == expected, f"{column}, {name}"
            else:
                assert found.keys() == expected.keys(), f"{column}, {name}"


def multi(columns: list[str]) -> FullTextQuery:
    return MultiMatchQuery("storm harbour", columns)
