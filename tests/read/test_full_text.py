"""Full text finds a row by the same rules wherever it is: indexed, not yet, flushed or in a log."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lance.query import BooleanQuery, MatchQuery, MultiMatchQuery, Occur, PhraseQuery

import holdfast
from holdfast.read._query import parse_query
from read.lake import append_over_log

WORDS = [
    *("harbour", "harbor", "Harbours", "storm", "storms", "stormy", "gale", "the", "old", "town"),
    *("running", "runs", "run", "café", "cafe", "x1", "foo_bar", "camelCase", "a", "of", "zzz"),
]
SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string()), ("title", pa.string())])
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"with_position": True},
    "exact": {"stem": False, "remove_stop_words": False, "lower_case": False},
    "folded": {"stem": False, "ascii_folding": True, "with_position": True},
    "n-grams": {"base_tokenizer": "ngram", "min_ngram_length": 3, "with_position": True},
    "whitespace": {"base_tokenizer": "whitespace", "with_position": True},
    "raw": {"base_tokenizer": "raw"},
    "code": {"analyzer": "code", "with_position": True},
    "short words": {"max_token_length": 5, "with_position": True},
}
texts = st.lists(st.sampled_from(WORDS), min_size=0, max_size=6).map(" ".join)
word = st.sampled_from(WORDS)
queries = st.one_of(
    word,
    st.builds("{}~{}".format, word, st.sampled_from(["", "1", "2"])),
    st.builds("{} AND {}~1".format, word, word),
    st.builds("{}~1 -{}".format, word, word),
    st.builds("{} OR {}^2".format, word, word),
    st.builds('"{} {}"'.format, word, word),
    st.builds('"{} {}"~2'.format, word, word),
)


def rows(first: int, found: Sequence[str | None]) -> pa.Table:
    keys = range(first, first + len(found))
    return pa.table([pa.array(keys), pa.array(found), pa.array(found)], schema=SCHEMA)


def matching(found: pa.Table, query: Any, how: dict[str, Any]) -> set[int]:
    """Return the keys of rows that Lance finds when all of them are indexed."""
    whole = lance.write_dataset(found, "memory://")
    whole.create_scalar_index("text", "INVERTED", **how)
    asked = {"full_text_query": query, "limit": max(1, found.num_rows)}
    return set(whole.to_table(columns=["k"], **asked)["k"].to_pylist())


def keys(found: pa.Table) -> set[int]:
    scores = found["_score"].to_pylist()
    assert scores == sorted(scores, reverse=True)
    every = found["k"].to_pylist()
    assert len(set(every)) == len(every)
    return set(every)


class Spread:
    """One corpus on every level: indexed, appended since, in an SSTable, in a log."""

    def __init__(self, folder: Path, corpus: Sequence[str | None], old: str, new: str) -> None:
        quarter = len(corpus) // 4
        parts = [rows(n * quarter, corpus[n * quarter : (n + 1) * quarter]) for n in range(4)]
        self.table = holdfast.create_table(folder / "t.lance", SCHEMA)
        self.table.append(parts[0])
        self.table.create_index("text", name="words", **SETTINGS[old])
        self.writer = self.table.claim_writer("unsharded")
        self.writer.put(parts[1])
        self.writer.flush()
        self.writer.put(parts[2])
        self.table.create_index("text", name="words", replace=True, **SETTINGS[new])
        append_over_log(self.table, parts[3])
        self.parts = parts
        self.rows = pa.concat_tables(parts)


@pytest.mark.requirement("P2")
@given(
    corpus=st.lists(st.one_of(texts, st.none()), min_size=16, max_size=32),
    asked=st.lists(queries, min_size=6, max_size=6),
    old=st.sampled_from(sorted(SETTINGS)),
    new=st.sampled_from(sorted(SETTINGS)),
)
# Each example makes a table: to shrink one takes minutes and tells little.
@settings(max_examples=10, derandomize=True, phases=[Phase.generate])
def test_a_row_is_found_wherever_it_is(
    corpus: list[str | None], asked: list[str], old: str, new: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spread = Spread(Path(folder), corpus, old, new)
        how = SETTINGS[new]
        answered = [query for query in asked if '"' not in query or how.get("with_position")]
        wanted = {
            query: matching(spread.rows, parse_query(query, "text"), how) for query in answered
        }
        for query in answered:
            found = spread.table.search("text", query, None, columns=["k"])
            assert keys(found) == wanted[query], query
            alone = spread.table.search("text", query, None, columns=["k"], freshness="base")
            of_base = pa.concat_tables([spread.parts[0], spread.parts[3]])
            assert keys(alone) == wanted[query] & set(of_base["k"].to_pylist()), query
            # A live writer's rows are searched by what the index says now.
            parsed = parse_query(query, "text")
            held = spread.writer.search("text", parsed, columns=["k"], limit=None)
            assert keys(held) == matching(spread.parts[2], parsed, how), query
        spread.writer.close()  # flushes with the settings it knows
        for query in answered:
            found = spread.table.search("text", query, None, columns=["k"])
            assert keys(found) == wanted[query], query


def test_a_writer_finds_a_misspelled_word_in_its_newest_rows(tmp_path: Path) -> None:
    spread = Spread(tmp_path, ["harbor"] * 8, "default", "default")
    with spread.writer as writer:
        assert writer.search("text", "harbor", limit=None).num_rows == 2  # builds the index
        writer.put(rows(100, ["harbour", "gale"]))
        found = writer.search("text", MatchQuery("harbor", "text", fuzziness=1), limit=None)
        assert keys(found) == {4, 5, 100}


@pytest.mark.parametrize("limit", [1, 3, None])
def test_query_objects_filters_and_limits_over_rows_that_are_not_indexed(
    tmp_path: Path, limit: int | None
) -> None:
    corpus = ["harbor storm", "gale", "old town", "harbour"] * 8
    spread = Spread(tmp_path, corpus, "default", "folded")
    spread.table.create_index("title", name="titles", with_position=True)
    append_over_log(spread.table, rows(500, ["harbors at sea", "old towns"]))
    fuzzy = MatchQuery("harbour", "text", fuzziness=2)
    phrase = PhraseQuery("old town", "title")
    both = BooleanQuery([(Occur.SHOULD, fuzzy), (Occur.SHOULD, phrase)])
    several = MultiMatchQuery("gale harbour", ["text", "title"])
    harbours = {k for k, text in enumerate(corpus) if "harb" in text}
    towns = {k for k, text in enumerate(corpus) if "town" in text}
    wanted = {
        fuzzy: harbours | {500},
        both: harbours | towns | {500, 501},
        several: {k for k, text in enumerate(corpus) if text in {"gale", "harbour"}},
    }
    for query, every in wanted.items():
        for options in ({}, {"freshness": "base"}, {"filter": "k % 2 = 1"}):
            named: Any = options
            found = keys(spread.table.search("text", query, limit, columns=["k"], **named))
            base = {*range(8), *range(24, 32), 500, 501}
            here = every & base if "freshness" in options else every
            here = {k for k in here if k % 2} if "filter" in options else here
            assert found <= here
            assert len(found) == (len(here) if limit is None else min(limit, len(here)))


def test_a_column_without_an_index_is_refused(tmp_path: Path) -> None:
    spread = Spread(tmp_path, ["harbor"] * 8, "default", "default")
    for options in ({}, {"freshness": "base"}, {"version": 1}):
        named: Any = options
        with pytest.raises(holdfast.errors.InvalidInputError, match="no full-text index"):
            spread.table.search("title", "harbor", **named)


@pytest.mark.requirement("W12")
def test_a_live_writer_searches_by_the_indexes_of_today(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("text", pa.string()), ("v", pa.list_(pa.float32(), 2))])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    table.append([{"k": n, "text": "harbour", "v": [float(n), 1.0]} for n in range(300)])
    exact = SETTINGS["exact"]
    table.dataset().create_scalar_index("text", "INVERTED", name="words", **exact)
    options: dict[str, Any] = {"name": "near", "num_partitions": 1, "replace": True}
    table.dataset().create_index("v", "IVF_FLAT", metric="l2", **options)
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 1000, "text": "Running storms", "v": [2000.0, 2.0]}])
        assert writer.search("text", "running").num_rows == 0
        assert writer.nearest("v", [1000.0, 1.0])["_distance"].to_pylist() == [1_000_001.0]
        table.dataset().create_scalar_index("text", "INVERTED", name="words", replace=True)
        table.dataset().create_index("v", "IVF_FLAT", metric="cosine", **options)
        for query in ("running", "run", "STORM"):
            assert writer.search("text", query)["k"].to_pylist() == [1000]
            assert table.search("text", query)["k"].to_pylist() == [1000]
        assert writer.nearest("v", [1000.0, 1.0])["_distance"].to_pylist() == [0.0]
