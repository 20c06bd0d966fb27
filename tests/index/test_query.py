"""The small language of queries: what each form finds, and what is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from lance.query import MatchQuery

import holdfast
from holdfast.errors import InvalidInputError, NotFoundError

TEXTS = [
    "storm in the harbour",
    "the old harbour town",
    "storm over the sea",
    "a quiet sea",
    "harbor storms",
    "old lighthouse town",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> holdfast.Table:
    uri = tmp_path_factory.mktemp("query") / "t"
    data = pa.table({"id": range(len(TEXTS)), "text": TEXTS})
    holdfast.write_table(data, uri, mode="create")
    table = holdfast.open_table(uri)
    table.create_index("text", "fts", tasks=1, with_position=True)
    return table


FOUND: dict[str, set[int]] = {
    "storm": {0, 2, 4},
    "storm harbour": {0, 1, 2, 4},
    "storm OR harbour": {0, 1, 2, 4},
    "storm AND harbour": {0},
    "sea storm AND harbour": {0, 2, 3},
    '"old harbour"': {1},
    '"old town"': set(),
    '"old town"~1': {1, 5},
    "harbor": {4},
    "harbor~1": {0, 1, 4},
    "harbur~": {0, 1, 4},
    "storm -harbour": {2, 4},
    "storm NOT harbour": {2, 4},
    "storm AND NOT sea": {0, 4},
    "+storm sea": {0, 2, 4},
    "(storm OR quiet) AND sea": {2, 3},
    '(storm AND sea) OR "old harbour"': {1, 2},
    "storm^3 sea": {0, 2, 3, 4},
    "nothing-like-this": set(),
}


@pytest.mark.parametrize("query", FOUND)
def test_what_a_query_finds(table: holdfast.Table, query: str) -> None:
    found = table.search("text", query, limit=None)
    assert set(found["id"].to_pylist()) == FOUND[query]
    scores = found["_score"].to_pylist()
    assert scores == sorted(scores, reverse=True)


def test_a_boost_counts(table: holdfast.Table) -> None:
    plain, boosted = (
        dict(zip(found["id"].to_pylist(), found["_score"].to_pylist(), strict=True))
        for found in (table.search("text", "storm"), table.search("text", "storm^3"))
    )
    assert boosted[0] == pytest.approx(3 * plain[0])


def test_a_query_object_a_filter_columns_and_an_older_version(table: holdfast.Table) -> None:
    found = table.search("text", MatchQuery("storm", "text"), columns=["id"], filter="id > 1")
    assert found.schema.names == ["id", "_score"]
    assert set(found["id"].to_pylist()) == {2, 4}
    with pytest.raises(InvalidInputError, match="no full-text index"):
        table.search("text", "storm", version=2)  # before the index: no rules to search by
    with pytest.raises(NotFoundError):
        table.search("text", "storm", version=99)


WRONG: list[tuple[Any, str]] = [
    ("", "empty"),
    ("   ", "empty"),
    ("storm AND", "missing at the end"),
    ("AND storm", "wrong place"),
    ("OR storm", "wrong place"),
    ("storm OR OR sea", "wrong place"),
    ('"old town', "quote"),
    ("(storm", "bracket"),
    ("storm)", "bracket too many"),
    ("()", "wrong place"),
    ("-storm", "only what not"),
    ("NOT storm AND NOT sea", "only what not"),
    ("storm~7", "at most 2"),
    ("(" * 50 + "storm" + ")" * 50, "too many brackets"),
    (7, "a query is a text"),
]


@pytest.mark.parametrize(("query", "says"), WRONG, ids=repr)
def test_a_wrong_query_is_explained(table: holdfast.Table, query: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        table.search("text", query)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"column": "nothing", "query": "a"}, "no such column"),
        ({"column": "text", "query": "a", "columns": ["nothing"]}, "no such column"),
        ({"column": "text", "query": "a", "limit": 0}, "at least 1"),
    ],
)
def test_a_wrong_call_is_refused(table: holdfast.Table, call: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        table.search(**call)
